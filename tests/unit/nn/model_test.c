/* Models as graphs and as folders: names, shapes, initial weights, what is missing or too much. */
#include "base/alloc.h"
#include "nn/family.h"
#include "support/scratch.h"
#include "support/status.h"
#include "support/tensors.h"

#include <sluice/nn.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

static sl_model load(const char *name)
{
    sl_model model;
    char path[64];
    snprintf(path, sizeof path, "models/%s", name);
    ok(sl_model_load_config(data_path(path), &model));
    return model;
}

static void parameters_have_hugging_faces_names_and_shapes(void **state)
{
    (void)state;
    static const char *const names[] = { "gpt2-tiny", "llama-tiny" };
    for (int m = 0; m < 2; m++) {
        sl_model model = load(names[m]);
        sl_param_list *params = NULL;
        sl_safetensors *file = NULL;
        char path[64];
        snprintf(path, sizeof path, "models/%s/model.safetensors", names[m]);
        ok(sl_model_params(&model, &params));
        ok(sl_safetensors_open(data_path(path), &file));
        assert_int_equal(sl_param_list_count(params), sl_safetensors_count(file));
        int64_t elements = 0;
        for (int i = 0; i < sl_safetensors_count(file); i++) {
            const sl_tensor_entry *entry = sl_safetensors_at(file, i);
            int index = sl_param_list_find(params, entry->name);
            assert_true(index >= 0);
            assert_true(sl_shape_equal(&sl_param_list_at(params, index)->shape, &entry->shape));
            elements += entry->count;
        }
        assert_int_equal(sl_param_list_elements(params), elements);
        assert_int_equal(sl_param_list_find(params, "nothing"), -1);
        sl_param_list_destroy(params);
        sl_safetensors_close(file);
    }
}

static void modes_have_the_same_parameters_in_the_same_order(void **state)
{
    (void)state;
    sl_model models[] = { load("gpt2-tiny"), load("llama-tiny"), sl_model_default(&sl_model_mlp) };
    for (int m = 0; m < 3; m++) {
        sl_graph *graphs[4] = { NULL };
        int modes = models[m].family == &sl_model_mlp ? 3 : 4;
        for (int mode = 0; mode < modes; mode++) {
            ok(sl_model_build(&models[m], (sl_model_mode)mode, &(sl_model_shape){ .batch = 3, .seq = 7 },
                              &graphs[mode]));
            assert_int_equal(sl_graph_param_count(graphs[mode]), sl_graph_param_count(graphs[0]));
            for (int i = 0; i < sl_graph_param_count(graphs[0]); i++) {
                sl_param_info a = sl_graph_param_at(graphs[0], i), b = sl_graph_param_at(graphs[mode], i);
                assert_string_equal(a.name, b.name);
                assert_true(sl_shape_equal(&a.shape, &b.shape));
            }
        }
        for (int mode = 0; mode < modes; mode++)
            sl_graph_destroy(graphs[mode]);
    }
}

/* Cut in two, so that a value that goes from stage to stage is among the ports. */
static void check_bf16(const sl_model *model, sl_model_mode mode, sl_device *device)
{
    sl_graph *graph = NULL;
    sl_partition *partition = NULL;
    ok(sl_model_build(model, mode, &(sl_model_shape){ .batch = 3, .seq = 7, .dtype = SL_BF16 }, &graph));
    ok(sl_graph_partition(graph, &(sl_split_spec){ .kind = SL_SPLIT_EQUAL, .stages = 2 }, &partition));
    for (int s = 0; s < 2; s++) {
        const sl_program_options options = { .forward_only = mode != SL_MODE_TRAIN };
        sl_stage_program *program = NULL;
        ok(sl_stage_program_create(partition, s, device, &options, &program));
        const sl_program_info *info = sl_stage_program_info(program);
        for (int i = 0; i < info->param_count; i++)
            assert_int_equal(info->params[i].dtype, SL_BF16);
        for (int i = 0; i < info->state_count; i++)
            assert_int_equal(info->states[i].dtype, SL_BF16);
        for (int i = 0; i < info->output_count; i++) /* named outputs are the loss and the logits */
            assert_int_equal(info->outputs[i].dtype, info->outputs[i].root ? SL_F32 : SL_BF16);
        sl_stage_program_destroy(program);
    }
    sl_partition_destroy(partition);
    sl_graph_destroy(graph);
}

static void a_model_in_bf16_has_an_f32_loss_and_f32_logits(void **state)
{
    (void)state;
    sl_model models[] = { load("gpt2-tiny"), load("llama-tiny"), sl_model_default(&sl_model_mlp) };
    sl_device *device = NULL;
    sl_graph *graph = NULL;
    ok(sl_device_open("cpu", NULL, &device));
    for (int m = 0; m < 3; m++) {
        for (int mode = 0; mode < (models[m].family == &sl_model_mlp ? 3 : 4); mode++)
            check_bf16(&models[m], (sl_model_mode)mode, device);
    }
    says(sl_model_build(&models[0], SL_MODE_TRAIN, &(sl_model_shape){ .batch = 1, .seq = 8, .dtype = SL_F16 }, &graph),
         "a model computes in f32 or bf16, not in f16");
    sl_device_close(device);
}

static void split_points_may_leave_the_root_out(void **state)
{
    (void)state;
    static const struct {
        const char *model, *point, *full;
    } cases[] = {
        { "gpt2-tiny", "h.2", "transformer.h.2" },
        { "gpt2-tiny", "transformer.h.2", "transformer.h.2" },
        { "llama-tiny", "layers.1", "model.layers.1" },
        { "llama-tiny", "model.layers.1.mlp", "model.layers.1.mlp" },
        { "llama-tiny", "lm_head", "lm_head" },
        { "llama-tiny", "norm", "model.norm" },
        { "gpt2-tiny", "cross_entropy", "cross_entropy" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_model model = load(cases[i].model);
        sl_graph *graph = NULL;
        sl_partition *partition = NULL;
        char path[64];
        ok(sl_model_module(&model, cases[i].point, path, sizeof path));
        assert_string_equal(path, cases[i].full);
        ok(sl_model_build(&model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = 1, .seq = 8 }, &graph));
        sl_split_point point = { path, false };
        ok(sl_graph_partition(graph, &(sl_split_spec){ .kind = SL_SPLIT_POINTS, .points = &point, .point_count = 1 },
                              &partition));
        assert_int_equal(sl_partition_stage_count(partition), 2);
        sl_partition_destroy(partition);
        sl_graph_destroy(graph);
    }
    char text[8];
    sl_model model = load("gpt2-tiny");
    says(sl_model_module(&model, "h.1234567", text, sizeof text), "too long");
}

static void impossible_shapes_are_refused(void **state)
{
    (void)state;
    sl_model model = load("gpt2-tiny"), mlp = sl_model_default(&sl_model_mlp), wrong = model;
    sl_graph *graph = NULL;
    says(sl_model_build(&model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = 1, .seq = 65 }, &graph),
         "longer than the model's 64");
    says(sl_model_build(&model, SL_MODE_TRAIN, &(sl_model_shape){ .batch = 0, .seq = 8 }, &graph), "impossible");
    says(sl_model_build(&model, SL_MODE_DECODE, &(sl_model_shape){ .batch = 1, .seq = 8, .cache = 4 }, &graph),
         "a cache of 4");
    says(sl_model_build(&mlp, SL_MODE_DECODE, &(sl_model_shape){ .batch = 1, .seq = 1 }, &graph), "nothing to decode");
    wrong.gpt2.n_head = 5;
    says(sl_model_build(&wrong, SL_MODE_TRAIN, &(sl_model_shape){ .batch = 1, .seq = 8 }, &graph), "n_head 5");
    wrong.family = NULL;
    says(sl_model_build(&wrong, SL_MODE_TRAIN, &(sl_model_shape){ .batch = 1, .seq = 8 }, &graph),
         "the model has no family");
    assert_null(graph);
}

static void initial_weights_depend_on_seed_name_and_place_alone(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    static float whole[COUNT], parts[COUNT];
    sl_param_info param = { .name = "h.0.attn.c_proj.weight", .init = { SL_INIT_NORMAL, 0.02 } };
    sl_param_init(&param, 7, 0, COUNT, whole);
    for (int64_t first = 0, length = 1; first < COUNT; first += length, length = length * 2 + 1)
        sl_param_init(&param, 7, first, length < COUNT - first ? length : COUNT - first, parts + first);
    assert_memory_equal(whole, parts, sizeof whole);
    double sum = 0, squares = 0, fourth = 0;
    for (int i = 0; i < COUNT; i++) {
        double x = whole[i] / 0.02;
        sum += x, squares += x * x, fourth += x * x * x * x;
    }
    assert_true(fabs(sum / COUNT) < 0.03 && fabs(squares / COUNT - 1) < 0.05 && fabs(fourth / COUNT - 3) < 0.3);
    for (int other = 0; other < 2; other++) {
        sl_param_info renamed = param;
        renamed.name = other ? "h.1.attn.c_proj.weight" : param.name;
        sl_param_init(&renamed, other ? 7 : 8, 0, COUNT, parts);
        int same = 0;
        for (int i = 0; i < COUNT; i++)
            same += whole[i] == parts[i];
        assert_true(same < 10);
    }
    param.init = (sl_init){ SL_INIT_UNIFORM, 0.5 };
    sl_param_init(&param, 7, 0, COUNT, whole);
    float low = 1, high = -1;
    for (int i = 0; i < COUNT; i++) {
        low = whole[i] < low ? whole[i] : low;
        high = whole[i] > high ? whole[i] : high;
    }
    assert_true(low >= -0.5f && low < -0.49f && high <= 0.5f && high > 0.49f);
    param.init = (sl_init){ SL_INIT_ONES, 0 };
    sl_param_init(&param, 7, 3, 2, whole);
    assert_true(whole[0] == 1 && whole[1] == 1);
}

static void threads_change_no_bit_of_initial_weights(void **state)
{
    (void)state;
    enum { COUNT = 1000003, FIRST = 5, PIECE = 4099 }; /* enough for ten threads; a piece is drawn by one */
    float *whole = malloc(COUNT * sizeof *whole), piece[PIECE];
    assert_non_null(whole);
    for (int kind = 0; kind < 2; kind++) {
        const sl_param_info param = { .name = "w", .init = { kind ? SL_INIT_UNIFORM : SL_INIT_NORMAL, 0.02 } };
        sl_param_init(&param, 7, FIRST, COUNT, whole);
        for (int64_t first = 0; first < COUNT; first += PIECE) {
            int64_t count = first + PIECE < COUNT ? PIECE : COUNT - first;
            sl_param_init(&param, 7, FIRST + first, count, piece);
            assert_memory_equal(whole + first, piece, (size_t)count * sizeof *piece);
        }
    }
    free(whole);
}

static void gpt2_scales_what_feeds_the_residual_stream(void **state)
{
    (void)state;
    sl_model model = load("gpt2-tiny");
    sl_param_list *params = NULL;
    ok(sl_model_params(&model, &params));
    int fc = sl_param_list_find(params, "transformer.h.1.mlp.c_fc.weight");
    int proj = sl_param_list_find(params, "transformer.h.1.mlp.c_proj.weight");
    assert_true(sl_param_list_at(params, fc)->init.scale == 0.02);
    assert_true(fabs(sl_param_list_at(params, proj)->init.scale - 0.02 / sqrt(8)) < 1e-12);
    sl_param_list_destroy(params);
}

/* The angles by their definition, in double precision. */
static double frequency(const sl_rope_config *rope, int pair, int head_dim)
{
    double plain = pow(rope->theta, -2.0 * pair / head_dim), length = 2 * 3.14159265358979323846 / plain;
    double context = (double)rope->original_max_position_embeddings;
    if (rope->kind == SL_ROPE_LINEAR)
        return plain / rope->factor;
    if (rope->kind == SL_ROPE_DEFAULT || length < context / rope->high_freq_factor)
        return plain;
    if (length > context / rope->low_freq_factor)
        return plain / rope->factor;
    double blend = (context / length - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return plain * (blend + (1 - blend) / rope->factor);
}

static void rotary_angles_follow_their_definition(void **state)
{
    (void)state;
    enum { HEAD = 64, PLACES = 100 };
    static float cosines[PLACES * HEAD / 2], sines[PLACES * HEAD / 2];
    const sl_rope_config ropes[] = { { .kind = SL_ROPE_DEFAULT, .theta = 10000, .factor = 1 },
                                     { .kind = SL_ROPE_LINEAR, .theta = 10000, .factor = 4 },
                                     { .kind = SL_ROPE_LLAMA3,
                                       .theta = 500000,
                                       .factor = 8,
                                       .low_freq_factor = 1,
                                       .high_freq_factor = 4,
                                       .original_max_position_embeddings = 8192 } };
    for (int r = 0; r < 3; r++) {
        sl_nn_rope_fill(&ropes[r], HEAD, PLACES, PLACES, cosines, sines);
        for (int place = 0; place < PLACES; place++) {
            for (int pair = 0; pair < HEAD / 2; pair++) {
                double angle = place * frequency(&ropes[r], pair, HEAD), bound = 1e-7 + 4e-7 * angle;
                assert_true(fabs(cosines[place * HEAD / 2 + pair] - cos(angle)) < bound);
                assert_true(fabs(sines[place * HEAD / 2 + pair] - sin(angle)) < bound);
            }
        }
    }
}

/* ---- Folders --------------------------------------------------------------------------------- */

enum { MOST = 64 };

/* The reference weights as entries, to be changed and written to a folder of the test's. */
static int reference(const char *name, sl_safetensors **file, sl_tensor_entry *entries)
{
    char path[64];
    snprintf(path, sizeof path, "models/%s/model.safetensors", name);
    ok(sl_safetensors_open(data_path(path), file));
    for (int i = 0; i < sl_safetensors_count(*file); i++)
        entries[i] = *sl_safetensors_at(*file, i);
    return sl_safetensors_count(*file);
}

static const char *fresh_folder(void)
{
    static int number;
    char name[32];
    snprintf(name, sizeof name, "folder-%d", number++);
    const char *folder = scratch_path(name);
    mkdir(folder, 0777);
    return folder;
}

static void a_saved_folder_reads_back_bit_equal(void **state)
{
    (void)state;
    static const char *const names[] = { "gpt2-tiny", "llama-tiny" };
    for (int m = 0; m < 2; m++) {
        sl_model model = load(names[m]), back;
        sl_safetensors *file = NULL;
        sl_tensor_entry entries[MOST];
        int count = reference(names[m], &file, entries);
        for (size_t shard_bytes = 0; shard_bytes <= 100000; shard_bytes += 100000) {
            const char *folder = scratch_path(names[m]);
            sl_model_weights *weights = NULL;
            ok(sl_model_save(&model, entries, count, SL_F32, shard_bytes, folder));
            ok(sl_model_load_config(folder, &back));
            ok(sl_model_weights_open(&back, folder, &weights));
            for (int i = 0; i < count; i++) {
                const sl_tensor_entry *entry = sl_model_weights_find(weights, entries[i].name);
                bool same = false;
                ok(sl_tensor_entry_compare(entry, &entries[i], &same));
                assert_true(same);
            }
            sl_model_weights_close(weights);
        }
        sl_safetensors_close(file);
    }
}

static void half_precision_weights_are_read_as_f32(void **state)
{
    (void)state;
    sl_model model = load("llama-tiny");
    sl_safetensors *file = NULL;
    sl_model_weights *weights = NULL;
    sl_tensor_entry entries[MOST];
    int count = reference("llama-tiny", &file, entries);
    const char *folder = fresh_folder();
    ok(sl_model_save(&model, entries, count, SL_BF16, 0, folder));
    ok(sl_model_weights_open(&model, folder, &weights));
    const sl_tensor_entry *exact = sl_safetensors_find(file, "model.layers.2.mlp.up_proj.weight");
    float expected[100], given[100];
    ok(sl_tensor_entry_read_f32(exact, 50, 100, expected));
    ok(sl_model_weights_read(weights, exact->name, 50, 100, given));
    for (int i = 0; i < 100; i++)
        assert_true(fabsf(expected[i] - given[i]) <= fabsf(expected[i]) / 256);
    says(sl_model_weights_read(weights, "x", 0, 1, given), "no parameter 'x'");
    sl_model_weights_close(weights);
    sl_safetensors_close(file);
}

static void names_without_root_and_old_buffers_are_understood(void **state)
{
    (void)state;
    sl_model model = load("gpt2-tiny");
    sl_safetensors *file = NULL;
    sl_model_weights *weights = NULL;
    sl_tensor_entry entries[MOST];
    int count = reference("gpt2-tiny", &file, entries);
    for (int i = 0; i < count; i++)
        entries[i].name += strlen("transformer.");
    const float mask[4] = { 1, 0, 1, 1 };
    entries[count++] =
        (sl_tensor_entry){ .name = "h.0.attn.bias", .dtype = SL_F32, .shape = { 1, { 4 } }, .data = mask };
    entries[count++] =
        (sl_tensor_entry){ .name = "h.0.attn.masked_bias", .dtype = SL_F32, .shape = { 0 }, .data = mask };
    entries[count] = *sl_safetensors_find(file, "transformer.wte.weight");
    entries[count++].name = "lm_head.weight"; /* tied, and present all the same */
    const char *folder = fresh_folder();
    ok(sl_weights_save(folder, entries, count, 0));
    ok(sl_model_weights_open(&model, folder, &weights));
    assert_non_null(sl_model_weights_find(weights, "transformer.h.3.ln_2.bias"));
    sl_model_weights_close(weights);
    sl_safetensors_close(file);
}

static void missing_superfluous_and_misshapen_tensors_are_named(void **state)
{
    (void)state;
    sl_model model = load("llama-tiny");
    sl_safetensors *file = NULL;
    sl_model_weights *weights = NULL;
    sl_tensor_entry entries[MOST];
    int count = reference("llama-tiny", &file, entries);
    sl_tensor_entry last = entries[count - 1];
    const char *folder = fresh_folder();

    ok(sl_weights_save(folder, entries, count - 1, 0));
    says(sl_model_weights_open(&model, folder, &weights), "1 missing: '");
    assert_non_null(strstr(sl_error_message(), last.name));

    entries[count - 1].name = "model.layers.9.extra";
    says(sl_model_save(&model, entries, count, SL_F32, 0, folder), "no parameter 'model.layers.9.extra'");
    entries[count] = last;
    ok(sl_weights_save(folder, entries, count + 1, 0));
    says(sl_model_weights_open(&model, folder, &weights), "1 superfluous: 'model.layers.9.extra'");

    entries[count - 1] = last;
    for (int i = 0; i < count; i++) {
        if (strcmp(entries[i].name, "model.layers.1.self_attn.k_proj.weight") == 0)
            entries[i].shape = (sl_shape){ 2, { 48, 16 } };
    }
    ok(sl_weights_save(folder, entries, count, 0));
    says(sl_model_weights_open(&model, folder, &weights),
         "'model.layers.1.self_attn.k_proj.weight' is [48, 16], the model needs [16, 48]");
    says(sl_model_save(&model, entries, count, SL_F32, 0, folder), "k_proj.weight' is f32 [48, 16]");

    for (int i = 0; i < count; i++) {
        if (strcmp(entries[i].name, "model.layers.1.self_attn.k_proj.weight") == 0) {
            entries[i].shape = (sl_shape){ 2, { 16, 48 } };
            entries[i].dtype = SL_I32;
        }
    }
    ok(sl_weights_save(folder, entries, count, 0));
    says(sl_model_weights_open(&model, folder, &weights), "k_proj.weight' has the dtype i32");
    says(sl_model_save(&model, entries, 3, SL_F32, 0, folder), "missing: '");
    assert_null(weights);
    sl_safetensors_close(file);
}

static void running_out_of_memory_is_an_error_like_others(void **state)
{
    (void)state;
    sl_model model = load("llama-tiny");
    const char *folder = data_path("models/llama-tiny");
    int refusals = 0;
    sl_status status = SL_ERR_MEMORY;
    for (int64_t n = 0; status != SL_OK; n += 1 + n / 8) {
        sl_model_weights *weights = NULL;
        sl_alloc_fail_after(n);
        status = sl_model_weights_open(&model, folder, &weights);
        sl_alloc_fail_after(-1);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        refusals += status != SL_OK;
        sl_model_weights_close(weights);
    }
    assert_true(refusals > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_have_hugging_faces_names_and_shapes),
        cmocka_unit_test(modes_have_the_same_parameters_in_the_same_order),
        cmocka_unit_test(a_model_in_bf16_has_an_f32_loss_and_f32_logits),
        cmocka_unit_test(split_points_may_leave_the_root_out),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(initial_weights_depend_on_seed_name_and_place_alone),
        cmocka_unit_test(threads_change_no_bit_of_initial_weights),
        cmocka_unit_test(gpt2_scales_what_feeds_the_residual_stream),
        cmocka_unit_test(rotary_angles_follow_their_definition),
        cmocka_unit_test(a_saved_folder_reads_back_bit_equal),
        cmocka_unit_test(half_precision_weights_are_read_as_f32),
        cmocka_unit_test(names_without_root_and_old_buffers_are_understood),
        cmocka_unit_test(missing_superfluous_and_misshapen_tensors_are_named),
        cmocka_unit_test(running_out_of_memory_is_an_error_like_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
