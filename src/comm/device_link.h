/* Device links from the inside: what all kinds of a link have in common, and what a kind provides. */
#ifndef SL_COMM_DEVICE_LINK_H
#define SL_COMM_DEVICE_LINK_H

#include "comm/device_links.h"

typedef struct sl_device_link_kind sl_device_link_kind;

/* One channel, seen from one rank. */
typedef struct sl_device_link {
    sl_channel_spec spec;
    const sl_device_link_kind *kind; /* the same on all ranks; NULL: it is no link */
    bool sends, receives;            /* which end this rank has; neither: none */
    size_t stride;                   /* bytes from slot to slot */
    char *slots;                     /* for streams of this rank's device; NULL: this rank has no end */
    uint32_t *tags;                  /* (messages) of the step so far, as this end says they are */
    int32_t *number;                 /* (capacity) message of the step that is in the slot */
    size_t *bytes;                   /* (capacity) of that message */
    int next;                        /* message of the step */
} sl_device_link;

struct sl_device_links {
    sl_device_words *words;
    sl_group *group; /* of the words, as the device */
    sl_device *device;
    sl_device_link *list;
    int count, linked;
    int messages; /* of a step, at most */
    int64_t step;
    bool polled;
    int32_t wish;     /* of this rank */
    char way[96];     /* of all messages that have a link */
    char reason[512]; /* why channels are no links, or not of the first kind */
    char why[256];    /* the same of the kind that is being tried */
    sl_device_waits waits;

    struct shared_links *shared; /* of the kinds of these names; NULL: the pipeline has none of them */
    struct carried_links *carried;
};

/* Each kind is one const table, listed in device_links.c. All of a step happens in the order of the stream that is given;
 * no call but open waits for another rank unless the step is polled. A slot is given by its number. */
struct SL_NAMED_FIELDS sl_device_link_kind {
    /* How messages of a link go, for people. */
    const char *(*get_way)(const sl_device_links *links, const sl_device_link *link);
    bool can_capture; /* the calls on messages may be captured and launched again in other steps */
    /* NULL if ranks a and b may try; else why not, "" if nobody asked. All ranks find the same. */
    const char *(*find_obstacle)(const sl_rank_offer *offers, int ranks, int a, int b);
    /* Collective: makes those links of the list that have this kind. One that cannot be made loses its kind, on all ranks.
     * If this rank has an end of it, its slots are set. */
    sl_status (*open)(sl_device_links *links, const sl_rank_offer *offers);
    /* Also after an open that failed. No stream of this rank uses the links any more. */
    void (*close)(sl_device_links *links);

    sl_status (*begin)(sl_device_links *links, sl_stream *out);
    sl_status (*reserve)(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream);
    sl_status (*commit)(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream);
    sl_status (*receive)(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream);
    sl_status (*release)(sl_device_links *links, sl_device_link *link, int slot, sl_stream *stream);
    /* The end of a step: fetches what the senders say of it. */
    sl_status (*fetch)(sl_device_links *links, sl_stream *in);
    /* After the streams have been waited for: the step as the sender of the link numbers it, then the tag of each message
     * of it. Borrowed until the next step. */
    sl_status (*get_record)(sl_device_links *links, const sl_device_link *link, const uint32_t **out);
    /* Of the running step, as sl_device_links_count_sent and sl_device_links_has_room. */
    sl_status (*count_sent)(sl_device_links *links, const sl_device_link *link, int *out);
    sl_status (*has_room)(sl_device_links *links, const sl_device_link *link, int number, bool *out);
    /* Optional: while the host waits for a stream. Fails if the links have. */
    sl_status (*watch)(sl_device_links *links);
    /* Optional, if streams wait for more than words. The run has failed: what streams of this rank wait for now comes,
     * whatever the other ranks do. Called again and again until the streams are done; false: it cannot be done. */
    bool (*let_through)(sl_device_links *links);
    /* Optional, as sl_device_links_count_memory. */
    size_t (*count_memory)(const sl_device_links *links, sl_nccl_use *use);
    /* Optional: no stream uses the links any more. Begins what close waits for. */
    void (*leave)(sl_device_links *links);
};

extern const sl_device_link_kind sl_device_link_shared, sl_device_link_carried;

/* Why a way cannot be had: of each way that is tried the first text counts. */
void sl_device_links_set_reason(sl_device_links *links, const char *text);
void sl_device_links_end_reason(sl_device_links *links); /* of this way */

#endif
