#include "support/amx/amx.h"

#include "kernel/cpu/isa.h"
#include "support/amx/tiles.h"

_Thread_local struct emulated_tiles emulated;

#if defined(__x86_64__)
extern const sl_tile test_tile_amx, test_tile_amx_f32; /* instructions.h renames them */
#endif

void emulate_amx(void)
{
#if defined(__x86_64__)
    sl_isa_emulate_amx(&test_tile_amx_f32, &test_tile_amx);
#endif
}
