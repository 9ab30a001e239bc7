/* Open-addressing hash map from borrowed text to a number. */
#include "graph/names.h"

#include "base/alloc.h"

#include <string.h>
#include <xxhash.h>

struct sl_name_entry {
    const char *key; /* NULL if free */
    uint64_t hash;
    int number;
};

/* The entry that holds the key, or the free one where it belongs. The table is never full. */
static struct sl_name_entry *locate(struct sl_name_entry *entries, size_t capacity, const char *key, uint64_t hash)
{
    size_t at = hash & (capacity - 1);
    while (entries[at].key && (entries[at].hash != hash || strcmp(entries[at].key, key) != 0))
        at = (at + 1) & (capacity - 1);
    return &entries[at];
}

static sl_status rehash(sl_names *names)
{
    size_t capacity = names->capacity ? names->capacity * 2 : 64;
    struct sl_name_entry *entries = NULL;
    sl_status status = SL_NEW_ARRAY(entries, capacity);
    if (status != SL_OK)
        return status;
    for (size_t i = 0; i < names->capacity; i++) {
        if (names->entries[i].key)
            *locate(entries, capacity, names->entries[i].key, names->entries[i].hash) = names->entries[i];
    }
    sl_free(names->entries);
    names->entries = entries;
    names->capacity = capacity;
    return SL_OK;
}

sl_status sl_names_put(sl_names *names, const char *key, int number)
{
    if (names->count * 2 >= names->capacity) {
        sl_status status = rehash(names);
        if (status != SL_OK)
            return status;
    }
    uint64_t hash = XXH3_64bits(key, strlen(key));
    struct sl_name_entry *entry = locate(names->entries, names->capacity, key, hash);
    if (!entry->key)
        names->count++;
    *entry = (struct sl_name_entry){ key, hash, number };
    return SL_OK;
}

int sl_names_get(const sl_names *names, const char *key, int absent)
{
    if (names->count == 0)
        return absent;
    const struct sl_name_entry *entry = locate(names->entries, names->capacity, key, XXH3_64bits(key, strlen(key)));
    return entry->key ? entry->number : absent;
}

void sl_names_clear(sl_names *names)
{
    sl_free(names->entries);
    *names = (sl_names){ 0 };
}
