/* A step as CUDA graphs gives the bits of a step launched kernel by kernel: every schedule, several stages, dropout. */
#include "unit/runtime/captures.h"

enum { SKIPPED = 77 };

static void every_schedule_gives_the_bits_of_a_run_without_graphs(void **state)
{
    (void)state;
    gpt_run run;
    for (int i = 0; sl_generator_name(i); i++) {
        if (strncmp(sl_generator_name(i), "ForwardOnly", 11) != 0)
            expect_equal_bits("cuda", &(gpt_case){ .schedule = sl_generator_name(i), .ranks = 2 }, &run);
    }
}

static void stages_of_one_rank_give_the_bits_of_a_run_without_graphs(void **state)
{
    (void)state;
    gpt_run run;
    for (int stages = 1; stages <= 4; stages *= 2) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const gpt_case alone = {
                .schedule = "Interleaved1F1B", .ranks = 1, .stages_per_rank = stages, .dtype = bf16 ? SL_BF16 : SL_F32
            };
            expect_equal_bits("cuda", &alone, &run);
        }
    }
}

/* They are branches of the graph. */
static void halves_of_an_overlap_give_the_bits_of_one_after_the_other(void **state)
{
    (void)state;
    gpt_run run;
    for (int bf16 = 0; bf16 < 2; bf16++)
        expect_equal_bits("cuda", &(gpt_case){ .schedule = "DualPipeV", .ranks = 1, .dtype = bf16 ? SL_BF16 : SL_F32 },
                          &run);
}

/* So are the gradients of weights. */
static void gradients_of_weights_beside_others_give_the_same_bits(void **state)
{
    (void)state;
    gpt_run run;
    for (int stages = 1; stages <= 2; stages++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const gpt_case alone = { .schedule = "Interleaved1F1B",
                                     .ranks = 1,
                                     .stages_per_rank = stages,
                                     .dtype = bf16 ? SL_BF16 : SL_F32,
                                     .beside = true };
            expect_equal_bits("cuda", &alone, &run);
        }
    }
}

static void an_update_is_part_of_the_graph(void **state)
{
    (void)state;
    gpt_run run;
    for (int dtype = 0; dtype < 2; dtype++)
        expect_equal_bits(
            "cuda",
            &(gpt_case){ .schedule = "1F1B", .ranks = 1, .dtype = dtype ? SL_BF16 : SL_F32, .updates_last = true },
            &run);
}

static void traced_steps_and_four_ranks_do_too(void **state)
{
    (void)state;
    gpt_run run;
    expect_equal_bits("cuda", &(gpt_case){ .schedule = "1F1B", .ranks = 1, .trace_events = 1000 }, &run);
    expect_equal_bits("cuda", &(gpt_case){ .schedule = "1F1B", .ranks = 4, .dtype = SL_BF16 }, &run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_of_one_rank_give_the_bits_of_a_run_without_graphs),
        cmocka_unit_test(every_schedule_gives_the_bits_of_a_run_without_graphs),
        cmocka_unit_test(halves_of_an_overlap_give_the_bits_of_one_after_the_other),
        cmocka_unit_test(gradients_of_weights_beside_others_give_the_same_bits),
        cmocka_unit_test(an_update_is_part_of_the_graph),
        cmocka_unit_test(traced_steps_and_four_ranks_do_too),
    };
    sl_device *gpu = NULL;
    if (sl_device_open("cuda", NULL, &gpu) != SL_OK) {
        printf("skipped: %s\n", sl_error_message());
        return SKIPPED;
    }
    sl_device_close(gpu);
    return cmocka_run_group_tests_name("gpu/captures", tests, NULL, NULL);
}
