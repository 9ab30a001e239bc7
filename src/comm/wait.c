/* What ranks wait for, in words, and the error that ends a wait when the run has failed. */
#include "comm/wait.h"

#include <stdio.h>
#include <unistd.h>

static const char *const names[SL_COLLECTIVE_COUNT] = {
#define ROW(name, text) text,
    SL_COLLECTIVE_LIST(ROW)
#undef ROW
};

const char *sl_collective_name(int collective)
{
    return collective >= 0 && collective < SL_COLLECTIVE_COUNT ? names[collective] : "?";
}

char *sl_wait_text(const sl_wait *wait, char *text, size_t size)
{
    if (wait->kind == SL_WAIT_JOIN) {
        snprintf(text, size, "for rank %d to join the run", wait->peer);
    } else if (wait->kind == SL_WAIT_ANY) {
        snprintf(text, size, "for any of several channels, the first one %d with rank %d", wait->channel, wait->peer);
    } else if (wait->channel < 0) {
        snprintf(text, size, "for rank %d in %s (collective %lld of the group)", wait->peer,
                 sl_collective_name(wait->microbatch), (long long)wait->step);
    } else {
        static const char *const what[] = {
            [SL_WAIT_NOTHING] = "for",
            [SL_WAIT_RECEIVE] = "to receive on",
            [SL_WAIT_RESERVE] = "for a free slot on",
        };
        static const char *const side[] = {
            [SL_WAIT_NOTHING] = "with",
            [SL_WAIT_RECEIVE] = "from",
            [SL_WAIT_RESERVE] = "to",
        };
        size_t kind = (size_t)wait->kind < sizeof what / sizeof *what && what[wait->kind] ? (size_t)wait->kind : 0;
        snprintf(text, size, "%s channel %d %s rank %d (step %lld, microbatch %d)", what[kind], wait->channel,
                 side[kind], wait->peer, (long long)wait->step, wait->microbatch);
    }
    return text;
}

sl_status sl_link_failure(const sl_link *link, const sl_wait *wait)
{
    const sl_failure *failure = link->failure;
    /* Whoever writes it needs microseconds, or died over it and the next to notice a failure will write. */
    for (int i = 0; i < 500 && atomic_load(&failure->state) != SL_FAILURE_SET; i++)
        usleep(1000);
    if (atomic_load(&failure->state) != SL_FAILURE_SET)
        return sl_fail(SL_ERR_PEER, "a rank died while it reported a failure");
    char text[256];
    sl_status code = failure->rank == link->rank && failure->code != SL_OK ? (sl_status)failure->code : SL_ERR_PEER;
    if (!wait || wait->kind == SL_WAIT_NOTHING)
        return sl_fail(code, "%s", failure->text);
    return sl_fail(code, "%s; rank %d was waiting %s", failure->text, link->rank,
                   sl_wait_text(wait, text, sizeof text));
}
