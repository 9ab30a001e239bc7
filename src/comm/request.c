/* Requests: taken from the group's pool, queued, moved along, waited for. */
#include "comm/request.h"
#include "base/alloc.h"

#include <sched.h>
#include <stdio.h>

/* ---- The pool -------------------------------------------------------------------------------- */

/* A request that nobody has and no stream is using any more. */
static sl_request *find_spare(sl_group *group)
{
    sl_request *request = group->requests;
    while (request && (request->taken || atomic_load_explicit(&request->in_stream, memory_order_acquire)))
        request = request->next_request;
    return request;
}

sl_status sl_request_take(sl_group *group, sl_collective which, sl_dtype dtype, int64_t count, sl_stream *stream,
                          sl_request **out)
{
    sl_status status = SL_OK;
    sl_request *request = find_spare(group);
    if (stream && sl_device_is_host(sl_stream_device(stream)))
        stream = NULL; /* its work is done when the call returns: this is host memory */
    if (!request) {
        SL_TRY(sl_alloc_aligned(sizeof *request, _Alignof(sl_request), (void **)&request));
        *request = (sl_request){ .group = group, .next_request = group->requests };
        group->requests = request;
        for (int i = 0; i < SL_MESH_SLOTS; i++)
            request->reductions[i].request = request;
    }
    request->taken = true;
    request->next = request->after = NULL;
    atomic_store_explicit(&request->done, false, memory_order_relaxed);
    atomic_store_explicit(&request->at_host, false, memory_order_relaxed);
    request->status = SL_OK;
    request->dtype = dtype;
    request->each = sl_dtype_size(dtype);
    request->count = count;
    request->piece = sl_mesh_bytes(group->size);
    request->stream = stream;
    request->staged = request->asked_host = request->on_board = false;
    request->has_move = false;
    request->blobs = NULL;
    request->scatters = false;
    request->part = request->i = request->arrived = request->reduction = 0;
    request->envelopes[0] = request->envelopes[1] = NULL;
    request->round = 0;
    request->message = (sl_message){ .microbatch = (int)which, .dtype = dtype, .shape = { 2, { count, 0 } } };
    if (stream)
        status = sl_stream_get_staging(stream, (void **)&request->staging);
    if (status == SL_OK)
        *out = request;
    else
        request->taken = false;
done:
    return status;
}

/* ---- The queue -------------------------------------------------------------------------------
 * Two locks. Who has `progressing` makes moves and ends requests, one thread at a time; others only try to get it. Who
 * has `queueing` looks at or changes the lists, for some instructions: whoever posts never waits for a move. */

static void lock(atomic_flag *flag)
{
    while (atomic_flag_test_and_set_explicit(flag, memory_order_acquire))
        sched_yield();
}

static void unlock(atomic_flag *flag)
{
    atomic_flag_clear_explicit(flag, memory_order_release);
}

static sl_request *first_of(sl_group *group)
{
    lock(&group->link->queueing);
    sl_request *first = group->first;
    unlock(&group->link->queueing);
    return first;
}

static void push(sl_group *group, sl_request *request)
{
    sl_link *link = group->link;
    lock(&link->queueing);
    request->message.step = ++group->collectives;
    if (group->last) {
        group->last->next = request;
    } else {
        group->first = request;
        group->next_busy = atomic_load(&link->busy);
        atomic_store(&link->busy, group);
    }
    group->last = request;
    unlock(&link->queueing);
}

/* With `queueing`. */
static void leave_busy(sl_group *group)
{
    sl_group *at = atomic_load(&group->link->busy);
    if (at == group) {
        atomic_store(&group->link->busy, group->next_busy);
        return;
    }
    while (at && at->next_busy != group)
        at = at->next_busy;
    if (at)
        at->next_busy = group->next_busy;
}

static void pop(sl_group *group)
{
    lock(&group->link->queueing);
    group->first = group->first->next;
    if (!group->first) {
        group->last = NULL;
        leave_busy(group);
    }
    unlock(&group->link->queueing);
}

static void end_in_stream(void *arg)
{
    sl_request *request = arg;
    atomic_store_explicit(&request->in_stream, false, memory_order_release);
}

/* From here on its owner may use it for something new. */
static void finish(sl_request *request, sl_status status)
{
    if (request->stream) {
        sl_status called = sl_stream_call(request->stream, end_in_stream, request);
        status = status == SL_OK ? called : status;
    }
    request->status = status;
    if (status != SL_OK)
        snprintf(request->text, sizeof request->text, "%s", sl_error_message());
    atomic_store_explicit(&request->done, true, memory_order_release);
}

/* What the request has to wait for before its first move; NULL: nothing. With `progressing`. */
static const sl_request *waits_for(sl_request *request)
{
    if (request->after && atomic_load_explicit(&request->after->done, memory_order_acquire))
        request->after = NULL;
    return request->after;
}

/* One move of the group's first request, or its end; false if neither is possible now. */
static bool advance(sl_group *group)
{
    sl_status status = SL_OK;
    bool made = false;
    sl_request *request = first_of(group);
    if (!request || waits_for(request))
        return false;
    bool over = !request->has_move && !request->script(request, &request->move);
    if (!over) {
        request->has_move = true;
        status = sl_request_make_move(request, &made);
        request->has_move = !made;
    }
    if (over || status != SL_OK) {
        pop(group);
        finish(request, status);
        return true;
    }
    return made;
}

bool sl_link_progress(sl_link *link)
{
    bool moved = false;
    if (!atomic_load_explicit(&link->busy, memory_order_relaxed))
        return false;
    if (atomic_flag_test_and_set_explicit(&link->progressing, memory_order_acquire))
        return false; /* another thread of the rank is at it */
    for (sl_group *group = atomic_load(&link->busy), *next; group; group = next) {
        next = group->next_busy; /* others only put groups in front */
        moved |= advance(group);
    }
    unlock(&link->progressing);
    return moved;
}

void sl_request_start(sl_request *request, sl_script script)
{
    sl_group *group = request->group;
    sl_link *link = group->link;
    request->script = script;
    if (request->stream)
        atomic_store_explicit(&request->in_stream, true, memory_order_relaxed);
    push(group, request);
    if (atomic_load(&link->movers) > 0 || atomic_flag_test_and_set_explicit(&link->progressing, memory_order_acquire))
        return;
    while (advance(group))
        ;
    unlock(&link->progressing);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* The request is over: its status, and back into the pool. */
static sl_status take_outcome(sl_request *request)
{
    sl_status status = request->status;
    if (status != SL_OK)
        sl_fail(status, "%s", request->text);
    request->taken = false;
    return status;
}

/* What the group's first request waits for. If that is a request of another group, what that group's first waits for. */
static sl_wait describe(sl_group *group)
{
    sl_wait wait = { .kind = SL_WAIT_RECEIVE, .channel = -1, .peer = group->link->rank, .microbatch = -1, .step = -1 };
    sl_link *link = group->link;
    lock(&link->progressing);
    sl_request *first = first_of(group);
    while (first && waits_for(first)) {
        group = first->after->group;
        first = first_of(group);
    }
    if (first) {
        int member = first->move.kind == SL_MOVE_REDUCE ? first->arrived : first->move.member;
        if (member >= 0 && member < group->size)
            wait.peer = group->members[member];
        wait.microbatch = first->message.microbatch;
        wait.step = first->message.step;
    }
    unlock(&link->progressing);
    return wait;
}

sl_status sl_request_wait(sl_request *request)
{
    sl_status status = SL_OK;
    sl_link *link = request->group->link;
    sl_pause pause = { 0 };
    while (!atomic_load_explicit(&request->done, memory_order_acquire)) {
        if (sl_link_progress(link))
            continue;
        if (!pause.armed)
            pause.wait = describe(request->group);
        SL_TRY(link->transport->pause(link, &pause));
    }
done:
    if (pause.armed)
        link->transport->resume(link, &pause);
    return status == SL_OK ? take_outcome(request) : status; /* on failure its group still has it */
}

sl_status sl_request_finish(sl_request *request)
{
    sl_group *group = request->group;
    sl_status status = sl_request_wait(request);
    return status == SL_OK ? sl_group_check(group) : status;
}

sl_status sl_request_test(sl_request *request, bool *done)
{
    bool over = atomic_load_explicit(&request->done, memory_order_acquire);
    if (!over) {
        sl_link_progress(request->group->link);
        over = atomic_load_explicit(&request->done, memory_order_acquire);
    }
    sl_status status = over ? take_outcome(request) : SL_OK;
    if (status == SL_OK)
        *done = over;
    return status;
}

sl_status sl_group_progress(sl_group *group)
{
    while (sl_link_progress(group->link))
        ;
    return sl_group_check(group);
}

sl_status sl_group_drain(sl_group *group)
{
    sl_status status = SL_OK;
    sl_link *link = group->link;
    sl_pause pause = { 0 };
    for (;;) {
        if (!first_of(group))
            break;
        if (sl_link_progress(link))
            continue;
        if (!pause.armed)
            pause.wait = describe(group);
        SL_TRY(link->transport->pause(link, &pause));
    }
done:
    if (pause.armed)
        link->transport->resume(link, &pause);
    return status;
}

/* ---- The end --------------------------------------------------------------------------------- */

void sl_requests_free(sl_group *group)
{
    lock(&group->link->progressing);
    for (sl_request *request; (request = first_of(group)) != NULL;) {
        pop(group);
        finish(request, SL_ERR_COMM); /* what it has given to its stream is still to run */
    }
    unlock(&group->link->progressing);
    for (sl_request *request = group->requests, *next; request; request = next) {
        next = request->next_request;
        while (atomic_load_explicit(&request->in_stream, memory_order_acquire))
            sched_yield();
        sl_free(request);
    }
    group->requests = NULL;
}
