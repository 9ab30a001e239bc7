/* Graphs and stage programs as text. */
#include "graph/program.h"

#include <inttypes.h>

static void dump_sources(const sl_graph *graph, const char *kind, const sl_id_list *list, FILE *file)
{
    char shape[128];
    for (int i = 0; i < list->count; i++) {
        const sl_graph_value *value = &graph->values[list->ids[i]];
        fprintf(file, "%%%d = %s %s %s %s\n", list->ids[i], kind, value->name, sl_dtype_name(value->dtype),
                sl_shape_text(&value->shape, shape, sizeof shape));
    }
}

/* What a view does beyond its argument; rank is that of its result. */
static void dump_view(const sl_graph_node *node, int rank, FILE *file)
{
    if (node->op == SL_NODE_SLICE)
        fprintf(file, " dim=%d start=%" PRId64, node->dim, node->start);
    if (node->op == SL_NODE_SPLIT)
        fprintf(file, " dim=%d", node->dim);
    for (int i = 0; i < rank && node->op == SL_NODE_PERMUTE; i++)
        fprintf(file, "%s%d", i ? "," : " order=", node->order[i]);
}

/* The attributes that the op reads; flags and what is 0 by default only if set. */
static void dump_attrs(sl_op op, const sl_op_attrs *a, FILE *file)
{
    uint32_t attrs = sl_op_get_info(op)->attrs;
    if ((attrs & SL_ATTR_TRANSPOSE_W) && a->transpose_w)
        fputs(" transpose_w", file);
    if ((attrs & SL_ATTR_TRANSPOSE_AB) && a->transpose_a)
        fputs(" transpose_a", file);
    if ((attrs & SL_ATTR_TRANSPOSE_AB) && a->transpose_b)
        fputs(" transpose_b", file);
    if ((attrs & SL_ATTR_CAUSAL) && a->causal)
        fputs(" causal", file);
    if ((attrs & SL_ATTR_EPS) && a->eps != 0)
        fprintf(file, " eps=%g", a->eps);
    if ((attrs & SL_ATTR_SCALE) && a->scale != 0)
        fprintf(file, " scale=%g", a->scale);
    if ((attrs & SL_ATTR_WINDOW) && a->window != 0)
        fprintf(file, " window=%" PRId64, a->window);
    if ((attrs & SL_ATTR_SOFTCAP) && a->softcap != 0)
        fprintf(file, " softcap=%g", a->softcap);
    if (attrs & SL_ATTR_ALPHA_BETA)
        fprintf(file, " alpha=%g beta=%g", a->alpha, a->beta);
    if ((attrs & SL_ATTR_DROPOUT) && a->p != 0)
        fprintf(file, " p=%g", a->p);
    if ((attrs & SL_ATTR_DIMS) && a->dims != 0)
        fprintf(file, " dims=0x%x", a->dims);
    if (attrs & SL_ATTR_IGNORE_INDEX)
        fprintf(file, " ignore_index=%" PRId64, a->ignore_index);
    if (attrs & SL_ATTR_DIM)
        fprintf(file, " dim=%d", a->dim);
}

static void dump_node(const sl_graph *graph, const sl_graph_node *node, FILE *file)
{
    char shape[128];
    for (int i = 0; i < node->output_count; i++)
        fprintf(file, "%s%%%d", i ? ", " : "", node->outputs[i]);
    fprintf(file, " = %s(", sl_node_op_name(node->op));
    for (int i = 0; i < node->input_count; i++) {
        if (node->inputs[i])
            fprintf(file, "%s%%%d", i ? ", " : "", node->inputs[i]);
        else
            fprintf(file, "%s-", i ? ", " : "");
    }
    fputs(")", file);
    if (SL_NODE_IS_VIEW(node->op))
        dump_view(node, graph->values[node->outputs[0]].shape.rank, file);
    else
        dump_attrs((sl_op)node->op, &node->attrs, file);
    fputs(" ->", file);
    for (int i = 0; i < node->output_count; i++) {
        const sl_graph_value *value = &graph->values[node->outputs[i]];
        fprintf(file, "%s %s %s", i ? "," : "", sl_dtype_name(value->dtype),
                sl_shape_text(&value->shape, shape, sizeof shape));
    }
    fprintf(file, "  # %s%s\n", node->name, graph->finished && !node->live ? " (unused)" : "");
}

void sl_graph_dump(const sl_graph *graph, FILE *file)
{
    dump_sources(graph, "input", &graph->inputs, file);
    dump_sources(graph, "param", &graph->params, file);
    dump_sources(graph, "constant", &graph->constants, file);
    dump_sources(graph, "state", &graph->states, file);
    for (int n = 0, mark = 0; n < graph->node_count; n++) {
        for (; mark < graph->mark_count && graph->marks[mark] <= n; mark++)
            fputs("---- split\n", file);
        dump_node(graph, &graph->nodes[n], file);
    }
    for (int i = 0; i < graph->output_count; i++)
        fprintf(file, "%s %s = %%%d\n", i == graph->loss ? "loss" : "output", graph->outputs[i].name,
                graph->outputs[i].value);
}

/* ---- Stage programs -------------------------------------------------------------------------- */

static void dump_port(const char *kind, int index, const sl_port *port, FILE *file)
{
    char shape[128];
    fprintf(file, "%s %d: %s %s %s, %zu bytes, until %s", kind, index, port->name, sl_dtype_name(port->dtype),
            sl_shape_text(&port->shape, shape, sizeof shape), port->bytes, sl_phase_name(port->last_use));
    fputs(port->root ? ", root" : "", file);
    fputs(port->has_grad ? ", with gradient" : "", file);
    if (port->has_grad && port->grad_bytes > 0 && port->grad_dtype != port->dtype)
        fprintf(file, " in %s", sl_dtype_name(port->grad_dtype));
    if (port->output_of >= 0)
        fprintf(file, ", from stage %d", port->output_of);
    fputc('\n', file);
}

static void dump_operand(const sl_program_place *places, const sl_operand *operand, FILE *file)
{
    char text[256];
    if (operand->storage < 0) {
        fputs("-", file);
        return;
    }
    const sl_program_place *place = &places[operand->storage];
    size_t offset = place->offset + (size_t)operand->offset * sl_dtype_size(operand->meta.dtype);
    if (place->home >= SL_HOME_SAVED_I)
        fprintf(file, "%s+%zu", sl_home_name(place->home), offset);
    else if (offset == 0)
        fprintf(file, "%s[%d]", sl_home_name(place->home), place->index);
    else
        fprintf(file, "%s[%d]+%zu", sl_home_name(place->home), place->index, offset);
    fprintf(file, " %s", sl_meta_text(&operand->meta, text, sizeof text));
}

static void dump_phase(const sl_stage_program *program, sl_phase phase, FILE *file)
{
    const sl_instruction_list *list = &program->plan.phases[phase];
    const sl_program_place *places = phase == SL_PHASE_B ? program->plan.whole : program->plan.split;
    fprintf(file, "%s: %d instructions, %.4g GFLOP, %.4g MB, scratch %zu bytes\n", sl_phase_name(phase), list->count,
            program->info.cost[phase].flops / 1e9, program->info.cost[phase].bytes / 1e6,
            program->info.scratch_bytes[phase]);
    for (int i = 0; i < list->count; i++) {
        const sl_instruction *step = &list->items[i];
        fputs("  ", file);
        for (int o = 0; o < step->output_count; o++) {
            fputs(o ? "; " : "", file);
            dump_operand(places, &step->outputs[o], file);
            fputs(step->accumulate >> o & 1u ? " +=" : " =", file);
        }
        fprintf(file, " %s(", sl_op_name(step->op));
        for (int k = 0; k < step->input_count; k++) {
            fputs(k ? "; " : "", file);
            dump_operand(places, &step->inputs[k], file);
        }
        fprintf(file, ")%s%s  # %s\n", step->is_done ? " (nothing to do)" : "", step->beside ? " (beside)" : "",
                program->node_names[step->node] ? program->node_names[step->node] : "outputs");
    }
}

void sl_stage_program_dump(const sl_stage_program *program, FILE *file)
{
    const sl_program_info *info = &program->info;
    fprintf(file, "stage %d of %d\n", info->stage, info->stage_count);
    for (int i = 0; i < info->param_count; i++)
        dump_port("param", i, &info->params[i], file);
    for (int i = 0; i < info->input_count; i++)
        dump_port("input", i, &info->inputs[i], file);
    for (int i = 0; i < info->output_count; i++)
        dump_port("output", i, &info->outputs[i], file);
    for (int i = 0; i < info->state_count; i++)
        dump_port("state", i, &info->states[i], file);
    fprintf(file, "saved_i %zu bytes, saved_w %zu bytes, kept %zu bytes, constants %zu bytes, packed %zu bytes\n",
            info->saved_i_bytes, info->saved_w_bytes, info->kept_bytes, info->constant_bytes, info->packed_bytes);
    for (int p = 0; p < SL_PHASE_COUNT; p++)
        dump_phase(program, (sl_phase)p, file);
}
