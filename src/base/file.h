/* Files that appear whole or not at all: written beside their place, renamed into it when complete. */
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

/* Flushes, syncs and renames; fails where any write since sl_file_create failed. Destroy the file in either case. */
SL_MUST_CHECK sl_status sl_file_commit(sl_file *file);

/* Without a successful commit the place stays as it was and nothing is left behind. NULL is fine. */
void sl_file_destroy(sl_file *file);

#endif
