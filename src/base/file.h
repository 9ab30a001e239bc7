/* Files: written beside their place and renamed into it when complete, so that they appear whole or not at all. */
#ifndef SL_BASE_FILE_H
#define SL_BASE_FILE_H

#include <sluice/base.h>

#include <stdio.h>

typedef struct sl_file sl_file;

/* Starts writing path. A symbolic link is followed, unless it is another user's in a folder where anybody may make files
 * (such as /tmp). A device or pipe is written directly: there is nothing to rename. The caller owns *out. */
SL_MUST_CHECK sl_status sl_file_create(const char *path, sl_file **out);

/* Borrowed; write errors may be left for sl_file_commit to find. */
FILE *sl_file_stream(sl_file *file);

/* All of the bytes at the offset, past the stream's buffer: do not mix the two. */
SL_MUST_CHECK sl_status sl_file_write_at(sl_file *file, const void *data, size_t bytes, uint64_t offset);

/* Flushes, syncs, renames and syncs the folder; fails if any write since sl_file_create failed. Destroy the file in
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

/* All bytes of a regular file; data is NULL if size is 0. */
typedef struct sl_file_bytes {
    unsigned char *data;
    size_t size;
} sl_file_bytes;

SL_MUST_CHECK sl_status sl_file_read(const char *path, sl_file_bytes *out);
void sl_file_bytes_free(sl_file_bytes *bytes); /* leaves it empty; an empty one is fine */

/* A regular file that is read in pieces; threads may share it. A closed one has the descriptor -1. */
typedef struct sl_file_reader {
    int fd;
    char *path;
    uint64_t size, device, inode; /* when it was opened */
} sl_file_reader;

SL_MUST_CHECK sl_status sl_file_open(const char *path, sl_file_reader *out);
/* Exactly so many bytes; it is an error if the file ends before. */
SL_MUST_CHECK sl_status sl_file_read_at(const sl_file_reader *reader, void *out, size_t bytes, uint64_t offset);
void sl_file_close(sl_file_reader *reader); /* a closed one is fine */

/* "folder/name"; the caller frees it. */
SL_MUST_CHECK sl_status sl_path_join(const char *folder, const char *name, char **out);

bool sl_folder_has(const char *folder, const char *name); /* a file that can be read */
/* Makes it with its parents; an existing one is fine. The names of new folders are on disk when it returns. */
SL_MUST_CHECK sl_status sl_folder_make(const char *path);
/* Returns once the folder's entries (names that were made, renamed or removed) are on disk. */
SL_MUST_CHECK sl_status sl_folder_sync(const char *path);
SL_MUST_CHECK sl_status sl_folder_sync_parent(const char *path); /* the same for the folder that path lies in */
/* Removes a folder and the plain files in it, and waits until that is on disk. Links are removed, never followed: also if
 * path itself is one. What does not exist is fine. */
SL_MUST_CHECK sl_status sl_folder_remove(const char *path);
/* The same after a failure, whose message stays: a folder that cannot be removed is logged. NULL is fine. */
void sl_folder_discard(const char *path);

/* A draft: files that replace those of a folder together. They are written into *out, a folder inside (the caller frees
 * the path), and then published. */
SL_MUST_CHECK sl_status sl_draft_begin(const char *folder, char **out);
/* Moves the draft's files into the folder. marks, with NULL at the end, are the files by which a reader finds the
 * others, the one it looks for first at the end: they are removed first and come last, so that whoever reads the folder
 * after a kill or power cut finds the old state, the new one or none. Files that are of the old state (is_ours) and
 * not of the draft are removed. */
SL_MUST_CHECK sl_status sl_draft_publish(const char *draft, const char *folder, const char *const *marks,
                                         bool (*is_ours)(const char *name));

#endif
