/* Random pipelines against a plain sequential executor, to the bit: values that skip stages, several outputs, integers,
 * frozen parameters, arguments that every microbatch gets, uneven microbatches, one or two replicas that share nothing,
 * updates or everything, all schedules. */
#include "unit/runtime/network.h"

#include "support/sanitized.h"

enum { DEFAULT_PIPELINES = 500, ENOUGH_FOR_TSAN = 100 }; /* each of which takes 20 times as long there */

/* ---- The pipeline ------------------------------------------------------------------------------------------------ */

static work call_work(const part *self, const sl_stage_call *call)
{
    work w = { .part = self, .rows = call->outputs[0].meta.shape.dims[0] };
    w.sum = call->saved;
    w.dsum = w.sum + w.rows * WIDTH;
    for (int k = 0; k < call->input_count; k++) {
        w.in[k] = call->inputs[k].data;
        w.in_grads[k] = call->input_grads ? call->input_grads[k].data : NULL;
    }
    for (int j = 0; j < self->output_count; j++) {
        w.out[j] = call->outputs[j].data;
        w.out_grads[j] = call->output_grads ? call->output_grads[j].data : NULL;
    }
    for (int i = 0; i < call->param_count; i++) {
        w.params[i] = call->params[i].data;
        w.grads[i] = call->grads ? call->grads[i].data : NULL;
    }
    if (self->last) {
        w.loss = call->outputs[self->output_count].data;
        if (call->phase != SL_PHASE_F)
            w.seed = *(const float *)call->output_grads[self->output_count].data;
    }
    return w;
}

static sl_status call_forward(void *user, const sl_stage_call *call)
{
    work w = call_work(user, call);
    run_forward(&w);
    return SL_OK;
}

static sl_status call_input(void *user, const sl_stage_call *call)
{
    work w = call_work(user, call);
    run_input(&w);
    return SL_OK;
}

static sl_status call_weight(void *user, const sl_stage_call *call)
{
    work w = call_work(user, call);
    run_weight(&w);
    return SL_OK;
}

static sl_status call_backward(void *user, const sl_stage_call *call)
{
    work w = call_work(user, call);
    run_input(&w);
    run_weight(&w);
    return SL_OK;
}

/* Whether some stage takes the argument. */
static bool is_taken(const network *self, int root)
{
    for (int s = 0; s < self->stages; s++) {
        for (int k = 0; k < self->parts[s].input_count; k++) {
            if (self->parts[s].inputs[k] == root)
                return true;
        }
    }
    return false;
}

static sl_meta meta_of(value_kind kind, int64_t rows)
{
    if (kind == NUMBER)
        return sl_meta_make(SL_I64, 0, NULL);
    if (kind == ROW)
        return sl_meta_make(SL_F32, 1, (int64_t[]){ WIDTH });
    return sl_meta_make(kind == INTEGERS ? SL_I32 : SL_F32, 2, (int64_t[]){ rows, WIDTH });
}

/* Rows come from the first input, which every stage has. */
static sl_status call_infer(void *user, const sl_meta *inputs, int input_count, sl_meta *outputs, int output_count)
{
    const part *self = user;
    (void)input_count;
    for (int j = 0; j < output_count; j++)
        outputs[j] = j < self->output_count ? meta_of(self->out_kinds[j], inputs[0].shape.dims[0])
                                            : sl_meta_make(SL_F32, 0, NULL);
    return SL_OK;
}

static sl_status make_stage(network *self, int s, sl_stage **out)
{
    part *at = &self->parts[s];
    int64_t rows = (self->samples + self->microbatches - 1) / self->microbatches;
    sl_stage_value inputs[MOST_INPUTS] = { 0 }, outputs[MOST_OUTPUTS + 1] = { 0 };
    sl_stage_param params[MOST_PARAMS] = { 0 };
    char names[MOST_PARAMS][32];
    for (int k = 0; k < at->input_count; k++)
        inputs[k] = (sl_stage_value){ .name = self->values[at->inputs[k]].name,
                                      .meta = meta_of(at->in_kinds[k], rows),
                                      .no_grad = at->inputs[k] < ROOT_COUNT };
    for (int j = 0; j < at->output_count; j++)
        outputs[j] =
            (sl_stage_value){ .name = self->values[at->outputs[j]].name, .meta = meta_of(at->out_kinds[j], rows) };
    for (int k = 0; k < at->input_count; k++) /* the smaller size follows from these */
        inputs[k].meta.shape.rank =
            at->in_kinds[k] == FLOATS || at->in_kinds[k] == INTEGERS ? -1 : inputs[k].meta.shape.rank;
    for (int j = 0; j < at->output_count; j++)
        outputs[j].meta.shape.rank = -1;
    if (at->last) {
        inputs[at->input_count - 1].meta.shape.rank = -1;
        outputs[at->output_count] =
            (sl_stage_value){ .name = "loss", .meta = sl_meta_make(SL_F32, 0, NULL), .loss = true };
    }
    for (int i = 0; i < at->param_count; i++) {
        snprintf(names[i], sizeof names[i], "w%d.%d", s, i);
        params[i] = (sl_stage_param){ .name = names[i], .meta = meta_of(ROW, 0), .frozen = at->frozen[i] };
    }
    const sl_stage_options options = { .index = s,
                                       .inputs = inputs,
                                       .input_count = at->input_count,
                                       .outputs = outputs,
                                       .output_count = at->output_count + at->last,
                                       .params = params,
                                       .param_count = at->param_count,
                                       .saved_bytes = (size_t)(2 * rows * WIDTH) * sizeof(float),
                                       .forward = call_forward,
                                       .backward_input = call_input,
                                       .backward_weight = call_weight,
                                       .backward = at->one_backward ? call_backward : NULL,
                                       .infer = call_infer,
                                       .user = at };
    return sl_stage_create(&options, out);
}

static sl_status take_step(network *self, sl_runtime *runtime, int step, int replica, bool speaks, bool last)
{
    batch given;
    const part *end = &self->parts[self->stages - 1];
    sl_output outputs[MOST_OUTPUTS];
    sl_step_result result;
    fill_batch(&given, step, replica);
    void *data[ROOT_COUNT] = { given.x, given.target, given.ids, given.row, &given.number };
    sl_arg args[ROOT_COUNT];
    int used = 0;
    for (int i = 0; i < ROOT_COUNT; i++) {
        if (is_taken(self, i))
            args[used++] = (sl_arg){ self->values[i].name, { data[i], meta_of(self->values[i].kind, self->samples) } };
    }
    for (int j = 0; j < end->output_count; j++)
        outputs[j] = (sl_output){ .name = self->values[end->outputs[j]].name,
                                  .view = { self->got.outputs[j], meta_of(end->out_kinds[j], self->samples) } };
    const sl_step what = { .args = args,
                           .arg_count = used,
                           .number = step,
                           .outputs = outputs,
                           .output_count = last && replica == 0 ? end->output_count : 0 };
    sl_status status = sl_runtime_step(runtime, &what, &result);
    if (status == SL_OK && speaks) {
        memcpy(self->got.losses[step], result.losses, (size_t)self->microbatches * sizeof(float));
        self->got.loss[step] = result.loss;
    }
    return status;
}

static sl_status train(network *self, sl_runtime *runtime, int rank, int replica)
{
    sl_status status = SL_OK;
    int count = 0, s, i;
    const sl_param *params = sl_runtime_params(runtime, &count);
    bool last = sl_schedule_rank_of(self->schedule, self->stages - 1) == rank;
    for (int p = 0; p < count; p++) {
        float whole[WIDTH];
        sscanf(params[p].name, "w%d.%d", &s, &i);
        fill_weights(s, i, whole);
        memcpy(params[p].data.data, whole + params[p].held.first, (size_t)params[p].held.count * sizeof *whole);
    }
    for (int step = 0; step < STEPS; step++) {
        SL_TRY(take_step(self, runtime, step, replica, rank == 0 && replica == 0, last));
        for (int p = 0; p < count; p++) {
            const sl_param_range own = params[p].updated;
            int64_t skip = own.first - params[p].held.first;
            size_t bytes = (size_t)own.count * sizeof(float);
            sscanf(params[p].name, "w%d.%d", &s, &i);
            float *w = (float *)params[p].data.data + skip, *g = NULL;
            if (!self->parts[s].frozen[i]) {
                g = (float *)params[p].grad.data + skip;
                update_weights(w, g, own.count);
            }
            if (replica > 0 && self->shard == SL_SHARD_NONE)
                continue;
            memcpy(self->got.weights[s][i] + own.first, w, bytes);
            if (g)
                memcpy(self->got.grads[s][i] + own.first, g, bytes);
        }
        SL_TRY(step % 2 ? sl_runtime_gather_params(runtime) : sl_runtime_gather_params_post(runtime));
    }
done:
    return status;
}

static sl_status run_rank(toy_rank *rank)
{
    network *self = rank->user;
    sl_status status = SL_OK;
    sl_device *device = NULL;
    sl_group *pipeline = NULL, *replicas = NULL;
    sl_runtime *runtime = NULL;
    sl_stage *stages[MAX_STAGES] = { NULL };
    int count = 0, place = rank->rank / self->replicas, replica = rank->rank % self->replicas;
    sl_arg_spec specs[ROOT_COUNT];
    int spec_count = 0;
    for (int i = 0; i < ROOT_COUNT; i++) { /* a scalar needs none */
        if (i != ROOT_NUMBER && is_taken(self, i))
            specs[spec_count++] = (sl_arg_spec){ .name = self->values[i].name,
                                                 .meta = meta_of(self->values[i].kind, self->samples),
                                                 .chunk.kind = i == ROOT_ROW ? SL_CHUNK_REPLICATE : SL_CHUNK_SPLIT };
    }
    SL_TRY(sl_device_open("cpu", NULL, &device));
    if (self->replicas > 1)
        SL_TRY(sl_group_mesh(rank->group, sl_schedule_ranks(self->schedule), self->replicas, &pipeline, &replicas));
    for (int s = 0; s < self->stages; s++) {
        if (sl_schedule_rank_of(self->schedule, s) == place)
            SL_TRY(make_stage(self, s, &stages[count++]));
    }
    const sl_runtime_options options = { .group = pipeline ? pipeline : rank->group,
                                         .replicas = replicas,
                                         .device = device,
                                         .schedule = self->schedule,
                                         .stages = stages,
                                         .stage_count = count,
                                         .args = specs,
                                         .arg_count = spec_count,
                                         .shard = self->shard,
                                         .mean = self->mean };
    SL_TRY(sl_runtime_create(&options, &runtime));
    SL_TRY(train(self, runtime, place, replica));
done:
    sl_runtime_destroy(runtime);
    for (int s = 0; s < count; s++)
        sl_stage_destroy(stages[s]);
    sl_device_close(device);
    sl_group_close(pipeline);
    sl_group_close(replicas);
    return status;
}

/* ---- The comparison ---------------------------------------------------------------------------------------------- */

static int64_t number_from(const char *name, int64_t otherwise)
{
    int64_t number = otherwise;
    if (getenv(name))
        assert_int_equal(sl_parse_int(name, getenv(name), 0, INT64_MAX, &number), SL_OK);
    return number;
}

static bool differ(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) != 0;
}

static void compare(network *self, const results *wanted, uint64_t seed)
{
    toy_rank ranks[MAX_RANKS];
    int count = sl_schedule_ranks(self->schedule) * self->replicas;
    if (toy_run_ranks(count, run_rank, self, ranks) != SL_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, sl_error_message());
    for (int r = 0; r < count; r++) {
        if (ranks[r].status != SL_OK)
            fail_msg("seed %llu, %s: rank %d: %s", (unsigned long long)seed, self->text, r, ranks[r].message);
    }
    for (int s = 0; s < self->stages; s++) { /* the gradient of a frozen parameter is nobody's */
        for (int i = 0; i < self->parts[s].param_count; i++) {
            if (differ(self->got.weights[s][i], wanted->weights[s][i], sizeof wanted->weights[s][i]) ||
                (!self->parts[s].frozen[i] &&
                 differ(self->got.grads[s][i], wanted->grads[s][i], sizeof wanted->grads[s][i])))
                fail_msg("seed %llu, %s: parameter %d of stage %d differs", (unsigned long long)seed, self->text, i, s);
        }
    }
    if (differ(self->got.losses, wanted->losses, sizeof wanted->losses) ||
        differ(self->got.loss, wanted->loss, sizeof wanted->loss))
        fail_msg("seed %llu, %s: the losses differ", (unsigned long long)seed, self->text);
    if (differ(self->got.outputs, wanted->outputs, sizeof wanted->outputs))
        fail_msg("seed %llu, %s: the outputs differ", (unsigned long long)seed, self->text);
}

static void random_pipelines_give_the_bits_of_plain_execution(void **state)
{
    (void)state;
    int64_t count = number_from("SLUICE_PIPELINES", TEST_THREAD_SANITIZED ? ENOUGH_FOR_TSAN : DEFAULT_PIPELINES),
            first = number_from("SLUICE_SEED", 1);
    network *self = malloc(sizeof *self);
    results *wanted = malloc(sizeof *wanted);
    int64_t skips = 0, integers = 0, frozen = 0, uneven = 0, doubled = 0, shared = 0;
    for (int64_t n = 0; n < count; n++) {
        random_state = (uint64_t)(first + n) * 0x9e3779b97f4a7c15u;
        make_network(self);
        self->shard = (sl_shard_mode)((first + n) % 3);
        run_plain(self, wanted);
        compare(self, wanted, (uint64_t)(first + n));
        for (int s = 0; s < self->stages; s++) {
            const part *at = &self->parts[s];
            for (int k = 0; k < at->input_count; k++) {
                int maker = self->values[at->inputs[k]].maker;
                skips += maker >= 0 && maker < s - 1;
                integers += maker >= 0 && at->in_kinds[k] == INTEGERS;
                shared += at->in_kinds[k] == ROW || at->in_kinds[k] == NUMBER;
            }
            for (int i = 0; i < at->param_count; i++)
                frozen += at->frozen[i];
        }
        uneven += self->samples % self->microbatches != 0;
        doubled += self->replicas == 2;
        sl_schedule_destroy(self->schedule);
    }
    print_message("%lld pipelines: %lld skips, %lld integers between stages, %lld arguments for all microbatches, "
                  "%lld frozen parameters; %lld uneven, %lld with two replicas\n",
                  (long long)count, (long long)skips, (long long)integers, (long long)shared, (long long)frozen,
                  (long long)uneven, (long long)doubled);
    if (count >= DEFAULT_PIPELINES) { /* all of it is well represented */
        assert_true(skips > count / 2 && integers > count / 4 && shared > count / 2 && frozen > count / 2);
        assert_true(uneven > count / 8 && doubled > count / 4);
    }
    free(wanted);
    free(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_pipelines_give_the_bits_of_plain_execution) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
