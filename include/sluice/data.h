/* Data: token files, the order in which a run reads them, and the tokenizer that makes them. */
#ifndef SLUICE_DATA_H
#define SLUICE_DATA_H

#include <sluice/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Token files ----------------------------------------------------------------------------- */

typedef enum sl_token_format {
    SL_TOKENS_AUTO,     /* reading: LLMC, LLMC_U32 or NPY if the file begins as they do, else NANOGPT */
    SL_TOKENS_NANOGPT,  /* raw uint16 */
    SL_TOKENS_LLMC,     /* 256 int32 of header (20240520, 1, count), uint16 */
    SL_TOKENS_LLMC_U32, /* 256 int32 of header (20240801, 7, count), uint32 */
    SL_TOKENS_BYTES,    /* plain text: each byte is a token */
    SL_TOKENS_TEXT,     /* plain text through a tokenizer: what sl_tokens_encode gives, no form of a token file */
    SL_TOKENS_NPY       /* numpy's .npy, one dimension, uint16, uint32, int32 or int64; read, not written */
} sl_token_format;

/* "auto", "nanogpt", "llmc", "llmc-u32", "bytes", "text", "npy" */
SL_API const char *sl_token_format_name(sl_token_format format);
SL_API SL_MUST_CHECK sl_status sl_token_format_parse(const char *text, sl_token_format *out);

/* The tokens of one file, or of several as one sequence; immutable, so threads may share it. They are read from the
 * files whenever they are asked for. A file that was cut or replaced meanwhile is an error. */
typedef struct sl_tokens sl_tokens;
typedef struct sl_tokenizer sl_tokenizer;

/* path: a file; a folder: its .bin and .npy files, or all if they are text; or a pattern such as "shard_*.bin". Files
 * are taken in the order of their names, byte by byte. Refuses an empty file, a header that does not fit the size of
 * the file, half a token at the end, a pattern that no file fits, and tokens of different types. */
SL_API SL_MUST_CHECK sl_status sl_tokens_open(const char *path, sl_token_format format, sl_tokens **out);
/* A text file's tokens, encoded now and kept in memory; texts of special tokens are text like any other. */
SL_API SL_MUST_CHECK sl_status sl_tokens_encode(const char *path, const sl_tokenizer *tokenizer, sl_tokens **out);
/* Several paths, one after the other. */
SL_API SL_MUST_CHECK sl_status sl_tokens_open_all(const char *const *paths, int count, sl_token_format format,
                                                  sl_tokens **out);
SL_API SL_MUST_CHECK sl_status sl_tokens_encode_all(const char *const *paths, int count, const sl_tokenizer *tokenizer,
                                                    sl_tokens **out);
SL_API void sl_tokens_close(sl_tokens *tokens); /* NULL is fine */
SL_API int64_t sl_tokens_count(const sl_tokens *tokens);
SL_API int sl_tokens_files(const sl_tokens *tokens);              /* how many */
SL_API sl_token_format sl_tokens_format(const sl_tokens *tokens); /* of the first file as found; never AUTO */
SL_API const char *sl_tokens_type(const sl_tokens *tokens);       /* "uint16": how the files store one */
SL_API const char *sl_tokens_path(const sl_tokens *tokens);       /* of several files "a.bin and 7 more files" */

/* Tokens [first, first + count) as int32; the range must lie in the sequence. */
SL_API SL_MUST_CHECK sl_status sl_tokens_read(const sl_tokens *tokens, int64_t first, int64_t count, int32_t *out);
/* Fails at the first token of the range that is not below vocab; the message has file, token index and byte offset. */
SL_API SL_MUST_CHECK sl_status sl_tokens_check(const sl_tokens *tokens, int64_t first, int64_t count, int64_t vocab);
/* The largest token; reads all of them. */
SL_API SL_MUST_CHECK sl_status sl_tokens_max(const sl_tokens *tokens, int64_t *out);
/* A hash of the content: XXH3 64 of its size and bytes. Of what is above 1 GiB only 1 GiB counts, in pieces that are
 * spread evenly over the files, and at least 1 MiB of each. */
SL_API SL_MUST_CHECK sl_status sl_tokens_hash(const sl_tokens *tokens, uint64_t *out);

/* Writes a token file of any format but AUTO, TEXT and NPY, piece by piece. It appears when it is finished; until then the
 * place stays as it was. */
typedef struct sl_token_writer sl_token_writer;

SL_API SL_MUST_CHECK sl_status sl_token_writer_create(const char *path, sl_token_format format, sl_token_writer **out);
/* Fails at the first token that the format cannot hold. */
SL_API SL_MUST_CHECK sl_status sl_token_writer_add(sl_token_writer *writer, const int32_t *tokens, int64_t count);
SL_API int64_t sl_token_writer_count(const sl_token_writer *writer); /* of tokens so far */
SL_API SL_MUST_CHECK sl_status sl_token_writer_finish(sl_token_writer *writer);
SL_API void sl_token_writer_destroy(sl_token_writer *writer); /* NULL is fine */

/* All of it in one call. */
SL_API SL_MUST_CHECK sl_status sl_tokens_save(const char *path, sl_token_format format, const int32_t *tokens,
                                              int64_t count);

/* ---- Batches --------------------------------------------------------------------------------- */

/* The tokens are cut into windows of seq tokens (and the one after them, the last target): window w starts at token
 * w * seq, and there are (count - 1) / seq of them. Row r of step s reads window number s * batch + r; past the last
 * window a new epoch begins at the first. If shuffled, every epoch visits its windows once, in an order and from a
 * first token (below seq) that depend on seed and epoch; it may then have one window less. Nothing is remembered
 * between reads: the step is the position. */
typedef struct SL_NAMED_FIELDS sl_batch_options {
    int64_t batch, seq;
    bool shuffled;
    uint64_t seed;
    int64_t vocab; /* tokens read must be below it; 0: not checked */
} sl_batch_options;

typedef struct SL_NAMED_FIELDS sl_batch_source {
    const sl_tokens *tokens;
    double weight;        /* share of the rows, relative to the others' weights; above 0 */
    int64_t first, count; /* the part of the tokens that is used; count 0: all from first on */
} sl_batch_source;

typedef struct sl_batches sl_batches; /* immutable; threads may share it */

/* tokens must outlive it. Fails if there are fewer than seq + 1 of them. */
SL_API SL_MUST_CHECK sl_status sl_batches_create(const sl_tokens *tokens, const sl_batch_options *options,
                                                 sl_batches **out);
/* Rows of several sources by their weights: of the first n rows of a run, source i has its share of n within one row for
 * each source. Each source has its own windows, epochs and order. If shuffled, the rows of a step are in an order that
 * depends on seed and step. */
SL_API SL_MUST_CHECK sl_status sl_batches_create_mixed(const sl_batch_source *sources, int count,
                                                       const sl_batch_options *options, sl_batches **out);
SL_API void sl_batches_destroy(sl_batches *batches); /* NULL is fine */
/* Rows until a source begins a new epoch; with one source its windows. */
SL_API int64_t sl_batches_windows(const sl_batches *batches);
/* Rows among the first `rows` that come from a source, and its windows in an epoch. */
SL_API int64_t sl_batches_rows_of(const sl_batches *batches, int source, int64_t rows);
SL_API int64_t sl_batches_windows_of(const sl_batches *batches, int source);
/* The source of a row in a step, and the row's first token there. */
SL_API int sl_batches_source(const sl_batches *batches, int64_t step, int64_t row);
SL_API int64_t sl_batches_start(const sl_batches *batches, int64_t step, int64_t row);

/* Rows [row, row + rows) of the step's batch: inputs and targets are [rows, seq] each, targets one token later. Each
 * replica and microbatch reads its own rows. A token past the vocabulary fails as in sl_tokens_check. */
SL_API SL_MUST_CHECK sl_status sl_batches_read(const sl_batches *batches, int64_t step, int64_t row, int64_t rows,
                                               int32_t *inputs, int32_t *targets);
/* Checks all tokens that steps [first, first + steps) would read, so that a run fails before it starts. */
SL_API SL_MUST_CHECK sl_status sl_batches_check(const sl_batches *batches, int64_t first, int64_t steps);

/* ---- Documents ------------------------------------------------------------------------------- */

/* Rows of sl_batches_read hold what lies in the files, document after document, each with the token `boundary` as its
 * last. A row begins a document too, if only with a rest of it. tokens are the inputs [rows, seq]. */

/* The place of each token in its document: 0 for the first of the row and for one after a boundary, else one more than
 * that of the token before. */
SL_API void sl_document_positions(const int32_t *tokens, int64_t rows, int64_t seq, int32_t boundary,
                                  int32_t *positions);
/* Takes the first token of a document out of the loss: the target of each boundary becomes `ignored`. */
SL_API void sl_document_mask(const int32_t *tokens, int64_t count, int32_t boundary, int32_t ignored, int32_t *targets);

/* ---- Tokenizer ------------------------------------------------------------------------------- */

/* An sl_tokenizer does what the files of a model say: byte-pair encoding of bytes (GPT-2, Llama 3, Qwen) or of
 * characters (Llama 2, Mistral, Gemma), WordPiece, Unigram, with Hugging Face's normalizers, splits and templates. It
 * does not change; threads may share it. */

/* path: a folder with tokenizer.json, with vocab.json and merges.txt, or with tokenizer.model; a tokenizer.json; or
 * SentencePiece's .model. */
SL_API SL_MUST_CHECK sl_status sl_tokenizer_open(const char *path, sl_tokenizer **out);
SL_API void sl_tokenizer_close(sl_tokenizer *tokenizer);          /* NULL is fine */
SL_API int64_t sl_tokenizer_vocab(const sl_tokenizer *tokenizer); /* the largest id + 1 */
/* Id of an added token such as "<|endoftext|>"; -1 if there is none. */
SL_API int32_t sl_tokenizer_special(const sl_tokenizer *tokenizer, const char *text);
/* Id of the added token that ends a text: the first of "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>" and "[SEP]"
 * that there is; -1 if there is none. */
SL_API int32_t sl_tokenizer_end_token(const sl_tokenizer *tokenizer);

typedef struct SL_NAMED_FIELDS sl_encode_options {
    bool special; /* texts of special tokens become those tokens; otherwise they are text like any other */
    bool frame;   /* put the tokens around the text that the model expects there, such as <s> before it */
    int threads;  /* share a long text; the ids are the same. 0: one */
} sl_encode_options;

/* Any bytes. What is not UTF-8 is encoded byte by byte, or becomes the unknown token. options: NULL for the defaults.
 * The caller frees *out with sl_free. Fails if a character has no token and there is no unknown token. */
SL_API SL_MUST_CHECK sl_status sl_tokenizer_encode(const sl_tokenizer *tokenizer, const void *text, size_t bytes,
                                                   const sl_encode_options *options, int32_t **out, int64_t *count);

typedef struct sl_text {
    const void *data;
    size_t bytes;
} sl_text;

/* Several texts, each encoded by itself, shared by options->threads. The ids of text i end before (*out)[ends[i]]. */
SL_API SL_MUST_CHECK sl_status sl_tokenizer_encode_all(const sl_tokenizer *tokenizer, const sl_text *texts,
                                                       int64_t count, const sl_encode_options *options, int32_t **out,
                                                       int64_t *ends);

/* The text of the tokens, and a NUL after it that *bytes does not count. Bytes that are no UTF-8 stay as they are.
 * Fails at an id that is not in the vocabulary. The caller frees *out with sl_free. */
SL_API SL_MUST_CHECK sl_status sl_tokenizer_decode(const sl_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                                   char **out, size_t *bytes);
/* Writes a tokenizer.json for models whose tokens are bytes: token 65 is "A". */
SL_API SL_MUST_CHECK sl_status sl_tokenizer_save_bytes(const char *path);

#ifdef __cplusplus
}
#endif
#endif
