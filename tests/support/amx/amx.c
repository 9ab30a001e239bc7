#include "support/amx/amx.h"

#include "kernel/cpu/isa.h"

#if defined(__x86_64__)
extern const sl_tile test_tile_amx; /* instructions.h renames it */
#endif

void emulate_amx(void)
{
#if defined(__x86_64__)
    sl_isa_emulate_amx(&test_tile_amx);
#endif
}
