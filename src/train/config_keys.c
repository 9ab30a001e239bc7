/* The table of configuration keys. */
#include "train/config_keys.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define AT(section_, key_) .section = #section_, .key = #key_, .offset = offsetof(sl_train_config, section_.key_)
#define INT(section, key, least, most, value, text)                                                                    \
    {                                                                                                                  \
        AT(section, key), .type = CONFIG_INT, .min = (double)(least), .max = (double)(most), .default_value = value,   \
                          .help = text                                                                                 \
    }
#define REAL(section, key, least, most, value, text)                                                                   \
    {                                                                                                                  \
        AT(section, key), .type = CONFIG_REAL, .min = least, .max = most, .default_value = value, .help = text         \
    }
#define BOOL(section, key, value, text)                                                                                \
    {                                                                                                                  \
        AT(section, key), .type = CONFIG_BOOL, .default_value = value, .help = text                                    \
    }
#define WORD(section, key, list, value, text)                                                                          \
    {                                                                                                                  \
        AT(section, key), .type = CONFIG_WORD, .words = list, .default_value = value, .help = text                     \
    }
#define TEXT(section, key, value, text)                                                                                \
    {                                                                                                                  \
        AT(section, key), .type = CONFIG_TEXT, .default_value = value, .help = text                                    \
    }
#define PATHS(section, key, text)                                                                                      \
    {                                                                                                                  \
        AT(section, key), .type = CONFIG_PATHS, .help = text                                                           \
    }
#define TEXTS(section, key, text)                                                                                      \
    {                                                                                                                  \
        AT(section, key), .type = CONFIG_TEXTS, .help = text                                                           \
    }

enum { MILLION = 1000 * 1000 };

const config_key sl_config_keys[] = {
    TEXT(model, init, NULL, "Hugging Face folder (config.json and safetensors) to start from, instead of a family"),
    TEXT(model, family, "gpt2",
         "architecture of a model that starts from random weights, such as gpt2 or llama (docs/models.md)"),
    INT(model, n_layer, 1, 1024, "4", "blocks"),
    INT(model, n_head, 1, 1024, "4", "attention heads"),
    INT(model, n_kv_head, 0, 1024, "0", "key/value heads, if the family has them; 0: as many as heads"),
    INT(model, n_embd, 1, 65536, "128", "width"),
    INT(model, n_inner, 0, 1 << 18, "0", "width inside the MLP; 0: 4 x width (gpt2, gpt_neox), 8/3 x width (others)"),
    INT(model, vocab, 0, 1 << 24, "0", "vocabulary; 0: 256 for text, else what the token file needs"),
    INT(model, n_positions, 0, 1 << 24, "0", "longest sequence; 0: batch.seq"),
    REAL(model, dropout, 0, 0.999, "0", "dropout (llama and most others: of attention weights alone)"),
    BOOL(model, tie, "true", "the output layer shares the embedding's weights"),
    TEXTS(model, freeze, "parameters that are not trained, by patterns such as 'wte*' and 'h.0.*'"),

    PATHS(
        data, tokens,
        "token files (nanoGPT's raw uint16, llm.c's or .npy): a file, a folder, a pattern such as 'shard_*.bin', or a "
        "list of them; a list of {path: P, weight: W} mixes their rows by weight"),
    PATHS(data, text,
          "plain text files, in tokens of model.init's tokenizer; without one, one token a byte; given as data.tokens"),
    PATHS(data, val, "validation data: given as the training data, or a share split off their end, such as 5%"),
    WORD(data, order, "sequential|shuffled", "sequential", "order of the rows; shuffled by run.seed"),
    BOOL(data, documents, "false",
         "keep the documents of a row apart: a token sees its own alone, and positions begin anew in each"),
    INT(data, boundary, -1, INT32_MAX, "-1",
        "token that ends a document; -1: the one of model.init's tokenizer, or its eos_token_id"),
    BOOL(data, boundary_loss, "true",
         "count the first token of a document, which is predicted from the end of the one before, in the loss"),

    INT(batch, size, 1, MILLION, "8", "rows per step, over all replicas"),
    INT(batch, seq, 1, 1 << 24, "128", "tokens per row"),
    INT(batch, microbatches, 1, MILLION, "4",
        "parts into which each replica's rows are split; by default at most as many as rows"),

    WORD(optimizer, name, "adamw|sgd", "adamw", "optimizer"),
    REAL(optimizer, lr, 0, 1e6, "3e-4", "learning rate after the warm-up"),
    REAL(optimizer, min_lr, 0, 1e6, "0", "learning rate at the end (cosine, linear)"),
    { AT(optimizer, betas), .type = CONFIG_PAIR, .min = 0, .max = 0.99999999, .default_value = "0.9,0.95",
      .help = "decay rates of the moments (adamw)" },
    REAL(optimizer, eps, 0, 1, "1e-8", "added to the denominator (adamw)"),
    REAL(optimizer, weight_decay, 0, 1e3, "0.1", "decoupled decay of tensors of rank 2 and more"),
    REAL(optimizer, momentum, 0, 0.99999999, "0.9", "momentum (sgd)"),
    REAL(optimizer, clip, 0, 1e9, "1", "largest global gradient norm; 0: no clipping"),
    WORD(optimizer, schedule, "constant|cosine|linear", "constant", "learning rate over the run"),
    INT(optimizer, warmup, 0, 1e12, "0", "steps over which the learning rate rises to lr"),

    INT(parallel, pp, 1, 65535, "1", "ranks of one pipeline"),
    INT(parallel, dp, 1, 65535, "1", "replicas of the pipeline"),
    TEXT(parallel, schedule, "1F1B",
         "GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, or a CSV file"),
    INT(parallel, stages_per_rank, 0, 256, "0", "stages per rank; 0: what the schedule needs"),
    TEXTS(parallel, split, "modules before which a stage begins, such as h.2; none: cut by cost"),
    TEXTS(parallel, recompute, "modules whose activations are computed again in the backward pass, such as h.0"),
    WORD(parallel, shard, "none|optimizer|full", "none",
         "what replicas share out: nothing, optimizer state (ZeRO-1), or weights, gradients and state (FSDP)"),
    INT(parallel, shard_group, 0, 4096, "0", "neighboring replicas that share; the groups have the same; 0: all share"),
    WORD(
        parallel, sum, "exact|fast", "exact",
        "order in which gradients of replicas are added: theirs, with the same bits everywhere, or NCCL's own if it is "
        "used"),
    INT(parallel, unsharded, 0, 256, "0",
        "stages of a rank whose weights are gathered at once (full); 0: as many as fit into the memory"),
    INT(parallel, threads, 1, 1024, "1", "threads per rank"),
    REAL(parallel, memory_gb, 0, 1e6, "0", "memory a rank may use; 0: its share of the machine's"),
    TEXT(parallel, offload, "auto",
         "activations that lie idle for long go to the host (GPU): none, auto (if it does not fit otherwise), or at "
         "most so much of its memory, such as 40GB"),

    WORD(precision, dtype, "f32|bf16|f16", "f32", "type of weights, activations and messages between stages"),
    WORD(precision, master, "f32|none", "f32",
         "what updates of bf16 weights are added to: an f32 copy, which checkpoints keep, or the weights themselves"),
    WORD(precision, grad, "f32|bf16", "f32",
         "type in which gradients of bf16 weights add up over microbatches, stages and replicas"),

    INT(eval, every, 1, 1e12, "100", "steps between validations (data.val); there is one at the end, too"),
    INT(eval, batches, 0, 1e12, "0", "batches of a validation; 0: all that data.val has"),
    INT(eval, patience, 0, 1e12, "0", "validations without a better loss after which the run ends; 0: any number"),

    INT(checkpoint, every, 0, 1e12, "1000", "steps between checkpoints; 0: only at the end"),
    INT(checkpoint, keep, 1, MILLION, "2", "checkpoints to keep"),
    INT(checkpoint, memory, 0, 1e12, "0",
        "steps between snapshots that the launcher keeps in memory for restarts; 0: none"),
    BOOL(checkpoint, best, "true", "keep the checkpoint with the best validation loss, too"),

    INT(log, every, 1, 1e12, "1", "steps between progress lines in a pipe"),
    WORD(log, progress, "auto|plain|off", "auto", "progress line; auto: one that stays in place on a terminal"),
    BOOL(log, tensorboard, "false", "write TensorBoard event files too"),
    REAL(log, peak_gflops, 0, 1e9, "0", "peak of one rank for MFU; 0: measured at the start"),

    INT(run, steps, 1, 1e12, "100", "steps of the whole run"),
    TEXT(run, out, "out", "folder of the run: metrics.jsonl, checkpoints/, trace.json"),
    TEXT(run, plan, NULL, "file that `sluice plan -c` wrote: its values win over this file's"),
    INT(run, seed, 0, 1e15, "1", "seed of weights, data order and dropout"),
    { .section = NULL },
};

int sl_config_find(const char *section, size_t section_length, const char *key, size_t key_length)
{
    for (int i = 0; sl_config_keys[i].section; i++) {
        const config_key *each = &sl_config_keys[i];
        if (strlen(each->section) == section_length && strncmp(each->section, section, section_length) == 0 &&
            strlen(each->key) == key_length && strncmp(each->key, key, key_length) == 0)
            return i;
    }
    return -1;
}

char *sl_config_list_names(const char *section, char *text, size_t size)
{
    bool known = false;
    size_t used = 0;
    for (const config_key *key = sl_config_keys; key->section; key++)
        known = known || strcmp(key->section, section) == 0;
    text[0] = '\0';
    for (const config_key *key = sl_config_keys; key->section && used < size; key++) {
        bool wanted = known ? strcmp(key->section, section) == 0
                            : key == sl_config_keys || strcmp(key[-1].section, key->section) != 0;
        if (wanted)
            used +=
                (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", known ? key->key : key->section);
    }
    return text;
}

/* The place-th key that a family has beside the table, each once; NULL past the last. */
static const sl_model_field *family_key(int place)
{
    const sl_model_family *family, *before;
    for (int f = 0; (family = sl_model_family_at(f)); f++) {
        for (const sl_model_field *field = family->fields; family->architecture && field->key; field++) {
            bool known = field->run_key;
            for (int b = 0; b < f && (before = sl_model_family_at(b)); b++) {
                for (const sl_model_field *other = before->fields; before->architecture && other->key; other++)
                    known = known || strcmp(other->key, field->key) == 0;
            }
            if (!known && place-- == 0)
                return field;
        }
    }
    return NULL;
}

bool sl_train_config_key(int i, sl_config_key_info *out)
{
    static const char *const types[] = { "whole number", "number",      "true|false", NULL,
                                         "text",         "two numbers", "list",       "paths" };
    static const char *const field_types[] = {
        [SL_FIELD_INT] = "whole number",    [SL_FIELD_INT_OR_NULL] = "whole number", [SL_FIELD_REAL] = "number",
        [SL_FIELD_REAL_OR_NULL] = "number", [SL_FIELD_BOOL] = "true|false",          [SL_FIELD_ACTIVATION] = "text",
        [SL_FIELD_TOKENS] = "list"
    };
    int count = 0;
    while (sl_config_keys[count].section)
        count++;
    if (i >= count) {
        const sl_model_field *field = family_key(i - count);
        if (field)
            *out = (sl_config_key_info){ .section = "model",
                                         .key = field->key,
                                         .type = field_types[field->kind],
                                         .default_value = "",
                                         .help = "as in config.json, if the family has it" };
        return field;
    }
    const config_key *key = &sl_config_keys[i];
    *out = (sl_config_key_info){ .section = key->section,
                                 .key = key->key,
                                 .type = key->type == CONFIG_WORD ? key->words : types[key->type],
                                 .default_value = key->default_value ? key->default_value : "",
                                 .help = key->help };
    return true;
}
