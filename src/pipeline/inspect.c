/* Looking into a compiled pipeline: what was agreed on, value by value. */
#include "pipeline/pipeline.h"

static sl_meta open_meta(void)
{
    return (sl_meta){ .shape = { .rank = -1 } };
}

static const sl_wire_stage *find_stage(const sl_pipeline *pipeline, int stage)
{
    return stage >= 0 && stage < pipeline->wiring->stage_count ? &pipeline->wiring->stages[stage] : NULL;
}

bool sl_pipeline_is_first(const sl_pipeline *pipeline, int stage)
{
    (void)pipeline;
    return stage == 0;
}

bool sl_pipeline_is_last(const sl_pipeline *pipeline, int stage)
{
    return stage == pipeline->wiring->stage_count - 1;
}

int sl_pipeline_input_count(const sl_pipeline *pipeline, int stage)
{
    const sl_wire_stage *found = find_stage(pipeline, stage);
    return found ? found->input_count : 0;
}

int sl_pipeline_output_count(const sl_pipeline *pipeline, int stage)
{
    const sl_wire_stage *found = find_stage(pipeline, stage);
    return found ? found->output_count : 0;
}

static sl_pipeline_value no_value(void)
{
    return (sl_pipeline_value){
        .metas = { open_meta(), open_meta() }, .maker = -1, .maker_output = -1, .root = -1, .whole = open_meta()
    };
}

static void copy_metas(const sl_wiring *wiring, const sl_meta *metas, sl_meta *out)
{
    for (int size = 0; size < SL_MAX_SIZES; size++)
        out[size] = size < wiring->size_count ? metas[size] : open_meta();
}

/* Of all microbatches side by side. */
static sl_meta join(const sl_wiring *wiring, const sl_meta *metas)
{
    sl_shape shape = metas[0].shape;
    if (shape.rank < 1)
        return metas[0];
    shape.dims[0] = 0;
    for (int m = 0; m < wiring->microbatches; m++)
        shape.dims[0] += metas[sl_wiring_size(wiring, m)].shape.dims[0];
    return sl_meta_contiguous(metas[0].dtype, &shape);
}

sl_pipeline_value sl_pipeline_get_input(const sl_pipeline *pipeline, int stage, int index)
{
    const sl_wiring *wiring = pipeline->wiring;
    sl_pipeline_value value = no_value();
    if (index < 0 || index >= sl_pipeline_input_count(pipeline, stage))
        return value;
    const sl_wire_input *input = &wiring->stages[stage].inputs[index];
    value.name = input->name;
    value.has_grad = input->has_grad;
    value.root = input->root;
    if (input->maker >= 0) {
        value.maker = input->maker;
        value.maker_output = input->maker_output;
    }
    copy_metas(wiring, input->metas, value.metas);
    value.whole = input->root >= 0 ? wiring->roots[input->root].whole : join(wiring, input->metas);
    return value;
}

sl_pipeline_value sl_pipeline_get_output(const sl_pipeline *pipeline, int stage, int index)
{
    const sl_wiring *wiring = pipeline->wiring;
    sl_pipeline_value value = no_value();
    if (index < 0 || index >= sl_pipeline_output_count(pipeline, stage))
        return value;
    const sl_wire_output *output = &wiring->stages[stage].outputs[index];
    value.name = output->name;
    value.has_grad = output->has_grad;
    value.loss = output->loss;
    value.users = output->edge_count;
    copy_metas(wiring, output->metas, value.metas);
    value.whole = join(wiring, output->metas);
    return value;
}

int sl_pipeline_root_count(const sl_pipeline *pipeline)
{
    return pipeline->wiring->root_count;
}

static bool has_grad(const sl_wiring *wiring, int root)
{
    for (int s = 0; s < wiring->stage_count; s++) {
        const sl_wire_stage *stage = &wiring->stages[s];
        for (int i = 0; i < stage->input_count; i++) {
            if (stage->inputs[i].root == root && stage->inputs[i].has_grad &&
                (stage->writes_all_grads || wiring->roots[root].grad))
                return true;
        }
    }
    return false;
}

sl_pipeline_root sl_pipeline_get_root(const sl_pipeline *pipeline, int index)
{
    const sl_wiring *wiring = pipeline->wiring;
    sl_pipeline_root root = { .metas = { open_meta(), open_meta() }, .whole = open_meta() };
    if (index < 0 || index >= wiring->root_count)
        return root;
    const sl_wire_root *from = &wiring->roots[index];
    root.name = from->name;
    root.kind = from->kind;
    root.dim = from->dim;
    root.position = from->position;
    root.has_grad = has_grad(wiring, index);
    root.whole = from->whole;
    copy_metas(wiring, from->metas, root.metas);
    return root;
}

int sl_pipeline_size_of(const sl_pipeline *pipeline, int microbatch)
{
    return sl_wiring_size(pipeline->wiring, microbatch);
}

int64_t sl_pipeline_samples(const sl_pipeline *pipeline, int microbatch)
{
    return sl_wiring_samples(pipeline->wiring, microbatch);
}

sl_pipeline_slots sl_pipeline_get_slots(const sl_pipeline *pipeline, int rank, int index)
{
    if (rank < 0 || rank >= pipeline->wiring->rank_count || index < 0 ||
        index >= pipeline->ranks[rank].slots.class_count)
        return (sl_pipeline_slots){ .bytes = 0 };
    const sl_slot_class *each = &pipeline->ranks[rank].slots.classes[index];
    return (sl_pipeline_slots){ .bytes = each->bytes, .count = each->count };
}
