/* AMX for tests, on machines that have AVX512-BF16 and not AMX: the library's own source of the tile, compiled once more
 * with instructions.h in place of the instructions. */
#ifndef TESTS_AMX_H
#define TESTS_AMX_H

/* From now on such a machine offers AMX. Others stay as they are. */
void emulate_amx(void);

#endif
