/* Logits, loss and gradients of a Hugging Face folder, for comparison with other programs:
 * model_run FOLDER TOKENS BATCH SEQ STAGES OUT [BOUNDARY | COPY DTYPE SHARD_BYTES]
 * TOKENS holds BATCH rows of SEQ + 1 tokens as raw i32; OUT gets "logits", "loss" and "grad.NAME" of every parameter, in
 * safetensors. BOUNDARY is a token that ends a document: documents are kept apart. COPY is a folder to which the model is
 * exported. */
#include "support/runner/runner.h"

#include <sluice/data.h>
#include <sluice/nn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ok(sl_status status)
{
    if (status == SL_OK)
        return;
    fprintf(stderr, "model_run: %s\n", sl_error_message());
    exit(1);
}

static void *allocated(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (memory)
        return memory;
    fprintf(stderr, "model_run: no memory\n");
    exit(1);
}

typedef struct batch {
    int64_t size, seq;
    int32_t *tokens, *targets;
    int32_t *positions; /* NULL: a row is one document */
} batch;

static batch read_batch(const char *path, int64_t size, int64_t seq)
{
    batch b = { .size = size, .seq = seq };
    size_t count = (size_t)(size * (seq + 1));
    int32_t *all = allocated(count * sizeof *all);
    FILE *file = fopen(path, "rb");
    if (!file || fread(all, sizeof *all, count, file) != count) {
        fprintf(stderr, "model_run: %s has not %zu tokens\n", path, count);
        exit(1);
    }
    fclose(file);
    b.tokens = allocated((size_t)(size * seq) * sizeof *all);
    b.targets = allocated((size_t)(size * seq) * sizeof *all);
    for (int64_t row = 0; row < size; row++) {
        memcpy(b.tokens + row * seq, all + row * (seq + 1), (size_t)seq * sizeof *all);
        memcpy(b.targets + row * seq, all + row * (seq + 1) + 1, (size_t)seq * sizeof *all);
    }
    free(all);
    return b;
}

/* A runner of the model in this mode, with its weights and the batch, that has run. */
static test_runner *run(const sl_model *model, const sl_model_weights *weights, const sl_param_list *params,
                        sl_model_mode mode, int stages, const batch *b, sl_device *device)
{
    const sl_rng rng = { .training = mode == SL_MODE_TRAIN };
    const sl_split_spec spec = { .kind = SL_SPLIT_EQUAL, .stages = stages };
    const test_runner_options options = { .programs = { .forward_only = mode != SL_MODE_TRAIN } };
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    test_runner *runner = NULL;
    const sl_model_shape shape = { .batch = b->size, .seq = b->seq, .documents = b->positions };
    ok(sl_model_build(model, mode, &shape, &graph));
    ok(sl_graph_partition(graph, &spec, &partition));
    ok(test_runner_create(partition, device, &options, &runner));
    for (int i = 0; i < sl_param_list_count(params); i++) {
        const char *name = sl_param_list_at(params, i)->name;
        sl_view view = test_runner_param(runner, name);
        ok(sl_model_weights_read(weights, name, 0, sl_meta_count(&view.meta), view.data));
    }
    size_t bytes = (size_t)(b->size * b->seq) * sizeof(int32_t);
    memcpy(test_runner_input(runner, 0, "tokens").data, b->tokens, bytes);
    memcpy(test_runner_input(runner, 0, "targets").data, b->targets, bytes);
    if (b->positions)
        memcpy(test_runner_input(runner, 0, "positions").data, b->positions, bytes);
    ok(mode == SL_MODE_TRAIN ? test_runner_step(runner, &rng, NULL) : test_runner_forward(runner, &rng, NULL));
    ok(sl_stream_synchronize(test_runner_stream(runner)));
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
    return runner;
}

static sl_tensor_entry entry_of(const char *name, const sl_view *view)
{
    return (sl_tensor_entry){ .name = name, .dtype = view->meta.dtype, .shape = view->meta.shape, .data = view->data };
}

static void save_results(const test_runner *eval, const test_runner *train, const sl_param_list *params,
                         const char *path)
{
    typedef char long_name[256];
    int count = sl_param_list_count(params);
    sl_tensor_entry *entries = allocated((size_t)(count + 2) * sizeof *entries);
    long_name *names = allocated((size_t)count * sizeof *names);
    for (int i = 0; i < count; i++) {
        const char *name = sl_param_list_at(params, i)->name;
        sl_view grad = test_runner_grad(train, name);
        snprintf(names[i], sizeof names[i], "grad.%s", name);
        entries[i] = entry_of(names[i], &grad);
    }
    sl_view logits = test_runner_output(eval, 0, "logits"), loss = test_runner_output(eval, 0, "loss");
    entries[count] = entry_of("logits", &logits);
    entries[count + 1] = entry_of("loss", &loss);
    ok(sl_safetensors_save(path, entries, count + 2, NULL));
    free(entries);
    free(names);
}

static void export(const sl_model *model, const test_runner *runner, const sl_param_list *params, char **arguments)
{
    int count = sl_param_list_count(params);
    sl_tensor_entry *entries = allocated((size_t)count * sizeof *entries);
    sl_dtype dtype = strcmp(arguments[1], "bf16") == 0 ? SL_BF16 : strcmp(arguments[1], "f16") == 0 ? SL_F16 : SL_F32;
    for (int i = 0; i < count; i++) {
        const char *name = sl_param_list_at(params, i)->name;
        sl_view view = test_runner_param(runner, name);
        entries[i] = entry_of(name, &view);
    }
    ok(sl_model_save(model, entries, count, dtype, strtoul(arguments[2], NULL, 10), arguments[0]));
    free(entries);
}

int main(int argc, char **argv)
{
    sl_model model;
    sl_model_weights *weights = NULL;
    sl_param_list *params = NULL;
    sl_device *device = NULL;
    if (argc != 7 && argc != 8 && argc != 10) {
        fprintf(stderr, "model_run FOLDER TOKENS BATCH SEQ STAGES OUT [BOUNDARY | COPY DTYPE SHARD_BYTES]\n");
        return 2;
    }
    ok(sl_model_load_config(argv[1], &model));
    ok(sl_model_params(&model, &params));
    ok(sl_model_weights_open(&model, argv[1], &weights));
    ok(sl_device_open("cpu", NULL, &device));
    batch b = read_batch(argv[2], strtol(argv[3], NULL, 10), strtol(argv[4], NULL, 10));
    int stages = (int)strtol(argv[5], NULL, 10);
    if (argc == 8) {
        b.positions = allocated((size_t)(b.size * b.seq) * sizeof *b.positions);
        sl_document_positions(b.tokens, b.size, b.seq, (int32_t)strtol(argv[7], NULL, 10), b.positions);
    }
    test_runner *eval = run(&model, weights, params, SL_MODE_EVAL, stages, &b, device);
    test_runner *train = run(&model, weights, params, SL_MODE_TRAIN, stages, &b, device);
    save_results(eval, train, params, argv[6]);
    if (argc == 10)
        export(&model, eval, params, argv + 7);
    test_runner_destroy(eval);
    test_runner_destroy(train);
    sl_device_close(device);
    sl_model_weights_close(weights);
    sl_param_list_destroy(params);
    free(b.tokens);
    free(b.targets);
    free(b.positions);
    return 0;
}
