/* Log: the callback or SLUICE_LOG decides where lines go and which. */
#include <sluice/base.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a fresh process with SLUICE_LOG=value (NULL: unset) writes to stderr for a line of each level. */
static void log_in_child(const char *value, char *text, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        if (value)
            setenv("SLUICE_LOG", value, 1);
        else
            unsetenv("SLUICE_LOG");
        sl_log(SL_LOG_ERROR, "a%d", 1);
        sl_log(SL_LOG_WARN, "b");
        sl_log(SL_LOG_INFO, "c");
        sl_log(SL_LOG_DEBUG, "d");
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; used < size - 1 && (got = read(ends[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void the_environment_chooses_the_level(void **state)
{
    (void)state;
    char text[256];
    log_in_child("error", text, sizeof text);
    assert_string_equal(text, "sluice error: a1\n");
    log_in_child("info", text, sizeof text);
    assert_string_equal(text, "sluice error: a1\nsluice warn: b\nsluice info: c\n");
    log_in_child("debug", text, sizeof text);
    assert_non_null(strstr(text, "sluice debug: d\n"));
}

static void without_it_the_library_prints_nothing(void **state)
{
    (void)state;
    char text[256];
    log_in_child(NULL, text, sizeof text);
    assert_string_equal(text, "");
    log_in_child("louder", text, sizeof text);
    assert_string_equal(text, "");
}

typedef struct record {
    int lines;
    sl_log_level level;
    char last[4096];
} record;

static void keep(void *user, sl_log_level level, const char *line)
{
    record *kept = user;
    kept->lines++;
    kept->level = level;
    snprintf(kept->last, sizeof kept->last, "%s", line);
}

static void the_callback_gets_lines_up_to_the_level(void **state)
{
    (void)state;
    static record kept;
    sl_log_set_callback(keep, &kept);
    sl_log_set_level(SL_LOG_INFO);
    assert_int_equal(sl_log_get_level(), SL_LOG_INFO);
    sl_log(SL_LOG_DEBUG, "not this");
    assert_int_equal(kept.lines, 0);
    sl_log(SL_LOG_INFO, "step %d of %s", 3, "ten");
    assert_int_equal(kept.lines, 1);
    assert_int_equal(kept.level, SL_LOG_INFO);
    assert_string_equal(kept.last, "step 3 of ten");
    static char longer[10000];
    memset(longer, 'x', sizeof longer - 1);
    sl_log(SL_LOG_ERROR, "%s", longer);
    assert_true(strlen(kept.last) > 1000);
    sl_log_set_callback(NULL, NULL);
    sl_log(SL_LOG_ERROR, "nobody hears this");
    assert_int_equal(kept.lines, 2);
}

static void *log_many(void *unused)
{
    for (int i = 0; i < 1000; i++)
        sl_log(SL_LOG_ERROR, "line %d", i);
    return unused;
}

static void threads_take_turns(void **state)
{
    (void)state;
    static record kept;
    sl_log_set_callback(keep, &kept);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_many, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    sl_log_set_callback(NULL, NULL);
    assert_int_equal(kept.lines, 4000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_chooses_the_level), /* first: the children must find the log untouched */
        cmocka_unit_test(without_it_the_library_prints_nothing),
        cmocka_unit_test(the_callback_gets_lines_up_to_the_level),
        cmocka_unit_test(threads_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
