/* Any bytes as a trace of a run: refused, or a list of actions from which a schedule can be made or not. */
#include "schedule/trace_read.h"

#include "base/alloc.h"

#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_ran_list list = { .items = NULL };
    if (sl_trace_read(as_file(data, size), &list) == SL_OK) {
        sl_schedule *schedule = NULL;
        require(list.count > 0);
        if (sl_trace_schedule(&list, &schedule) == SL_OK)
            require(sl_schedule_ranks(schedule) > 0);
        sl_schedule_destroy(schedule);
    }
    sl_free(list.items);
    return 0;
}
