/* Choices for the next start: kept in a file that appears whole, shared by processes, and ignored if it is not ours. */
#include "device/choices.h"

#include "base/alloc.h"
#include "support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <string.h>

static int warnings;
static char last_warning[512];

static void note_warning(void *user, sl_log_level level, const char *message)
{
    (void)user;
    if (level > SL_LOG_WARN)
        return;
    warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", message);
}

static sl_choices *opened(const char *scope)
{
    sl_choices *choices = NULL;
    assert_int_equal(sl_choices_open(scope, &choices), SL_OK);
    return choices;
}

/* The one file of the folder. */
static const char *only_file(void)
{
    static char path[512];
    DIR *folder = opendir(getenv("SLUICE_CACHE"));
    int count = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", getenv("SLUICE_CACHE"), entry->d_name);
        count++;
    }
    closedir(folder);
    assert_int_equal(count, 1);
    return path;
}

static int fresh_folder(void **state)
{
    static int number;
    char name[32];
    (void)state;
    snprintf(name, sizeof name, "cache%d/sluice", number++);
    setenv("SLUICE_CACHE", scratch_path(name), 1);
    sl_log_set_callback(note_warning, NULL);
    warnings = 0;
    return 0;
}

static void what_was_put_is_there_at_the_next_start(void **state)
{
    (void)state;
    sl_choices *first = opened("a device");
    assert_null(sl_choices_get(first, "64x64x64"));
    sl_choices_put(first, "64x64x64", "1");
    sl_choices_put(first, "128x64x64", "2 = two");
    sl_choices_put(first, "64x64x64", "3");
    sl_choices_close(first);
    sl_choices *second = opened("a device");
    assert_string_equal(sl_choices_get(second, "64x64x64"), "3");
    assert_string_equal(sl_choices_get(second, "128x64x64"), "2 = two");
    sl_choices_close(second);
    sl_choices *other = opened("another device");
    assert_null(sl_choices_get(other, "64x64x64"));
    sl_choices_close(other);
    assert_int_equal(warnings, 0);
}

static void processes_keep_what_others_added(void **state)
{
    (void)state;
    sl_choices *a = opened("a device"), *b = opened("a device");
    sl_choices_put(a, "x", "1");
    sl_choices_put(b, "y", "2");
    sl_choices *c = opened("a device");
    assert_string_equal(sl_choices_get(c, "x"), "1");
    assert_string_equal(sl_choices_get(c, "y"), "2");
    sl_choices_close(a);
    sl_choices_close(b);
    sl_choices_close(c);
}

/* Changes the file's text by `change`, and says whether it is ignored with a warning and replaced by the next put. */
static void check_ignored(void (*change)(char *text, size_t *bytes))
{
    char text[1024];
    sl_choices *first = opened("a device");
    sl_choices_put(first, "x", "1");
    sl_choices_close(first);
    FILE *file = fopen(only_file(), "rb");
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    change(text, &bytes);
    scratch_write(only_file(), text, bytes);
    warnings = 0;
    sl_choices *second = opened("a device");
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "ignored"));
    assert_null(sl_choices_get(second, "x"));
    sl_choices_put(second, "y", "2");
    sl_choices_close(second);
    warnings = 0;
    sl_choices *third = opened("a device");
    assert_string_equal(sl_choices_get(third, "y"), "2");
    sl_choices_close(third);
    assert_int_equal(warnings, 0);
}

static void flip(char *text, size_t *bytes)
{
    text[*bytes / 2] ^= 1;
}

static void cut(char *text, size_t *bytes)
{
    (void)text;
    *bytes -= 7;
}

static void empty(char *text, size_t *bytes)
{
    (void)text;
    *bytes = 0;
}

static void replace(char *text, size_t *bytes)
{
    memset(text, 'x', *bytes);
}

static void damaged_files_are_ignored_and_replaced(void **state)
{
    void (*const changes[])(char *, size_t *) = { flip, cut, empty, replace };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        fresh_folder(state);
        check_ignored(changes[i]);
    }
}

/* A whole file of another device under the name of this one. */
static void a_file_of_another_scope_is_ignored(void **state)
{
    char text[1024];
    sl_choices *other = opened("b device");
    sl_choices_put(other, "x", "1");
    sl_choices_close(other);
    FILE *file = fopen(only_file(), "rb");
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    fresh_folder(state);
    sl_choices *own = opened("a device");
    sl_choices_put(own, "y", "2");
    sl_choices_close(own);
    scratch_write(only_file(), text, bytes);
    sl_choices *again = opened("a device");
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "not for a device"));
    assert_null(sl_choices_get(again, "x"));
    sl_choices_close(again);
}

static void without_a_folder_choices_live_as_long_as_the_process(void **state)
{
    (void)state;
    setenv("SLUICE_CACHE", "", 1);
    sl_choices *choices = opened("a device");
    sl_choices_put(choices, "x", "1");
    assert_string_equal(sl_choices_get(choices, "x"), "1");
    sl_choices_close(choices);
    setenv("SLUICE_CACHE", "/proc/nowhere", 1);
    choices = opened("a device");
    sl_choices_put(choices, "x", "1");
    assert_string_equal(sl_choices_get(choices, "x"), "1");
    assert_int_equal(warnings, 1); /* that it is not kept */
    sl_choices_close(choices);
    sl_choices_close(NULL);
}

static void folders_of_the_environment_are_taken_in_order(void **state)
{
    (void)state;
    char expected[512];
    unsetenv("SLUICE_CACHE");
    setenv("XDG_CACHE_HOME", scratch_path("xdg"), 1);
    setenv("HOME", scratch_path("home"), 1);
    sl_choices *choices = opened("a device");
    sl_choices_put(choices, "x", "1");
    sl_choices_close(choices);
    assert_int_equal(access(scratch_path("xdg/sluice"), F_OK), 0);
    setenv("XDG_CACHE_HOME", "relative", 1); /* the standard says to ignore it */
    choices = opened("a device");
    sl_choices_put(choices, "x", "1");
    sl_choices_close(choices);
    snprintf(expected, sizeof expected, "%s", scratch_path("home/.cache/sluice"));
    assert_int_equal(access(expected, F_OK), 0);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    choices = opened("a device");
    assert_null(sl_choices_get(choices, "x"));
    sl_choices_close(choices);
}

static void running_out_of_memory_is_an_error_or_forgets(void **state)
{
    (void)state;
    for (int n = 0; n < 6; n++) {
        sl_choices *choices = NULL;
        sl_alloc_fail_after(n);
        sl_status status = sl_choices_open("a device", &choices);
        if (status == SL_OK)
            sl_choices_put(choices, "x", "1");
        sl_alloc_fail_after(-1);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        sl_choices_close(choices);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_was_put_is_there_at_the_next_start, fresh_folder),
        cmocka_unit_test_setup(processes_keep_what_others_added, fresh_folder),
        cmocka_unit_test_setup(damaged_files_are_ignored_and_replaced, fresh_folder),
        cmocka_unit_test_setup(a_file_of_another_scope_is_ignored, fresh_folder),
        cmocka_unit_test_setup(without_a_folder_choices_live_as_long_as_the_process, fresh_folder),
        cmocka_unit_test_setup(running_out_of_memory_is_an_error_or_forgets, fresh_folder),
        cmocka_unit_test_setup(folders_of_the_environment_are_taken_in_order, fresh_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
