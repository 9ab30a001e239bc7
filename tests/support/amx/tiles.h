/* The tile registers of the emulation, a thread's own. */
#ifndef TESTS_AMX_TILES_H
#define TESTS_AMX_TILES_H

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_ROW_BYTES = 64 };

extern _Thread_local struct emulated_tiles {
    _Alignas(64) unsigned char bytes[EMULATED_TILES][EMULATED_ROWS][EMULATED_ROW_BYTES];
    int configured;
} emulated;

#endif
