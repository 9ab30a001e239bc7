/* The files of a Hugging Face tokenizer: finding them, and keeping them with a run. */
#ifndef SL_TRAIN_TOKENIZER_FILES_H
#define SL_TRAIN_TOKENIZER_FILES_H

#include <sluice/base.h>

/* Values of a checkpoint's attribute "tokenizer": a token is a byte, or the files lie in the folder `tokenizer` of its
 * run. A checkpoint never names a folder of its own choice. */
#define SL_TOKENIZER_BYTES "bytes"
#define SL_TOKENIZER_OF_RUN "run"

/* Whether folder has tokenizer.json, or vocab.json and merges.txt. */
bool sl_tokenizer_files_exist(const char *folder);
bool sl_tokenizer_is_file(const char *name); /* one of the files that a tokenizer may have */

/* Copies them, and those that go with them, if `from` is a folder that has them; does nothing if it is not. */
SL_MUST_CHECK sl_status sl_tokenizer_files_copy(const char *from, const char *to);

/* Copies those of a model into the folder of a run, in place of what is there. from NULL or without any: does nothing. */
SL_MUST_CHECK sl_status sl_tokenizer_files_keep(const char *from, const char *run);
/* The tokenizer that a checkpoint's attribute means: "bytes", a folder, or "". The caller frees *out. */
SL_MUST_CHECK sl_status sl_tokenizer_files_find(const char *checkpoint, const char *attribute, char **out);

#endif
