/* Stages that live on: several runtimes of the same stages, one after the other or in turn, work on the same
 * parameters. */
#include "unit/runtime/job.h"

/* ---- One after the other ---- */

typedef struct plan {
    const char *schedule;
    int microbatches;
    bool evaluates; /* forward alone */
} plan;

static const plan plans[] = { { "1F1B", 4, false }, { "GPipe", 2, false }, { "1F1B", 1, true }, { "1F1B", 8, false } };
enum { PLANS = sizeof plans / sizeof *plans, SAMPLES = 8 };

typedef struct life {
    int ranks;
    float losses[PLANS][MAX_MICROBATCHES];
    float weights[MAX_RANKS][WIDTH];
} life;

static sl_schedule *make_schedule(const plan *each, int ranks)
{
    sl_schedule *schedule = NULL;
    char csv[256] = "";
    if (!each->evaluates) {
        sl_generate_options options = { .name = each->schedule, .ranks = ranks, .microbatches = each->microbatches };
        return sl_schedule_generate(&options, &schedule) == SL_OK ? schedule : NULL;
    }
    for (int r = 0; r < ranks; r++)
        snprintf(csv + strlen(csv), sizeof csv - strlen(csv), "%dF0\n", r);
    return sl_schedule_parse_csv(csv, strlen(csv), "test", &schedule) == SL_OK ? schedule : NULL;
}

static sl_status update(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int count = 0;
    const sl_param *params = sl_runtime_params(runtime, &count);
    float w[WIDTH], g[WIDTH];
    for (int i = 0; i < count; i++) {
        SL_TRY(job_copy(runtime, &params[i].data, w, false));
        SL_TRY(job_copy(runtime, &params[i].grad, g, false));
        job_update(w, g, WIDTH);
        SL_TRY(job_copy(runtime, &params[i].data, w, true));
    }
done:
    return status;
}

static sl_status step_once(sl_runtime *runtime, const plan *each, int step, float *losses)
{
    sl_status status = SL_OK;
    float x[SAMPLES * WIDTH], t[SAMPLES * WIDTH];
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ SAMPLES, WIDTH });
    const sl_arg args[] = { { "x", { x, meta } }, { "t", { t, meta } } };
    sl_step what = { .args = args, .arg_count = 2, .number = step };
    sl_step_result result;
    job_batch(step, 0, SAMPLES, x, t);
    SL_TRY(each->evaluates ? sl_runtime_eval(runtime, &what, &result) : sl_runtime_step(runtime, &what, &result));
    memcpy(losses, result.losses, (size_t)result.loss_count * sizeof *losses);
    if (!each->evaluates)
        SL_TRY(update(runtime));
done:
    return status;
}

/* A stage that infers its shapes takes microbatches of any size. */
static sl_status live(toy_rank *self)
{
    life *all = self->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_runtime *runtime = NULL;
    sl_schedule *schedule = NULL;
    toy_stage *toy = calloc(1, sizeof *toy);
    toy_shape shape = toy_shape_make(all->ranks);
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ SAMPLES, WIDTH });
    const sl_arg_spec specs[] = { { .name = "x", .meta = meta }, { .name = "t", .meta = meta } };
    float w[WIDTH], unused[MAX_MICROBATCHES];
    int count = 0;
    shape.open_shapes = true;
    SL_TRY(sl_device_open(test_device_spec(), NULL, &device));
    SL_TRY(toy_create(toy, &shape, self->rank, SAMPLES));
    for (int p = 0; p < PLANS; p++) {
        schedule = make_schedule(&plans[p], all->ranks);
        SL_TRY(sl_runtime_create(&(sl_runtime_options){ .group = self->group,
                                                        .device = device,
                                                        .schedule = schedule,
                                                        .stages = &toy->stage,
                                                        .stage_count = 1,
                                                        .args = specs,
                                                        .arg_count = 2 },
                                 &runtime));
        toy_initial(self->rank, w);
        if (p == 0)
            SL_TRY(job_copy(runtime, &sl_runtime_params(runtime, &count)->data, w, true));
        SL_TRY(step_once(runtime, &plans[p], p, self->rank == 0 ? all->losses[p] : unused));
        SL_TRY(job_copy(runtime, &sl_runtime_params(runtime, &count)->data, all->weights[self->rank], false));
        sl_runtime_destroy(runtime);
        sl_schedule_destroy(schedule);
        runtime = NULL;
        schedule = NULL;
    }
done:
    sl_runtime_destroy(runtime);
    sl_schedule_destroy(schedule);
    sl_stage_destroy(toy->stage);
    sl_device_close(device);
    free(toy);
    return status;
}

/* The same steps one stage after another. */
static void live_in_turn(life *all)
{
    job_memory *memory = calloc(1, sizeof *memory);
    float w[MAX_STAGES][WIDTH], g[MAX_STAGES][WIDTH];
    for (int s = 0; s < all->ranks; s++)
        toy_initial(s, w[s]);
    for (int p = 0; p < PLANS; p++) {
        job each = { .samples = SAMPLES, .microbatches = plans[p].microbatches, .steps = 1 };
        each.shape = toy_shape_make(all->ranks);
        plan trains = { "1F1B", plans[p].microbatches, false };
        each.schedule = make_schedule(plans[p].evaluates ? &trains : &plans[p], all->ranks);
        memset(g, 0, sizeof g);
        job_reference_step(&each, memory, p, 0, w, g);
        memcpy(all->losses[p], each.losses[p], sizeof all->losses[p]);
        for (int s = 0; s < all->ranks && !plans[p].evaluates; s++)
            job_update(w[s], g[s], WIDTH);
        sl_schedule_destroy(each.schedule);
    }
    memcpy(all->weights, w, (size_t)all->ranks * sizeof *w);
    free(memory);
}

static void runtimes_one_after_the_other_keep_the_stages_parameters(void **state)
{
    (void)state;
    test_device_install();
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        toy_rank seats[MAX_RANKS];
        life all = { .ranks = ranks }, expected = { .ranks = ranks };
        assert_int_equal(toy_run_ranks(ranks, live, &all, seats), SL_OK);
        live_in_turn(&expected);
        for (int r = 0; r < ranks; r++) {
            if (seats[r].status != SL_OK)
                fail_msg("rank %d of %d: %s", r, ranks, seats[r].message);
        }
        assert_memory_equal(all.losses, expected.losses, sizeof all.losses);
        assert_memory_equal(all.weights, expected.weights, (size_t)ranks * sizeof *all.weights);
    }
}

/* ---- Several sizes in turn, from a cache ---- */

enum { SIZES = 4, ROUNDS = 3 };

/* One rank's stages and runtimes, by the number of samples a microbatch. */
typedef struct sizes {
    toy_rank *seat;
    sl_device *device;
    sl_schedule *schedule;
    toy_shape shape;
    toy_stage toys[SIZES + 1]; /* the last is for what does not fit */
    int made, dropped;
} sizes;

static sl_status make_runtime(void *user, int64_t key, sl_runtime **out)
{
    sizes *all = user;
    sl_status status = SL_OK;
    toy_stage *toy = &all->toys[key];
    SL_TRY(toy_create(toy, &all->shape, all->seat->rank, key + 1));
    if (all->made > 0)
        SL_TRY(sl_stage_share_params(toy->stage, all->toys[0].stage));
    all->made++;
    SL_TRY(sl_runtime_create(&(sl_runtime_options){ .group = all->seat->group,
                                                    .device = all->device,
                                                    .schedule = all->schedule,
                                                    .stages = &toy->stage,
                                                    .stage_count = 1 },
                             out));
done:
    return status;
}

static void drop_runtime(void *user, int64_t key, sl_runtime *runtime)
{
    sizes *all = user;
    sl_runtime_destroy(runtime);
    sl_stage_destroy(all->toys[key].stage);
    all->toys[key].stage = NULL;
    all->dropped++;
}

static sl_status step_of_size(sl_runtime *runtime, int64_t key, sl_step step)
{
    float x[MAX_SAMPLES * WIDTH], t[MAX_SAMPLES * WIDTH];
    int samples = 4 * ((int)key + 1);
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ samples, WIDTH });
    const sl_arg args[] = { { "x", { x, meta } }, { "t", { t, meta } } };
    job_batch((int)key, 0, samples, x, t);
    step.args = args;
    step.arg_count = 2;
    return sl_runtime_step(runtime, &step, NULL);
}

/* Steps of four sizes in turn; each reads its weights anew and must see the updates of the others. */
static sl_status take_turns(toy_rank *self)
{
    sl_status status = SL_OK;
    sl_runtime_cache *cache = NULL;
    sl_runtime *runtime = NULL;
    sizes *all = calloc(1, sizeof *all);
    int count = 0;
    float w[WIDTH], seen[WIDTH], sum[WIDTH], g[WIDTH];
    size_t memory = 0;
    all->seat = self;
    all->schedule = self->user;
    all->shape = toy_shape_make(sl_schedule_stages(all->schedule));
    SL_TRY(sl_device_open(test_device_spec(), NULL, &all->device));
    SL_TRY(sl_runtime_cache_create(
        &(sl_runtime_cache_options){ .capacity = SIZES, .make = make_runtime, .drop = drop_runtime, .user = all },
        &cache));
    toy_initial(self->rank, w);
    for (int turn = 0; turn < ROUNDS * SIZES; turn++) {
        SL_TRY(sl_runtime_cache_get(cache, turn % SIZES, &runtime));
        const sl_param *param = sl_runtime_params(runtime, &count);
        if (turn == 0)
            SL_TRY(job_copy(runtime, &param->data, w, true));
        SL_TRY(job_copy(runtime, &param->data, seen, false));
        if (memcmp(seen, w, sizeof w) != 0)
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "turn %d: another runtime's update is lost", turn));
        SL_TRY(step_of_size(runtime, turn % SIZES, (sl_step){ .number = turn }));
        SL_TRY(update(runtime));
        SL_TRY(job_copy(runtime, &param->data, w, false));
        if (turn == SIZES)
            memory = sl_device_get_memory(all->device).in_use;
    }
    if (all->made != SIZES || all->dropped != 0 || sl_device_get_memory(all->device).in_use != memory)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "%d runtimes made, %d dropped", all->made, all->dropped));
    /* Gradients of steps of two sizes add up. */
    SL_TRY(sl_runtime_cache_get(cache, 1, &runtime));
    SL_TRY(step_of_size(runtime, 1, (sl_step){ .partial = true }));
    SL_TRY(job_copy(runtime, &sl_runtime_params(runtime, &count)->grad, sum, false));
    SL_TRY(sl_runtime_cache_get(cache, 2, &runtime));
    SL_TRY(step_of_size(runtime, 2, (sl_step){ .keep_grads = true }));
    SL_TRY(job_copy(runtime, &sl_runtime_params(runtime, &count)->grad, g, false));
    SL_TRY(step_of_size(runtime, 2, (sl_step){ .number = 0 }));
    SL_TRY(job_copy(runtime, &sl_runtime_params(runtime, &count)->grad, seen, false));
    for (int c = 0; c < WIDTH; c++) {
        float difference = sum[c] + seen[c] - g[c];
        if (difference > 1e-4f || difference < -1e-4f || g[c] == seen[c])
            SL_TRY(sl_fail(SL_ERR_INTERNAL, "gradient %d: %g and %g give %g", c, (double)sum[c], (double)seen[c],
                           (double)g[c]));
    }
    /* A fifth size takes the place of the one that was used longest ago. */
    SL_TRY(sl_runtime_cache_get(cache, SIZES, &runtime));
    if (all->dropped != 1 || all->toys[0].stage)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "%d runtimes dropped", all->dropped));
    SL_TRY(job_copy(runtime, &sl_runtime_params(runtime, &count)->data, seen, false));
    if (memcmp(seen, w, sizeof w) != 0)
        SL_TRY(sl_fail(SL_ERR_INTERNAL, "the fifth size has other weights"));
done:
    sl_runtime_cache_destroy(cache);
    sl_device_close(all->device);
    free(all);
    return status;
}

static void four_sizes_in_turn_are_made_once_and_share_their_parameters(void **state)
{
    (void)state;
    test_device_install();
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        toy_rank seats[MAX_RANKS];
        const plan each = { "1F1B", 4, false };
        sl_schedule *schedule = make_schedule(&each, ranks);
        assert_int_equal(toy_run_ranks(ranks, take_turns, schedule, seats), SL_OK);
        for (int r = 0; r < ranks; r++) {
            if (seats[r].status != SL_OK)
                fail_msg("rank %d of %d: %s", r, ranks, seats[r].message);
        }
        sl_schedule_destroy(schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runtimes_one_after_the_other_keep_the_stages_parameters),
        cmocka_unit_test(four_sizes_in_turn_are_made_once_and_share_their_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
