/* Slots by size: a block that was put back serves the next value of the same size, of whatever stage. */
#include "pipeline/slots.h"

#include "base/alloc.h"

#include <sluice/device.h>

size_t sl_round_up(size_t bytes)
{
    return (bytes + SL_DEVICE_ALIGNMENT - 1) / SL_DEVICE_ALIGNMENT * SL_DEVICE_ALIGNMENT;
}

sl_status sl_slots_take(sl_slots *slots, size_t bytes, sl_slot *out)
{
    sl_status status = SL_OK;
    int group = 0;
    bytes = sl_round_up(bytes ? bytes : 1);
    while (group < slots->class_count && slots->classes[group].bytes != bytes)
        group++;
    if (group == slots->class_count) {
        SL_TRY(SL_GROW(slots->classes, &slots->class_capacity, group + 1));
        slots->classes[group] = (sl_slot_class){ .bytes = bytes };
        slots->class_count++;
    }
    sl_slot_class *class = &slots->classes[group];
    if (class->free_count == 0) {
        /* Room for every block to come back: putting cannot fail. */
        SL_TRY(SL_GROW(class->free, &class->capacity, class->count + 1));
        class->free[class->free_count++] = class->count++;
    }
    *out = (sl_slot){ group, class->free[--class->free_count] };
    slots->taken++;
done:
    return status;
}

void sl_slots_put(sl_slots *slots, sl_slot slot)
{
    if (slot.group < 0)
        return;
    sl_slot_class *class = &slots->classes[slot.group];
    class->free[class->free_count++] = slot.index;
    slots->taken--;
}

size_t sl_slots_bytes_with(const sl_slots *slots, size_t bytes)
{
    size_t total = 0, room = sl_round_up(bytes ? bytes : 1);
    bool there = false;
    for (int i = 0; i < slots->class_count; i++) {
        total += slots->classes[i].bytes * (size_t)slots->classes[i].count;
        there |= slots->classes[i].bytes == room && slots->classes[i].free_count > 0;
    }
    return there ? total : total + room;
}

size_t sl_slots_layout(sl_slots *slots)
{
    size_t total = 0;
    for (int i = 0; i < slots->class_count; i++) {
        slots->classes[i].offset = total;
        total += slots->classes[i].bytes * (size_t)slots->classes[i].count;
    }
    return total;
}

size_t sl_slots_offset(const sl_slots *slots, sl_slot slot)
{
    const sl_slot_class *class = &slots->classes[slot.group];
    return class->offset + class->bytes * (size_t)slot.index;
}

void sl_slots_free(sl_slots *slots)
{
    for (int i = 0; i < slots->class_count; i++)
        sl_free(slots->classes[i].free);
    sl_free(slots->classes);
    *slots = (sl_slots){ 0 };
}
