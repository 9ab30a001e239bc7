/* A stage program as text: ports, regions and instructions with their addresses. */
#include "graph/program.h"

static void dump_port(const char *kind, int index, const sl_port *port, FILE *file)
{
    char shape[128];
    fprintf(file, "%s %d: %s %s %s, %zu bytes, until %s", kind, index, port->name, sl_dtype_name(port->dtype),
            sl_shape_text(&port->shape, shape, sizeof shape), port->bytes, sl_phase_name(port->last_use));
    fputs(port->root ? ", root" : "", file);
    fputs(port->has_grad ? ", with gradient" : "", file);
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
        fprintf(file, " %s(", sl_op_get_info(step->op)->name);
        for (int k = 0; k < step->input_count; k++) {
            fputs(k ? "; " : "", file);
            dump_operand(places, &step->inputs[k], file);
        }
        fprintf(file, ")%s  # %s\n", step->is_done ? " (nothing to do)" : "",
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
    fprintf(file, "saved_i %zu bytes, saved_w %zu bytes, kept %zu bytes, constants %zu bytes\n", info->saved_i_bytes,
            info->saved_w_bytes, info->kept_bytes, info->constant_bytes);
    for (int p = 0; p < SL_PHASE_COUNT; p++)
        dump_phase(program, (sl_phase)p, file);
}
