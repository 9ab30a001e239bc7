/* What was measured once and is kept for the next start: texts by key, in a file of the user's cache folder. Losing them
 * costs time and nothing else, so nothing here fails a run: a file that cannot be read or written is logged. */
#ifndef SL_DEVICE_CHOICES_H
#define SL_DEVICE_CHOICES_H

#include <sluice/base.h>

typedef struct sl_choices sl_choices; /* used by one thread at a time */

/* The choices of a scope, such as a device with the versions of its libraries: each has a file of its own. A file that is
 * damaged or of another scope is ignored with a warning. The folder is $SLUICE_CACHE, else sluice in $XDG_CACHE_HOME or
 * in $HOME/.cache; if SLUICE_CACHE is empty, or there is none of them, nothing is kept on disk. The caller owns *out. */
SL_MUST_CHECK sl_status sl_choices_open(const char *scope, sl_choices **out);
void sl_choices_close(sl_choices *choices); /* NULL is fine */

/* Borrowed until the next sl_choices_put; NULL if there is none. */
const char *sl_choices_get(const sl_choices *choices, const char *key);

/* Adds or replaces one, and writes the file, whole or not at all, with what other processes have added to it since. Neither
 * text may have a newline; a key has no '='. */
void sl_choices_put(sl_choices *choices, const char *key, const char *value);

#endif
