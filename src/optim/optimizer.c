/* Optimizer state and updates, by the kernels of the parameters' device. */
#include <sluice/optim.h>

#include "base/alloc.h"
#include "op/op.h"

#include <sluice/kernel.h>

#include <inttypes.h>
#include <math.h>

enum { MAX_STATES = 2, MASTER = MAX_STATES };

typedef struct optim_slot {
    char *name;
    sl_view data, grad, counted;
    bool decay, uncounted;
    sl_view states[MAX_STATES + 1];  /* and the master; none if there is no such */
    sl_view sum;                     /* of the squares */
    size_t scratch;                  /* where that of the sum begins */
    sl_view updated[2 + MAX_STATES]; /* what a step writes: the weight, states, the rounded copy of the master */
} optim_slot;

/* The end of the block of sums. */
typedef struct update_image {
    double norm;
    sl_update_numbers numbers;
} update_image;

struct sl_optimizer {
    sl_optim_options options;
    sl_device *device;
    optim_slot *slots;
    int count;
    double *sums;        /* on the device, one a slot; behind them the norm and the numbers of an update */
    update_image *image; /* of these two; host memory */
    char *scratch;       /* for the sums, each its own */
    size_t scratch_bytes;
    sl_kernel_call *calls; /* one a slot, of whatever is being done */
};

static const struct {
    sl_op op;
    int states;
    const char *names[MAX_STATES];
} kinds[] = {
    [SL_OPTIM_ADAMW] = { SL_OP_ADAMW, 2, { "exp_avg", "exp_avg_sq" } },
    [SL_OPTIM_SGD] = { SL_OP_SGD, 1, { "momentum_buffer" } },
};

static int states_of(const sl_optim_options *options)
{
    if (options->kind == SL_OPTIM_SGD && options->momentum == 0)
        return 0;
    return kinds[options->kind].states;
}

static bool has_master(const sl_optim_options *options, sl_dtype dtype)
{
    return options->master_weights && dtype != SL_F32;
}

int sl_optim_saved_sizes(const sl_optim_options *options, sl_dtype dtype, int64_t count,
                         size_t sizes[SL_OPTIM_MAX_SAVED])
{
    int states = states_of(options);
    sizes[0] = (size_t)count * (has_master(options, dtype) ? sizeof(float) : sl_dtype_size(dtype));
    for (int i = 0; i < states; i++)
        sizes[1 + i] = (size_t)count * sl_dtype_size(options->state_dtype);
    return 1 + states;
}

size_t sl_optim_state_bytes(const sl_optim_options *options, sl_dtype dtype, int64_t count)
{
    size_t master = has_master(options, dtype) ? sizeof(float) : 0;
    size_t states = (size_t)states_of(options) * sl_dtype_size(options->state_dtype);
    return (size_t)count * (states + master);
}

static sl_status check_options(const sl_optim_options *o)
{
    if (!o)
        return sl_fail(SL_ERR_ARGUMENT, "an optimizer needs options: NULL was given");
    if ((unsigned)o->kind >= sizeof kinds / sizeof *kinds)
        return sl_fail(SL_ERR_ARGUMENT, "there is no optimizer %d", (int)o->kind);
    if (!sl_dtype_is_floating(o->state_dtype))
        return sl_fail(SL_ERR_ARGUMENT, "optimizer state cannot be %s", sl_dtype_name(o->state_dtype));
    if (!(o->weight_decay >= 0))
        return sl_fail(SL_ERR_ARGUMENT, "weight decay %g is negative", o->weight_decay);
    if (o->kind == SL_OPTIM_ADAMW && !(o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1))
        return sl_fail(SL_ERR_ARGUMENT, "betas %g and %g are not in 0 <= beta < 1", o->beta1, o->beta2);
    if (o->kind == SL_OPTIM_ADAMW && !(o->eps >= 0))
        return sl_fail(SL_ERR_ARGUMENT, "eps %g is negative", o->eps);
    if (o->kind == SL_OPTIM_SGD && !(o->momentum >= 0 && o->momentum < 1))
        return sl_fail(SL_ERR_ARGUMENT, "momentum %g is not in 0 <= momentum < 1", o->momentum);
    return SL_OK;
}

static sl_status check_param(const sl_optim_param *param)
{
    char expected[160], given[160];
    const sl_meta *data = &param->data.meta, *grad = &param->grad.meta;
    if (!sl_dtype_is_floating(data->dtype) || !sl_meta_is_contiguous(data))
        return sl_fail(SL_ERR_SHAPE, "parameter '%s' is %s; optimizers take contiguous floating ones", param->name,
                       sl_meta_text(data, given, sizeof given));
    if (!sl_shape_equal(&data->shape, &grad->shape) || !sl_dtype_is_floating(grad->dtype) ||
        !sl_meta_is_contiguous(grad))
        return sl_fail(SL_ERR_SHAPE, "parameter '%s' is %s, its gradient %s", param->name,
                       sl_meta_text(data, expected, sizeof expected), sl_meta_text(grad, given, sizeof given));
    return SL_OK;
}

/* Takes state of a parameter from the device and zeroes it. */
static sl_status add_state(sl_optimizer *optimizer, sl_stream *stream, optim_slot *slot, int which, sl_dtype dtype)
{
    sl_status status = SL_OK;
    sl_view *state = &slot->states[which];
    const sl_meta meta = sl_meta_contiguous(dtype, &slot->data.meta.shape);
    status = sl_device_alloc(optimizer->device, sl_meta_bytes(&meta), &state->data);
    if (status != SL_OK)
        return sl_fail_context(status, "optimizer state of '%s'", slot->name);
    state->meta = meta;
    SL_TRY(sl_stream_memset(stream, state->data, 0, sl_meta_bytes(&meta)));
done:
    return status;
}

static sl_status cast(sl_stream *stream, const sl_view *from, const sl_view *to)
{
    return sl_kernel_run(
        stream,
        &(sl_kernel_call){ .op = SL_OP_CAST, .inputs = from, .input_count = 1, .outputs = to, .output_count = 1 });
}

sl_status sl_optimizer_refresh_masters(sl_optimizer *optimizer, sl_stream *stream)
{
    sl_status status = SL_OK;
    for (int i = 0; i < optimizer->count; i++) {
        const optim_slot *slot = &optimizer->slots[i];
        if (!sl_view_is_none(&slot->states[MASTER]))
            SL_TRY(cast(stream, &slot->data, &slot->states[MASTER]));
    }
done:
    return status;
}

sl_status sl_optimizer_round_masters(sl_optimizer *optimizer, sl_stream *stream)
{
    sl_status status = SL_OK;
    for (int i = 0; i < optimizer->count; i++) {
        const optim_slot *slot = &optimizer->slots[i];
        if (!sl_view_is_none(&slot->states[MASTER]))
            SL_TRY(cast(stream, &slot->states[MASTER], &slot->data));
    }
done:
    return status;
}

sl_view sl_optimizer_weight(const sl_optimizer *optimizer, int i)
{
    const optim_slot *slot = &optimizer->slots[i];
    return sl_view_is_none(&slot->states[MASTER]) ? slot->data : slot->states[MASTER];
}

/* Scratch for the sum of a gradient's squares. */
static sl_status sum_scratch(sl_device *device, const sl_meta *grad_meta, size_t *out)
{
    const sl_view grad = { .meta = *grad_meta }, sum = { .meta = sl_meta_make(SL_F64, 0, NULL) };
    const sl_kernel_call call = {
        .op = SL_OP_SQUARE_SUM, .inputs = &grad, .input_count = 1, .outputs = &sum, .output_count = 1
    };
    sl_status status = sl_kernel_scratch(device, &call, out);
    *out = (*out + SL_DEVICE_ALIGNMENT - 1) / SL_DEVICE_ALIGNMENT * SL_DEVICE_ALIGNMENT;
    return status;
}

static size_t sums_bytes(int count)
{
    return (size_t)count * sizeof(double) + sizeof(update_image);
}

sl_status sl_optim_device_bytes(const sl_optim_options *options, sl_device *device, const sl_meta *params,
                                const sl_meta *counted, int count, size_t *out)
{
    sl_status status = SL_OK;
    size_t bytes = sums_bytes(count);
    for (int i = 0; i < count; i++) {
        size_t scratch = 0;
        bytes += sl_optim_state_bytes(options, params[i].dtype, sl_meta_count(&params[i]));
        SL_TRY(sum_scratch(device, &counted[i], &scratch));
        bytes += scratch;
    }
    *out = bytes;
done:
    return status;
}

/* Takes the memory of all states, and of the scratch, at once. */
static sl_status reserve_states(const sl_optimizer *optimizer, const sl_optim_param *params, int count)
{
    sl_status status = SL_OK;
    size_t bytes = sums_bytes(count);
    for (int i = 0; i < count; i++) {
        size_t scratch = 0;
        const sl_meta *data = &params[i].data.meta;
        bytes += sl_optim_state_bytes(&optimizer->options, data->dtype, sl_meta_count(data));
        SL_TRY(sum_scratch(optimizer->device, params[i].counted.data ? &params[i].counted.meta : &params[i].grad.meta,
                           &scratch));
        bytes += scratch;
    }
    SL_TRY(sl_device_reserve(optimizer->device, bytes, SL_OPTIM_BLOCKS(count)));
done:
    return status == SL_OK ? SL_OK : sl_fail_context(status, "state of the optimizer");
}

/* AdamW: weight, two states, copy. SGD: weight, momentum or none, copy. */
static void set_updated(const sl_optim_options *options, optim_slot *slot)
{
    int states = kinds[options->kind].states;
    bool master = !sl_view_is_none(&slot->states[MASTER]);
    slot->updated[0] = master ? slot->states[MASTER] : slot->data;
    for (int i = 0; i < states; i++)
        slot->updated[1 + i] = slot->states[i];
    slot->updated[1 + states] = master ? slot->data : sl_view_none();
}

static sl_status add_slot(sl_optimizer *optimizer, sl_stream *stream, const sl_optim_param *param)
{
    sl_status status = SL_OK;
    optim_slot *slot = &optimizer->slots[optimizer->count];
    size_t scratch;

    for (int i = 0; i <= MASTER; i++)
        slot->states[i] = sl_view_none();
    SL_TRY(sl_strdup(param->name, &slot->name));
    optimizer->count++; /* from here on the destroyer sees it */
    slot->data = param->data;
    slot->grad = param->grad;
    slot->counted = param->counted.data ? param->counted : param->grad;
    slot->decay = param->decay;
    slot->uncounted = param->uncounted;
    for (int i = 0; i < states_of(&optimizer->options); i++)
        SL_TRY(add_state(optimizer, stream, slot, i, optimizer->options.state_dtype));
    if (has_master(&optimizer->options, slot->data.meta.dtype))
        SL_TRY(add_state(optimizer, stream, slot, MASTER, SL_F32));
    SL_TRY(sum_scratch(optimizer->device, &slot->counted.meta, &scratch));
    slot->sum = (sl_view){ optimizer->sums + (slot - optimizer->slots), sl_meta_make(SL_F64, 0, NULL) };
    slot->scratch = optimizer->scratch_bytes;
    optimizer->scratch_bytes += scratch;
    set_updated(&optimizer->options, slot);
done:
    return status;
}

sl_status sl_optimizer_create(const sl_optim_options *options, sl_device *device, const sl_optim_param *params,
                              int count, sl_optimizer **out)
{
    sl_status status = SL_OK;
    sl_optimizer *optimizer = NULL;
    sl_stream *stream = NULL;

    SL_TRY(check_options(options));
    SL_TRY(SL_NEW(optimizer));
    if (count < 0 || (count > 0 && !params))
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "%d parameters are announced, but their list is NULL", count));
    optimizer->options = *options;
    optimizer->device = device;
    SL_TRY(SL_NEW_ARRAY(optimizer->slots, count));
    SL_TRY(SL_NEW_ARRAY(optimizer->calls, count));
    for (int i = 0; i < count; i++)
        SL_TRY(check_param(&params[i]));
    SL_TRY(reserve_states(optimizer, params, count));
    SL_TRY(sl_device_alloc(device, sums_bytes(count), (void **)&optimizer->sums));
    SL_TRY(sl_device_alloc_host(device, sizeof *optimizer->image, (void **)&optimizer->image));
    *optimizer->image = (update_image){ .norm = 0 };
    SL_TRY(sl_stream_create(device, &stream));
    SL_TRY(sl_stream_memset(stream, optimizer->sums, 0, sums_bytes(count)));
    for (int i = 0; i < count; i++)
        SL_TRY(add_slot(optimizer, stream, &params[i]));
    SL_TRY(sl_device_alloc(device, optimizer->scratch_bytes, (void **)&optimizer->scratch));
    SL_TRY(sl_optimizer_refresh_masters(optimizer, stream));
    SL_TRY(sl_stream_synchronize(stream));
    *out = optimizer;
    optimizer = NULL;
done:
    sl_stream_destroy(stream);
    sl_optimizer_destroy(optimizer);
    return status;
}

void sl_optimizer_destroy(sl_optimizer *optimizer)
{
    if (!optimizer)
        return;
    for (int i = 0; i < optimizer->count; i++) {
        for (int s = 0; s <= MASTER; s++)
            sl_device_free(optimizer->device, optimizer->slots[i].states[s].data);
        sl_free(optimizer->slots[i].name);
    }
    sl_device_free(optimizer->device, optimizer->sums);
    sl_device_free_host(optimizer->device, optimizer->image);
    sl_device_free(optimizer->device, optimizer->scratch);
    sl_free(optimizer->calls);
    sl_free(optimizer->slots);
    sl_free(optimizer);
}

/* Sums of squares of all that is counted, on the device. */
static sl_status give_sums(sl_optimizer *optimizer, sl_stream *stream)
{
    int count = 0;
    for (int i = 0; i < optimizer->count; i++) {
        const optim_slot *slot = &optimizer->slots[i];
        size_t end = i + 1 < optimizer->count ? optimizer->slots[i + 1].scratch : optimizer->scratch_bytes;
        if (slot->uncounted)
            continue;
        optimizer->calls[count++] = (sl_kernel_call){ .op = SL_OP_SQUARE_SUM,
                                                      .inputs = &slot->counted,
                                                      .input_count = 1,
                                                      .outputs = &slot->sum,
                                                      .output_count = 1,
                                                      .scratch = optimizer->scratch + slot->scratch,
                                                      .scratch_bytes = end - slot->scratch };
    }
    return sl_kernel_run_many(stream, optimizer->calls, count);
}

sl_status sl_optimizer_square_sums(sl_optimizer *optimizer, sl_stream *stream, double *sums)
{
    sl_status status = SL_OK;
    SL_TRY(give_sums(optimizer, stream));
    SL_TRY(
        sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, sums, optimizer->sums, (size_t)optimizer->count * sizeof *sums));
    SL_TRY(sl_stream_synchronize(stream));
done:
    return status;
}

/* Updates of all parameters, by numbers of the host or of the device. */
static sl_status give_updates(sl_optimizer *optimizer, sl_stream *stream, const sl_optim_attrs *given,
                              const sl_update_numbers *numbers)
{
    const sl_optim_options *o = &optimizer->options;
    for (int i = 0; i < optimizer->count; i++) {
        const optim_slot *slot = &optimizer->slots[i];
        sl_kernel_call call = { .op = kinds[o->kind].op,
                                .inputs = &slot->grad,
                                .input_count = 1,
                                .outputs = slot->updated,
                                .output_count = 2 + kinds[o->kind].states,
                                .numbers = numbers };
        call.attrs.optim = *given;
        call.attrs.optim.beta1 = o->beta1;
        call.attrs.optim.beta2 = o->beta2;
        call.attrs.optim.eps = o->eps;
        call.attrs.optim.weight_decay = slot->decay ? o->weight_decay : 0;
        call.attrs.optim.momentum = o->momentum;
        optimizer->calls[i] = call;
    }
    return sl_kernel_run_many(stream, optimizer->calls, optimizer->count);
}

static sl_status check_number(int64_t number)
{
    return number < 1 ? sl_fail(SL_ERR_ARGUMENT, "update %" PRId64 "; updates count from 1", number) : SL_OK;
}

sl_status sl_optimizer_step(sl_optimizer *optimizer, sl_stream *stream, int64_t number, double lr, double grad_scale)
{
    sl_status status = check_number(number);
    const sl_optim_attrs given = { .lr = lr, .grad_scale = grad_scale, .t = number };
    return status == SL_OK ? give_updates(optimizer, stream, &given, NULL) : status;
}

/* ---- Updates without the host ---------------------------------------------------------------- */

static update_image *image_on_device(const sl_optimizer *optimizer)
{
    return (update_image *)(optimizer->sums + optimizer->count);
}

sl_status sl_optimizer_begin_update(sl_optimizer *optimizer, sl_stream *stream, int64_t number, double lr)
{
    sl_status status = check_number(number);
    const sl_optim_options *o = &optimizer->options;
    if (status != SL_OK)
        return status;
    optimizer->image->numbers = (sl_update_numbers){ .lr = lr,
                                                     .grad_scale = 1,
                                                     .correction1 = 1 - pow(o->beta1, (double)number),
                                                     .correction2 = 1 - pow(o->beta2, (double)number),
                                                     .t = number };
    return sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, &image_on_device(optimizer)->numbers,
                          &optimizer->image->numbers, sizeof optimizer->image->numbers);
}

sl_status sl_optimizer_update(sl_optimizer *optimizer, sl_stream *stream, double clip)
{
    sl_status status = SL_OK;
    update_image *image = image_on_device(optimizer);
    const sl_meta number = sl_meta_make(SL_F64, 0, NULL);
    const sl_view sums = { optimizer->sums, sl_meta_make(SL_F64, 1, (int64_t[]){ optimizer->count }) };
    const sl_view results[] = { { &image->norm, number }, { &image->numbers.grad_scale, number } };
    const sl_kernel_call call = {
        .op = SL_OP_CLIP, .inputs = &sums, .input_count = 1, .outputs = results, .output_count = 2, .attrs.alpha = clip
    };
    SL_TRY(give_sums(optimizer, stream));
    SL_TRY(sl_kernel_run(stream, &call));
    SL_TRY(give_updates(optimizer, stream, &(sl_optim_attrs){ .t = 1 }, &image->numbers));
    SL_TRY(sl_stream_copy(stream, SL_COPY_DEVICE_TO_HOST, &optimizer->image->norm, &image->norm, sizeof image->norm));
done:
    return status;
}

double sl_optimizer_norm(const sl_optimizer *optimizer)
{
    return optimizer->image->norm;
}

int sl_optimizer_state_count(const sl_optimizer *optimizer)
{
    int count = 0;
    for (int i = 0; i < optimizer->count; i++) {
        for (int k = 0; k < MAX_STATES; k++)
            count += !sl_view_is_none(&optimizer->slots[i].states[k]);
    }
    return count;
}

sl_optim_state sl_optimizer_state_at(const sl_optimizer *optimizer, int i)
{
    for (int s = 0; s < optimizer->count; s++) {
        const optim_slot *slot = &optimizer->slots[s];
        for (int k = 0; k < MAX_STATES; k++) {
            if (sl_view_is_none(&slot->states[k]) || i-- > 0)
                continue;
            return (sl_optim_state){ .param = slot->name,
                                     .kind = kinds[optimizer->options.kind].names[k],
                                     .view = slot->states[k] };
        }
    }
    return (sl_optim_state){ .param = "", .kind = "", .view = sl_view_none() };
}
