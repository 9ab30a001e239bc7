/* Links through a carrier (carrier.h), for ranks whose devices do not reach each other's memory. Every link has a communicator
 * of two ranks and a stream of its own: links that share one would run in one order, and schedules need others. Both ends have
 * slots.
 *
 * All communicators are made when the links are opened (carried_links.c), and a first message connects them, so a step
 * (device_link_carried.c) connects nothing. */
#ifndef SL_COMM_CARRIED_LINKS_H
#define SL_COMM_CARRIED_LINKS_H

#include "comm/carrier.h"
#include "comm/device_link.h"
#include "comm/device_records.h"

/* Ranks of a communicator. */
enum { SL_CARRIED_SENDER, SL_CARRIED_RECEIVER, SL_CARRIED_RANKS };

/* A link, and this rank's end of it. */
typedef struct sl_carried_end {
    const sl_carrier *carrier; /* the same on all ranks that have it; NULL: none carries the link so far */
    sl_carrier_name name;
    sl_carrier_comm *comm; /* NULL: this rank has no end */
    sl_stream *stream;
    void *block;      /* its slots */
    sl_event **full;  /* (capacity) the sender has filled the slot; the receiver has the message */
    sl_event **empty; /* (capacity) the message has left the slot; the receiver has released it */
    int given;        /* messages of the step to the stream */
    bool tried;       /* the carrier that is being tried may serve it */
    bool failed;      /* to open */
} sl_carried_end;

struct carried_links {
    int most_ends;        /* of a rank, through NCCL */
    sl_carried_end *ends; /* (count) by the numbers of the list */
    sl_device_records *records;
};

static inline bool sl_is_carried(const sl_device_link *link)
{
    return link->kind == &sl_device_link_carried;
}

static inline sl_carried_end *sl_carried_end_of(const sl_device_links *links, const sl_device_link *link)
{
    return &links->carried->ends[link - links->list];
}

/* As sl_device_link_kind.open and close. */
SL_MUST_CHECK sl_status sl_carried_links_open(sl_device_links *links, const sl_rank_offer *offers);
void sl_carried_links_close(sl_device_links *links);
void sl_carried_links_leave(sl_device_links *links);
/* A message of so many bytes, in the order of the end's stream. */
SL_MUST_CHECK sl_status sl_carried_transfer(const sl_device_links *links, const sl_device_link *link, int slot,
                                            size_t bytes);

#endif
