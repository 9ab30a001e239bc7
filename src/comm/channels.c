/* Opening channels: all members' views are compared, the agreed list is connected, everybody learns how it went. */
#include "comm/group.h"
#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One member's view of one channel, as it travels. */
struct view {
    int32_t id, src, dst, capacity;
    uint64_t max_bytes;
    uint32_t data_port, credit_port; /* chosen by the member if it is the end that chooses */
};

/* A member's blob: this, then its views or the text of its error. */
typedef struct view_header {
    int32_t status; /* sl_status of checking its own arguments */
    int32_t count;
} view_header;

/* A view with the member that has it, for sorting. */
typedef struct seen_view {
    struct view view;
    int member;
} seen_view;

static sl_status check_spec(const sl_group *group, const sl_channel_spec *spec)
{
    size_t bytes, total;
    if (spec->id < 0)
        return sl_fail(SL_ERR_ARGUMENT, "channel %d: ids are not negative", spec->id);
    if (spec->src < 0 || spec->src >= group->size || spec->dst < 0 || spec->dst >= group->size)
        return sl_fail(SL_ERR_ARGUMENT, "channel %d from rank %d to rank %d: the group has %d ranks", spec->id,
                       spec->src, spec->dst, group->size);
    if (spec->capacity < 1)
        return sl_fail(SL_ERR_ARGUMENT, "channel %d: capacity %d, at least 1 is needed", spec->id, spec->capacity);
    if (__builtin_add_overflow(spec->max_bytes, sizeof(sl_envelope) + 4096, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)spec->capacity, &total) || total > (size_t)1 << 42)
        return sl_fail(SL_ERR_ARGUMENT, "channel %d: %d messages of %zu bytes are too much", spec->id, spec->capacity,
                       spec->max_bytes);
    for (const sl_channel *open = group->channels; open; open = open->next) {
        if (open->spec.id == spec->id)
            return sl_fail(SL_ERR_ARGUMENT, "channel %d is open already", spec->id);
    }
    return SL_OK;
}

static sl_status check_specs(const sl_group *group, const sl_channel_spec *specs, int count)
{
    for (int i = 0; i < count; i++) {
        sl_status status = check_spec(group, &specs[i]);
        if (status != SL_OK)
            return status;
        for (int j = 0; j < i; j++) {
            if (specs[j].id == specs[i].id)
                return sl_fail(SL_ERR_ARGUMENT, "channel %d is listed twice", specs[i].id);
        }
    }
    return SL_OK;
}

/* This rank's blob. Its own wrong arguments travel too, so that nobody waits for it. */
static sl_status make_blob(sl_group *group, const sl_channel_spec *specs, int count, char **out, size_t *bytes)
{
    sl_link *link = group->link;
    sl_status wrong = count < 0 ? sl_fail(SL_ERR_ARGUMENT, "%d channels", count) : check_specs(group, specs, count);
    const char *text = sl_error_message();
    size_t size = sizeof(view_header) + (wrong ? strlen(text) + 1 : (size_t)count * sizeof(struct view));
    char *blob = NULL;
    sl_status status = sl_alloc(size, 1, (void **)&blob);
    if (status != SL_OK)
        return status;
    view_header *header = (view_header *)blob;
    header->status = (int32_t)wrong;
    if (wrong) {
        memcpy(header + 1, text, strlen(text) + 1);
    } else {
        header->count = count;
        struct view *views = (struct view *)(header + 1);
        for (int i = 0; i < count; i++) {
            const sl_channel_spec *spec = &specs[i];
            views[i] = (struct view){ spec->id, spec->src, spec->dst, spec->capacity, spec->max_bytes, 0, 0 };
            if (link->transport->new_port && spec->dst == group->rank)
                views[i].data_port = link->transport->new_port(link);
            if (link->transport->new_port && spec->src == group->rank)
                views[i].credit_port = link->transport->new_port(link);
        }
    }
    *out = blob;
    *bytes = size;
    return SL_OK;
}

static int by_id_and_member(const void *a, const void *b)
{
    const seen_view *x = a, *y = b;
    return x->view.id != y->view.id ? (x->view.id > y->view.id) - (x->view.id < y->view.id)
                                    : (x->member > y->member) - (x->member < y->member);
}

/* All views of all members, sorted by channel; the caller frees *out. */
static sl_status collect_views(const sl_group *group, const sl_blobs *blobs, seen_view **out, int *count)
{
    sl_status status = SL_OK;
    seen_view *seen = NULL;
    int total = 0;
    for (int m = 0; m < blobs->count; m++) {
        const view_header *header = blobs->data[m];
        if (header->status != SL_OK)
            return sl_fail((sl_status)header->status, "rank %d: %s", group->members[m], (const char *)(header + 1));
        total += header->count;
    }
    SL_TRY(SL_NEW_ARRAY(seen, total));
    int filled = 0;
    for (int m = 0; m < blobs->count; m++) {
        const view_header *header = blobs->data[m];
        const struct view *views = (const struct view *)(header + 1);
        for (int i = 0; i < header->count; i++)
            seen[filled++] = (seen_view){ .view = views[i], .member = m };
    }
    if (total > 0)
        qsort(seen, (size_t)total, sizeof *seen, by_id_and_member);
    *out = seen;
    *count = total;
done:
    return status;
}

static char *view_text(const sl_group *group, const seen_view *seen, char *text, size_t size)
{
    const struct view *view = &seen->view;
    snprintf(text, size, "rank %d says from rank %d to rank %d, %d messages of %llu bytes",
             group->members[seen->member], group->members[view->src], group->members[view->dst], view->capacity,
             (unsigned long long)view->max_bytes);
    return text;
}

static bool same_view(const struct view *a, const struct view *b)
{
    return a->src == b->src && a->dst == b->dst && a->capacity == b->capacity && a->max_bytes == b->max_bytes;
}

/* The views seen[0] ... seen[count-1] are of one channel: they must agree and come from both of its ends. */
static sl_status merge_views(const sl_group *group, const seen_view *seen, int count, sl_wire_plan *plan)
{
    char first[192], second[192];
    const struct view *view = &seen[0].view;
    bool has_src = false, has_dst = false;
    *plan = (sl_wire_plan){ .spec = { .id = view->id,
                                      .src = group->members[view->src],
                                      .dst = group->members[view->dst],
                                      .capacity = view->capacity,
                                      .max_bytes = (size_t)view->max_bytes } };
    for (int i = 0; i < count; i++) {
        if (!same_view(view, &seen[i].view))
            return sl_fail(SL_ERR_COMM, "channel %d: %s, but %s", view->id,
                           view_text(group, &seen[0], first, sizeof first),
                           view_text(group, &seen[i], second, sizeof second));
        if (seen[i].member == view->src) {
            has_src = true;
            plan->credit_port = seen[i].view.credit_port;
        }
        if (seen[i].member == view->dst) {
            has_dst = true;
            plan->data_port = seen[i].view.data_port;
        }
    }
    if (!has_src || !has_dst)
        return sl_fail(SL_ERR_COMM, "channel %d: %s, but rank %d does not list it", view->id,
                       view_text(group, &seen[0], first, sizeof first),
                       group->members[has_src ? view->dst : view->src]);
    return SL_OK;
}

/* The same list on every member, sorted by id; the caller frees *out. */
static sl_status agree(const sl_group *group, const sl_blobs *blobs, sl_wire_plan **out, int *count)
{
    sl_status status = SL_OK;
    seen_view *seen = NULL;
    sl_wire_plan *plan = NULL;
    int views = 0, channels = 0;
    SL_TRY(collect_views(group, blobs, &seen, &views));
    SL_TRY(SL_NEW_ARRAY(plan, views));
    for (int i = 0, next; i < views; i = next) {
        for (next = i + 1; next < views && seen[next].view.id == seen[i].view.id; next++)
            ;
        SL_TRY(merge_views(group, &seen[i], next - i, &plan[channels++]));
    }
    *out = plan;
    *count = channels;
    plan = NULL; /* now the caller's */
done:
    sl_free(plan);
    sl_free(seen);
    return status;
}

/* ---- Connecting ------------------------------------------------------------------------------ */

/* How one member fared; travels. */
struct outcome {
    int32_t status;
    int32_t padding;
    uint64_t token;
    char text[240];
};

static struct outcome make_outcome(sl_status status, uint64_t token)
{
    struct outcome outcome = { .status = (int32_t)status, .token = token };
    if (status != SL_OK)
        snprintf(outcome.text, sizeof outcome.text, "%s", sl_error_message());
    return outcome;
}

/* Everybody's outcome to everybody: the first member that failed decides. */
static sl_status share_outcome(sl_group *group, sl_status own)
{
    sl_status status = SL_OK;
    struct outcome mine = make_outcome(own, 0), *all = NULL;
    SL_TRY(SL_NEW_ARRAY(all, group->size));
    SL_TRY(sl_group_all_gather(group, &mine, sizeof mine, all));
    for (int m = 0; m < group->size && status == SL_OK; m++) {
        if (all[m].status != SL_OK)
            status = sl_fail((sl_status)all[m].status, "rank %d: %s", group->members[m], all[m].text);
    }
done:
    sl_free(all);
    return status;
}

static sl_status share_token(sl_group *group, const sl_wire_plan *plan, int count, uint64_t *token)
{
    struct outcome leader = { 0 };
    sl_link *link = group->link;
    if (group->rank == 0 && link->transport->new_token) {
        uint64_t made = 0;
        sl_status made_status = link->transport->new_token(link, plan, count, &made);
        leader = make_outcome(made_status, made);
    }
    sl_status status = sl_group_broadcast(group, 0, &leader, sizeof leader);
    if (status == SL_OK && leader.status != SL_OK)
        status = sl_fail((sl_status)leader.status, "rank %d: %s", group->members[0], leader.text);
    if (status == SL_OK)
        *token = leader.token;
    return status;
}

/* The wires of this rank become channels, in the order of specs. */
static sl_status make_channels(sl_group *group, const sl_channel_spec *specs, int count, const sl_wire_plan *plan,
                               int planned, sl_wire **wires, sl_channel **out)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++)
        out[i] = NULL;
    for (int p = 0; p < planned; p++) {
        if (!wires[p])
            continue;
        int i = 0;
        while (i < count && specs[i].id != plan[p].spec.id)
            i++;
        sl_wire *wire = wires[p];
        wires[p] = NULL;
        SL_TRY(sl_channel_new(group, &specs[i], wire, &out[i]));
        out[i]->next = group->channels;
        group->channels = out[i];
    }
done:
    return status;
}

sl_status sl_group_open_channels(sl_group *group, const sl_channel_spec *specs, int count, sl_channel **out)
{
    sl_status status = SL_OK;
    char *blob = NULL;
    size_t bytes = 0;
    sl_blobs *blobs = NULL;
    sl_wire_plan *plan = NULL;
    sl_wire **wires = NULL;
    sl_channel **made = NULL;
    int planned = 0;
    uint64_t token = 0;

    SL_TRY(make_blob(group, specs, count, &blob, &bytes));
    SL_TRY(sl_group_gather_blobs(group, blob, bytes, &blobs));
    SL_TRY(agree(group, blobs, &plan, &planned));
    SL_TRY(share_token(group, plan, planned, &token));
    status = SL_NEW_ARRAY(wires, planned);
    if (status == SL_OK)
        status = SL_NEW_ARRAY(made, count);
    if (status == SL_OK)
        status = group->link->transport->open_wires(group->link, plan, planned, token, group->size, wires);
    if (status == SL_OK)
        status = make_channels(group, specs, count, plan, planned, wires, made);
    status = share_outcome(group, status);
    if (status == SL_OK)
        memcpy(out, made, (size_t)count * sizeof *out);
    for (int i = 0; made && status != SL_OK && i < count; i++)
        sl_channel_close(made[i]);
done:
    for (int p = 0; wires && p < planned; p++) {
        if (wires[p])
            group->link->transport->close_wire(wires[p]);
    }
    sl_free(made);
    sl_free(wires);
    sl_free(plan);
    sl_blobs_destroy(blobs);
    sl_free(blob);
    return status;
}

/* ---- One channel ----------------------------------------------------------------------------- */

sl_status sl_channel_new(sl_group *group, const sl_channel_spec *spec, sl_wire *wire, sl_channel **out)
{
    sl_channel *channel = NULL;
    sl_status status = SL_NEW(channel);
    if (status != SL_OK) {
        group->link->transport->close_wire(wire);
        return status;
    }
    *channel = (sl_channel){
        .spec = *spec,
        .link = group->link,
        .transport = group->link->transport,
        .wire = wire,
        .group = group,
        .src = group->members[spec->src],
        .dst = group->members[spec->dst],
        .is_src = spec->src == group->rank,
        .is_dst = spec->dst == group->rank,
    };
    status = SL_NEW_ARRAY(channel->handoffs, 2 * (size_t)spec->capacity);
    if (status != SL_OK) {
        group->link->transport->close_wire(wire);
        sl_free(channel);
        return status;
    }
    *out = channel;
    return SL_OK;
}

void sl_channel_close(sl_channel *channel)
{
    if (!channel)
        return;
    sl_channel **at = &channel->group->channels;
    while (*at && *at != channel)
        at = &(*at)->next;
    if (*at)
        *at = channel->next;
    if (!sl_channel_drain(channel))
        return; /* a stream may touch it for as long as the process lives */
    channel->transport->close_wire(channel->wire);
    sl_free(channel->handoffs);
    sl_free(channel);
}

const sl_channel_spec *sl_channel_get_spec(const sl_channel *channel)
{
    return &channel->spec;
}
