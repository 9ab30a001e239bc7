/* A temporary folder for one test program, removed at its end. */
#ifndef TESTS_SUPPORT_SCRATCH_H
#define TESTS_SUPPORT_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char scratch_folder[64];

static inline int scratch_remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static inline void scratch_remove(void)
{
    nftw(scratch_folder, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A path in the folder; the text lives until the eighth call from now. */
static inline const char *scratch_path(const char *name)
{
    static char paths[8][256];
    static int next;
    if (!scratch_folder[0]) {
        snprintf(scratch_folder, sizeof scratch_folder, "/tmp/sluice-test-XXXXXX");
        if (!mkdtemp(scratch_folder))
            abort();
        atexit(scratch_remove);
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
    return path;
}

static inline void scratch_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0)
        abort();
}

/* A file of the reference data. */
static inline const char *data_path(const char *name)
{
    static char paths[8][512];
    static int next;
    const char *folder = getenv("SLUICE_DATA");
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder ? folder : "tests/data", name);
    return path;
}

#endif
