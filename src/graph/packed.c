/* Packed weights: which products of the phases can use their parameter packed beforehand, and where in the region
 * `packed` it lies. Products of several nodes or phases with the same parameter share it. */
#include "graph/plan.h"

#include "base/alloc.h"

/* Whether a is packed as b is: the same tensor, for the same op, beside operands of the same element type. */
static bool packs_alike(const sl_instruction *a, const sl_instruction *b)
{
    return a->op == b->op && a->attrs.transpose_w == b->attrs.transpose_w &&
           a->inputs[0].meta.dtype == b->inputs[0].meta.dtype && a->packed_bytes == b->packed_bytes &&
           sl_operand_same(&a->inputs[1], &b->inputs[1]);
}

static sl_status place_weight(sl_program_plan *plan, sl_phase phase, sl_instruction *step)
{
    sl_status status = SL_OK;
    for (int i = 0; i < plan->pack_count; i++) {
        if (packs_alike(step, &plan->packs[i])) {
            step->packed_offset = plan->packs[i].packed_offset;
            return SL_OK;
        }
    }
    SL_TRY(SL_GROW(plan->packs, &plan->pack_capacity, plan->pack_count + 1));
    step->packed_offset = plan->packed_bytes;
    plan->packed_bytes += step->packed_bytes;
    plan->packs[plan->pack_count] = *step;
    plan->packs[plan->pack_count++].phase = phase == SL_PHASE_F ? SL_PHASE_F : SL_PHASE_I;
done:
    return status;
}

sl_status sl_program_plan_pack(const sl_lowering *lowering, sl_device *device, sl_program_plan *plan)
{
    sl_status status = SL_OK;
    sl_view views[SL_OP_INPUTS + SL_OP_OUTPUTS];
    for (int p = 0; p < SL_PHASE_COUNT; p++) {
        for (int i = 0; i < plan->phases[p].count; i++) {
            sl_instruction *step = &plan->phases[p].items[i];
            if (step->input_count < 2 || step->inputs[1].storage < 0 ||
                lowering->storages[step->inputs[1].storage].home != SL_HOME_PARAM)
                continue;
            sl_kernel_call call = sl_instruction_call(step, views);
            SL_TRY(sl_kernel_packed_bytes(device, &call, &step->packed_bytes));
            if (step->packed_bytes > 0)
                SL_TRY(place_weight(plan, (sl_phase)p, step));
        }
    }
done:
    return status;
}
