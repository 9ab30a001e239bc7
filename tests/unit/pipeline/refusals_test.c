/* What cannot be compiled is refused: the message names the stage and the value, and nothing is made. */
#include "unit/pipeline/chain.h"

static void assert_refused(const sl_pipeline_options *options, sl_status expected, const char *words)
{
    sl_pipeline *untouched = (sl_pipeline *)&untouched, *pipeline = untouched;
    sl_status status = sl_pipeline_compile(options, &pipeline);
    if (status != expected || !strstr(sl_error_message(), words))
        fail_msg("expected status %d with '%s', got %d: %s", expected, words, status, sl_error_message());
    assert_ptr_equal(pipeline, untouched);
}

/* A chain of 3 stages on 3 ranks, good until a test breaks it. */
typedef struct fixture {
    chain chain;
    sl_schedule *schedule;
    sl_pipeline_options options;
} fixture;

static int enter(void **state)
{
    static fixture f;
    chain_init(&f.chain, 3);
    f.schedule = generate("1F1B", 3, 4, 1);
    f.options = chain_options(&f.chain, f.schedule);
    *state = &f;
    return 0;
}

static int leave(void **state)
{
    fixture *f = *state;
    sl_schedule_destroy(f->schedule);
    return 0;
}

static void give_schedule(fixture *f, sl_schedule *schedule)
{
    sl_schedule_destroy(f->schedule);
    f->schedule = schedule;
    f->options.schedule = schedule;
}

static void no_schedule(void **state)
{
    fixture *f = *state;
    f->options.schedule = NULL;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "no schedule was given");
    assert_refused(NULL, SL_ERR_ARGUMENT, "no schedule was given");
}

static void a_wrong_number_of_stages(void **state)
{
    fixture *f = *state;
    f->options.stage_count = 2;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "2 stages are described, the schedule has 3");
}

static void a_stage_that_no_rank_runs(void **state)
{
    fixture *f = *state;
    give_schedule(f, parse("0F0,0B0\n2F0,2B0\n"));
    assert_refused(&f->options, SL_ERR_SCHEDULE, "stage 1 is on no rank");
}

static void a_schedule_that_cannot_run(void **state)
{
    fixture *f = *state;
    give_schedule(f, parse("0F0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n")); /* 0B0 is missing */
    assert_refused(&f->options, SL_ERR_SCHEDULE, "schedule");
}

static void a_stage_without_the_backward_that_is_scheduled(void **state)
{
    fixture *f = *state;
    f->chain.stages[1].can_train = false;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "stage 1 has no backward");
    chain_init(&f->chain, 4);
    f->options.stage_count = 4;
    f->chain.stages[2].can_split = false;
    give_schedule(f, generate("ZBVZeroBubble", 2, 4, 2));
    assert_refused(&f->options, SL_ERR_ARGUMENT, "stage 2 has no backward_input and backward_weight");
}

static void an_input_from_a_later_stage(void **state)
{
    fixture *f = *state;
    f->chain.inputs[1][0].maker = 2;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "stage 1: input 'h0' does not come from an earlier stage");
    f->chain.inputs[1][0].maker = 0;
    f->chain.inputs[1][0].maker_output = 1;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "stage 1: input 'h0' does not come from an earlier stage");
}

static void a_value_with_two_shapes(void **state)
{
    fixture *f = *state;
    f->chain.inputs[1][0].metas[0] = value_meta(5);
    assert_refused(&f->options, SL_ERR_SHAPE, "h0");
}

static void an_input_of_unknown_shape(void **state)
{
    fixture *f = *state;
    f->chain.inputs[2][1].metas[0].shape.rank = -1;
    assert_refused(&f->options, SL_ERR_SHAPE, "stage 2: no stage makes the input 'y'");
}

static void an_output_of_unknown_shape(void **state)
{
    fixture *f = *state;
    f->chain.outputs[1][0].metas[0].shape.rank = -1;
    assert_refused(&f->options, SL_ERR_SHAPE, "stage 1: the shape of an output is open");
}

static void a_loss_that_is_no_single_number(void **state)
{
    fixture *f = *state;
    f->chain.outputs[2][0].metas[0] = value_meta(4);
    assert_refused(&f->options, SL_ERR_SHAPE, "stage 2: the loss 'loss' is f32 [4, 8]");
}

static void two_losses(void **state)
{
    fixture *f = *state;
    sl_value_desc outputs[2] = { f->chain.outputs[1][0], f->chain.outputs[2][0] };
    f->chain.stages[1].outputs = outputs;
    f->chain.stages[1].output_count = 2;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "stage 1 has a loss, 'loss', and stage 2 another");
}

static void a_spec_for_no_argument(void **state)
{
    fixture *f = *state;
    const sl_arg_spec wrong = { .name = "labels", .meta = { .shape = { .rank = -1 } } };
    const sl_arg_spec twice[] = { { .name = "x", .meta = value_meta(16) }, { .name = "x", .meta = value_meta(16) } };
    f->options.args = &wrong;
    f->options.arg_count = 1;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "no stage has an input 'labels'");
    f->options.args = twice;
    f->options.arg_count = 2;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "argument 'x' has two specs");
}

static void arguments_with_different_numbers_of_samples(void **state)
{
    fixture *f = *state;
    const sl_arg_spec args[] = { { .name = "x", .meta = value_meta(16) }, { .name = "y", .meta = value_meta(12) } };
    f->options.args = args;
    f->options.arg_count = 2;
    assert_refused(&f->options, SL_ERR_SHAPE, "argument 'y' has 12 samples, 'x' has 16");
}

static void tied_weights_that_differ(void **state)
{
    fixture *f = *state;
    sl_weight_desc *first = f->chain.weights[0], *last = f->chain.weights[2];
    first->tie = last->tie = "embedding";
    last->meta = sl_meta_make(SL_F32, 2, (int64_t[]){ 8, 4 });
    assert_refused(&f->options, SL_ERR_SHAPE, "tied between stages 0 and 2");
    last->meta = first->meta;
    last->frozen = true;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "is frozen in one of them only");
    last->frozen = false;
    last->grad_dtype = SL_F64;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "has gradients of two dtypes");
}

static void a_weight_that_a_stage_has_twice(void **state)
{
    fixture *f = *state;
    sl_weight_desc weights[2] = { f->chain.weights[1][0], f->chain.weights[1][0] };
    f->chain.stages[1].weights = weights;
    f->chain.stages[1].weight_count = 2;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "stage 1 has the parameter 'w1' twice");
}

static void shards_of_the_callers_memory(void **state)
{
    fixture *f = *state;
    f->options.replicas = 2;
    f->options.shard = SL_SHARD_FULL;
    f->chain.weights[1][0].own_data = true;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "stage 1: parameter 'w1' lies in the caller's memory");
}

static void sharded_weights_that_the_schedule_does_not_gather(void **state)
{
    fixture *f = *state;
    f->options.replicas = 2;
    f->options.shard = SL_SHARD_FULL;
    give_schedule(f, parse("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n1UNSHARD,1F0,1B0,1RESHARD,1REDUCE_GRAD\n"
                           "2F0,2B0,2REDUCE_GRAD\n"));
    assert_refused(&f->options, SL_ERR_SCHEDULE, "rank 2, cell 0, 2F0: its stage has to be unsharded before it");
    give_schedule(f, parse("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n1UNSHARD,1F0,1B0,1RESHARD\n"
                           "2UNSHARD,2F0,2B0,2RESHARD,2REDUCE_GRAD\n"));
    assert_refused(&f->options, SL_ERR_SCHEDULE, "rank 1, cell 4, 1REDUCE_GRAD: it is missing");
}

static void one_size_for_a_batch_of_two(void **state)
{
    fixture *f = *state;
    const sl_arg_spec args[] = { { .name = "x", .meta = value_meta(15) }, { .name = "y", .meta = value_meta(15) } };
    f->options.args = args;
    f->options.arg_count = 2;
    assert_refused(&f->options, SL_ERR_ARGUMENT, "was made for one size of microbatch, the batch needs two");
}

static void a_dump_of_a_rank_that_is_not_there(void **state)
{
    fixture *f = *state;
    sl_pipeline *pipeline = compile(&f->options);
    assert_int_equal(sl_pipeline_dump(pipeline, 3, stdout), SL_ERR_ARGUMENT);
    assert_non_null(strstr(sl_error_message(), "there is no rank 3 among 3"));
    assert_int_equal(sl_pipeline_dump(pipeline, -1, stdout), SL_ERR_ARGUMENT);
    sl_pipeline_destroy(pipeline);
    sl_pipeline_destroy(NULL);
}

#define REFUSAL(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        REFUSAL(no_schedule),
        REFUSAL(a_wrong_number_of_stages),
        REFUSAL(a_stage_that_no_rank_runs),
        REFUSAL(a_schedule_that_cannot_run),
        REFUSAL(a_stage_without_the_backward_that_is_scheduled),
        REFUSAL(an_input_from_a_later_stage),
        REFUSAL(a_value_with_two_shapes),
        REFUSAL(an_input_of_unknown_shape),
        REFUSAL(an_output_of_unknown_shape),
        REFUSAL(a_loss_that_is_no_single_number),
        REFUSAL(two_losses),
        REFUSAL(a_spec_for_no_argument),
        REFUSAL(arguments_with_different_numbers_of_samples),
        REFUSAL(tied_weights_that_differ),
        REFUSAL(a_weight_that_a_stage_has_twice),
        REFUSAL(shards_of_the_callers_memory),
        REFUSAL(sharded_weights_that_the_schedule_does_not_gather),
        REFUSAL(one_size_for_a_batch_of_two),
        REFUSAL(a_dump_of_a_rank_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
