/* Log lines go to the program's callback, or to stderr if SLUICE_LOG asks for it. */
#include <sluice/base.h>

#include "base/text.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const level_names[] = { "error", "warn", "info", "debug" };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the callback pair */
static sl_log_callback log_callback;
static void *log_user;
static atomic_int chosen_level = -1; /* -1: not set by the program, the environment decides */
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static int environment_level = -1; /* -1: SLUICE_LOG is not set or not understood */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void prepare(void)
{
    pthread_atfork(before_fork, after_fork, after_fork); /* a child must not find it locked by a thread it lacks */
    const char *text = getenv("SLUICE_LOG");
    for (int i = 0; text && i <= SL_LOG_DEBUG; i++) {
        if (strcmp(text, level_names[i]) == 0)
            environment_level = i;
    }
}

void sl_log_set_callback(sl_log_callback callback, void *user)
{
    pthread_mutex_lock(&lock);
    log_callback = callback;
    log_user = user;
    pthread_mutex_unlock(&lock);
}

void sl_log_set_level(sl_log_level level)
{
    atomic_store(&chosen_level, (int)level);
}

sl_log_level sl_log_get_level(void)
{
    pthread_once(&environment_once, prepare);
    int level = atomic_load(&chosen_level);
    if (level < 0)
        level = environment_level;
    return level < 0 ? SL_LOG_WARN : (sl_log_level)level;
}

void sl_log(sl_log_level level, const char *format, ...)
{
    if (level > sl_log_get_level())
        return;
    char line[2048];
    va_list args;
    va_start(args, format);
    locale_t previous = sl_locale_begin();
    vsnprintf(line, sizeof line, format, args);
    sl_locale_end(previous);
    va_end(args);
    sl_text_clean(line);

    pthread_mutex_lock(&lock);
    if (log_callback)
        log_callback(log_user, level, line);
    else if (environment_level >= 0)
        fprintf(stderr, "sluice %s: %s\n", level_names[level], line);
    pthread_mutex_unlock(&lock);
}
