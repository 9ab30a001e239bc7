/* Stacks of this process's threads, for the report of one that does not come back. */
#ifndef SL_BASE_STACK_H
#define SL_BASE_STACK_H

#include <sluice/base.h>

#include <pthread.h>

enum { SL_STACK_FRAMES = 40 };

/* Once, before sl_stack_capture: loads what a signal handler must not load. */
void sl_stack_prepare(void);

/* Where another thread is, innermost frame first; returns how many frames it got, 0 if the thread does not answer within
 * a second (it blocks SIGPROF, or is stuck in the kernel). Takes SIGPROF from the program: for one that is about to end. */
int sl_stack_capture(pthread_t thread, void *frames[SL_STACK_FRAMES]);

/* "spin < forward < sl_runtime_step < main"; "program+0x1f00" for a function whose name is not in any symbol table.
 * Returns text. */
char *sl_stack_text(void *const *frames, int count, char *text, size_t size);

#endif
