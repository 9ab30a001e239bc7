/* Compiles a rank's list of actions, one by one. */
#include "pipeline/compiler.h"

#include "base/alloc.h"

#include <assert.h>

/* A rank's list, and where the compiler is in it. */
typedef struct place {
    const sl_action *actions;
    int64_t count, at;
} place;

static bool is_message(sl_action action, sl_kind forward, sl_kind backward)
{
    return action.kind == forward || action.kind == backward;
}

/* The OVERLAP_F_B that the message at place stands beside and belongs to: it then goes inside, so that F need not wait
 * for the gradient that B needs, nor F's message for the end of B. -1: none. */
static int64_t find_overlap(place where)
{
    const sl_action *actions = where.actions, message = actions[where.at];
    bool receive = message.kind == SL_KIND_RECV_B;
    int64_t i = where.at, step = receive ? 1 : -1;
    if (!receive && message.kind != SL_KIND_SEND_F)
        return -1;
    do
        i += step;
    while (i >= 0 && i < where.count &&
           (receive ? is_message(actions[i], SL_KIND_RECV_F, SL_KIND_RECV_B)
                    : is_message(actions[i], SL_KIND_SEND_F, SL_KIND_SEND_B)));
    if (i < 0 || i >= where.count || actions[i].kind != SL_KIND_OVERLAP_F_B)
        return -1;
    bool belongs = receive ? actions[i].b_stage == message.stage && actions[i].b_microbatch == message.microbatch
                           : actions[i].stage == message.stage && actions[i].microbatch == message.microbatch;
    return belongs ? i : -1;
}

/* Whether such a message stands before (RECV_B) or after (SEND_F) the OVERLAP_F_B at place. */
static bool has_message(place where, sl_kind kind)
{
    int64_t step = kind == SL_KIND_RECV_B ? -1 : 1;
    for (int64_t i = where.at + step; i >= 0 && i < where.count; i += step) {
        if (sl_kind_class_of((sl_kind)where.actions[i].kind) != SL_CLASS_MESSAGE)
            return false;
        if (where.actions[i].kind == kind && find_overlap((place){ where.actions, where.count, i }) == where.at)
            return true;
    }
    return false;
}

/* Both halves have their memory and messages before either runs, and neither gives anything back before both have. */
static sl_status compile_beside(sl_compiler *c, place where)
{
    sl_status status = SL_OK;
    sl_action action = where.actions[where.at];
    int f = action.stage, f_microbatch = action.microbatch, b = action.b_stage, b_microbatch = action.b_microbatch;
    SL_TRY(sl_compile_forward_begin(c, f, f_microbatch));
    if (has_message(where, SL_KIND_RECV_B))
        SL_TRY(sl_compile_recv_backward(c, b, b_microbatch));
    SL_TRY(sl_compile_backward_begin(c, b, b_microbatch, SL_PHASE_B));
    SL_TRY(sl_compiler_run(c, f, f_microbatch, SL_PHASE_F));
    c->program->instrs[c->program->instr_count - 1].beside = true;
    SL_TRY(sl_compiler_run(c, b, b_microbatch, SL_PHASE_B));
    SL_TRY(sl_compile_forward_end(c, f, f_microbatch));
    if (has_message(where, SL_KIND_SEND_F))
        SL_TRY(sl_compile_send_forward(c, f, f_microbatch));
    SL_TRY(sl_compile_backward_end(c, b, b_microbatch, SL_PHASE_B));
done:
    return status;
}

static sl_status compile_overlap(sl_compiler *c, place where)
{
    sl_status status = SL_OK;
    sl_action action = where.actions[where.at];
    if (c->options->overlaps && c->options->training)
        return compile_beside(c, where);
    SL_TRY(sl_compile_forward(c, action.stage, action.microbatch));
    if (has_message(where, SL_KIND_SEND_F))
        SL_TRY(sl_compile_send_forward(c, action.stage, action.microbatch));
    if (!c->options->training)
        return SL_OK;
    if (has_message(where, SL_KIND_RECV_B))
        SL_TRY(sl_compile_recv_backward(c, action.b_stage, action.b_microbatch));
    SL_TRY(sl_compile_backward(c, action.b_stage, action.b_microbatch, SL_PHASE_B));
done:
    return status;
}

static sl_status compile_action(sl_compiler *c, place where)
{
    sl_action action = where.actions[where.at];
    int s = action.stage, m = action.microbatch;
    if (find_overlap(where) >= 0)
        return SL_OK;
    switch ((sl_kind)action.kind) {
    case SL_KIND_F:
        return sl_compile_forward(c, s, m);
    case SL_KIND_I:
        return sl_compile_backward(c, s, m, SL_PHASE_I);
    case SL_KIND_B:
        return sl_compile_backward(c, s, m, SL_PHASE_B);
    case SL_KIND_W:
        return sl_compile_weights(c, s, m);
    case SL_KIND_RECV_F:
        return sl_compile_recv_forward(c, s, m);
    case SL_KIND_SEND_F:
        return sl_compile_send_forward(c, s, m);
    case SL_KIND_RECV_B:
        return sl_compile_recv_backward(c, s, m);
    case SL_KIND_SEND_B:
        return sl_compile_send_backward(c, s, m);
    case SL_KIND_OVERLAP_F_B:
        return compile_overlap(c, where);
    case SL_KIND_UNSHARD:
        return sl_compile_unshard(c, s);
    case SL_KIND_RESHARD:
        return sl_compile_reshard(c, s);
    case SL_KIND_REDUCE_GRAD:
        return sl_compile_reduce_grad(c, s);
    case SL_KIND_WAIT_REDUCE_GRAD:
        return sl_compile_wait_reduce_grad(c, s);
    default:
        return SL_OK;
    }
}

static bool is_left_out(const sl_compile_options *options, sl_kind kind)
{
    bool forward = kind == SL_KIND_F || kind == SL_KIND_SEND_F || kind == SL_KIND_RECV_F ||
                   kind == SL_KIND_OVERLAP_F_B || kind == SL_KIND_UNSHARD || kind == SL_KIND_RESHARD;
    return !options->training && !forward;
}

sl_status sl_rank_program_compile(const sl_compile_options *options, sl_rank_program *out)
{
    sl_status status = SL_OK;
    sl_rank_program program = { 0 };
    sl_compiler compiler = { 0 };
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(options->schedule, options->rank, &count);
    SL_TRY(sl_compiler_create(options, &program, &compiler));
    SL_TRY(sl_compile_weights_begin(&compiler));
    for (int64_t i = 0; i < count; i++) {
        if (is_left_out(options, (sl_kind)actions[i].kind))
            continue;
        SL_TRY(SL_GROW(program.actions, &program.action_capacity, program.action_count + 1));
        sl_pipeline_action *each = &program.actions[program.action_count++];
        *each = (sl_pipeline_action){ .action = actions[i], .cell = i, .first = program.instr_count };
        SL_TRY(sl_compile_fetch(&compiler, actions, count, i));
        SL_TRY(compile_action(&compiler, (place){ actions, count, i }));
        if (sl_kind_class_of((sl_kind)actions[i].kind) == SL_CLASS_COMPUTE)
            sl_compile_computed(&compiler);
        each->count = program.instr_count - each->first;
    }
    program.tail = program.instr_count;
    SL_TRY(sl_compile_weights_end(&compiler));
    sl_compile_offload_end(&compiler);
    assert(options->slots->taken == 0 && options->host_slots->taken == 0);
    *out = program;
    program = (sl_rank_program){ 0 };
done:
    sl_compiler_free(&compiler);
    sl_rank_program_free(&program);
    return status;
}
