/* The critical path of an order: the operations that its end waits for, one because of the other. */
#include "plan/polish.h"

#include <string.h>

/* Where each F and I stands: index in its rank's order. */
static void index_order(const sl_placer *placer, sl_critical *self)
{
    const sl_instance *instance = placer->instance;
    int64_t microbatches = instance->microbatches;
    for (int rank = 0; rank < instance->ranks; rank++) {
        const sl_operation *operations = placer->order.operations + rank * placer->order.length;
        memset(self->seen, 0, 3 * (size_t)instance->chunks * sizeof *self->seen);
        for (int n = 0, step = 0; n < placer->order.length; n++) {
            sl_operation_kind kind = sl_operation_kind_of(operations[n]);
            int stage = sl_instance_stage(instance, rank, sl_operation_chunk(operations[n]));
            self->step_of[rank * placer->order.length + n] = step;
            if (kind == SL_OPERATION_W)
                continue;
            int *place = kind == SL_OPERATION_F ? self->place_f : self->place_i;
            place[stage * microbatches + self->seen[operations[n]]++] = n;
            step++;
        }
    }
}

/* The microbatch of the operation: how many like it stand before it. */
static int microbatch_at(const sl_placer *placer, int rank, int index)
{
    const sl_operation *operations = placer->order.operations + rank * placer->order.length;
    int count = 0;
    for (int n = 0; n < index; n++)
        count += operations[n] == operations[index];
    return count;
}

/* Goes from the operation to the one on another rank or chunk that it waited for. */
static void follow_input(const sl_placer *placer, const sl_critical *self, int *rank, int *index)
{
    const sl_instance *instance = placer->instance;
    sl_operation operation = placer->order.operations[*rank * placer->order.length + *index];
    int64_t microbatches = instance->microbatches, microbatch = microbatch_at(placer, *rank, *index);
    int stage = sl_instance_stage(instance, *rank, sl_operation_chunk(operation));
    if (sl_operation_kind_of(operation) == SL_OPERATION_F) {
        stage--;
        *index = self->place_f[stage * microbatches + microbatch];
    } else if (stage + 1 < instance->stages) {
        stage++;
        *index = self->place_i[stage * microbatches + microbatch];
    } else {
        *index = self->place_f[stage * microbatches + microbatch];
    }
    *rank = instance->rank_of[stage];
}

void sl_critical_find(const sl_placer *placer, sl_critical *self)
{
    const sl_instance *instance = placer->instance;
    int64_t length = placer->order.length;
    int rank = 0;
    bool makespan = instance->objective == SL_OBJECTIVE_MAKESPAN;
    for (int each = 1; each < instance->ranks; each++) {
        double end = placer->now[each] - (makespan ? 0 : placer->first[each]);
        if (end > placer->now[rank] - (makespan ? 0 : placer->first[rank]))
            rank = each;
    }
    index_order(placer, self);
    self->count = 0;
    for (int index = (int)length - 1; self->count < self->capacity;) {
        const double *starts = placer->starts + rank * length;
        const sl_operation *operations = placer->order.operations + rank * length;
        sl_operation_kind kind = sl_operation_kind_of(operations[index]);
        if (kind != SL_OPERATION_W)
            self->steps[self->count++] =
                (sl_critical_step){ .rank = rank, .step = self->step_of[rank * length + index] };
        double before = 0;
        if (index > 0) {
            const sl_stage_load *load = sl_instance_load(instance, rank, sl_operation_chunk(operations[index - 1]));
            sl_operation_kind last = sl_operation_kind_of(operations[index - 1]);
            before = starts[index - 1] + (last == SL_OPERATION_F   ? load->f
                                          : last == SL_OPERATION_I ? load->i
                                                                   : load->w);
        }
        if (starts[index] > before * (1 + 1e-12) + 1e-12)
            follow_input(placer, self, &rank, &index);
        else if (index-- == 0)
            return;
    }
}
