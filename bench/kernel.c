/* sluice bench kernel: each kernel on the shapes of a GPT, beside the machine's copy speed and multiply-add peak. */
#include "bench.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"

#include "base/alloc.h"
#include "base/json.h"
#include <sluice/kernel.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static const cli_usage usage = {
    .command = "bench kernel",
    .synopsis = "[OPTIONS]",
    .description =
        "Runs each kernel on the shapes that it has in a GPT of the given size and prints the best time, the "
        "operations a second if they are the measure, the bytes read and written a second, and the share of the limit: "
        "of the peak of products in the dtype, or of the bytes that a plain copy moves. Small tensors stay in a cache "
        "and pass that limit. With --dtype bf16 data and weights are bf16; statistics, gradients of weights and the "
        "optimizer's tensors stay f32.",
    .examples =
        "sluice bench kernel\n"
        "sluice bench kernel --op products --embd 768 --seq 512 --batch 4 --vocab 50257 --repeats 2 --threads 4\n"
        "sluice bench kernel --device cuda --dtype bf16 --batch 32 --seq 1024 --embd 768 --heads 12 --vocab 50304\n"
        "sluice bench kernel --op attention_grad --seq 1024 --batch 2 --format json",
};

typedef struct sizes {
    int64_t batch, seq, embd, heads, vocab;
    int threads, repeats;
    const char *device;
    double dropout; /* of attention */
    sl_dtype dtype; /* of data and weights */
    const char *op; /* only this one; NULL: all */
} sizes;

/* Arguments are separated by blanks, a letter a dim: B T C as usual, H heads, D = C / H, F = 4C, Q = 3C, V words, s a
 * scalar; "i:" before it: indices below V, "f:" f32 whatever the dtype is. A weight "VC" is that of the head, [out, in]. */
typedef struct kernel_case {
    sl_op op;
    const char *inputs, *outputs;
    double flops; /* in units of what flops_of() says; 0: not the measure */
} kernel_case;

/* The three products of a linear layer with the weight w. */
#define PRODUCTS(in, out, w, bias)                                                                                     \
    { SL_OP_LINEAR, "BT" in " " w " " bias, "BT" out, 2 }, { SL_OP_LINEAR_GRAD_X, "BT" out " " w, "BT" in, 2 },        \
    {                                                                                                                  \
        SL_OP_LINEAR_GRAD_W, "BT" in " BT" out, "f:" w, 2                                                              \
    }

static const kernel_case cases[] = {
    PRODUCTS("C", "Q", "CQ", "Q"),
    PRODUCTS("C", "C", "CC", "C"),
    PRODUCTS("C", "F", "CF", "F"),
    PRODUCTS("F", "C", "FC", "C"),
    PRODUCTS("C", "V", "VC", ""),
    { SL_OP_ATTENTION, "BTHD BTHD BTHD", "BTHD f:BHT", 2 },
    { SL_OP_ATTENTION_GRAD, "BTHD BTHD BTHD BTHD f:BHT BTHD", "BTHD BTHD BTHD", 5 },
    { SL_OP_ATTENTION, "BTHD BTHD BTHD d:BT", "BTHD f:BHT", 2 },
    { SL_OP_ATTENTION_GRAD, "BTHD BTHD BTHD BTHD f:BHT BTHD d:BT", "BTHD BTHD BTHD", 5 },
    { SL_OP_LAYERNORM, "BTC C C", "BTC f:BT f:BT", 0 },
    { SL_OP_LAYERNORM_GRAD_X, "BTC BTC C f:BT f:BT", "BTC", 0 },
    { SL_OP_LAYERNORM_GRAD_W, "BTC BTC f:BT f:BT", "f:C f:C", 0 },
    { SL_OP_RMSNORM, "BTC C", "BTC f:BT", 0 },
    { SL_OP_RMSNORM_GRAD_X, "BTC BTC C f:BT", "BTC", 0 },
    { SL_OP_GELU_TANH, "BTF", "BTF", 0 },
    { SL_OP_GELU_TANH_GRAD, "BTF BTF", "BTF", 0 },
    { SL_OP_GELU_ERF, "BTF", "BTF", 0 },
    { SL_OP_SWIGLU, "BTF BTF", "BTF", 0 },
    { SL_OP_SWIGLU_GRAD, "BTF BTF BTF", "BTF BTF", 0 },
    { SL_OP_ADD, "BTC BTC", "BTC", 0 },
    { SL_OP_SUM_TO, "BTF", "f:F", 0 },
    { SL_OP_EMBEDDING, "i:BT VC", "BTC", 0 },
    { SL_OP_EMBEDDING_GRAD, "i:BT BTC", "f:VC", 0 },
    { SL_OP_CROSS_ENTROPY, "BTV i:BT", "f:s f:BT", 0 },
    { SL_OP_CROSS_ENTROPY_GRAD, "BTV i:BT f:BT f:s", "BTV", 0 },
    { SL_OP_SOFTMAX, "BTV", "BTV", 0 },
    { SL_OP_DROPOUT, "BTC", "BTC", 0 },
    { SL_OP_COPY, "BTV", "BTV", 0 },
    { SL_OP_ADAMW, "f:VC", "f:VC f:VC f:VC", 0 },
};

enum { CASES = sizeof cases / sizeof *cases, MAX_ARGS = 8 };

typedef struct kernel_result {
    const char *name;
    char shape[48]; /* of a product: rows x in x out; how long documents are; else empty */
    double seconds, flops, bytes;
    double share; /* of its limit */
} kernel_result;

/* What the machine can do at best, a second. */
typedef struct limits {
    double fma, products; /* operations in f32, and in products of the dtype */
    double copy;          /* bytes that a plain copy reads and writes */
} limits;

static int64_t size_of(const sizes *s, char letter)
{
    switch (letter) {
    case 'B':
        return s->batch;
    case 'T':
        return s->seq;
    case 'C':
        return s->embd;
    case 'H':
        return s->heads;
    case 'D':
        return s->embd / s->heads;
    case 'F':
        return 4 * s->embd;
    case 'Q':
        return 3 * s->embd;
    default:
        return s->vocab;
    }
}

/* Tokens of each of the documents that share a row. */
static int64_t document_length(const sizes *s)
{
    return s->seq > 8 ? s->seq / 8 : 1;
}

/* documents: integers are places in documents, else ids of tokens. */
static sl_status fill_view(const sizes *s, sl_stream *stream, const sl_view *view, bool documents)
{
    sl_kernel_call fill = { .op = SL_OP_FILL, .attrs = { .alpha = 0.5 }, .outputs = view, .output_count = 1 };
    if (view->meta.dtype != SL_I32)
        return sl_kernel_run(stream, &fill);
    int64_t count = sl_meta_count(&view->meta);
    int32_t *ids = NULL;
    sl_status status = SL_NEW_ARRAY(ids, count);
    if (status != SL_OK)
        return status;
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(documents ? i % s->seq % document_length(s) : i * 7919 % s->vocab);
    status = sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, view->data, ids, (size_t)count * sizeof *ids);
    if (status == SL_OK)
        status = sl_stream_synchronize(stream);
    sl_free(ids);
    return status;
}

/* Makes the arguments of the text; *count grows as they are allocated. */
static sl_status make_views(const sizes *s, sl_stream *stream, const char *text, sl_view *views, int *count)
{
    sl_status status = SL_OK;
    while (*text) {
        sl_shape shape = { .rank = 0 };
        bool documents = strncmp(text, "d:", 2) == 0, ids = documents || strncmp(text, "i:", 2) == 0;
        bool wide = strncmp(text, "f:", 2) == 0;
        text += ids || wide ? 2 : 0;
        for (; *text && *text != ' '; text++) {
            if (*text != 's')
                shape.dims[shape.rank++] = size_of(s, *text);
        }
        text += strspn(text, " ");
        sl_view *view = &views[*count];
        view->meta = sl_meta_contiguous(ids ? SL_I32 : wide ? SL_F32 : s->dtype, &shape);
        SL_TRY(sl_device_alloc(sl_stream_device(stream), sl_meta_bytes(&view->meta), &view->data));
        (*count)++;
        SL_TRY(fill_view(s, stream, view, documents));
    }
done:
    return status;
}

static bool is_product(const kernel_case *c)
{
    return c->op == SL_OP_LINEAR || c->op == SL_OP_LINEAR_GRAD_X || c->op == SL_OP_LINEAR_GRAD_W;
}

/* The weight of a product, or its gradient: two dims. */
static const char *weight_of(const kernel_case *c)
{
    return c->op == SL_OP_LINEAR_GRAD_W ? c->outputs + 2 : strchr(c->inputs, ' ') + 1;
}

static bool is_head(const kernel_case *c)
{
    return is_product(c) && weight_of(c)[0] == 'V';
}

static bool has_documents(const kernel_case *c)
{
    return strstr(c->inputs, "d:") != NULL;
}

/* Products: rows x in x out; attention: the causal half of T x T x D a head (of a document, if it has them), times the
 * number of products. */
static double flops_of(const sizes *s, const kernel_case *c)
{
    double tokens = (double)(s->batch * s->seq);
    int64_t length = has_documents(c) ? document_length(s) : s->seq;
    if (is_product(c))
        return c->flops * tokens * (double)size_of(s, weight_of(c)[0]) * (double)size_of(s, weight_of(c)[1]);
    return c->flops * tokens * (double)(length + 1) * (double)s->embd; /* 0 if they are not the measure */
}

static void print_shape(const sizes *s, const kernel_case *c, char *text, size_t size)
{
    const char *w = is_product(c) ? weight_of(c) : NULL;
    text[0] = '\0';
    if (w)
        snprintf(text, size, "%lldx%lldx%lld", (long long)s->batch * (long long)s->seq,
                 (long long)size_of(s, w[is_head(c)]), (long long)size_of(s, w[!is_head(c)]));
    else if (has_documents(c))
        snprintf(text, size, "documents of %lld", (long long)document_length(s));
}

/* A GPU is timed by events: enough calls are queued between two of them that starting them costs nothing. */
enum { CALLS_IN_LINE = 8 };

/* Seconds of one call: on the host by its clock, else by the device's. */
static sl_status time_call(sl_stream *stream, const sl_kernel_call *call, sl_event *const events[2], double *out)
{
    sl_status status = SL_OK;
    double start = sl_now(), seconds = 0;
    int calls = events[0] ? CALLS_IN_LINE : 1;
    if (events[0])
        SL_TRY(sl_event_record(events[0], stream));
    for (int i = 0; i < calls; i++)
        SL_TRY(sl_kernel_run(stream, call));
    if (events[0])
        SL_TRY(sl_event_record(events[1], stream));
    SL_TRY(sl_stream_synchronize(stream));
    seconds = sl_now() - start;
    if (events[0])
        SL_TRY(sl_event_elapsed(events[0], events[1], &seconds));
    *out = seconds / calls;
done:
    return status;
}

/* The best of several; the first call touches the memory and is not counted. */
static sl_status time_best(const sizes *s, sl_stream *stream, const sl_kernel_call *call, double *out)
{
    sl_status status = SL_OK;
    sl_device *device = sl_stream_device(stream);
    sl_event *events[2] = { NULL, NULL };
    double best = INFINITY, seconds = 0;
    for (int i = 0; i < 2 && !sl_device_is_host(device); i++)
        SL_TRY(sl_event_create(device, &events[i]));
    for (int i = 0; i <= s->repeats; i++) {
        SL_TRY(time_call(stream, call, events, &seconds));
        if (i > 0)
            best = fmin(best, seconds);
    }
    *out = best;
done:
    sl_event_destroy(events[0]);
    sl_event_destroy(events[1]);
    return status;
}

static double dropout_of(const sizes *s, sl_op op)
{
    return op == SL_OP_DROPOUT ? 0.1 : op == SL_OP_ATTENTION || op == SL_OP_ATTENTION_GRAD ? s->dropout : 0;
}

static sl_status measure_case(const sizes *s, sl_stream *stream, const kernel_case *c, kernel_result *out)
{
    sl_status status = SL_OK;
    sl_device *device = sl_stream_device(stream);
    sl_view inputs[MAX_ARGS], outputs[MAX_ARGS];
    int input_count = 0, output_count = 0;
    void *scratch = NULL;
    double best = 0, bytes = 0;

    SL_TRY(make_views(s, stream, c->inputs, inputs, &input_count));
    SL_TRY(make_views(s, stream, c->outputs, outputs, &output_count));
    sl_kernel_call call = { .op = c->op,
                            .attrs = { .transpose_w = is_head(c),
                                       .causal = true,
                                       .scale = 0.125,
                                       .eps = 1e-5,
                                       .p = dropout_of(s, c->op),
                                       .ignore_index = -1,
                                       .optim = { .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .t = 1 } },
                            .inputs = inputs,
                            .input_count = input_count,
                            .outputs = outputs,
                            .output_count = output_count,
                            .rng = { .training = true } };
    SL_TRY(sl_kernel_scratch(device, &call, &call.scratch_bytes));
    SL_TRY(sl_device_alloc(device, call.scratch_bytes, &scratch));
    call.scratch = scratch;
    SL_TRY(time_best(s, stream, &call, &best));
    for (int i = 0; i < input_count; i++)
        bytes += (double)sl_meta_bytes(&inputs[i].meta);
    for (int i = 0; i < output_count; i++)
        bytes += (c->op == SL_OP_ADAMW ? 2 : 1) * (double)sl_meta_bytes(&outputs[i].meta);
    *out = (kernel_result){ .name = sl_op_name(c->op), .seconds = best, .flops = flops_of(s, c), .bytes = bytes };
    print_shape(s, c, out->shape, sizeof out->shape);
done:
    for (int i = 0; i < input_count; i++)
        sl_device_free(device, inputs[i].data);
    for (int i = 0; i < output_count; i++)
        sl_device_free(device, outputs[i].data);
    sl_device_free(device, scratch);
    return status;
}

static void print_json(const kernel_result *results, int count, const char *kernels, const limits *limit)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_string(&json, "kernels", kernels);
    sl_json_put_double(&json, "fma_peak_gflops", limit->fma / 1e9);
    sl_json_put_double(&json, "product_peak_gflops", limit->products / 1e9);
    sl_json_put_double(&json, "copy_gbytes_per_s", limit->copy / 1e9);
    sl_json_key(&json, "ops");
    sl_json_begin(&json, '[');
    for (int i = 0; i < count; i++) {
        sl_json_newline(&json);
        sl_json_begin(&json, '{');
        sl_json_put_string(&json, "op", results[i].name);
        if (*results[i].shape)
            sl_json_put_string(&json, "shape", results[i].shape);
        sl_json_put_double(&json, "seconds", results[i].seconds);
        if (results[i].flops > 0)
            sl_json_put_double(&json, "gflops", results[i].flops / results[i].seconds / 1e9);
        sl_json_put_double(&json, "gbytes_per_s", results[i].bytes / results[i].seconds / 1e9);
        sl_json_put_double(&json, "limit_share", results[i].share);
        sl_json_end(&json, '}');
    }
    sl_json_end(&json, ']');
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const kernel_result *results, int count, const char *kernels, const limits *limit)
{
    printf("%s; FMA peak %.1f GFLOP/s, products %.1f GFLOP/s, copy %.1f GB/s\n\n%-20s %-18s %10s %10s %8s %9s\n",
           kernels, limit->fma / 1e9, limit->products / 1e9, limit->copy / 1e9, "op", "rows x in x out", "ms",
           "GFLOP/s", "GB/s", "of limit");
    for (int i = 0; i < count; i++) {
        char rate[32] = "";
        if (results[i].flops > 0)
            snprintf(rate, sizeof rate, "%.1f", results[i].flops / results[i].seconds / 1e9);
        printf("%-20s %-18s %10.3f %10s %8.1f %8.1f%%\n", results[i].name, results[i].shape, 1e3 * results[i].seconds,
               rate, results[i].bytes / results[i].seconds / 1e9, 100 * results[i].share);
    }
}

static sl_status measure_limits(const sizes *s, sl_stream *stream, limits *out)
{
    static const kernel_case copy = { SL_OP_COPY, "f:BTV", "f:BTV", 0 };
    kernel_result result;
    sl_status status = measure_case(s, stream, &copy, &result);
    if (status != SL_OK)
        return status;
    *out = (limits){ .fma = sl_kernel_measure_peak(sl_stream_device(stream)),
                     .products = sl_kernel_measure_product_peak(sl_stream_device(stream), s->dtype),
                     .copy = result.bytes / result.seconds };
    return SL_OK;
}

static bool is_wanted(const sizes *s, const kernel_case *c)
{
    return !s->op || strcmp(s->op, sl_op_name(c->op)) == 0 || (is_product(c) && strcmp(s->op, "products") == 0);
}

static bool is_any_wanted(const sizes *s)
{
    for (int i = 0; i < CASES; i++) {
        if (is_wanted(s, &cases[i]))
            return true;
    }
    return false;
}

static sl_status measure(const sizes *s, bool json)
{
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_stream *stream = NULL;
    kernel_result results[CASES];
    limits limit;
    char kernels[160];
    int count = 0;

    SL_TRY(sl_device_open(s->device, &(sl_device_options){ .threads = s->threads }, &device));
    SL_TRY(sl_stream_create(device, &stream));
    sl_kernel_describe(device, kernels, sizeof kernels);
    SL_TRY(measure_limits(s, stream, &limit));
    for (int i = 0; i < CASES; i++) {
        kernel_result *result = &results[count];
        if (!is_wanted(s, &cases[i]))
            continue;
        SL_TRY(measure_case(s, stream, &cases[i], result));
        result->share = result->flops > 0 ? result->flops / limit.products : result->bytes / limit.copy;
        result->share /= result->seconds;
        count++;
    }
    (json ? print_json : print_text)(results, count, kernels, &limit);
done:
    sl_stream_destroy(stream);
    sl_device_close(device);
    return status;
}

int bench_kernel(int argc, char **argv)
{
    sizes s = {
        .batch = 8, .seq = 256, .embd = 512, .heads = 8, .vocab = 8192, .threads = 1, .repeats = 10, .device = "cpu"
    };
    int format = 0, dtype = 0;
    const cli_option options[] = {
        DTYPE_OPTION_ROW(dtype),
        { .name = "op",
          .value = "NAME",
          .text = &s.op,
          .help = "Measure this kernel only; products: those of all linear layers." },
        { .name = "batch", .value = "B", .wide = &s.batch, .min = 1, .max = 1 << 20, .help = "Sequences." },
        { .name = "seq", .value = "T", .wide = &s.seq, .min = 1, .max = 1 << 20, .help = "Tokens of a sequence." },
        { .name = "embd", .value = "C", .wide = &s.embd, .min = 1, .max = 1 << 20, .help = "Width of the model." },
        { .name = "heads", .value = "H", .wide = &s.heads, .min = 1, .max = 1 << 16, .help = "Attention heads." },
        { .name = "vocab", .value = "V", .wide = &s.vocab, .min = 1, .max = 1 << 24, .help = "Words." },
        { .name = "dropout",
          .value = "P",
          .real = &s.dropout,
          .least = 0,
          .most = 0.99,
          .help = "Of the weights of attention." },
        DEVICE_OPTION_ROW(s.device),
        { .name = "threads", .value = "N", .integer = &s.threads, .min = 1, .max = 1024, .help = "Threads." },
        { .name = "repeats", .value = "R", .integer = &s.repeats, .min = 1, .max = 10000, .help = "The best counts." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    int code;
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    log_to_stderr("bench kernel");
    s.dtype = (sl_dtype)dtype;
    if (s.embd % s.heads != 0)
        return usage_error("bench kernel", "--embd must be a multiple of --heads");
    if (!is_any_wanted(&s))
        return usage_error("bench kernel", "--op: '%s' is not among the kernels measured", s.op);
    return measure(&s, format == FORMAT_JSON) == SL_OK ? EXIT_OK : failure("bench kernel");
}
