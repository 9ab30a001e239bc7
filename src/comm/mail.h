/* Mail for devices: messages whose bytes lie in memory of devices, posted and asked for by the host. A transport that takes such
 * memory, as a CUDA-aware MPI does, provides it beside its wires. */
#ifndef SL_COMM_MAIL_H
#define SL_COMM_MAIL_H

#include "comm/transport.h"

/* A message on its way that sl_device_mail has posted; the transport's own. */
typedef struct sl_mail_ticket {
    unsigned char bytes[16];
} sl_mail_ticket;

/* Ranks are those of the run. No call waits; all may come from any thread. */
struct SL_NAMED_FIELDS sl_device_mail {
    /* NULL if it takes memory of devices; else why not (static). */
    const char *(*find_obstacle)(sl_link *link);
    /* A number that no rank has got before. Fails if there are no more. */
    sl_status (*new_tag)(sl_link *link, int *out);
    /* Messages of one tag between two ranks arrive in the order in which they are posted. The bytes are ready when send is
     * called, 1 GiB at most, and belong to the message until test says done. */
    sl_status (*send)(sl_link *link, const void *data, size_t bytes, int to, int tag, sl_mail_ticket *out);
    sl_status (*receive)(sl_link *link, void *data, size_t bytes, int from, int tag, sl_mail_ticket *out);
    sl_status (*test)(sl_link *link, sl_mail_ticket *ticket, bool *done);
    /* Instead of waiting for done: the run has failed. */
    void (*drop)(sl_link *link, sl_mail_ticket *ticket);
};

/* Of the transport; NULL: it has none. */
const sl_device_mail *sl_device_mail_of(const sl_link *link);
/* For tests: for transports that have none; NULL takes it away. */
void sl_device_mail_set_extra(const sl_device_mail *mail);

#endif
