/* A written file is whole or absent. */
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64];
static char path[128];

static int enter_directory(void **state)
{
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/sluice-file-XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/out.txt", directory);
    return 0;
}

static int count_entries(void)
{
    int count = 0;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static int leave_directory(void **state)
{
    (void)state;
    unlink(path);
    char link_path[160];
    snprintf(link_path, sizeof link_path, "%s/link", directory);
    unlink(link_path);
    return rmdir(directory); /* fails where a temporary file was left */
}

static void put(const char *where, const char *text)
{
    sl_file *file = NULL;
    assert_int_equal(sl_file_create(where, &file), SL_OK);
    fputs(text, sl_file_stream(file));
    assert_int_equal(sl_file_commit(file), SL_OK);
    sl_file_destroy(file);
}

static void assert_content(const char *expected)
{
    char text[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, expected);
}

static void a_commit_replaces_the_old_file_and_keeps_its_mode(void **state)
{
    (void)state;
    put(path, "old");
    assert_int_equal(chmod(path, 0640), 0);
    put(path, "new");
    assert_content("new");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    assert_int_equal(count_entries(), 1);
}

static void without_a_commit_the_old_file_stays(void **state)
{
    (void)state;
    put(path, "old");
    sl_file *file = NULL;
    assert_int_equal(sl_file_create(path, &file), SL_OK);
    fputs("half", sl_file_stream(file));
    sl_file_destroy(file);
    assert_content("old");
    assert_int_equal(count_entries(), 1);
}

static void a_link_is_followed(void **state)
{
    (void)state;
    char link_path[160];
    snprintf(link_path, sizeof link_path, "%s/link", directory);
    put(path, "old");
    assert_int_equal(symlink(path, link_path), 0);
    put(link_path, "new");
    assert_content("new");
    struct stat info;
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
}

static void a_full_device_is_reported_and_stays_a_device(void **state)
{
    (void)state;
    sl_file *file = NULL;
    assert_int_equal(sl_file_create("/dev/full", &file), SL_OK);
    fputs("text", sl_file_stream(file));
    assert_int_equal(sl_file_commit(file), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "write /dev/full: No space left on device"));
    sl_file_destroy(file);
    struct stat info;
    assert_int_equal(stat("/dev/full", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

static void an_impossible_place_is_named(void **state)
{
    (void)state;
    sl_file *file = NULL;
    assert_int_equal(sl_file_create("/nowhere/at/all.txt", &file), SL_ERR_IO);
    assert_null(file);
    assert_string_equal(sl_error_message(), "open /nowhere/at/all.txt for writing: No such file or directory");
    assert_int_equal(sl_file_create("", &file), SL_ERR_IO);
    assert_int_equal(sl_file_create(directory, &file), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "Is a directory"));
}

static void folders_are_made_with_their_parents(void **state)
{
    (void)state;
    char deep[160], file[192];
    snprintf(deep, sizeof deep, "%s/a/b/c", directory);
    assert_int_equal(sl_folder_make(deep), SL_OK);
    assert_int_equal(sl_folder_make(deep), SL_OK); /* it may be there */
    assert_int_equal(sl_folder_sync(deep), SL_OK);
    assert_int_equal(sl_folder_make(""), SL_ERR_IO);
    snprintf(file, sizeof file, "%s/out.txt", deep);
    put(file, "in the way");
    assert_int_equal(sl_folder_make(file), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "a file of that name stands there"));
    assert_int_equal(unlink(file), 0);
    for (int level = 0; level < 3; level++, *strrchr(deep, '/') = '\0')
        assert_int_equal(rmdir(deep), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_commit_replaces_the_old_file_and_keeps_its_mode, enter_directory,
                                        leave_directory),
        cmocka_unit_test_setup_teardown(without_a_commit_the_old_file_stays, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(a_link_is_followed, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(an_impossible_place_is_named, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(folders_are_made_with_their_parents, enter_directory, leave_directory),
        cmocka_unit_test(a_full_device_is_reported_and_stays_a_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
