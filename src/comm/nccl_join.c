/* Who uses NCCL with whom, and waiting for its communicators. */
#include "comm/nccl_join.h"

#include "base/alloc.h"
#include "comm/environment.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What a rank says of itself. */
enum { HAS_NCCL = 1, SERVES_THREADS = 2 };

/* NCCL takes two ranks on one GPU for a mistake, unless they seem to be on different hosts. */
static void prepare_host(const sl_nccl *nccl, const sl_group *group, const sl_rank_offer *offers)
{
    int rank = sl_group_rank(group);
    char host_id[64];
    bool shares = false;
    for (int r = 0; r < sl_group_size(group); r++)
        shares |= r != rank && offers[r].machine == offers[rank].machine && offers[r].unit == offers[rank].unit;
    snprintf(host_id, sizeof host_id, "%016llx-%lld", (unsigned long long)offers[rank].machine, (long long)getpid());
    nccl->prepare(shares ? host_id : NULL);
}

sl_status sl_nccl_join(sl_group *group, sl_device *device, const sl_rank_offer *offers, uint8_t *can, char *reason,
                       const sl_nccl **out)
{
    sl_status status = SL_OK;
    const sl_nccl *nccl = NULL;
    uint8_t own = 0;
    if (sl_nccl_load(&nccl) != SL_OK)
        snprintf(reason, 256, "%s", sl_error_message());
    else if (nccl->device_kind != sl_device_get_kind(device))
        nccl = NULL;
    if (nccl)
        own = (uint8_t)(HAS_NCCL | (nccl->serves_threads ? SERVES_THREADS : 0));
    SL_TRY(sl_group_all_gather(group, &own, sizeof own, can));
    if (nccl)
        prepare_host(nccl, group, offers);
    *out = nccl;
done:
    return status;
}

const char *sl_nccl_join_obstacle(const sl_rank_offer *offers, const uint8_t *can, int a, int b)
{
    bool same_process = offers[a].machine == offers[b].machine && offers[a].process == offers[b].process;
    if (!(can[a] & can[b] & HAS_NCCL))
        return "NCCL is not installed on all machines";
    if (same_process && !(can[a] & SERVES_THREADS))
        return "ranks are threads of one process, which NCCL does not join";
    return NULL;
}

/* NCCL may notice the death of a rank before the run does, whose word says more. */
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

sl_status sl_nccl_settle(sl_device_words *words, const sl_nccl *nccl, sl_nccl_comm *comm, double limit)
{
    bool ready = false;
    double since = sl_now();
    sl_status status = nccl->ask(comm, &ready);
    if (status == SL_OK && ready)
        return SL_OK;
    sl_device_words_count_waiting(words, 1);
    while (status == SL_OK && !ready) {
        if (limit > 0 && sl_now() - since > limit)
            SL_TRY(sl_fail(SL_ERR_COMM, "NCCL: the other ranks did not come in %g s", limit));
        SL_TRY(sl_group_progress(sl_device_words_group(words)));
        sl_device_pause(since);
        status = nccl->ask(comm, &ready);
    }
    if (status != SL_OK)
        status = explain(words, status);
done:
    sl_device_words_count_waiting(words, -1);
    return status;
}

sl_status sl_nccl_check(sl_device_words *words, const sl_nccl *nccl, sl_nccl_comm *comm)
{
    bool ready = false;
    sl_status status = nccl->ask(comm, &ready);
    return status == SL_OK ? SL_OK : explain(words, status);
}

sl_status sl_nccl_await(sl_device_words *words, const sl_nccl *nccl, sl_nccl_comm *comm, sl_stream *stream)
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
        if (sl_now() - since > SL_NCCL_OPEN_SECONDS)
            SL_TRY(sl_fail(SL_ERR_COMM, "NCCL: nothing came from the other ranks in %d s", SL_NCCL_OPEN_SECONDS));
        SL_TRY(sl_group_progress(sl_device_words_group(words)));
        SL_TRY(sl_nccl_check(words, nccl, comm));
        sl_device_pause(since);
        SL_TRY(sl_event_query(reached, &done));
    }
done:
    sl_event_destroy(reached);
    sl_device_words_count_waiting(words, -1);
    return status;
}

/* Once the run has failed, nobody comes. */
void sl_nccl_leave(sl_device_words *words, const sl_nccl *nccl, sl_nccl_comm *comm)
{
    if (sl_group_check(sl_device_words_group(words)) == SL_OK)
        nccl->leave(comm);
    else
        nccl->stop(comm);
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

bool sl_nccl_is_expected(const sl_device *device)
{
    sl_environment environment;
    const sl_nccl *nccl = NULL;
    int32_t wish = SL_LINKS_UNSAID;
    if (sl_device_is_host(device))
        return false;
    if (sl_links_read_wish(&wish) != SL_OK || sl_environment_read(&environment) != SL_OK)
        return false; /* whoever opens the run says why */
    bool asked = wish == SL_LINKS_NCCL;
    bool apart = wish != SL_LINKS_NONE && environment.local_size < environment.size;
    return (asked || apart) && sl_nccl_load(&nccl) == SL_OK && nccl->device_kind == sl_device_get_kind(device);
}

/* ---- A whole group --------------------------------------------------------------------------- */

sl_status sl_nccl_agree(sl_group *group, sl_status own, char *reason)
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
            snprintf(reason, 256, "NCCL: rank %d of %d could not do its part", r, sl_group_size(group));
    }
done:
    sl_free(all);
    return status;
}

/* Whether every rank has NCCL and can be joined with all others. */
static sl_status join_all(sl_group *group, sl_device *device, const sl_rank_offer *offers, char *reason,
                          const sl_nccl **nccl)
{
    sl_status status = SL_OK;
    int ranks = sl_group_size(group);
    uint8_t *can = NULL;
    const char *obstacle = NULL;
    char own[256] = "";
    SL_TRY(SL_NEW_ARRAY(can, ranks));
    SL_TRY(sl_nccl_join(group, device, offers, can, own, nccl));
    for (int i = 0; i < ranks * ranks && !obstacle; i++) {
        if (i / ranks < i % ranks)
            obstacle = sl_nccl_join_obstacle(offers, can, i / ranks, i % ranks);
    }
    if (obstacle)
        snprintf(reason, 256, "%s", own[0] ? own : obstacle);
done:
    sl_free(can);
    return status;
}

static sl_status open_here(sl_device_words *words, const sl_group *group, const sl_nccl *nccl, const sl_nccl_id *id,
                           sl_nccl_comm **out)
{
    sl_status status = nccl->open(id, sl_group_size(group), sl_group_rank(group), sl_nccl_blocks(1), out);
    return status == SL_OK ? sl_nccl_settle(words, nccl, *out, SL_NCCL_OPEN_SECONDS) : status;
}

sl_status sl_nccl_open_group(sl_device_words *words, sl_group *group, const sl_rank_offer *offers, char *reason,
                             const sl_nccl **nccl, sl_nccl_comm **comm)
{
    sl_status status = SL_OK, own = SL_OK;
    sl_nccl_id id;
    const sl_nccl *found = NULL;
    sl_nccl_comm *made = NULL;
    memset(&id, 0, sizeof id);
    SL_TRY(join_all(group, sl_device_words_device(words), offers, reason, &found));
    *comm = NULL;
    *nccl = found;
    if (reason[0])
        goto done;
    if (sl_group_rank(group) == 0)
        own = found->make_id(&id);
    SL_TRY(sl_nccl_agree(group, own, reason));
    if (reason[0])
        goto done;
    SL_TRY(sl_group_broadcast(group, 0, &id, sizeof id));
    own = open_here(words, group, found, &id, &made);
    SL_TRY(sl_nccl_agree(group, own, reason));
    if (reason[0])
        goto done;
    *comm = made;
    made = NULL; /* now the caller's */
done:
    if (made)
        found->close(made);
    return status;
}
