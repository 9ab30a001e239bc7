/* sluice bench step: one training step of a GPT against its matrix products alone. */
#include "bench.h"
#include "step_measure.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"

#include "base/json.h"
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/isa.h"

#include <inttypes.h>
#include <string.h>

static const cli_usage usage = {
    .command = "bench step",
    .synopsis = "[OPTIONS]",
    .description =
        "Trains a model of the given size for a few steps (forward, backward, gradient norm, AdamW) and, between the "
        "steps, runs the matrix products of its linear layers alone: the same shapes through the same BLAS. On a GPU, "
        "whose clock follows its power, they come after the steps, which follow each other as in training. The best "
        "time of each counts. Attention's products are in the step but not among the products alone. On a busy machine "
        "the processor times (step_cpu_s, gemm_cpu_s) tell more than the times on the clock.\n"
        "peak_memory is what the operating system saw the process grow by, or all that is taken on a GPU, "
        "predicted_memory what the memory plan and the optimizer say beforehand. gflops counts the operations of "
        "forward and backward as the graph does; "
        "fma_peak_share is its share of the peak that a loop of multiply-adds reaches in the same run, the sum of each "
        "thread's best burst, product_peak_share that "
        "of the peak of products in the dtype. fma_sustained_share and product_sustained_share relate to what all "
        "threads reach together by the clock between the steps, for as long as a step takes (a second at most): on "
        "a machine that is shared or whose clock falls under load this is less. product_clock_share is the clock "
        "after the products alone, over the highest after a burst. stolen_share and interruptions say how much a "
        "hypervisor and other processes took from the steps.\n"
        "With --dtype bf16 parameters and activations are bf16, gradients, moments and master weights f32. The f32 "
        "step is measured afterwards, in the same run, on the processor. Where AMX multiplies f32, in three parts of "
        "bf16, the f32 step is measured with multiply-adds, too. On a GPU the memory is the device's, and the "
        "peak of products that of its matrix units by the data sheet.\n"
        "With --ops (always on a GPU) a profile follows: the program of the step runs a few times more, with an event "
        "before every instruction. gemm_ms, attention_ms and other_ms are the times of its instructions and of the "
        "optimizer, at the clock of the measured steps, gap_ms what the step takes beyond them. Beside each op stands "
        "its limit: the time of its "
        "operations "
        "at the peak of products or of its bytes at the speed of a large copy, whichever is longer.",
    .examples = "sluice bench step --format json\n"
                "sluice bench step --batch 4 --seq 128 --embd 256 --layers 4 --threads 2\n"
                "sluice bench step --preset gpt2-124m --device cuda --dtype bf16\n"
                "sluice bench step --preset llama-1.1b --device cuda --dtype bf16 --format json",
};

/* Sizes that options leave open. */
static const struct {
    const char *name;
    step_options sizes;
} presets[] = {
    { "small",
      { .family = &sl_model_gpt2, .batch = 8, .seq = 256, .embd = 512, .layers = 8, .heads = 8, .vocab = 8192 } },
    { "gpt2-124m",
      { .family = &sl_model_gpt2, .batch = 32, .seq = 1024, .embd = 768, .layers = 12, .heads = 12, .vocab = 50304 } },
    { "llama-1.1b",
      { .family = &sl_model_llama,
        .batch = 8,
        .seq = 2048,
        .embd = 2048,
        .layers = 22,
        .heads = 16,
        .kv_heads = 4,
        .inner = 5632,
        .vocab = 32000 } },
};

static void fill_sizes(step_options *step, int preset)
{
    const step_options *sizes = &presets[preset].sizes;
    step->family = sizes->family;
    step->batch = step->batch ? step->batch : sizes->batch;
    step->seq = step->seq ? step->seq : sizes->seq;
    step->embd = step->embd ? step->embd : sizes->embd;
    step->layers = step->layers ? step->layers : sizes->layers;
    step->heads = step->heads ? step->heads : sizes->heads;
    step->kv_heads = sizes->kv_heads;
    step->inner = sizes->inner;
    step->vocab = step->vocab ? step->vocab : sizes->vocab;
}

/* The same step in f32, and with multiply-adds if f32 is done in another way. NULL: not measured. */
typedef struct comparison {
    const step_result *f32, *fma;
} comparison;

static void print_json(const step_options *options, const step_result *r, const comparison *with)
{
    sl_json json = { .file = stdout };
    sl_json_begin(&json, '{');
    sl_json_put_double(&json, "step_s", r->step_s);
    sl_json_put_double(&json, "median_s", r->median_s);
    sl_json_put_double(&json, "gemm_s", r->gemm_s);
    sl_json_put_double(&json, "step_over_gemm", r->step_s / r->gemm_s);
    sl_json_put_double(&json, "gflops", r->flops / r->step_s / 1e9);
    sl_json_put_double(&json, "fma_peak_share", r->flops / r->step_s / r->fma_peak);
    sl_json_put_double(&json, "product_peak_share", r->flops / r->step_s / r->product_peak);
    if (r->fma_sustained > 0) {
        sl_json_put_double(&json, "fma_sustained_share", r->flops / r->step_s / r->fma_sustained);
        sl_json_put_double(&json, "product_sustained_share", r->flops / r->step_s / r->product_sustained);
        sl_json_put_double(&json, "fma_sustained_gflops", r->fma_sustained / 1e9);
        sl_json_put_double(&json, "product_sustained_gflops", r->product_sustained / 1e9);
        sl_json_put_double(&json, "product_clock_share", r->product_clock / r->burst_clock);
        sl_json_put_double(&json, "stolen_share", r->stolen);
        sl_json_put_int(&json, "interruptions", r->interruptions);
    }
    sl_json_put_int(&json, "peak_memory", r->peak_memory);
    sl_json_put_int(&json, "predicted_memory", r->predicted_memory);
    sl_json_put_double(&json, "step_cpu_s", r->step_cpu_s);
    sl_json_put_double(&json, "gemm_cpu_s", r->gemm_cpu_s);
    sl_json_put_double(&json, "forward_backward_s", r->forward_backward_s);
    sl_json_put_double(&json, "optimizer_s", r->optimizer_s);
    sl_json_put_double(&json, "gemm_gflops", r->gemm_flops / r->gemm_s / 1e9);
    sl_json_put_double(&json, "fma_peak_gflops", r->fma_peak / 1e9);
    sl_json_put_double(&json, "product_peak_gflops", r->product_peak / 1e9);
    sl_json_put_string(&json, "dtype", sl_dtype_name(options->dtype));
    if (with->f32)
        sl_json_put_double(&json, "tokens_per_s_over_f32", with->f32->step_s / r->step_s);
    if (with->fma)
        sl_json_put_double(&json, "tokens_per_s_over_fma", with->fma->step_s / r->step_s);
    sl_json_put_double(&json, "tokens_per_s", (double)(options->batch * options->seq) / r->step_s);
    sl_json_put_double(&json, "mfu", r->flops / r->step_s / r->product_peak);
    if (r->has_profile) {
        const step_shares shares = step_profile_shares(r);
        sl_json_put_double(&json, "gemm_ms", 1e3 * shares.gemm);
        sl_json_put_double(&json, "attention_ms", 1e3 * shares.attention);
        sl_json_put_double(&json, "other_ms", 1e3 * shares.other);
        sl_json_put_double(&json, "gap_ms", 1e3 * (r->step_s - shares.gemm - shares.attention - shares.other));
        sl_json_put_double(&json, "copy_gb_per_s", r->copy_rate / 1e9);
    }
    sl_json_put_double(&json, "loss", r->loss);
    sl_json_put_int(&json, "parameters", r->parameters);
    sl_json_put_string(&json, "kernels", r->kernels);
    sl_json_end(&json, '}');
    putchar('\n');
}

static void print_text(const step_options *options, const step_result *r, const comparison *with)
{
    const step_result *f32 = with->f32, *fma = with->fma;
    const double mib = 1 << 20;
    printf("kernels    %s\n", r->kernels);
    printf("step       %.4f s (forward and backward %.4f, optimizer %.4f), median %.4f\n", r->step_s,
           r->forward_backward_s, r->optimizer_s, r->median_s);
    printf("products   %.4f s alone, %.1f GFLOP/s; the step takes %.3f times as long\n", r->gemm_s,
           r->gemm_flops / r->gemm_s / 1e9, r->step_s / r->gemm_s);
    printf("processor  %.4f s for the step, %.4f s for the products: %.3f times as much\n", r->step_cpu_s,
           r->gemm_cpu_s, r->step_cpu_s / r->gemm_cpu_s);
    printf("speed      %.1f GFLOP/s, %.1f%% of the FMA peak (%.1f); %.0f tokens/s\n", r->flops / r->step_s / 1e9,
           100 * r->flops / r->step_s / r->fma_peak, r->fma_peak / 1e9,
           (double)(options->batch * options->seq) / r->step_s);
    if (r->fma_sustained > 0) {
        printf("sustained  %.1f%% of what all threads' FMAs reach over as long (%.1f GFLOP/s), %.1f%% of what products "
               "do (%.1f)\n",
               100 * r->flops / r->step_s / r->fma_sustained, r->fma_sustained / 1e9,
               100 * r->flops / r->step_s / r->product_sustained, r->product_sustained / 1e9);
        printf("clock      %.1f%% of that of bursts after the products; %.1f%% of the time stolen, %" PRId64
               " interruptions\n",
               100 * r->product_clock / r->burst_clock, 100 * r->stolen, r->interruptions);
    }
    if (f32)
        printf("%-10s %.3f times the tokens/s of f32 (%.0f; by processor time %.3f), %.1f%% of the peak of products "
               "(%.1f)\n",
               sl_dtype_name(options->dtype), f32->step_s / r->step_s,
               (double)(options->batch * options->seq) / f32->step_s, f32->step_cpu_s / r->step_cpu_s,
               100 * r->flops / r->step_s / r->product_peak, r->product_peak / 1e9);
    if (fma)
        printf("%-10s %.3f times the tokens/s of f32 with multiply-adds (%.0f)\n", sl_dtype_name(options->dtype),
               fma->step_s / r->step_s, (double)(options->batch * options->seq) / fma->step_s);
    if (!f32)
        printf("mfu        %.1f%% of the peak of products (%.1f GFLOP/s)\n",
               100 * r->flops / r->step_s / r->product_peak, r->product_peak / 1e9);
    printf("memory     %.1f MiB, predicted %.1f MiB\n", (double)r->peak_memory / mib,
           (double)r->predicted_memory / mib);
}

/* Slowest parts of the model by node, for whoever tunes it. */
static void print_nodes(const step_result *r)
{
    for (int i = 0; i < r->node_count && i < 40; i++)
        printf("%9.3f ms  %5.1f%%  %s\n", 1e3 * r->nodes[i].seconds, 100 * r->nodes[i].seconds / r->step_s,
               r->nodes[i].name);
}

/* Every op with its time beside its limit. */
static void print_ops(const step_result *r)
{
    const step_shares shares = step_profile_shares(r);
    double known = shares.gemm + shares.attention + shares.other;
    printf("profile    products %.3f ms, attention %.3f ms, other %.3f ms, gaps %.3f ms; a copy moves %.0f GB/s\n",
           1e3 * shares.gemm, 1e3 * shares.attention, 1e3 * shares.other, 1e3 * (r->step_s - known),
           r->copy_rate / 1e9);
    printf("%9s %7s %6s %9s %9s %8s  op\n", "ms", "share", "calls", "limit ms", "of limit", "over ms");
    for (int i = 0; i < r->op_count; i++) {
        const step_op *op = &r->ops[i];
        double limit = step_op_limit(r, op);
        printf("%9.3f %6.1f%% %6d %9.3f %8.1f%% %8.3f  %s\n", 1e3 * op->seconds, 100 * op->seconds / r->step_s,
               op->calls, 1e3 * limit, 100 * limit / op->seconds, 1e3 * (op->seconds - limit), op->name);
    }
}

/* What the step is compared with, as far as it is wanted. */
static sl_status measure_again(const step_options *step, const comparison *with, step_result *f32, step_result *fma)
{
    sl_status status = SL_OK;
    step_options same = *step;
    sl_isa isa = sl_isa_get();
    same.dtype = SL_F32;
    same.profile = false;
    if (with->f32)
        SL_TRY(step_measure(&same, f32));
    if (with->fma) {
        sl_isa_set(SL_ISA_AVX512);
        SL_TRY(step_measure(&same, fma));
    }
done:
    if (with->fma)
        sl_isa_set(isa);
    return status;
}

int bench_step(int argc, char **argv)
{
    step_options step = { .microbatches = 1, .threads = 1, .repeats = 5, .device = "cpu" };
    int format = 0, dtype = 0, preset = 0;
    bool nodes = false, ops = false;
    const cli_option options[] = {
        { .name = "preset",
          .value = "NAME",
          .words = "small|gpt2-124m|llama-1.1b",
          .choice = &preset,
          .help = "Model and sizes that the other options leave open: small (the default; a GPT of 8 layers of width "
                  "512), gpt2-124m or llama-1.1b (22 layers of width 2048)." },
        DEVICE_OPTION_ROW(step.device),
        DTYPE_OPTION_ROW(dtype),
        { .name = "batch",
          .value = "B",
          .wide = &step.batch,
          .min = 1,
          .max = 1 << 20,
          .help = "Sequences in a step." },
        { .name = "seq", .value = "T", .wide = &step.seq, .min = 1, .max = 1 << 20, .help = "Tokens of a sequence." },
        { .name = "embd", .value = "C", .wide = &step.embd, .min = 1, .max = 1 << 20, .help = "Width of the model." },
        { .name = "layers", .value = "L", .wide = &step.layers, .min = 1, .max = 1 << 16, .help = "Layers." },
        { .name = "heads", .value = "H", .wide = &step.heads, .min = 1, .max = 1 << 16, .help = "Attention heads." },
        { .name = "vocab", .value = "V", .wide = &step.vocab, .min = 1, .max = 1 << 24, .help = "Words." },
        { .name = "microbatches",
          .value = "M",
          .integer = &step.microbatches,
          .min = 1,
          .max = 1 << 16,
          .help = "Parts of the batch that go through the model one after the other." },
        { .name = "unfused", .flag = &step.unfused, .help = "Plain ops alone, none that are fused for a GPU." },
        { .name = "unpacked",
          .flag = &step.unpacked,
          .help = "Pack weights anew for every microbatch, as if they were not kept packed during a step." },
        { .name = "threads", .value = "N", .integer = &step.threads, .min = 1, .max = 1024, .help = "Threads." },
        { .name = "repeats",
          .value = "R",
          .integer = &step.repeats,
          .min = 1,
          .max = 10000,
          .help = "Steps to measure, after one that is not; the best counts." },
        { .name = "nodes", .flag = &nodes, .help = "Also list the slowest nodes of the graph (text only)." },
        { .name = "ops",
          .flag = &ops,
          .help = "Also list every op with its time and its limit (text), or add their sums to the JSON." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    int code;
    if (!options_parse(&usage, options, &argc, argv, &code))
        return code;
    log_to_stderr("bench step");
    fill_sizes(&step, preset);
    if (step.batch % step.microbatches != 0)
        return usage_error("bench step", "--batch must be a multiple of --microbatches");
    step_result result = { 0 }, f32 = { 0 }, fma = { 0 };
    bool on_host = strcmp(step.device, "cpu") == 0;
    step.profile = nodes || ops || !on_host;
    step.dtype = (sl_dtype)dtype;
    if (step_measure(&step, &result) != SL_OK)
        return failure("bench step");
    comparison with = { .f32 = dtype != SL_F32 && on_host ? &f32 : NULL };
    with.fma = on_host && sl_cpu_products_beat_fma(SL_F32) ? &fma : NULL;
    if (measure_again(&step, &with, &f32, &fma) != SL_OK)
        return failure("bench step");
    (format == FORMAT_JSON ? print_json : print_text)(&step, &result, &with);
    if (nodes && format == FORMAT_TEXT)
        print_nodes(&result);
    if (step.profile && (ops || !nodes) && format == FORMAT_TEXT)
        print_ops(&result);
    step_result_clear(&result);
    return EXIT_OK;
}
