/* The batch: arguments bound to the frames that read them. */
#include "runtime/runtime.h"

#include "pipeline/microbatch.h"

#include <string.h>

/* ---- Arguments ------------------------------------------------------------------------------- */

void sl_runtime_list_name(char *list, size_t size, const char *name)
{
    size_t used = strlen(list);
    snprintf(list + used, size - used, "%s'%s'", used ? ", " : "", name);
}

sl_status sl_runtime_fail_unknown_arg(const sl_wiring *wiring, const char *name)
{
    char known[512] = "";
    for (int r = 0; r < wiring->root_count; r++)
        sl_runtime_list_name(known, sizeof known, wiring->roots[r].name);
    return sl_fail(SL_ERR_ARGUMENT, "no stage has an input '%s'; the batch consists of %s", name,
                   *known ? known : "nothing");
}

/* The root input that an argument is for; position counts those without a name. */
static sl_status find_root(const sl_runtime *runtime, const sl_arg *arg, int *position, int *out)
{
    const sl_wiring *wiring = runtime->wiring;
    if (arg->name) {
        *out = sl_wiring_find_root(wiring, arg->name);
        return *out >= 0 ? SL_OK : sl_runtime_fail_unknown_arg(wiring, arg->name);
    }
    for (int r = 0; r < wiring->root_count; r++) {
        if (wiring->roots[r].position == *position) {
            (*position)++;
            *out = r;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "%d arguments without a name, the pipeline takes %d", *position + 1,
                   wiring->root_count);
}

static sl_status check_arg(const sl_runtime *runtime, int r, const sl_meta *expected, const sl_meta *given)
{
    char what[256];
    if (sl_meta_equal(expected, given) && expected->dtype == given->dtype)
        return SL_OK;
    snprintf(what, sizeof what, "stage %d: input '%s'", runtime->roots[r].stage, runtime->wiring->roots[r].name);
    return sl_meta_check(what, expected, given);
}

/* Copies a part to where the stages read it, which is `offset` bytes into the block of inputs; for a device that is not
 * the host, into the image of the block, which is not written again before the step has ended. */
static sl_status copy_part(sl_runtime *runtime, const sl_view *part, size_t offset)
{
    char *block = runtime->host ? runtime->blocks.inputs : runtime->lanes.inputs;
    return sl_microbatch_copy(part,
                              &(sl_view){ block + offset, sl_meta_contiguous(part->meta.dtype, &part->meta.shape) });
}

/* Every frame that reads root input r for microbatch m finds it at data. */
static void point_frames(sl_runtime *runtime, const sl_program *program, int r, int m, void *data)
{
    for (int k = 0; k < runtime->stage_count; k++) {
        const sl_wire_stage *stage = &runtime->wiring->stages[runtime->stages[k]->index];
        for (int i = 0; i < stage->input_count; i++) {
            if (stage->inputs[i].root == r)
                program->frames[k * runtime->wiring->microbatches + m].inputs[i] = data;
        }
    }
}

static sl_status bind_part(sl_runtime *runtime, const sl_program *program, int r, int m, const sl_view *part)
{
    sl_status status = SL_OK;
    const sl_root_use *use = &runtime->roots[r];
    sl_meta expected = runtime->wiring->roots[r].metas[sl_wiring_size(runtime->wiring, m)];
    void *data = part->data;
    /* A part of a larger tensor keeps its strides; only shape and dtype must be right. */
    sl_meta given = sl_meta_contiguous(part->meta.dtype, &part->meta.shape);
    SL_TRY(check_arg(runtime, r, &expected, &given));
    if (use->copy_bytes) {
        size_t offset = use->copy_offset + (size_t)m * use->copy_bytes;
        data = (char *)runtime->blocks.inputs + offset;
        SL_TRY(copy_part(runtime, part, offset));
    }
    point_frames(runtime, program, r, m, data);
done:
    return status;
}

/* If nobody said how large the batch is, the stages' microbatches did: that may come as a surprise. */
static sl_status check_whole(const sl_runtime *runtime, int r, const sl_meta *expected, const sl_meta *given)
{
    const sl_wire_root *root = &runtime->wiring->roots[r];
    sl_status status = check_arg(runtime, r, expected, given);
    if (status == SL_OK || !root->derived || sl_shape_equal(&expected->shape, &given->shape))
        return status;
    char part[128];
    return sl_fail(
        status,
        "%s (%d microbatches of %s; for a batch that does not divide into equal ones, sl_runtime_options.args "
        "must have its shape)",
        sl_error_message(), runtime->wiring->microbatches, sl_shape_text(&root->metas[0].shape, part, sizeof part));
}

static sl_status bind_whole(sl_runtime *runtime, const sl_program *program, int r, const sl_view *whole)
{
    sl_status status = SL_OK;
    const sl_meta *expected = &runtime->wiring->roots[r].whole;
    int count = runtime->wiring->microbatches;
    if (expected->shape.rank >= 0)
        SL_TRY(check_whole(runtime, r, expected, &whole->meta));
    for (int m = 0; m < count; m++) {
        sl_view part;
        SL_TRY(sl_microbatch_part_view(whole, &runtime->roots[r].chunk, count, m, &part));
        SL_TRY(bind_part(runtime, program, r, m, &part));
    }
done:
    return status;
}

/* Pre-split microbatches are whole tensors, so that their strides count. */
static sl_status bind_given_part(sl_runtime *runtime, const sl_program *program, int r, int m, const sl_view *part)
{
    sl_status status = SL_OK;
    sl_meta expected = runtime->wiring->roots[r].metas[sl_wiring_size(runtime->wiring, m)];
    status = check_arg(runtime, r, &expected, &part->meta);
    if (status != SL_OK)
        return sl_fail_context(status, "microbatch %d", m);
    SL_TRY(bind_part(runtime, program, r, m, part));
done:
    return status;
}

static sl_status bind_arg(sl_runtime *runtime, const sl_program *program, const sl_step *step, int m, int r,
                          const sl_view *view)
{
    sl_root_use *use = &runtime->roots[r];
    const char *name = runtime->wiring->roots[r].name;
    if (use->given)
        return sl_fail(SL_ERR_ARGUMENT, "argument '%s' is given twice", name);
    use->given = true;
    if (!use->used)
        return SL_OK;
    if (!view->data && sl_meta_count(&view->meta) > 0)
        return sl_fail(SL_ERR_ARGUMENT, "the data of argument '%s' is NULL", name);
    return step->split ? bind_given_part(runtime, program, r, m, view) : bind_whole(runtime, program, r, view);
}

/* The list of the whole batch, or of microbatch m of one that is split. */
static sl_status bind_list(sl_runtime *runtime, const sl_program *program, const sl_step *step, int m)
{
    sl_status status = SL_OK;
    const sl_wiring *wiring = runtime->wiring;
    int position = 0;
    for (int r = 0; r < wiring->root_count; r++)
        runtime->roots[r].given = false;
    for (int a = 0; a < step->arg_count; a++) {
        const sl_arg *arg = &step->args[m * step->arg_count + a];
        int r = -1;
        SL_TRY(find_root(runtime, arg, &position, &r));
        SL_TRY(bind_arg(runtime, program, step, m, r, &arg->view));
    }
    for (int r = 0; r < wiring->root_count; r++) {
        if (runtime->roots[r].used && !runtime->roots[r].given)
            SL_TRY(sl_fail(SL_ERR_ARGUMENT,
                           "stage %d has an input '%s', which no stage before it makes and the batch was given without",
                           runtime->roots[r].stage, wiring->roots[r].name));
    }
done:
    return status;
}

sl_status sl_runtime_bind_args(sl_runtime *runtime, const sl_program *program, const sl_step *step)
{
    sl_status status = SL_OK;
    for (int m = 0; m < (step->split ? runtime->wiring->microbatches : 1); m++)
        SL_TRY(bind_list(runtime, program, step, m));
done:
    return status;
}
