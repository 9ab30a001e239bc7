/* Libraries that are loaded at run time: modules of Sluice that need what the rest does not. */
#ifndef SL_BASE_LIBRARY_H
#define SL_BASE_LIBRARY_H

#include <sluice/base.h>

/* Loads the module `file` from SLUICE_PLUGIN_PATH, from beside the program, or from where the program or the library is
 * installed. *out stays as it is if it lies in none of them. flags are dlopen's. It is never unloaded. */
SL_MUST_CHECK sl_status sl_library_load(const char *file, int flags, void **out);

#endif
