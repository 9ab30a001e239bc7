/* The order of a step on a device that works by itself: which instruction waits for which, found once. */
#include "runtime/runtime.h"

#include "base/alloc.h"

#include <stdlib.h>

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* The last uses of one block, as numbers of instructions; -1: none. */
typedef struct block_use {
    const char *address;
    int64_t written;
    sl_lane writer;
    int64_t read[SL_LANE_COUNT];
} block_use;

/* Finding the order of one program. */
typedef struct finder {
    const sl_runtime *runtime;
    const sl_program *program;
    const sl_rank_program *plan; /* that it was bound from */
    bool delivers;
    sl_instr_order *orders;
    const void **weights, **grads; /* of each stage of the rank: the block that holds them now; NULL: none */
    block_use *blocks;             /* by address */
    int block_count;
    int64_t seen[SL_LANE_COUNT][SL_LANE_COUNT]; /* instruction of the second lane that the first has waited for */
    int64_t at;                                 /* instruction */
    int64_t needed[SL_LANE_COUNT];              /* instruction of each lane that it must wait for; -1: none */
} finder;

static int by_address(const void *left, const void *right)
{
    const char *a = ((const block_use *)left)->address, *b = ((const block_use *)right)->address;
    return (a > b) - (a < b);
}

/* Every block that a cell of the program lies in, once. */
static sl_status list_blocks(finder *find)
{
    sl_status status = SL_OK;
    const sl_rank_program *plan = find->plan;
    int count = 0;
    SL_TRY(SL_NEW_ARRAY(find->blocks, plan->place_count));
    for (int64_t i = 0; i < plan->place_count; i++)
        find->blocks[i] =
            (block_use){ .address = find->program->cells[plan->places[i].cell], .written = -1, .read = { -1, -1, -1 } };
    if (plan->place_count)
        qsort(find->blocks, (size_t)plan->place_count, sizeof *find->blocks, by_address);
    for (int64_t i = 0; i < plan->place_count; i++) {
        if (count == 0 || find->blocks[count - 1].address != find->blocks[i].address)
            find->blocks[count++] = find->blocks[i];
    }
    find->block_count = count;
done:
    return status;
}

static void need(finder *find, sl_lane lane, sl_lane other, int64_t instr)
{
    if (other != lane && instr > find->needed[other])
        find->needed[other] = instr;
}

/* The instruction touches the block at the address, if it is one. */
static void touch(finder *find, const void *address, bool write)
{
    sl_lane lane = (sl_lane)find->orders[find->at].lane;
    const block_use key = { .address = address };
    block_use *use = address ? bsearch(&key, find->blocks, (size_t)find->block_count, sizeof key, by_address) : NULL;
    if (!use)
        return;
    if (use->written >= 0)
        need(find, lane, use->writer, use->written);
    for (int other = 0; write && other < SL_LANE_COUNT; other++) {
        if (use->read[other] >= 0)
            need(find, lane, (sl_lane)other, use->read[other]);
        use->read[other] = -1;
    }
    if (write) {
        use->written = find->at;
        use->writer = lane;
    } else {
        use->read[lane] = find->at;
    }
}

static void touch_all(finder *find, void *const *cells, int count, bool write)
{
    for (int i = 0; i < count; i++)
        touch(find, cells[i], write);
}

static void touch_frame(finder *find, const sl_instr *instr)
{
    const sl_frame *frame = instr->frame;
    int local = sl_program_local_stage(find->program, find->runtime->wiring, frame);
    const sl_stage *stage = find->runtime->stages[local];
    bool forward = instr->phase == SL_PHASE_F;
    touch_all(find, frame->inputs, stage->input_count, false);
    touch_all(find, frame->outputs, stage->output_count, forward);
    touch(find, frame->saved_i, true);
    touch(find, frame->saved_w, true);
    touch(find, find->weights[local], false);
    if (forward)
        return;
    touch_all(find, frame->output_grads, stage->output_count, false);
    touch_all(find, frame->input_grads, stage->input_count, true);
    touch(find, frame->kept, true);
    touch(find, find->grads[local], true);
}

/* Messages of links go with the kernels, in the order of the program: that order is the one that was proved to come to its
 * end, and a stream that waits for another rank holds up nothing but what follows. If there is nothing else to copy beside
 * kernels, there is one stream: a device has few queues, and streams that share one hold each other up. */
static sl_lane lane_of(const sl_runtime *runtime, const sl_instr *instr)
{
    if (!runtime->lanes.has_copy_lanes || sl_runtime_is_link_message(runtime, instr))
        return SL_LANE_COMPUTE;
    switch ((sl_code)instr->code) {
    case SL_CODE_FROM_MESSAGE:
    case SL_CODE_RELEASE:
    case SL_CODE_FETCH:
        return SL_LANE_IN;
    case SL_CODE_OFFLOAD:
    case SL_CODE_TO_MESSAGE:
    case SL_CODE_COMMIT:
    case SL_CODE_OUTPUT:
    case SL_CODE_INPUT_GRAD:
        return SL_LANE_OUT;
    default:
        return SL_LANE_COMPUTE;
    }
}

static void touch_blocks(finder *find, const sl_instr *instr)
{
    switch ((sl_code)instr->code) {
    case SL_CODE_FROM_MESSAGE:
        touch(find, *instr->cell, true);
        break;
    case SL_CODE_TO_MESSAGE:
        touch(find, *instr->from, false);
        break;
    case SL_CODE_ADD:
    case SL_CODE_OFFLOAD:
    case SL_CODE_FETCH:
        touch(find, *instr->from, false);
        touch(find, *instr->cell, true);
        break;
    case SL_CODE_OUTPUT:
    case SL_CODE_INPUT_GRAD:
        if (find->delivers)
            touch(find, *instr->cell, false);
        break;
    case SL_CODE_RUN:
        touch_frame(find, instr);
        break;
    case SL_CODE_UNSHARD:
        find->weights[find->runtime->wiring->stages[instr->stage].local] = *instr->cell;
        touch(find, *instr->cell, true);
        break;
    case SL_CODE_RESHARD:
        find->weights[find->runtime->wiring->stages[instr->stage].local] = NULL;
        break;
    case SL_CODE_OPEN_GRADS:
        find->grads[find->runtime->wiring->stages[instr->stage].local] = *instr->cell;
        touch(find, *instr->cell, true);
        break;
    case SL_CODE_REDUCE_GRADS:
    case SL_CODE_AWAIT_GRADS:
        if (instr->cell)
            touch(find, *instr->cell, true);
        break;
    default: /* messages are handed over in the order of the lane that copies them */
        break;
    }
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* Gives each instruction that another lane needs an event, and each that needs one the event to wait for. */
static void join(finder *find, int *event_count)
{
    sl_instr_order *order = &find->orders[find->at];
    for (int other = 0; other < SL_LANE_COUNT; other++) {
        int64_t needed = find->needed[other];
        if (needed <= find->seen[order->lane][other])
            continue;
        find->seen[order->lane][other] = needed;
        if (find->orders[needed].event < 0)
            find->orders[needed].event = (*event_count)++;
        order->waits[other] = find->orders[needed].event;
    }
}

static sl_status order_program(sl_runtime *runtime, const sl_program *program, const sl_rank_program *plan,
                               bool delivers, sl_program_order *out, int *event_count)
{
    sl_status status = SL_OK;
    finder find = { .runtime = runtime, .program = program, .plan = plan, .delivers = delivers };
    int events = 0;
    SL_TRY(SL_NEW_ARRAY(out->instrs, plan->instr_count));
    SL_TRY(SL_NEW_ARRAY(out->deliveries, plan->instr_count));
    find.orders = out->instrs;
    SL_TRY(SL_NEW_ARRAY(find.weights, runtime->stage_count));
    SL_TRY(SL_NEW_ARRAY(find.grads, runtime->stage_count));
    SL_TRY(list_blocks(&find));
    for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
        for (int other = 0; other < SL_LANE_COUNT; other++)
            find.seen[lane][other] = -1;
    }
    for (find.at = 0; find.at < plan->instr_count; find.at++) {
        const sl_instr *instr = &program->instrs[find.at];
        out->deliveries[find.at] = (sl_delivery){ .runtime = runtime, .instr = instr };
        out->instrs[find.at] = (sl_instr_order){
            .lane = (uint8_t)lane_of(runtime, instr), .waits = { -1, -1, -1 }, .event = -1, .piece = -1
        };
        for (int lane = 0; lane < SL_LANE_COUNT; lane++)
            find.needed[lane] = -1;
        touch_blocks(&find, instr);
        join(&find, &events);
    }
    if (events > *event_count)
        *event_count = events;
done:
    sl_free(find.blocks);
    sl_free(find.weights);
    sl_free(find.grads);
    return status;
}

/* ---- Creation -------------------------------------------------------------------------------- */

static int64_t count_runs(const sl_rank_program *plan)
{
    int64_t count = 0;
    for (int64_t i = 0; i < plan->instr_count; i++)
        count += plan->instrs[i].code == SL_CODE_RUN || plan->instrs[i].code == SL_CODE_RECEIVE;
    return count;
}

static sl_status make_events(sl_runtime *runtime, int count)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    SL_TRY(SL_NEW_ARRAY(lanes->events, count));
    for (; lanes->event_count < count; lanes->event_count++)
        SL_TRY(sl_event_create(runtime->device, &lanes->events[lanes->event_count]));
done:
    return status;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static sl_status make_staging(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    size_t largest = 0, scalars = 2 * (size_t)runtime->wiring->microbatches * SL_SCALAR_STRIDE;
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_wire_stage *stage = &runtime->wiring->stages[runtime->stages[k]->index];
        for (int j = 0; j < stage->output_count; j++)
            largest = larger(largest, sl_wiring_bytes(runtime->wiring, stage->outputs[j].metas));
        for (int i = 0; i < stage->input_count; i++) {
            if (stage->inputs[i].root >= 0 && stage->inputs[i].has_grad)
                largest = larger(largest, sl_wiring_bytes(runtime->wiring, stage->inputs[i].metas));
        }
    }
    SL_TRY(sl_device_alloc_host(runtime->device, scalars, (void **)&lanes->scalars));
    if (runtime->host)
        return SL_OK;
    SL_TRY(sl_device_alloc_host(runtime->device, runtime->pipeline->ranks[runtime->rank].memory.inputs,
                                (void **)&lanes->inputs));
    SL_TRY(sl_device_alloc_host(runtime->device, largest, (void **)&lanes->output));
done:
    return status;
}

/* Whether something is copied beside kernels: messages in host memory, activations that leave for the host. What is
 * delivered is, too, if there are no links. */
static bool wants_copy_lanes(const sl_runtime *runtime)
{
    const sl_rank_plan *plan = &runtime->pipeline->ranks[runtime->rank];
    bool wants = !runtime->links || sl_device_links_count(runtime->links) < runtime->pipeline->routes.edge_routes;
    for (int64_t i = 0; i < plan->train.instr_count; i++)
        wants = wants || plan->train.instrs[i].code == SL_CODE_OFFLOAD;
    return wants;
}

static sl_status make_streams(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    lanes->has_copy_lanes = wants_copy_lanes(runtime);
    if (lanes->has_copy_lanes) {
        lanes->streams[SL_LANE_IN] = lanes->streams[SL_LANE_OUT] = NULL;
        SL_TRY(sl_stream_create(runtime->device, &lanes->streams[SL_LANE_IN]));
        SL_TRY(sl_stream_create(runtime->device, &lanes->streams[SL_LANE_OUT]));
    }
    if (runtime->wiring->replicas > 1 || runtime->wiring->shard != SL_SHARD_NONE) {
        lanes->posted = NULL;
        SL_TRY(sl_stream_create(runtime->device, &lanes->posted));
    }
    SL_TRY(sl_event_create(runtime->device, &lanes->before_posted));
done:
    return status;
}

sl_status sl_lanes_create(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    const sl_rank_plan *plan = &runtime->pipeline->ranks[runtime->rank];
    int events = 0; /* the most of any program */
    for (int lane = 0; lane < SL_LANE_COUNT; lane++)
        lanes->streams[lane] = runtime->stream;
    lanes->posted = runtime->stream;
    SL_TRY(make_staging(runtime));
    if (runtime->host)
        return SL_OK;
    SL_TRY(make_streams(runtime));
    for (int delivers = 0; delivers < 2; delivers++) {
        if (runtime->pipeline->training)
            SL_TRY(order_program(runtime, &runtime->train, &plan->train, delivers, &lanes->train[delivers], &events));
        SL_TRY(order_program(runtime, &runtime->eval, &plan->eval, delivers, &lanes->eval[delivers], &events));
    }
    SL_TRY(make_events(runtime, events));
    SL_TRY(sl_captures_create(runtime));
    int64_t train_runs = count_runs(&plan->train), eval_runs = count_runs(&plan->eval);
    if (runtime->trace.capacity)
        SL_TRY(
            sl_trace_create_marks(&runtime->trace, runtime->device, train_runs > eval_runs ? train_runs : eval_runs));
    SL_TRY(sl_stream_synchronize(runtime->stream)); /* the runtime is ready */
done:
    return status;
}

static void free_order(sl_program_order *order)
{
    sl_free(order->instrs);
    sl_free(order->deliveries);
    sl_free(order->pieces);
}

void sl_lanes_destroy(sl_runtime *runtime)
{
    sl_lanes *lanes = &runtime->lanes;
    if (runtime->stream)
        (void)!sl_stream_synchronize(runtime->stream); /* the lanes may wait for it */
    sl_captures_destroy(runtime);
    for (int lane = SL_LANE_IN; lane < SL_LANE_COUNT; lane++) {
        if (lanes->streams[lane] != runtime->stream)
            sl_stream_destroy(lanes->streams[lane]);
    }
    if (lanes->posted != runtime->stream)
        sl_stream_destroy(lanes->posted);
    sl_event_destroy(lanes->before_posted);
    for (int i = 0; i < lanes->event_count; i++)
        sl_event_destroy(lanes->events[i]);
    sl_free(lanes->events);
    for (int delivers = 0; delivers < 2; delivers++) {
        free_order(&lanes->train[delivers]);
        free_order(&lanes->eval[delivers]);
    }
    sl_device_free_host(runtime->device, lanes->inputs);
    sl_device_free_host(runtime->device, lanes->output);
    sl_device_free_host(runtime->device, lanes->scalars);
}

/* ---- A step ---------------------------------------------------------------------------------- */

const sl_program_order *sl_lanes_order(const sl_runtime *runtime)
{
    const sl_lanes *lanes = &runtime->lanes;
    return runtime->running == &runtime->train ? &lanes->train[lanes->delivers] : &lanes->eval[lanes->delivers];
}

static const sl_instr_order *order_of(const sl_runtime *runtime, const sl_instr *instr)
{
    return &sl_lanes_order(runtime)->instrs[instr - runtime->running->instrs];
}

sl_status sl_lanes_before(sl_runtime *runtime, const sl_instr *instr)
{
    sl_status status = SL_OK;
    const sl_instr_order *order = order_of(runtime, instr);
    for (int other = 0; other < SL_LANE_COUNT; other++) {
        if (order->waits[other] >= 0)
            SL_TRY(sl_stream_wait(runtime->lanes.streams[order->lane], runtime->lanes.events[order->waits[other]]));
    }
done:
    return status;
}

sl_status sl_lanes_after(sl_runtime *runtime, const sl_instr *instr)
{
    const sl_instr_order *order = order_of(runtime, instr);
    if (order->event < 0)
        return SL_OK;
    return sl_event_record(runtime->lanes.events[order->event], runtime->lanes.streams[order->lane]);
}

/* The action that an instruction belongs to. */
static const sl_program_action *action_of(const sl_program *program, const sl_instr *instr)
{
    int64_t number = instr - program->instrs, i = 0;
    while (i + 1 < program->action_count && program->actions[i + 1].first <= number)
        i++;
    return &program->actions[i];
}

static int stream_count(const sl_lanes *lanes)
{
    return lanes->has_copy_lanes ? SL_LANE_COUNT : 1;
}

void sl_lanes_settle(sl_runtime *runtime)
{
    sl_lanes *lanes = &runtime->lanes;
    if (runtime->words) {
        sl_device_words_free_streams(runtime->words, lanes->streams, stream_count(lanes));
        sl_device_words_free_streams(runtime->words, &lanes->posted, 1);
    }
    for (int lane = 0; lane < stream_count(lanes); lane++)
        (void)!sl_stream_synchronize(lanes->streams[lane]);
    if (lanes->posted != runtime->stream)
        (void)!sl_stream_synchronize(lanes->posted);
}

sl_status sl_lanes_finish(sl_runtime *runtime, const sl_program *program)
{
    sl_status status = SL_OK;
    sl_lanes *lanes = &runtime->lanes;
    if (runtime->links)
        SL_TRY(sl_device_links_fetch(runtime->links, runtime->stream));
    for (int lane = 0; lane < stream_count(lanes); lane++)
        SL_TRY(runtime->words ? sl_device_words_wait(runtime->words, lanes->streams[lane])
                              : sl_stream_synchronize(lanes->streams[lane]));
    if (runtime->links)
        SL_TRY(sl_device_links_check(runtime->links));
    if (lanes->failed == SL_OK)
        return SL_OK;
    const sl_program_action *action = action_of(program, lanes->failed_instr);
    status = sl_fail(lanes->failed, "%s", lanes->message);
    return sl_runtime_fail(runtime, status, action->cell, action->action);
done:
    return status;
}
