/* Inputs as files, for readers that take a path. */
#ifndef TESTS_FUZZ_FILE_H
#define TESTS_FUZZ_FILE_H

#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* A finding: libFuzzer keeps the input. */
static inline void require(bool holds)
{
    if (!holds)
        abort();
}

/* Path of a file in memory with these bytes, until the next call. */
static inline const char *as_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int memory = -1;
    if (memory < 0) {
        memory = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    }
    require(memory >= 0 && ftruncate(memory, (off_t)size) == 0 && pwrite(memory, data, size, 0) == (ssize_t)size);
    return path;
}

static char fuzz_folder_path[64];

static inline int fuzz_remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static inline void fuzz_remove_folder(void)
{
    nftw(fuzz_folder_path, fuzz_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A folder of this process, removed at its end. */
static inline const char *fuzz_folder(void)
{
    if (!fuzz_folder_path[0]) {
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "/dev/shm/sluice-fuzz-XXXXXX");
        require(mkdtemp(fuzz_folder_path) != NULL);
        atexit(fuzz_remove_folder);
    }
    return fuzz_folder_path;
}

static inline const char *fuzz_path(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    return path;
}

static inline void fuzz_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    require(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

static inline void ignore_log(void *user, sl_log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

#endif
