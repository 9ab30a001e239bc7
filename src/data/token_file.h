/* One file of tokens: its form, and blocks of it as 32-bit numbers. */
#ifndef SL_DATA_TOKEN_FILE_H
#define SL_DATA_TOKEN_FILE_H

#include <sluice/data.h>

#include "base/file.h"

enum {
    TOKEN_HEADER_WORDS = 256, /* int32 of llm.c's header */
    TOKEN_HEADER_BYTES = TOKEN_HEADER_WORDS * 4,
    TOKEN_BLOCK = 1 << 14 /* tokens read at a time */
};

/* How one token is stored; little-endian. */
typedef enum token_type { TOKEN_U8, TOKEN_U16, TOKEN_U32, TOKEN_I32, TOKEN_I64 } token_type;

typedef struct SL_NAMED_FIELDS token_form {
    const char *name;
    token_type type;        /* of a file without a header of its own that says it */
    int32_t magic, version; /* of llm.c's header; 0: there is none */
} token_form;
/* One for each sl_token_format. */
extern const token_form sl_token_forms[];
enum { TOKEN_FORM_COUNT = SL_TOKENS_NPY + 1 };

typedef struct token_file {
    char *path;
    sl_file_reader file; /* closed for TEXT; if it is opened for each read, too: it keeps size, device and inode then */
    bool reopened;       /* for each read */
    int32_t *encoded;    /* TEXT: the tokens */
    uint64_t first;      /* byte at which the first token begins */
    int64_t count;
    sl_token_format format;
    token_type type;
} token_file;

int sl_token_width(token_type type); /* bytes */
const char *sl_token_type_name(token_type type);

/* reopened: it is closed again, and opened for each read. */
SL_MUST_CHECK sl_status sl_token_file_open(const char *path, sl_token_format format, bool reopened, token_file *out);
SL_MUST_CHECK sl_status sl_token_file_encode(const char *path, const sl_tokenizer *tokenizer, token_file *out);
void sl_token_file_close(token_file *file);

/* Up to TOKEN_BLOCK tokens of a range that lies in the file. What 32 bits without a sign cannot hold is UINT32_MAX. */
SL_MUST_CHECK sl_status sl_token_file_block(const token_file *file, int64_t first, int64_t count, int32_t *out);
/* Fails and says where that token lies, what it is, and that it is past the vocabulary. */
sl_status sl_token_file_fail(const token_file *file, int64_t index, int64_t vocab);
/* XXH3 64 of its size and bytes, at most so many, in pieces that lie evenly over the file. */
SL_MUST_CHECK sl_status sl_token_file_hash(const token_file *file, uint64_t most_bytes, uint64_t *out);

/* npy.c: a one-dimensional array in numpy's format; fails if it is anything else. */
bool sl_npy_detect(const unsigned char *data, size_t size);
SL_MUST_CHECK sl_status sl_npy_read_header(const sl_file_reader *file, token_type *type, uint64_t *first,
                                           int64_t *count);

/* token_paths.c: the files that a path stands for: itself, the files of a folder, or those that fit a pattern. */
typedef struct token_paths {
    char **items;
    size_t count, capacity;
} token_paths;
/* text: a folder's files are texts, and all count; else those whose names end in .bin or .npy. */
SL_MUST_CHECK sl_status sl_token_paths_add(token_paths *paths, const char *path, bool text);
void sl_token_paths_free(token_paths *paths);

#endif
