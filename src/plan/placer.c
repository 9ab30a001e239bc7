/* Placing operations on ranks, and orders as schedules. */
#include "plan/placer.h"

#include "schedule/schedule.h"

#include <string.h>

sl_status sl_order_create(const sl_instance *instance, sl_order *out)
{
    sl_status status = SL_OK;
    sl_order order = { .length = 3 * (int64_t)instance->chunks * instance->microbatches, .value = INFINITY };
    SL_TRY(SL_NEW_ARRAY(order.operations, order.length * instance->ranks));
    *out = order;
done:
    return status;
}

void sl_order_destroy(sl_order *order)
{
    sl_free(order->operations);
    *order = (sl_order){ 0 };
}

void sl_order_keep_better(const sl_placer *placer, const char *method, sl_order *best)
{
    const sl_order *made = &placer->order;
    if (!(made->value < best->value * (1 - 1e-12)))
        return;
    memcpy(best->operations, made->operations,
           (size_t)made->length * (size_t)placer->instance->ranks * sizeof *made->operations);
    best->value = made->value;
    best->method = method;
}

sl_status sl_order_schedule(const sl_instance *instance, const sl_order *order, sl_schedule **out)
{
    sl_status status = SL_OK;
    static const sl_kind kinds[] = { SL_KIND_F, SL_KIND_I, SL_KIND_W };
    sl_schedule_builder *builder = NULL;
    int32_t *next = NULL; /* (chunks, kinds) */

    SL_TRY(sl_schedule_builder_create(instance->ranks, &builder));
    SL_TRY(SL_NEW_ARRAY(next, 3 * instance->chunks));
    for (int rank = 0; rank < instance->ranks; rank++) {
        const sl_operation *operations = order->operations + rank * order->length;
        memset(next, 0, 3 * (size_t)instance->chunks * sizeof *next);
        sl_action_list *list = &builder->lists[rank];
        SL_TRY(sl_action_list_reserve(list, (size_t)order->length));
        for (int64_t n = 0; n < order->length; n++) {
            sl_operation operation = operations[n];
            int stage = sl_instance_stage(instance, rank, sl_operation_chunk(operation));
            sl_kind kind = kinds[sl_operation_kind_of(operation)];
            SL_TRY(sl_action_list_push(list, sl_make(kind, stage, next[operation]++)));
        }
    }
    SL_TRY(sl_schedule_builder_finish(builder, out));
done:
    sl_free(next);
    sl_schedule_builder_destroy(builder);
    return status;
}

sl_status sl_placer_create(const sl_instance *instance, sl_placer *out)
{
    sl_status status = SL_OK;
    sl_placer self = { .instance = instance, .stop = INFINITY };
    int64_t cells = (int64_t)instance->stages * instance->microbatches;
    SL_TRY(sl_order_create(instance, &self.order));
    SL_TRY(SL_NEW_ARRAY(self.ready_f, cells));
    SL_TRY(SL_NEW_ARRAY(self.ready_i, cells));
    SL_TRY(SL_NEW_ARRAY(self.done_f, instance->stages));
    SL_TRY(SL_NEW_ARRAY(self.done_i, instance->stages));
    SL_TRY(SL_NEW_ARRAY(self.done_w, instance->stages));
    SL_TRY(SL_NEW_ARRAY(self.count, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self.now, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self.first, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self.idle, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self.memory, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self.left, instance->ranks));
    SL_TRY(SL_NEW_ARRAY(self.room, instance->ranks));
    *out = self;
    self = (sl_placer){ 0 };
done:
    sl_placer_destroy(&self);
    return status;
}

void sl_placer_destroy(sl_placer *placer)
{
    sl_order_destroy(&placer->order);
    sl_free(placer->ready_f);
    sl_free(placer->ready_i);
    sl_free(placer->done_f);
    sl_free(placer->done_i);
    sl_free(placer->done_w);
    sl_free(placer->count);
    sl_free(placer->now);
    sl_free(placer->first);
    sl_free(placer->idle);
    sl_free(placer->memory);
    sl_free(placer->left);
    sl_free(placer->room);
    *placer = (sl_placer){ 0 };
}

void sl_placer_reset(sl_placer *placer)
{
    const sl_instance *instance = placer->instance;
    int64_t cells = (int64_t)instance->stages * instance->microbatches;
    for (int64_t cell = 0; cell < cells; cell++)
        placer->ready_f[cell] = placer->ready_i[cell] = -1;
    memset(placer->done_f, 0, (size_t)instance->stages * sizeof *placer->done_f);
    memset(placer->done_i, 0, (size_t)instance->stages * sizeof *placer->done_i);
    memset(placer->done_w, 0, (size_t)instance->stages * sizeof *placer->done_w);
    for (int rank = 0; rank < instance->ranks; rank++) {
        placer->count[rank] = 0;
        placer->now[rank] = placer->idle[rank] = placer->memory[rank] = 0;
        placer->first[rank] = -1;
        placer->left[rank] = instance->work[rank] * instance->microbatches;
    }
    placer->most_idle = 0;
    placer->order.value = INFINITY;
}

static void begin(sl_placer *placer, int rank, double start)
{
    if (placer->first[rank] < 0) {
        placer->first[rank] = start;
        return;
    }
    placer->idle[rank] += start - placer->now[rank];
    if (placer->idle[rank] > placer->most_idle)
        placer->most_idle = placer->idle[rank];
}

void sl_placer_put(sl_placer *placer, int rank, int chunk, sl_operation_kind kind, double start)
{
    const sl_instance *instance = placer->instance;
    int stage = sl_instance_stage(instance, rank, chunk);
    const sl_stage_load *load = &instance->load[stage];
    double time = kind == SL_OPERATION_F ? load->f : kind == SL_OPERATION_I ? load->i : load->w;
    double end = start + time;

    begin(placer, rank, start);
    if (kind == SL_OPERATION_F) {
        int64_t microbatch = placer->done_f[stage]++;
        placer->memory[rank] += load->hold;
        if (stage + 1 < instance->stages)
            placer->ready_f[(stage + 1) * (int64_t)instance->microbatches + microbatch] = end + load->to_next;
        else
            placer->ready_i[stage * (int64_t)instance->microbatches + microbatch] = end;
    } else if (kind == SL_OPERATION_I) {
        int64_t microbatch = placer->done_i[stage]++;
        placer->memory[rank] -= load->hold - load->keep;
        if (stage > 0)
            placer->ready_i[(stage - 1) * (int64_t)instance->microbatches + microbatch] =
                end + instance->load[stage - 1].to_next;
    } else {
        placer->done_w[stage]++;
        placer->memory[rank] -= load->keep;
    }
    int64_t place = rank * placer->order.length + placer->count[rank]++;
    placer->order.operations[place] = sl_operation_make(chunk, kind);
    placer->now[rank] = end;
    placer->left[rank] -= time;
    placer->placed++;
}

int sl_placer_next_w(const sl_placer *placer, int rank)
{
    const sl_instance *instance = placer->instance;
    const sl_stage_load *best_load = NULL;
    int best = -1;
    for (int chunk = 0; chunk < instance->chunks; chunk++) {
        int stage = sl_instance_stage(instance, rank, chunk);
        const sl_stage_load *load = &instance->load[stage];
        if (placer->done_w[stage] >= placer->done_i[stage])
            continue;
        if (!best_load || load->keep * best_load->w > best_load->keep * load->w) {
            best = chunk;
            best_load = load;
        }
    }
    return best;
}

static void put_w(sl_placer *placer, int rank, int chunk)
{
    sl_placer_put(placer, rank, chunk, SL_OPERATION_W, placer->now[rank]);
}

void sl_placer_flush_w(sl_placer *placer, int rank)
{
    int chunk;
    while ((chunk = sl_placer_next_w(placer, rank)) >= 0)
        put_w(placer, rank, chunk);
}

bool sl_placer_make_room(sl_placer *placer, int rank, double memory)
{
    while (!sl_placer_fits(placer, rank, memory)) {
        int chunk = sl_placer_next_w(placer, rank);
        if (chunk < 0)
            return false;
        put_w(placer, rank, chunk);
    }
    return true;
}

void sl_placer_fill_gap(sl_placer *placer, int rank, double until, double share)
{
    double rounding = 1e-12 * until;
    while (until - placer->now[rank] > rounding) {
        int chunk = sl_placer_next_w(placer, rank);
        if (chunk < 0)
            return;
        double w = sl_instance_load(placer->instance, rank, chunk)->w;
        if (w * share > until - placer->now[rank] + rounding)
            return;
        put_w(placer, rank, chunk);
    }
}

void sl_placer_finish(sl_placer *placer)
{
    const sl_instance *instance = placer->instance;
    double makespan = 0, stage_time = 0;
    placer->order.value = INFINITY;
    for (int rank = 0; rank < instance->ranks; rank++) {
        sl_placer_flush_w(placer, rank);
        if (placer->count[rank] != placer->order.length)
            return;
        double span = placer->now[rank] - placer->first[rank];
        makespan = placer->now[rank] > makespan ? placer->now[rank] : makespan;
        stage_time = span > stage_time ? span : stage_time;
    }
    placer->order.value = instance->objective == SL_OBJECTIVE_MAKESPAN ? makespan : stage_time;
}
