/* The vault: what ranks hand in counts once it is whole, and until the next is whole. */
#include "comm/launch/vault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALL_SEALS = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK };

static sl_vault *vault;

static int make_vault(void **state)
{
    (void)state;
    return sl_vault_create(&vault) != SL_OK;
}

static int destroy_vault(void **state)
{
    (void)state;
    sl_vault_destroy(vault);
    vault = NULL;
    return 0;
}

/* Hands in "STEP/PART", sealed as said. */
static void put(int64_t step, int part, int parts, int seals)
{
    char text[32];
    int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int length = snprintf(text, sizeof text, "%d/%d", (int)step, part);
    assert_int_equal(write(memory, text, (size_t)length + 1), length + 1);
    assert_int_equal(fcntl(memory, F_ADD_SEALS, seals), 0);
    const sl_vault_part about = { .step = step, .part = part, .parts = parts };
    assert_int_equal(sl_vault_put(vault->sockets[1], &about, memory), SL_OK);
    close(memory);
}

/* A rank that asks, while the launcher serves. */
typedef struct request {
    sl_status status;
    sl_vault_content content;
} request;

static void *get(void *argument)
{
    request *asked = argument;
    asked->status = sl_vault_get(vault->sockets[1], &asked->content);
    return NULL;
}

/* What a rank that is started now would find: the step, and that each part is its own; -1 for nothing. */
static int64_t kept_step(void)
{
    request asked = { .status = SL_OK };
    pthread_t rank;
    char text[32];
    assert_int_equal(pthread_create(&rank, NULL, get, &asked), 0);
    while (pthread_tryjoin_np(rank, NULL) != 0)
        sl_vault_serve(vault);
    assert_int_equal(asked.status, SL_OK);
    int64_t step = asked.content.parts > 0 ? asked.content.step : -1;
    for (int i = 0; i < asked.content.parts; i++) {
        snprintf(text, sizeof text, "%d/%d", (int)step, i);
        assert_string_equal(asked.content.data[i], text);
    }
    sl_vault_release(&asked.content);
    return step;
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void a_new_vault_is_empty(void **state)
{
    (void)state;
    assert_int_equal(kept_step(), -1);
}

static void a_step_counts_once_all_parts_are_there(void **state)
{
    (void)state;
    put(5, 1, 3, ALL_SEALS);
    put(5, 0, 3, ALL_SEALS);
    assert_int_equal(kept_step(), -1);
    put(5, 2, 3, ALL_SEALS);
    assert_int_equal(kept_step(), 5);
}

static void the_one_before_stays_until_the_next_is_whole(void **state)
{
    (void)state;
    for (int part = 0; part < 2; part++)
        put(5, part, 2, ALL_SEALS);
    put(10, 0, 2, ALL_SEALS);
    assert_int_equal(kept_step(), 5);
    assert_false(sl_vault_settle(vault)); /* the rank of part 1 died */
    assert_int_equal(kept_step(), 5);
    put(10, 1, 2, ALL_SEALS); /* the ranks after it: part 0 of those before does not count */
    assert_int_equal(kept_step(), 5);
    put(10, 0, 2, ALL_SEALS);
    assert_int_equal(kept_step(), 10);
}

static void what_was_sent_before_a_death_counts(void **state)
{
    (void)state;
    put(7, 0, 2, ALL_SEALS);
    put(7, 1, 2, ALL_SEALS);
    assert_int_equal(sl_vault_progress(vault->sockets[1]), SL_OK);
    assert_true(sl_vault_settle(vault));
    assert_int_equal(kept_step(), 7);
    assert_false(sl_vault_settle(vault));
}

static void another_number_of_ranks_begins_anew(void **state)
{
    (void)state;
    for (int part = 0; part < 4; part++)
        put(5, part, 4, ALL_SEALS);
    put(6, 0, 4, ALL_SEALS);
    sl_vault_settle(vault);
    put(6, 0, 2, ALL_SEALS);
    assert_int_equal(kept_step(), 5);
    put(6, 1, 2, ALL_SEALS);
    assert_int_equal(kept_step(), 6);
}

static void memory_that_can_change_is_refused(void **state)
{
    (void)state;
    put(5, 0, 1, F_SEAL_GROW | F_SEAL_SHRINK);
    assert_int_equal(kept_step(), -1);
    put(5, 0, 1, F_SEAL_WRITE | F_SEAL_SHRINK);
    assert_int_equal(kept_step(), -1);
    put(5, 0, 1, ALL_SEALS);
    assert_int_equal(kept_step(), 5);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    put(5, 2, 2, ALL_SEALS);
    put(5, -1, 2, ALL_SEALS);
    put(5, 0, 0, ALL_SEALS);
    put(5, 0, 1 << 30, ALL_SEALS);
    assert_int_equal(write(vault->sockets[1], "?", 1), 1);
    assert_int_equal(kept_step(), -1);
    put(5, 0, 2, ALL_SEALS);
    put(5, 0, 2, ALL_SEALS); /* twice is not two parts */
    assert_int_equal(kept_step(), -1);
}

static void hundreds_of_parts_come_back(void **state)
{
    (void)state;
    enum { PARTS = 200 };
    int before = open_descriptors();
    for (int64_t step = 1; step <= 3; step++) {
        for (int part = 0; part < PARTS; part++) {
            put(step, part, PARTS, ALL_SEALS);
            sl_vault_serve(vault);
        }
        assert_int_equal(kept_step(), step);
        assert_int_equal(open_descriptors(), before + PARTS); /* one generation, and nothing else */
    }
}

int main(void)
{
#define IN_A_VAULT(test) cmocka_unit_test_setup_teardown(test, make_vault, destroy_vault)
    const struct CMUnitTest tests[] = {
        IN_A_VAULT(a_new_vault_is_empty),
        IN_A_VAULT(a_step_counts_once_all_parts_are_there),
        IN_A_VAULT(the_one_before_stays_until_the_next_is_whole),
        IN_A_VAULT(what_was_sent_before_a_death_counts),
        IN_A_VAULT(another_number_of_ranks_begins_anew),
        IN_A_VAULT(memory_that_can_change_is_refused),
        IN_A_VAULT(nonsense_is_refused),
        IN_A_VAULT(hundreds_of_parts_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
