/* Who uses which carrier with whom, and waiting for its communicators. */
#include "comm/carrier.h"

#include "base/alloc.h"
#include "comm/environment.h"
#include "comm/nccl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- Who uses which with whom ---------------------------------------------------------------- */

/* What a rank says of itself. */
enum { HAS_CARRIER = 1, SERVES_THREADS = 2 };

static const sl_links_wish wishes[SL_CARRIERS] = { SL_LINKS_NCCL, SL_LINKS_MPI };

/* Ranks that share a GPU use a carrier only if all ask for it: it is for tests then. */
const char *sl_carrier_obstacle(sl_carrier_name name, const sl_rank_offer *offers, int a, int b)
{
    const sl_rank_offer *x = &offers[a], *y = &offers[b];
    if (a == b)
        return "a rank sends to itself";
    if (x->wish == SL_LINKS_NONE || y->wish == SL_LINKS_NONE)
        return "SLUICE_DEVICE_LINKS is 0";
    if (x->kind != y->kind || x->kind == SL_DEVICE_CPU)
        return "the devices are of different kinds";
    for (int other = 0; other < SL_CARRIERS; other++) {
        if (other != (int)name && (x->wish == (int32_t)wishes[other] || y->wish == (int32_t)wishes[other]))
            return "";
    }
    bool asked = x->wish == (int32_t)wishes[name] && y->wish == (int32_t)wishes[name];
    if (asked || x->machine == 0 || x->machine != y->machine)
        return NULL;
    return x->unit == y->unit ? "the ranks share a GPU" : NULL;
}

/* NCCL takes two ranks on one GPU for a mistake, unless they seem to be on different hosts. */
static void prepare_host(const sl_carrier *carrier, const sl_group *group, const sl_rank_offer *offers)
{
    int rank = sl_group_rank(group);
    char host_id[64];
    bool shares = false;
    for (int r = 0; r < sl_group_size(group); r++)
        shares |= r != rank && offers[r].machine == offers[rank].machine && offers[r].unit == offers[rank].unit;
    snprintf(host_id, sizeof host_id, "%016llx-%lld", (unsigned long long)offers[rank].machine, (long long)getpid());
    carrier->prepare(shares ? host_id : NULL);
}

static sl_status load_carrier(sl_carrier_name name, sl_group *group, sl_device *device, const sl_carrier **out)
{
    sl_status status = SL_OK;
    const sl_nccl *nccl = NULL;
    if (name == SL_CARRIER_MPI)
        return sl_carrier_load_mpi(group, device, out);
    SL_TRY(sl_nccl_load(&nccl));
    if (nccl->device_kind != sl_device_get_kind(device))
        return sl_fail(SL_ERR_UNSUPPORTED, "NCCL does not know this kind of device");
    *out = &nccl->carrier;
done:
    return status;
}

sl_status sl_carrier_join(sl_carrier_name name, sl_device_words *words, sl_group *group, const sl_rank_offer *offers,
                          uint8_t *can, char *reason, const sl_carrier **out)
{
    sl_status status = SL_OK;
    const sl_carrier *carrier = NULL;
    uint8_t own = 0;
    if (load_carrier(name, group, sl_device_words_device(words), &carrier) != SL_OK)
        snprintf(reason, 256, "%s", sl_error_message());
    else
        own = (uint8_t)(HAS_CARRIER | (carrier->serves_threads ? SERVES_THREADS : 0));
    SL_TRY(sl_group_all_gather(group, &own, sizeof own, can));
    if (carrier && carrier->prepare)
        prepare_host(carrier, group, offers);
    *out = carrier;
done:
    return status;
}

const char *sl_carrier_join_obstacle(sl_carrier_name name, const sl_rank_offer *offers, const uint8_t *can, int a,
                                     int b)
{
    static const char *const missing[SL_CARRIERS] = { "NCCL is not installed on all machines",
                                                      "MPI does not take device memory on all machines" };
    bool same_process = offers[a].machine == offers[b].machine && offers[a].process == offers[b].process;
    if (!(can[a] & can[b] & HAS_CARRIER))
        return missing[name];
    if (same_process && offers[a].unit == offers[b].unit && !(can[a] & SERVES_THREADS))
        return "threads of one process share a GPU, which NCCL refuses as a duplicate";
    return NULL;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* A carrier may notice the death of a rank before the run does, whose word says more. */
static sl_status explain(sl_device_words *words, sl_status status)
{
    char text[512];
    double since = sl_now();
    snprintf(text, sizeof text, "%s", sl_error_message());
    while (sl_now() - since < 1) {
        sl_status run = sl_group_progress(sl_device_words_group(words));
        if (run != SL_OK)
            return run;
        sl_device_pause(since);
    }
    return sl_fail(status, "%s", text);
}

sl_status sl_carrier_settle(sl_device_words *words, sl_carrier_comm *comm, double limit)
{
    bool ready = false;
    double since = sl_now();
    sl_status status = comm->carrier->ask(comm, &ready);
    if (status == SL_OK && ready)
        return SL_OK;
    sl_device_words_count_waiting(words, 1);
    while (status == SL_OK && !ready) {
        if (limit > 0 && sl_now() - since > limit)
            SL_TRY(sl_fail(SL_ERR_COMM, "%s: the other ranks did not come in %g s", comm->carrier->way, limit));
        SL_TRY(sl_group_progress(sl_device_words_group(words)));
        sl_device_pause(since);
        status = comm->carrier->ask(comm, &ready);
    }
    if (status != SL_OK)
        status = explain(words, status);
done:
    sl_device_words_count_waiting(words, -1);
    return status;
}

sl_status sl_carrier_check(sl_device_words *words, sl_carrier_comm *comm)
{
    bool ready = false;
    sl_status status = comm->carrier->ask(comm, &ready);
    return status == SL_OK ? SL_OK : explain(words, status);
}

sl_status sl_carrier_await(sl_device_words *words, sl_carrier_comm *comm, sl_stream *stream)
{
    sl_status status = SL_OK;
    sl_event *reached = NULL;
    bool done = false;
    double since = sl_now();
    sl_device_words_count_waiting(words, 1);
    SL_TRY(sl_event_create(sl_device_words_device(words), &reached));
    SL_TRY(sl_event_record(reached, stream));
    SL_TRY(sl_event_query(reached, &done));
    while (!done) {
        if (sl_now() - since > SL_CARRIER_OPEN_SECONDS)
            SL_TRY(sl_fail(SL_ERR_COMM, "%s: nothing came from the other ranks in %d s", comm->carrier->way,
                           SL_CARRIER_OPEN_SECONDS));
        SL_TRY(sl_group_progress(sl_device_words_group(words)));
        SL_TRY(sl_carrier_check(words, comm));
        sl_device_pause(since);
        SL_TRY(sl_event_query(reached, &done));
    }
done:
    sl_event_destroy(reached);
    sl_device_words_count_waiting(words, -1);
    return status;
}

/* Once the run has failed, nobody comes. */
void sl_carrier_leave(sl_device_words *words, sl_carrier_comm *comm)
{
    if (sl_group_check(sl_device_words_group(words)) == SL_OK)
        comm->carrier->leave(comm);
    else
        comm->carrier->stop(comm);
}

int sl_nccl_blocks(int links)
{
    return links <= 8 ? 4 : links <= 16 ? 2 : 1;
}

/* Measured with NCCL 2.28 on an H200: its kernels and what all communicators share, then each of them. */
size_t sl_nccl_memory(const sl_nccl_use *use)
{
    const size_t shared = 460300000, each = 9500000, block = 2080000;
    size_t links = (size_t)use->links * (each + (size_t)sl_nccl_blocks(use->most_links) * block);
    size_t groups = (size_t)use->groups * (each + (size_t)sl_nccl_blocks(1) * block);
    return links + groups > 0 ? shared + links + groups : 0;
}

bool sl_carrier_is_expected(const sl_device *device, sl_carrier_name *name)
{
    sl_environment environment;
    const sl_nccl *nccl = NULL;
    int32_t wish = SL_LINKS_UNSAID;
    if (sl_device_is_host(device))
        return false;
    if (sl_links_read_wish(&wish) != SL_OK || sl_environment_read(&environment) != SL_OK)
        return false; /* whoever opens the run says why */
    *name = wish == SL_LINKS_MPI ? SL_CARRIER_MPI : SL_CARRIER_NCCL;
    if (wish == SL_LINKS_MPI)
        return true;
    bool apart = wish != SL_LINKS_NONE && environment.local_size < environment.size;
    return (wish == SL_LINKS_NCCL || apart) && sl_nccl_load(&nccl) == SL_OK &&
           nccl->device_kind == sl_device_get_kind(device);
}

/* ---- A whole group --------------------------------------------------------------------------- */

sl_status sl_carrier_agree(sl_group *group, sl_status own, char *reason)
{
    sl_status status = SL_OK;
    uint8_t *all = NULL, bad = own != SL_OK;
    if (bad)
        snprintf(reason, 256, "%s", sl_error_message());
    SL_TRY(sl_group_progress(group)); /* why it has not worked here may be the end of the run */
    SL_TRY(SL_NEW_ARRAY(all, sl_group_size(group)));
    SL_TRY(sl_group_all_gather(group, &bad, sizeof bad, all));
    for (int r = 0; r < sl_group_size(group); r++) {
        if (all[r] && !reason[0])
            snprintf(reason, 256, "rank %d of %d could not do its part", r, sl_group_size(group));
    }
done:
    sl_free(all);
    return status;
}

/* Whether every rank has the carrier and can be joined with all others. */
static sl_status join_all(sl_carrier_name name, sl_device_words *words, sl_group *group, const sl_rank_offer *offers,
                          char *reason, const sl_carrier **out)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(group);
    uint8_t *can = NULL;
    const char *obstacle = NULL;
    char own[256] = "";
    SL_TRY(SL_NEW_ARRAY(can, ranks));
    SL_TRY(sl_carrier_join(name, words, group, offers, can, own, out));
    for (int i = 0; i < ranks * ranks && !obstacle; i++) {
        if (i / ranks < i % ranks)
            obstacle = sl_carrier_join_obstacle(name, offers, can, i / ranks, i % ranks);
    }
    if (obstacle)
        snprintf(reason, 256, "%s", own[0] ? own : obstacle);
done:
    sl_free(can);
    return status;
}

static sl_status open_here(sl_device_words *words, const sl_group *group, const sl_carrier *carrier,
                           const sl_carrier_id *id, sl_carrier_comm **out)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(group), *members = NULL;
    SL_TRY(SL_NEW_ARRAY(members, ranks));
    for (int r = 0; r < ranks; r++)
        members[r] = sl_group_world_rank(group, r);
    const sl_carrier_place place = {
        .words = words, .members = members, .ranks = ranks, .rank = sl_group_rank(group), .blocks = sl_nccl_blocks(1)
    };
    SL_TRY(carrier->open(id, &place, out));
    SL_TRY(sl_carrier_settle(words, *out, SL_CARRIER_OPEN_SECONDS));
done:
    sl_free(members);
    return status;
}

sl_status sl_carrier_open_group(sl_carrier_name name, sl_device_words *words, sl_group *group,
                                const sl_rank_offer *offers, char *reason, sl_carrier_comm **comm)
{
    sl_status status = SL_OK, own = SL_OK;
    sl_carrier_id id;
    const sl_carrier *carrier = NULL;
    sl_carrier_comm *made = NULL;
    memset(&id, 0, sizeof id);
    SL_TRY(join_all(name, words, group, offers, reason, &carrier));
    *comm = NULL;
    if (reason[0])
        goto done;
    if (sl_group_rank(group) == 0)
        own = carrier->make_id(words, &id);
    SL_TRY(sl_carrier_agree(group, own, reason));
    if (reason[0])
        goto done;
    SL_TRY(sl_group_broadcast(group, 0, &id, sizeof id));
    own = open_here(words, group, carrier, &id, &made);
    SL_TRY(sl_carrier_agree(group, own, reason));
    if (reason[0])
        goto done;
    *comm = made;
    made = NULL; /* now the caller's */
done:
    if (made)
        carrier->close(made);
    return status;
}
