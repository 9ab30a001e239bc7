/* The shardings of weights are true: on random meshes every rank has in its memory what the description says, and what
 * it says is what the mode means. */
#include "unit/runtime/job.h"

#include "runtime/runtime.h"
#include "support/sanitized.h"

static const char *const schedules[] = { "GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble", "InterleavedZeroBubble" };
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

#if TEST_SANITIZED
enum { MESHES = 20 };
#else
enum { MESHES = 80 };
#endif

/* What a replica has of a stage's weight, element by element, read where the description says. */
typedef struct copy_seen {
    bool listed;
    bool held[WIDTH], updated[WIDTH], counted[WIDTH];
    float weights[WIDTH], grads[WIDTH];
} copy_seen;

typedef struct mesh_seen {
    copy_seen copies[MAX_RANKS][MAX_STAGES]; /* by replica and stage */
} mesh_seen;

static uint32_t below(uint64_t *seed, uint32_t limit)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % limit;
}

/* The replica's own shard; it is the range that the parameter names. */
static sl_status own_shard(const sl_sharding *sharding, int replica, sl_param_range range, bool *elements)
{
    sl_status status = SL_OK;
    SL_TRY(sl_sharding_check(sharding));
    int number = sl_sharding_find(sharding, replica);
    if (number < 0 || sharding->size.dims[0] != WIDTH || sharding->size.rank != 1)
        return sl_fail(SL_ERR_INTERNAL, "the sharding does not know replica %d", replica);
    const sl_shard *own = &sharding->shards[number];
    if (own->offsets[0] != range.first || own->size.dims[0] != range.count)
        return sl_fail(SL_ERR_INTERNAL, "replica %d has another range than its shard", replica);
    for (int64_t e = 0; e < own->size.dims[0]; e++)
        elements[own->offsets[0] + e] = true;
done:
    return status;
}

static sl_status look(job *self, int rank, sl_runtime *runtime, toy_stage *stages, int count)
{
    sl_status status = SL_OK;
    mesh_seen *seen = self->user;
    int params = 0;
    const sl_param *list = sl_runtime_params(runtime, &params);
    (void)rank;
    (void)stages;
    (void)count;
    int replica = runtime->replicas ? sl_group_rank(runtime->replicas) : 0;
    for (int i = 0; i < params; i++) {
        const sl_param *param = &list[i];
        copy_seen *copy = &seen->copies[replica][param->stage];
        float w[2 * WIDTH] = { 0 }, g[2 * WIDTH] = { 0 };
        copy->listed = true;
        SL_TRY(own_shard(param->shardings.held, replica, param->held, copy->held));
        SL_TRY(own_shard(param->shardings.updated, replica, param->updated, copy->updated));
        SL_TRY(own_shard(param->shardings.counted, replica, param->counted, copy->counted));
        SL_TRY(job_copy(runtime, &param->data, w, false));
        SL_TRY(job_copy(runtime, &param->grad, g, false));
        for (int64_t e = 0; e < param->held.count; e++) {
            copy->weights[param->held.first + e] = w[e];
            copy->grads[param->held.first + e] = g[e];
        }
    }
done:
    return status;
}

/* Which of the replicas have element e, by the meaning of the modes: groups of neighbors have equal ranges of whole
 * parts, and every replica counts one part. */
static void means(const job *made, int replica, int e, bool *held, bool *updated)
{
    int group = made->extra.shard_group ? made->extra.shard_group : made->replicas;
    int part = e / ((WIDTH + made->replicas - 1) / made->replicas);
    bool own = part / (made->replicas / group) == replica % group;
    *held = made->extra.shard == SL_SHARD_FULL ? own : true;
    *updated = made->extra.shard == SL_SHARD_NONE ? true : own;
}

static void every_copy_is_right(const job *made, const job *reference, const mesh_seen *seen)
{
    for (int s = 0; s < made->shape.stages; s++) {
        int value = made->shape.tied_with[s] >= 0 ? made->shape.tied_with[s] : s;
        int counted[WIDTH] = { 0 };
        for (int r = 0; r < made->replicas; r++) {
            const copy_seen *copy = &seen->copies[r][s];
            for (int e = 0; copy->listed && e < WIDTH; e++) {
                bool held, updated;
                means(made, r, e, &held, &updated);
                assert_int_equal(copy->held[e], held);
                assert_int_equal(copy->updated[e], updated);
                counted[e] += copy->counted[e];
                assert_true(!copy->counted[e] || (updated && held));
                if (held)
                    assert_memory_equal(&copy->weights[e], &reference->weights[value][e], sizeof(float));
                if (updated)
                    assert_memory_equal(&copy->grads[e], &reference->grads[value][e], sizeof(float));
            }
        }
        for (int e = 0; seen->copies[0][s].listed && e < WIDTH; e++)
            assert_int_equal(counted[e], 1);
    }
}

static void ranks_hold_what_the_shardings_say(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (int i = 0; i < MESHES; i++) {
        int pp = 1 + (int)below(&seed, 2), dp = 1 + (int)below(&seed, 4), group = 1 + (int)below(&seed, (uint32_t)dp);
        while (dp % group != 0)
            group--;
        job made = job_make(schedules[below(&seed, SCHEDULES)], pp, 0, 4, 8);
        mesh_seen *seen = calloc(1, sizeof *seen);
        made.replicas = dp;
        made.extra.shard = (sl_shard_mode)below(&seed, 3);
        made.extra.shard_group = group;
        made.extra.helper = below(&seed, 2) ? SL_HELPER_ON : SL_HELPER_OFF;
        if (below(&seed, 3) == 0 && made.shape.stages > 1)
            made.shape.tied_with[made.shape.stages - 1] = 0;
        made.after = look;
        made.user = seen;
        job reference = made;
        job_reference(&reference);
        if (job_run(&made) != SL_OK)
            fail_msg("pp %d, dp %d, group %d, mode %d: %s", pp, dp, group, made.extra.shard, sl_error_message());
        every_copy_is_right(&made, &reference, seen);
        sl_schedule_destroy(made.schedule);
        free(seen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_hold_what_the_shardings_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
