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
#include <sched.h>
#include <sys/wait.h>
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
    return rmdir(directory); /* fails if a temporary file was left */
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

/* In a folder like /tmp, another user's link is a trap. Only root can make one for the test. */
static void a_link_of_somebody_else_in_a_shared_folder_is_not_followed(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    char shared[160], link_path[192];
    snprintf(shared, sizeof shared, "%s/shared", directory);
    snprintf(link_path, sizeof link_path, "%s/link", shared);
    assert_int_equal(mkdir(shared, 0777), 0);
    assert_int_equal(chmod(shared, 01777), 0);
    put(path, "old");
    assert_int_equal(symlink(path, link_path), 0);
    assert_int_equal(lchown(link_path, 65534, 65534), 0);
    sl_file *file = NULL;
    assert_int_equal(sl_file_create(link_path, &file), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "another user's link"));
    assert_content("old");
    assert_int_equal(lchown(link_path, 0, 0), 0); /* our own is fine */
    put(link_path, "new");
    assert_content("new");
    assert_int_equal(unlink(link_path), 0);
    assert_int_equal(rmdir(shared), 0);
}

/* After a kill the next start may have the same process id: no name may come from it. */
static void two_unfinished_files_never_share_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            sl_file *file = NULL;
            unshare(CLONE_NEWPID); /* the child's child is process 1 in both rounds, if that is allowed */
            pid_t inner = fork();
            if (inner == 0)
                _exit(sl_file_create(path, &file) == SL_OK ? 0 : 1); /* and dies without a word */
            int code = 1;
            waitpid(inner, &code, 0);
            _exit(WEXITSTATUS(code));
        }
        int code = 1;
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_int_equal(WEXITSTATUS(code), 0);
    }
    assert_int_equal(count_entries(), 2);
    char command[128];
    snprintf(command, sizeof command, "rm -f '%s'/*.tmp", directory);
    assert_int_equal(system(command), 0);
}

static void reading_says_what_is_wrong_with_the_file(void **state)
{
    (void)state;
    sl_file_bytes bytes = { .data = NULL };
    sl_file_reader reader = { .fd = -1 };
    char piece[8];
    assert_int_equal(sl_file_read(path, &bytes), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "out.txt: No such file"));
    assert_int_equal(sl_file_read(directory, &bytes), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "not a regular file"));
    put(path, "0123456789");
    assert_int_equal(sl_file_read(path, &bytes), SL_OK);
    assert_int_equal(bytes.size, 10);
    assert_memory_equal(bytes.data, "0123456789", 10);
    sl_file_bytes_free(&bytes);
    assert_int_equal(sl_file_open(path, &reader), SL_OK);
    assert_int_equal(sl_file_read_at(&reader, piece, 4, 6), SL_OK);
    assert_memory_equal(piece, "6789", 4);
    assert_int_equal(truncate(path, 7), 0); /* a map would end the process here */
    assert_int_equal(sl_file_read_at(&reader, piece, 4, 6), SL_ERR_IO);
    assert_non_null(strstr(sl_error_message(), "out.txt: it had 10 bytes when it was opened, now it has 7"));
    sl_file_close(&reader);
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
        cmocka_unit_test_setup_teardown(a_link_of_somebody_else_in_a_shared_folder_is_not_followed, enter_directory,
                                        leave_directory),
        cmocka_unit_test_setup_teardown(two_unfinished_files_never_share_a_name, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(reading_says_what_is_wrong_with_the_file, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(folders_are_made_with_their_parents, enter_directory, leave_directory),
        cmocka_unit_test(a_full_device_is_reported_and_stays_a_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
