/* Every configuration key in one table: the file, the overrides, the defaults and the help come from it. */
#ifndef SL_TRAIN_CONFIG_KEYS_H
#define SL_TRAIN_CONFIG_KEYS_H

#include <sluice/train.h>

#include "base/arena.h"

typedef enum config_type {
    CONFIG_INT,
    CONFIG_REAL,
    CONFIG_BOOL,
    CONFIG_WORD,  /* place in .words */
    CONFIG_TEXT,  /* not empty */
    CONFIG_PAIR,  /* two numbers */
    CONFIG_TEXTS, /* any number of texts */
    CONFIG_PATHS, /* one path, or a list of paths, each alone or as {path: P, weight: W} */
} config_type;

typedef struct SL_NAMED_FIELDS config_key {
    const char *section, *key;
    config_type type;
    size_t offset;             /* of the value in sl_train_config */
    double min, max;           /* of numbers */
    const char *words;         /* "a|b|c" for CONFIG_WORD */
    const char *default_value; /* NULL: none */
    const char *help;
} config_key;

/* Ends with a key whose section is NULL. Keys of a section stand together. */
extern const config_key sl_config_keys[];
enum { CONFIG_KEY_LIMIT = 96, CONFIG_LIST_LIMIT = 256 /* items of one value */ };

/* Where a value came from. */
typedef struct config_origin {
    bool given;
    const char *path;     /* of the file: the configuration's or that of run.plan; NULL for an override */
    int line, column;     /* in it */
    const char *override; /* "section.key=value"; NULL if the file gave the value */
} config_origin;

/* A key of the section `model` that is not in the table: one of the family's own, such as rms_norm_eps. */
typedef struct config_extra {
    const char *name; /* "model.rms_norm_eps" */
    const char *text; /* NULL: null in the file */
    config_origin origin;
} config_extra;

/* What a configuration consists of. The program sees the values alone. */
struct sl_config_own {
    sl_train_config values; /* first: a pointer to it is a pointer to this */
    sl_arena *arena;        /* of the texts */
    const char *path;       /* of the file that is being read, or was last; NULL: none */
    config_origin origins[CONFIG_KEY_LIMIT];
    config_extra extras[CONFIG_KEY_LIMIT];
    int extra_count;
};

/* What parallel.offload says in bytes; 0 for auto and none. */
SL_MUST_CHECK sl_status sl_config_offload_bytes(const sl_train_config *config, double *bytes);

static inline struct sl_config_own *sl_config_own(const sl_train_config *config)
{
    return (struct sl_config_own *)(void *)config;
}

/* An empty one, for sl_train_config_destroy. */
SL_MUST_CHECK sl_status sl_config_new(sl_train_config **out);

/* The extra of this name ("model.rms_norm_eps"): that which is there, or a new one. */
SL_MUST_CHECK sl_status sl_config_extra(sl_train_config *config, const char *name, config_extra **out);

/* Index in sl_config_keys, or -1. key may be shorter than the string it starts. */
int sl_config_find(const char *section, size_t section_length, const char *key, size_t key_length);

/* "size, seq, microbatches": the keys of a section, or of an unknown one all sections. */
char *sl_config_list_names(const char *section, char *text, size_t size);

/* config_value.c */
/* Sets one value from its text (lists: count texts). `what` opens the message ("run.yaml:3: batch.size"). */
SL_MUST_CHECK sl_status sl_config_set(sl_train_config *config, const config_key *key, const char *what,
                                      const char *const *texts, int count);

/* The same for CONFIG_PATHS. Fails at an empty path, a weight that is not above 0, and weights of some alone. */
SL_MUST_CHECK sl_status sl_config_set_paths(sl_train_config *config, const config_key *key, const char *what,
                                            const sl_data_source *items, int count);

/* The value as text that an override reads back equal; lists with commas, those of paths as JSON. */
SL_MUST_CHECK sl_status sl_config_text(const sl_train_config *config, const config_key *key, sl_arena *arena,
                                       const char **out);

/* config_yaml.c: reads the file into config and notes where each value stands. */
SL_MUST_CHECK sl_status sl_config_read_yaml(sl_train_config *config, const char *path);
/* The same for text in memory; path stands for it in messages. */
SL_MUST_CHECK sl_status sl_config_parse_yaml(sl_train_config *config, const char *path, const char *text,
                                             size_t length);

/* The value of a CONFIG_PATHS key from its text in YAML, as an override gives it. */
SL_MUST_CHECK sl_status sl_config_parse_paths(sl_train_config *config, const config_key *key, const char *what,
                                              const char *text);

/* config_model.c: a new model of the family with the sizes of the configuration and the family's own keys. */
SL_MUST_CHECK sl_status sl_config_model(const sl_train_config *config, int64_t vocab, int64_t positions, sl_model *out);

/* config_check.c: what must hold between values. */
SL_MUST_CHECK sl_status sl_config_check(const sl_train_config *config);

#endif
