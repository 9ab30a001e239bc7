/* Inside the tokenizer. A text becomes ids in five steps: added tokens are cut out; what lies between them is
 * normalized; that is split into pieces; the model encodes each piece; a frame of special tokens goes around all. What
 * the steps are is data, read from the tokenizer's files. */
#ifndef SL_DATA_TOKENIZER_H
#define SL_DATA_TOKENIZER_H

#include <sluice/data.h>

#include "base/arena.h"
#include "data/tokenizer/bpe.h"

#include <jansson.h>
#include <pthread.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { TOKEN_ID_MAX = 1 << 24, ADDED_LENGTH_MAX = 1024, STEPS_MAX = 32, NO_TOKEN = -1 };

typedef struct byte_list {
    unsigned char *data;
    size_t count, capacity;
} byte_list;

typedef struct id_list {
    int32_t *ids;
    size_t count, capacity;
} id_list;

SL_MUST_CHECK sl_status sl_byte_list_add(byte_list *list, const void *data, size_t size);
SL_MUST_CHECK sl_status sl_id_list_add(id_list *list, int32_t id);

/* ---- Vocabulary ------------------------------------------------------------------------------ */

typedef struct token {
    const unsigned char *bytes; /* NULL if the id is not used */
    uint32_t length;
    bool added, special; /* special: of the added ones, those that are no text */
} token;

/* A token that is cut out of the text before anything else happens to it. */
typedef struct added_token {
    const unsigned char *bytes; /* what is looked for */
    uint32_t length;
    int32_t id;
    bool special, normalized, left, right, word; /* takes the blanks on a side along; only as a whole word */
} added_token;

typedef struct added_set {
    added_token *tokens; /* sorted by their bytes */
    size_t count, capacity;
    bool first[256]; /* bytes that some token begins with */
} added_set;

/* ---- Steps ----------------------------------------------------------------------------------- */

typedef struct charsmap charsmap;

typedef enum normal_kind {
    NORMAL_FORM,      /* a Unicode normalization form */
    NORMAL_LOWERCASE, /*  */
    NORMAL_REPLACE,   /* matches of the pattern by text */
    NORMAL_PREPEND,   /* text before a text that is not empty */
    NORMAL_CHARSMAP,  /* SentencePiece's table, applied to graphemes and characters as Hugging Face does */
    NORMAL_BYTES,     /* bytes spelled in GPT-2's alphabet */
    NORMAL_PIECES     /* all that SentencePiece does */
} normal_kind;

typedef struct normal_step {
    normal_kind kind;
    int form; /* FORM: options of utf8proc */
    pcre2_code *pattern;
    const char *text;
    bool template;                       /* $0 in text is the match; otherwise it is literal */
    charsmap *map;                       /* NULL: none */
    bool one_blank, blank_first, escape; /* PIECES: blanks collapse; one comes first; written as U+2581 */
} normal_step;

typedef enum split_kind {
    SPLIT_PATTERN, /* by matches of a pattern */
    SPLIT_PREFIX,  /* a blank before a text that does not begin with one */
    SPLIT_SPACES,  /* blanks become a mark, which may also come first */
    SPLIT_BYTES    /* bytes spelled in GPT-2's alphabet; not done if the model works on bytes */
} split_kind;

typedef enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS
} split_behavior;

typedef enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend_scheme;

typedef struct split_step {
    split_kind kind;
    pcre2_code *pattern;
    split_behavior behavior;
    bool invert;
    const char *mark; /* SPACES */
    prepend_scheme scheme;
} split_step;

typedef enum decode_kind {
    DECODE_BYTES,    /* GPT-2's alphabet back to bytes */
    DECODE_SPACES,   /* the mark back to blanks */
    DECODE_PREFIX,   /* WordPiece: a token without the prefix begins a word */
    DECODE_SUFFIX,   /* the suffix ends a word */
    DECODE_FALLBACK, /* <0x41> is a byte */
    DECODE_FUSE,     /* all tokens become one */
    DECODE_STRIP,    /* so many of a character off each end */
    DECODE_REPLACE,  /* matches of the pattern by text */
    DECODE_CTC       /* repeated tokens and padding drop out */
} decode_kind;

typedef struct decode_step {
    decode_kind kind;
    const char *text, *second;
    pcre2_code *pattern;
    prepend_scheme scheme;
    int64_t start, stop;
    bool cleanup;
} decode_step;

/* ---- Model ----------------------------------------------------------------------------------- */

typedef enum model_kind { MODEL_BPE, MODEL_WORDPIECE, MODEL_WORDLEVEL, MODEL_UNIGRAM } model_kind;

typedef struct token_model {
    model_kind kind;
    bool byte_level;       /* the pieces are bytes, and so are the vocabulary's tokens */
    bool byte_fallback;    /* a character without a token becomes the tokens of its bytes */
    bool fuse_unknown;     /* one unknown token for unknown characters in a row */
    bool whole_pieces;     /* a piece that is a token is that token, whatever the merges say */
    bool single;           /* scores are added in single precision, as SentencePiece does */
    int32_t unknown;       /* or NO_TOKEN */
    int32_t byte_ids[256]; /* byte_level: NO_TOKEN if a byte has none; else those of byte_fallback */
    const char *prefix;    /* of what continues a word; "": none */
    const char *suffix;    /* of what ends a word; "": none */
    int64_t word_limit;    /* characters of a word that WordPiece tries */
    bpe *merges;
    double *scores;  /* UNIGRAM: by id */
    double least;    /* of them */
    int32_t *sorted; /* UNIGRAM: ids sorted by their bytes */
    size_t sorted_count;
    uint32_t first[257]; /* UNIGRAM: where the tokens that begin with a byte start */
} token_model;

typedef struct text_encoder text_encoder; /* memory of one thread that encodes */

struct sl_tokenizer {
    char *path;      /* for messages */
    sl_arena *arena; /* bytes of the tokens, texts of the steps */
    token *tokens;   /* by id */
    size_t token_capacity;
    int64_t vocab; /* the largest id + 1 */
    int32_t *map;  /* hash table: ids by the tokens' bytes */
    size_t map_slots;
    added_set raw, normalized; /* looked for before and after normalizing */
    normal_step normal[STEPS_MAX];
    int normal_count;
    split_step split[STEPS_MAX];
    int split_count;
    decode_step decode[STEPS_MAX];
    int decode_count;
    bool spaced;           /* no decoder: tokens are joined by blanks */
    id_list before, after; /* the frame */
    token_model model;
    pthread_mutex_t lock; /* of idle */
    text_encoder *idle;   /* a list */
};

/* ---- Reading --------------------------------------------------------------------------------- */

/* vocab.json and merges.txt, tokenizer.json, or SentencePiece's .model, into an empty tokenizer (path and arena set). */
SL_MUST_CHECK sl_status sl_tokenizer_read_pair(sl_tokenizer *tokenizer, const char *vocab_path,
                                               const char *merges_path);
SL_MUST_CHECK sl_status sl_tokenizer_read_json(sl_tokenizer *tokenizer, const char *path);
SL_MUST_CHECK sl_status sl_tokenizer_read_pieces(sl_tokenizer *tokenizer, const char *path);
SL_MUST_CHECK sl_status sl_tokenizer_read_steps(sl_tokenizer *tokenizer, const char *path, const json_t *root);

/* What the readers build with. text is as in the file; where names the file in messages. */
SL_MUST_CHECK sl_status sl_tokenizer_add_token(sl_tokenizer *tokenizer, const void *text, size_t length, int64_t id);
SL_MUST_CHECK sl_status sl_tokenizer_add_added(sl_tokenizer *tokenizer, const added_token *what);
SL_MUST_CHECK sl_status sl_tokenizer_add_gpt2_split(sl_tokenizer *tokenizer, const char *where, bool prefix);
SL_MUST_CHECK sl_status sl_pattern_compile(const char *where, const char *pattern, pcre2_code **out);
/* A pattern that matches the text itself; the caller frees *out. */
SL_MUST_CHECK sl_status sl_pattern_quote(const char *text, char **out);
/* scripts.c: the pattern of UnicodeScripts; the caller frees *out. */
SL_MUST_CHECK sl_status sl_pattern_scripts(char **out);
SL_MUST_CHECK sl_status sl_charsmap_create(const char *where, const void *blob, size_t size, charsmap **out);
void sl_charsmap_destroy(charsmap *map); /* NULL is fine */

/* The token with these bytes, or NO_TOKEN. */
int32_t sl_tokenizer_find(const sl_tokenizer *tokenizer, const void *bytes, size_t length);

/* ---- Encoding -------------------------------------------------------------------------------- */

/* A piece that was met before. */
typedef struct known_piece {
    uint8_t length, count; /* length 0: a free place */
    unsigned char bytes[30];
    int32_t ids[8];
} known_piece;

enum { KNOWN_PIECES = 1 << 14 };

struct text_encoder {
    text_encoder *next; /* in the list of idle ones */
    const sl_tokenizer *tokenizer;
    pcre2_match_data *match;
    bpe_work *work;
    known_piece *known;  /* KNOWN_PIECES */
    byte_list spelled;   /* what the model writes while it encodes a piece */
    byte_list normal[2]; /* a text before and after a normalizer's step */
    byte_list split[STEPS_MAX];
    id_list found; /* ids of one piece, and what UNIGRAM came from */
    double *best;
    size_t best_capacity;
    uint32_t *from;
    size_t from_capacity;
};

SL_MUST_CHECK sl_status sl_encoder_take(const sl_tokenizer *tokenizer, text_encoder **out);
void sl_encoder_give_back(text_encoder *encoder);
void sl_encoder_destroy(text_encoder *encoder); /* NULL is fine */

/* Valid UTF-8 in, valid UTF-8 out, in *out until the next call. */
SL_MUST_CHECK sl_status sl_tokenizer_normalize(text_encoder *encoder, const unsigned char *text, size_t size,
                                               const unsigned char **out, size_t *out_size);
/* Spells bytes in GPT-2's alphabet. */
SL_MUST_CHECK sl_status sl_alphabet_spell(const unsigned char *bytes, size_t size, byte_list *out);
/* SentencePiece's table: applied to graphemes and characters; or the longest match at a place. */
SL_MUST_CHECK sl_status sl_charsmap_apply(const charsmap *map, const unsigned char *text, size_t size, byte_list *out);
size_t sl_charsmap_longest(const charsmap *map, const unsigned char *text, size_t size, const char **out);

/* Splits normalized text into pieces and encodes them; first: it is the beginning of the whole text. */
SL_MUST_CHECK sl_status sl_tokenizer_add_text(text_encoder *encoder, const unsigned char *text, size_t size, bool first,
                                              int threads, id_list *list);
SL_MUST_CHECK sl_status sl_tokenizer_add_piece(text_encoder *encoder, const unsigned char *piece, size_t size,
                                               id_list *list);
/* A byte that is no part of a character. */
SL_MUST_CHECK sl_status sl_tokenizer_add_byte(const sl_tokenizer *tokenizer, unsigned char byte, id_list *list);
SL_MUST_CHECK sl_status sl_unigram_add_piece(text_encoder *encoder, const unsigned char *piece, size_t size,
                                             id_list *list);
SL_MUST_CHECK sl_status sl_unigram_finish(sl_tokenizer *tokenizer);

/* ---- alphabet.c: in vocabulary files each byte of a token is written as one printable character, GPT-2's way -- */

/* Turns a token as it stands in a file (UTF-8) into its bytes, at most as many as text has; out may be text. False if a
 * character is not of the alphabet; out may be changed then. */
bool sl_alphabet_decode(const void *text, size_t size, unsigned char *out, size_t *length);
/* The character that stands for the byte, as UTF-8 with a NUL: at most 3 bytes. */
void sl_alphabet_encode(unsigned char byte, char out[3]);

#endif
