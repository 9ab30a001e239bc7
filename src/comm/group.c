/* Groups: joining a run, splitting, leaving, and telling of failures. */
#include "comm/group.h"
#include "comm/options.h"
#include "comm/request.h"
#include "comm/shm/link.h"
#include "comm/environment.h"
#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_group(sl_group *group)
{
    if (!group)
        return;
    sl_free(group->board);
    sl_free(group->board_places);
    sl_free(group->mesh_to);
    sl_free(group->mesh_from);
    sl_free(group->members);
    sl_free(group);
}

/* A group of these members, this rank among them, without its mesh. */
static sl_status new_group(sl_link *link, const int *members, int size, sl_group **out)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    SL_TRY(SL_NEW(group));
    SL_TRY(SL_NEW_ARRAY(group->members, size));
    SL_TRY(SL_NEW_ARRAY(group->mesh_to, size));
    SL_TRY(SL_NEW_ARRAY(group->mesh_from, size));
    if (!sl_mesh_is_direct(size)) {
        SL_TRY(sl_alloc(sl_mesh_bytes(size), 1, (void **)&group->board));
        SL_TRY(SL_NEW_ARRAY(group->board_places, size));
    }
    group->link = link;
    group->size = size;
    for (int i = 0; i < size; i++) {
        group->members[i] = members[i];
        if (members[i] == link->rank)
            group->rank = i;
    }
    link->groups++;
    *out = group;
    group = NULL; /* now the caller's */
done:
    free_group(group);
    return status;
}

void sl_group_close(sl_group *group)
{
    if (!group)
        return;
    sl_link *link = group->link;
    while (group->channels)
        sl_channel_close(group->channels);
    sl_requests_free(group);
    for (int i = 0; i < group->size; i++) {
        sl_channel_close(group->mesh_to[i]);
        sl_channel_close(group->mesh_from[i]);
    }
    free_group(group);
    if (--link->groups == 0)
        link->transport->close(link);
}

/* Tells all ranks of this thread's last error, unless it tells of the run's failure already or of its consequences. */
static void fail_run(sl_link *link, sl_status code)
{
    char text[SL_FAILURE_TEXT];
    if (sl_link_has_failed(link))
        return;
    snprintf(text, sizeof text, "rank %d failed: %s", link->rank, sl_error_message());
    link->transport->fail(link, link->rank, code, text);
}

/* The group of all ranks of a run that has just been joined. Takes the link, also if it fails. */
static sl_status open_world(sl_link *link, sl_group **out)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    sl_wire_plan *plan = NULL;
    int *members = NULL;
    int count = 0;
    SL_TRY(SL_NEW_ARRAY(members, link->size));
    for (int r = 0; r < link->size; r++)
        members[r] = r;
    SL_TRY(new_group(link, members, link->size, &group));
    SL_TRY(sl_mesh_plan(group, NULL, &plan, &count));
    SL_TRY(sl_mesh_connect(group, plan, count, 0));
    *out = group;
    group = NULL; /* now the caller's */
done:
    if (status != SL_OK)
        fail_run(link, status); /* the others have joined and rely on this rank */
    if (status != SL_OK && !group)
        link->transport->close(link);
    sl_group_close(group);
    sl_free(plan);
    sl_free(members);
    return status;
}

/* An MPI that was not told of the other ranks takes each for a run of its own. */
static sl_status check_size(const sl_link *link)
{
    sl_environment environment;
    sl_status status = sl_environment_read(&environment);
    if (status != SL_OK || environment.started_by == SL_STARTED_ALONE || environment.size == link->size)
        return status;
    return sl_fail(SL_ERR_COMM, "this process was started as one of %d ranks, but MPI sees %d%s", environment.size,
                   link->size,
                   environment.started_by == SL_STARTED_BY_SLURM ? " (srun --mpi=pmix or --mpi=pmi2 sets it)" : "");
}

sl_status sl_group_open(const sl_group_options *given, sl_group **out)
{
    sl_status status = SL_OK;
    sl_group_options options;
    const sl_transport *transport = NULL;
    sl_link *link = NULL;
    SL_TRY(sl_options_resolve(given, &options));
    if (!options.transport)
        SL_TRY(sl_environment_transport(&options.transport));
    SL_TRY(sl_transport_find(options.transport, &transport));
    SL_TRY(transport->open(&options, &link));
    status = sl_options_given_timeout(given, &link->action_timeout);
    if (status == SL_OK && strcmp(transport->name, "mpi") == 0)
        status = check_size(link);
    if (status != SL_OK) {
        transport->close(link);
        goto done;
    }
    SL_TRY(open_world(link, out));
done:
    return status;
}

sl_status sl_group_open_threads(int size, const sl_group_options *given, sl_group **out)
{
    sl_status status = SL_OK;
    sl_group_options options;
    sl_link **links = NULL;
    sl_group **groups = NULL;
    int opened = 0;
    if (size < 1 || size > SL_SHM_MAX_RANKS)
        return sl_fail(SL_ERR_ARGUMENT, "%d ranks; 1 to %d are possible", size, SL_SHM_MAX_RANKS);
    SL_TRY(sl_options_resolve(given, &options));
    SL_TRY(SL_NEW_ARRAY(links, size));
    SL_TRY(SL_NEW_ARRAY(groups, size));
    SL_TRY(sl_shm_open_threads(size, &options, links));
    for (; opened < size; opened++) {
        sl_link *link = links[opened];
        links[opened] = NULL;
        SL_TRY(open_world(link, &groups[opened]));
    }
    memcpy(out, groups, (size_t)size * sizeof *out);
done:
    for (int i = 0; status != SL_OK && links && groups && i < size; i++) {
        sl_group_close(groups[i]);
        if (links[i])
            links[i]->transport->close(links[i]);
    }
    sl_free(groups);
    sl_free(links);
    return status;
}

int sl_group_rank(const sl_group *group)
{
    return group->rank;
}

int sl_group_size(const sl_group *group)
{
    return group->size;
}

int sl_group_world_rank(const sl_group *group, int rank)
{
    return rank >= 0 && rank < group->size ? group->members[rank] : -1;
}

int sl_group_local_rank(const sl_group *group)
{
    return group->link->local_rank;
}

int sl_group_local_size(const sl_group *group)
{
    return group->link->local_size;
}

const char *sl_group_transport(const sl_group *group)
{
    return group->link->transport->name;
}

uint64_t sl_group_run_id(const sl_group *group)
{
    return group->link->run_id;
}

/* ---- Splitting ------------------------------------------------------------------------------- */

typedef struct choice {
    int32_t color, key, member;
} choice;

static int by_key(const void *a, const void *b)
{
    const choice *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x->member > y->member) - (x->member < y->member);
}

/* The members of this rank's color as ranks of the run, in their new order, and as ranks of group. */
static sl_status find_members(sl_group *group, int color, int key, int *world, int *old, int *count)
{
    sl_status status = SL_OK;
    choice mine = { color, key, group->rank }, *all = NULL;
    SL_TRY(SL_NEW_ARRAY(all, group->size));
    SL_TRY(sl_group_all_gather(group, &mine, sizeof mine, all));
    int found = 0;
    for (int i = 0; i < group->size; i++) {
        if (all[i].color == color)
            all[found++] = all[i];
    }
    qsort(all, (size_t)found, sizeof *all, by_key);
    for (int i = 0; i < found; i++) {
        old[i] = all[i].member;
        world[i] = group->members[all[i].member];
    }
    *count = found;
done:
    sl_free(all);
    return status;
}

/* What a member tells the others to connect the mesh of its new group; its ports follow. */
typedef struct mesh_offer {
    uint64_t token; /* of the new group's first member */
    int32_t status; /* of making it */
    int32_t size;
} mesh_offer;

/* What this member offers; the caller frees *out. */
static sl_status make_offer(sl_group *group, sl_link *link, mesh_offer **out, size_t *bytes)
{
    sl_status status = SL_OK;
    mesh_offer *offer = NULL;
    sl_wire_plan *plan = NULL;
    int count = 0;
    size_t ports = group ? (size_t)sl_mesh_port_count(link, group->size, group->rank) : 0;
    *bytes = sizeof *offer + ports * sizeof(uint32_t);
    SL_TRY(sl_alloc(*bytes, 1, (void **)&offer));
    if (group)
        sl_mesh_choose_ports(link, group->size, group->rank, (uint32_t *)(offer + 1));
    if (group && group->rank == 0 && link->transport->new_token) {
        SL_TRY(sl_mesh_plan(group, NULL, &plan, &count));
        offer->status = (int32_t)link->transport->new_token(link, plan, count, &offer->token);
    }
    *out = offer;
    offer = NULL; /* now the caller's */
done:
    sl_free(plan);
    sl_free(offer);
    return status;
}

/* Collective over the old group: connects the mesh of the new one (NULL for a rank that joins none). */
static sl_status connect_split(sl_group *old_group, const int *old, sl_group *group)
{
    sl_status status = SL_OK;
    size_t bytes = 0;
    mesh_offer *offer = NULL;
    sl_blobs *blobs = NULL;
    const uint32_t **ports = NULL;
    sl_wire_plan *plan = NULL;
    int count = 0;
    SL_TRY(make_offer(group, old_group->link, &offer, &bytes));
    SL_TRY(sl_group_gather_blobs(old_group, offer, bytes, &blobs));
    if (!group)
        goto done;
    const mesh_offer *first = blobs->data[old[0]];
    if (first->status != SL_OK) {
        status = sl_fail((sl_status)first->status, "rank %d cannot get the memory of the new group", group->members[0]);
        goto done;
    }
    SL_TRY(SL_NEW_ARRAY(ports, group->size));
    for (int m = 0; m < group->size; m++)
        ports[m] = (const uint32_t *)((const mesh_offer *)blobs->data[old[m]] + 1);
    SL_TRY(sl_mesh_plan(group, old_group->link->transport->new_port ? ports : NULL, &plan, &count));
    SL_TRY(sl_mesh_connect(group, plan, count, first->token));
done:
    sl_free(plan);
    sl_free(ports);
    sl_blobs_destroy(blobs);
    sl_free(offer);
    return status;
}

sl_status sl_group_split(sl_group *group, int color, int key, sl_group **out)
{
    sl_status status = SL_OK;
    int *world = NULL, *old = NULL, count = 0;
    sl_group *made = NULL;
    SL_TRY(SL_NEW_ARRAY(world, group->size));
    SL_TRY(SL_NEW_ARRAY(old, group->size));
    SL_TRY(find_members(group, color < 0 ? -1 : color, key, world, old, &count));
    if (color >= 0)
        SL_TRY(new_group(group->link, world, count, &made));
    SL_TRY(connect_split(group, old, made));
    *out = made;
    made = NULL; /* now the caller's */
done:
    sl_group_close(made);
    sl_free(old);
    sl_free(world);
    return status;
}

sl_status sl_group_mesh(sl_group *group, int pp, int dp, sl_group **pp_out, sl_group **dp_out)
{
    sl_status status = SL_OK;
    sl_group *pp_group = NULL, *dp_group = NULL;
    if (pp < 1 || dp < 1 || (int64_t)pp * dp != group->size)
        return sl_fail(SL_ERR_ARGUMENT, "a mesh of pp %d x dp %d needs %lld ranks; the group has %d", pp, dp,
                       (long long)pp * dp, group->size);
    int pp_rank = group->rank / dp, dp_rank = group->rank % dp;
    SL_TRY(sl_group_split(group, dp_rank, pp_rank, &pp_group));
    SL_TRY(sl_group_split(group, pp_rank, dp_rank, &dp_group));
    *pp_out = pp_group;
    *dp_out = dp_group;
    pp_group = NULL; /* now the caller's */
done:
    sl_group_close(pp_group);
    return status;
}

/* ---- Failures -------------------------------------------------------------------------------- */

sl_status sl_group_fail(sl_group *group, sl_status code)
{
    fail_run(group->link, code);
    return code;
}

sl_status sl_group_check(sl_group *group)
{
    return sl_link_has_failed(group->link) ? sl_link_failure(group->link, NULL) : SL_OK;
}

sl_status sl_group_failure_code(const sl_group *group)
{
    const sl_failure *failure = group->link->failure;
    return atomic_load(&failure->state) == SL_FAILURE_SET ? (sl_status)failure->code : SL_OK;
}

const char *sl_group_failure_text(const sl_group *group, int *rank)
{
    const sl_failure *failure = group->link->failure;
    if (atomic_load(&failure->state) != SL_FAILURE_SET)
        return NULL;
    *rank = failure->rank;
    return failure->text;
}

bool sl_group_has_lost(const sl_group *group)
{
    sl_status code = sl_group_failure_code(group);
    return code == SL_ERR_PEER || code == SL_ERR_TIMEOUT || code == SL_ERR_COMM;
}

bool sl_group_claim_report(sl_group *group, sl_status status)
{
    sl_link *link = group->link;
    sl_environment environment;
    if (strcmp(link->transport->name, "threads") != 0 && sl_environment_read(&environment) == SL_OK &&
        environment.started_by == SL_STARTED_BY_SLUICE)
        return false;
    if (strcmp(link->transport->name, "mpi") == 0)
        return status != SL_ERR_PEER || (link->rank == 0 && sl_group_has_lost(group));
    return atomic_exchange(&link->failure->reported, 1) == 0;
}

double sl_group_action_timeout(const sl_group *group)
{
    return group->link->action_timeout;
}

bool sl_group_is_waiting(const sl_group *group)
{
    return atomic_load_explicit(&group->link->waiting, memory_order_relaxed) > 0;
}

void sl_group_fail_text(sl_group *group, sl_status code, const char *text)
{
    group->link->transport->fail(group->link, group->link->rank, code, text);
}

void sl_group_set_in_order(sl_group *group)
{
    group->in_order = true;
}

void sl_group_note_wait(sl_group *group, const sl_wait *wait, double since)
{
    if (group->link->transport->note_wait)
        group->link->transport->note_wait(group->link, wait, since);
}

void sl_group_note(sl_group *group, const char *text)
{
    group->link->transport->note(group->link, text);
}
