/* Any bytes as a file of costs, and as the text of --costs: refused, or costs with which a schedule can be simulated. */
#include <sluice/plan.h>

#include "fuzz_file.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_costs costs;
    int stages = 0;
    sl_costs_init(&costs);
    if (sl_plan_load_costs(as_file(data, size), &costs, &stages) == SL_OK) {
        require(stages > 0 && costs.stages);
        sl_plan_free_costs(&costs);
    }
    char *text = malloc(size + 1);
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    sl_costs_init(&costs);
    if (sl_costs_parse(text, &costs) != SL_OK)
        require(sl_error_message()[0] != '\0');
    free(text);
    return 0;
}
