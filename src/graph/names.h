/* Names: a map from text to a number, for names of nodes, parameters and modules. */
#ifndef SL_GRAPH_NAMES_H
#define SL_GRAPH_NAMES_H

#include <sluice/base.h>

/* Zero is an empty map. Keys are borrowed and must outlive it. */
typedef struct sl_names {
    struct sl_name_entry *entries; /* open addressing, a power of two of them */
    size_t capacity;
    size_t count;
} sl_names;

SL_MUST_CHECK sl_status sl_names_put(sl_names *names, const char *key, int number); /* replaces */
int sl_names_get(const sl_names *names, const char *key, int absent);
void sl_names_clear(sl_names *names);

#endif
