/* Inside the tokenizer: what the files fill and encode and decode use. */
#ifndef SL_DATA_TOKENIZER_H
#define SL_DATA_TOKENIZER_H

#include <sluice/data.h>

#include "base/arena.h"
#include "data/bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { TOKEN_ID_MAX = 1 << 24, SPECIAL_LENGTH_MAX = 1024, NO_TOKEN = -1 };

typedef struct token {
    const unsigned char *bytes; /* NULL if the id is not used */
    uint32_t length;
    bool special;
} token;

struct sl_tokenizer {
    char *path;      /* for messages */
    sl_arena *arena; /* bytes of the tokens */
    token *tokens;   /* by id */
    size_t token_capacity;
    int64_t vocab;         /* the largest id + 1 */
    int32_t byte_ids[256]; /* NO_TOKEN if a byte has none */
    bpe *merges;
    int32_t *by_bytes; /* ids of all tokens sorted by their bytes; for whole_pieces, else NULL */
    int64_t by_bytes_count;
    int32_t *special; /* ids, sorted by their bytes */
    size_t special_capacity;
    int special_count;
    bool special_first[256]; /* bytes that some special token begins with */
    bool prefix_space;       /* a blank goes before a text that has none */
    bool whole_pieces;       /* a piece that is a token is that token, whatever the merges say */
    pcre2_code *pattern;
    pcre2_match_data *match;
};

/* Reads vocab.json and merges.txt, or tokenizer.json, into an empty tokenizer (path and arena set). */
SL_MUST_CHECK sl_status sl_tokenizer_read_pair(sl_tokenizer *tokenizer, const char *vocab_path,
                                               const char *merges_path);
SL_MUST_CHECK sl_status sl_tokenizer_read_json(sl_tokenizer *tokenizer, const char *path);

/* What the readers build with. text is as in the file. */
SL_MUST_CHECK sl_status sl_tokenizer_add_token(sl_tokenizer *tokenizer, const char *text, int64_t id);
SL_MUST_CHECK sl_status sl_tokenizer_add_special(sl_tokenizer *tokenizer, const char *text, int64_t id);
SL_MUST_CHECK sl_status sl_tokenizer_set_pattern(sl_tokenizer *tokenizer, const char *pattern);

/* alphabet.c: in vocabulary files each byte of a token is written as one printable character, GPT-2's way. */

/* Turns a token as it stands in a file (UTF-8) into its bytes, at most as many as text has; out may be text. False if a
 * character is not of the alphabet; out may be changed then. */
bool sl_alphabet_decode(const char *text, unsigned char *out, size_t *length);
/* The character that stands for the byte, as UTF-8 with a NUL: at most 3 bytes. */
void sl_alphabet_encode(unsigned char byte, char out[3]);

#endif
