/* What `sluice info` prints: lines of key and value, as text or JSON. */
#ifndef SLUICE_INFO_H
#define SLUICE_INFO_H

#include <sluice/train.h>

#include "base/json.h"

typedef struct info_writer {
    bool as_json;
    bool begun;
    sl_json json;
} info_writer;

void info_end(info_writer *out); /* once all was printed */
void info_text(info_writer *out, const char *key, const char *value);
void info_int(info_writer *out, const char *key, int64_t value);

sl_status info_checkpoint(const char *path, bool verify, info_writer *out);
sl_status info_run(const char *path, bool verify, info_writer *out);
sl_status info_model_folder(const char *path, info_writer *out);
sl_status info_safetensors(const char *path, info_writer *out);
sl_status info_text_file(const char *path, info_writer *out);
/* named: its name says that it holds tokens, so that it needs no header. */
sl_status info_tokens(const char *path, bool named, info_writer *out);
sl_status info_schedule(const char *path, info_writer *out);

#endif
