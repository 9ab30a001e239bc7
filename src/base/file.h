/* Files: written beside their place and renamed into it when complete, so that they appear whole or not at all; read
 * through memory maps. */
#ifndef SL_BASE_FILE_H
#define SL_BASE_FILE_H

#include <sluice/base.h>

#include <stdio.h>

typedef struct sl_file sl_file;

/* Starts writing path. A symbolic link is followed; a device or pipe is written directly, for there is nothing to
 * rename. The caller owns *out. */
SL_MUST_CHECK sl_status sl_file_create(const char *path, sl_file **out);

/* Borrowed; write errors may be left for sl_file_commit to find. */
FILE *sl_file_stream(sl_file *file);

/* All of the bytes at the offset, past the stream's buffer: do not mix the two. */
SL_MUST_CHECK sl_status sl_file_write_at(sl_file *file, const void *data, size_t bytes, uint64_t offset);

/* Flushes, syncs, renames and syncs the folder; fails where any write since sl_file_create failed. Destroy the file in
 * either case. */
SL_MUST_CHECK sl_status sl_file_commit(sl_file *file);

/* Without a successful commit the place stays as it was and nothing is left behind. NULL is fine. */
void sl_file_destroy(sl_file *file);

/* Create, write and commit in one go. */
SL_MUST_CHECK sl_status sl_file_replace(const char *path, const void *data, size_t bytes);
/* The same for text, with a newline after its last line. */
SL_MUST_CHECK sl_status sl_file_replace_text(const char *path, const char *text);

/* Opens what is to be read. Never waits for a writer: a named pipe is refused. What is connected already is taken:
 * standard input as /dev/stdin, a shell's <(command). The caller closes *fd. */
SL_MUST_CHECK sl_status sl_file_open_input(const char *path, int *fd);
/* The same as a stream, which the caller closes. */
SL_MUST_CHECK sl_status sl_file_open_stream(const char *path, FILE **out);

/* The bytes of a file, read when they are touched; data is NULL where size is 0. Whoever truncates a file that is
 * mapped breaks its readers (SIGBUS): files of ours are only ever replaced by rename. */
typedef struct sl_file_map {
    const unsigned char *data;
    size_t size;
} sl_file_map;

/* Refuses what is not a regular file. */
SL_MUST_CHECK sl_status sl_file_map_open(const char *path, sl_file_map *out);
void sl_file_map_close(sl_file_map *map); /* leaves it empty; an empty one is fine */

/* "folder/name"; the caller frees it. */
SL_MUST_CHECK sl_status sl_path_join(const char *folder, const char *name, char **out);

bool sl_folder_has(const char *folder, const char *name); /* a file that can be read */
SL_MUST_CHECK sl_status sl_folder_make(const char *path); /* with its parents; an existing one is fine */
/* Returns once the folder's entries (names that were made, renamed or removed) are on disk. */
SL_MUST_CHECK sl_status sl_folder_sync(const char *path);

#endif
