#include "kernel/fused.h"

#include "kernel/call.h"

/* An argument of a part: an input of the whole call, or one of its outputs. */
enum { OUTPUT = 16, END = -1 };

/* One part of a fused op. inputs and outputs are numbers of the whole call's arguments; an output of the whole as an
 * input of the part is its number + OUTPUT. */
typedef struct part_rule {
    sl_op op;
    int inputs[SL_OP_INPUTS], outputs[SL_OP_OUTPUTS];
} part_rule;

/* Gradients of weights come before that of x, which may take the place of dy or x. */
static const struct {
    sl_op op;
    part_rule parts[SL_FUSED_PARTS + 1]; /* ended by one without outputs */
} rules[] = {
    { SL_OP_ADD_LAYERNORM,
      { { SL_OP_ADD, { 0, 1, END }, { 0, END } },
        { SL_OP_LAYERNORM, { OUTPUT + 0, 2, 3, END }, { 1, 2, 3, END } },
        { .outputs = { END } } } },
    { SL_OP_ADD_RMSNORM,
      { { SL_OP_ADD, { 0, 1, END }, { 0, END } },
        { SL_OP_RMSNORM, { OUTPUT + 0, 2, END }, { 1, 2, END } },
        { .outputs = { END } } } },
    { SL_OP_LAYERNORM_GRAD,
      { { SL_OP_LAYERNORM_GRAD_W, { 0, 1, 3, 4, END }, { 1, 2, END } },
        { SL_OP_LAYERNORM_GRAD_X, { 0, 1, 2, 3, 4, END }, { 0, END } },
        { SL_OP_SUM_TO, { OUTPUT + 0, END }, { 3, END } },
        { .outputs = { END } } } },
    { SL_OP_RMSNORM_GRAD,
      { { SL_OP_RMSNORM_GRAD_W, { 0, 1, 3, END }, { 1, END } },
        { SL_OP_RMSNORM_GRAD_X, { 0, 1, 2, 3, END }, { 0, END } },
        { SL_OP_SUM_TO, { OUTPUT + 0, END }, { 2, END } },
        { .outputs = { END } } } },
    { SL_OP_GELU_TANH_GRAD_SUM,
      { { SL_OP_GELU_TANH_GRAD, { 0, 1, END }, { 0, END } },
        { SL_OP_SUM_TO, { OUTPUT + 0, END }, { 1, END } },
        { .outputs = { END } } } },
    { SL_OP_ROPE_PAIR,
      { { SL_OP_ROPE, { 0, 2, 3, 4, END }, { 0, END } },
        { SL_OP_ROPE, { 1, 2, 3, 4, END }, { 1, END } },
        { .outputs = { END } } } },
};

static void make_part(const sl_kernel_call *whole, const part_rule *rule, sl_fused_part *part)
{
    part->call = *whole;
    part->call.op = rule->op;
    part->call.inputs = part->inputs;
    part->call.outputs = part->outputs;
    part->call.input_count = part->call.output_count = 0;
    part->call.accumulate = 0;
    for (int i = 0; i < SL_OP_INPUTS && rule->inputs[i] != END; i++)
        part->inputs[part->call.input_count++] = rule->inputs[i] >= OUTPUT
                                                     ? *sl_call_output(whole, rule->inputs[i] - OUTPUT)
                                                     : *sl_call_input(whole, rule->inputs[i]);
    for (int o = 0; o < SL_OP_OUTPUTS && rule->outputs[o] != END; o++) {
        part->call.accumulate |= (whole->accumulate >> rule->outputs[o] & 1u) << o;
        part->outputs[part->call.output_count++] = *sl_call_output(whole, rule->outputs[o]);
    }
}

int sl_fused_parts(const sl_kernel_call *call, sl_fused_part parts[SL_FUSED_PARTS])
{
    int count = 0;
    for (size_t r = 0; r < sizeof rules / sizeof *rules && sl_op_is_fused(call->op); r++) {
        for (const part_rule *rule = rules[r].parts; rules[r].op == call->op && rule->outputs[0] != END; rule++) {
            if (!sl_view_is_none(sl_call_output(call, rule->outputs[0]))) /* else nobody wants the part */
                make_part(call, rule, &parts[count++]);
        }
    }
    return count;
}
