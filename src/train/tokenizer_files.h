/* The files of a Hugging Face tokenizer. */
#ifndef SL_TRAIN_TOKENIZER_FILES_H
#define SL_TRAIN_TOKENIZER_FILES_H

#include <sluice/base.h>

/* Whether folder has tokenizer.json, or vocab.json and merges.txt. */
bool sl_tokenizer_files_exist(const char *folder);

/* Copies them, and those that go with them, where `from` is a folder that has them; does nothing where it is not. */
SL_MUST_CHECK sl_status sl_tokenizer_files_copy(const char *from, const char *to);

#endif
