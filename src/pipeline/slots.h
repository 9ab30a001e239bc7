/* Slots: memory that values of a step take turns in. Taking and putting back happens while compiling, in the order in
 * which the rank will run; what is left at the end is how many blocks of each size the step needs. */
#ifndef SL_PIPELINE_SLOTS_H
#define SL_PIPELINE_SLOTS_H

#include <sluice/base.h>

/* All blocks of one size. */
typedef struct sl_slot_class {
    size_t bytes;
    size_t offset; /* of its first block, once laid out */
    int count;     /* blocks that exist */
    int *free;     /* those that nobody has, last in first out */
    int free_count;
    size_t capacity;
} sl_slot_class;

typedef struct sl_slots {
    sl_slot_class *classes;
    int class_count;
    size_t class_capacity;
    int64_t taken; /* blocks in use now */
} sl_slots;

typedef struct sl_slot {
    int group; /* which class; -1: none */
    int index;
} sl_slot;

size_t sl_round_up(size_t bytes); /* to the device's alignment */

/* A block of bytes, rounded up to the device's alignment. */
SL_MUST_CHECK sl_status sl_slots_take(sl_slots *slots, size_t bytes, sl_slot *out);
void sl_slots_put(sl_slots *slots, sl_slot slot);
size_t sl_slots_bytes_with(const sl_slots *slots, size_t bytes); /* of all blocks, if one of bytes is taken next */
size_t sl_slots_layout(sl_slots *slots);                         /* gives every class its offset and returns the sum */
size_t sl_slots_offset(const sl_slots *slots, sl_slot slot);
void sl_slots_free(sl_slots *slots);

#endif
