/* Optimizer updates, elementwise and in place. */
#include "kernel/reference/reference.h"

#include <math.h>

sl_status sl_reference_adamw(const sl_kernel_call *call)
{
    const sl_optim_attrs *o = &call->attrs.optim;
    const sl_view *g = sl_call_input(call, 0);
    const sl_view *p = sl_call_output(call, 0), *m = sl_call_output(call, 1), *v = sl_call_output(call, 2);
    const sl_view *copy = sl_call_output(call, 3);
    double correction1 = 1 - pow(o->beta1, (double)o->t), correction2 = 1 - pow(o->beta2, (double)o->t);
    for (int64_t i = 0; i < sl_meta_count(&g->meta); i++) {
        int64_t p_at = sl_row_offset(&p->meta, i, 0), m_at = sl_row_offset(&m->meta, i, 0);
        int64_t v_at = sl_row_offset(&v->meta, i, 0);
        double gradient = o->grad_scale * sl_get(g, sl_row_offset(&g->meta, i, 0));
        double first = o->beta1 * sl_get(m, m_at) + (1 - o->beta1) * gradient;
        double second = o->beta2 * sl_get(v, v_at) + (1 - o->beta2) * gradient * gradient;
        double value = sl_get(p, p_at) * (1 - o->lr * o->weight_decay);
        value -= o->lr * (first / correction1) / (sqrt(second / correction2) + o->eps);
        sl_put(m, m_at, first, false);
        sl_put(v, v_at, second, false);
        sl_put(p, p_at, value, false);
        if (!sl_view_is_none(copy))
            sl_put(copy, sl_row_offset(&copy->meta, i, 0), sl_get(p, p_at), false);
    }
    return SL_OK;
}

sl_status sl_reference_sgd(const sl_kernel_call *call)
{
    const sl_optim_attrs *o = &call->attrs.optim;
    const sl_view *g = sl_call_input(call, 0), *p = sl_call_output(call, 0), *m = sl_call_output(call, 1);
    const sl_view *copy = sl_call_output(call, 2);
    for (int64_t i = 0; i < sl_meta_count(&g->meta); i++) {
        int64_t p_at = sl_row_offset(&p->meta, i, 0);
        double value = sl_get(p, p_at);
        double update = o->grad_scale * sl_get(g, sl_row_offset(&g->meta, i, 0)) + o->weight_decay * value;
        if (!sl_view_is_none(m)) {
            int64_t m_at = sl_row_offset(&m->meta, i, 0);
            update += o->momentum * sl_get(m, m_at);
            sl_put(m, m_at, update, false);
        }
        sl_put(p, p_at, value - o->lr * update, false);
        if (!sl_view_is_none(copy))
            sl_put(copy, sl_row_offset(&copy->meta, i, 0), sl_get(p, p_at), false);
    }
    return SL_OK;
}
