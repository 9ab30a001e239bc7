/* Compiles a rank's list of actions, one by one. */
#include "runtime/compiler.h"

#include "base/alloc.h"

#include <assert.h>

static sl_status compile_action(sl_compiler *c, sl_action action)
{
    sl_status status = SL_OK;
    int s = action.stage, m = action.microbatch;
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
        SL_TRY(sl_compile_forward(c, s, m));
        if (c->options->training)
            SL_TRY(sl_compile_backward(c, action.b_stage, action.b_microbatch, SL_PHASE_B));
        break;
    default: /* weights as a whole: no instructions */
        break;
    }
done:
    return status;
}

static bool is_left_out(const sl_compile_options *options, sl_kind kind)
{
    bool forward = kind == SL_KIND_F || kind == SL_KIND_SEND_F || kind == SL_KIND_RECV_F ||
                   kind == SL_KIND_OVERLAP_F_B || kind == SL_KIND_UNSHARD || kind == SL_KIND_RESHARD;
    return !options->training && !forward;
}

sl_status sl_program_compile(const sl_compile_options *options, sl_program *out)
{
    sl_status status = SL_OK;
    sl_program program = { 0 };
    sl_compiler compiler = { 0 };
    int64_t count = 0;
    const sl_action *actions = sl_schedule_actions(options->schedule, options->rank, &count);
    SL_TRY(sl_compiler_create(options, &program, &compiler));
    for (int64_t i = 0; i < count; i++) {
        if (is_left_out(options, (sl_kind)actions[i].kind))
            continue;
        SL_TRY(SL_GROW(program.actions, &program.action_capacity, program.action_count + 1));
        sl_program_action *each = &program.actions[program.action_count++];
        *each = (sl_program_action){ .action = actions[i], .cell = i, .first = program.instr_count };
        char text[SL_ACTION_TEXT_SIZE];
        snprintf(each->text, sizeof each->text, "%.47s", sl_action_text(actions[i], text, sizeof text));
        SL_TRY(compile_action(&compiler, actions[i]));
        each->count = program.instr_count - each->first;
    }
    assert(!options->layout || options->layout->slots.taken == 0);
    *out = program;
    program = (sl_program){ 0 };
done:
    sl_compiler_free(&compiler);
    sl_program_free(&program);
    return status;
}
