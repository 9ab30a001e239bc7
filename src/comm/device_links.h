/* Device links: channels of a step whose slots are memory of devices, handed over in the order of streams; no host stands
 * in between. On one machine the slots lie in the receiver's memory and words beside them say whose turn it is; between
 * machines NCCL carries the messages.
 *
 * Each step begins with the first slot of every link, so a step gives its streams the same work each time.
 *
 * What a message is travels as a tag beside it. The receiver compares all tags when the step has ended. */
#ifndef SL_COMM_DEVICE_LINKS_H
#define SL_COMM_DEVICE_LINKS_H

#include "comm/device_words.h"

typedef struct sl_device_links sl_device_links; /* one rank's ends of all links of a pipeline */

/* Collective over the group of the words, which live longer. All ranks give the same specs; messages is how many of a
 * channel a step has at most. Channels whose ends have no such way to each other do not become links. */
SL_MUST_CHECK sl_status sl_device_links_open(sl_device_words *words, const sl_channel_spec *specs, int count,
                                             int messages, sl_device_links **out);
/* No stream of this rank uses them any more. NULL is fine. */
void sl_device_links_close(sl_device_links *links);

/* Whether channel i of the specs is a link; the same on all ranks. */
bool sl_device_links_has(const sl_device_links *links, int i);
/* Whether all are, and what they do with messages can be captured and launched again in later steps. */
bool sl_device_links_can_capture(const sl_device_links *links);
/* How many are, and why the others are not, or if all are, why they are what they are. */
int sl_device_links_count(const sl_device_links *links);
const char *sl_device_links_reason(const sl_device_links *links);
/* Device memory of this rank beside the slots that it receives into. Sets the links of `use`: what NCCL takes for its
 * communicators (sl_nccl_memory) is not part of it. */
size_t sl_device_links_count_memory(const sl_device_links *links, sl_nccl_use *use);
/* How messages go that have a link, for people. */
const char *sl_device_links_way(const sl_device_links *links);

/* ---- A step ----------------------------------------------------------------------------------
 * polled: the host waits for each word (sl_device_words_await). In other steps a rank gives its streams all their work at
 * once, without a call in between that may be held up by what they wait for. */
SL_MUST_CHECK sl_status sl_device_links_begin(sl_device_links *links, int64_t step, bool polled, sl_stream *out);

bool sl_device_links_are_polled(const sl_device_links *links); /* in this step */

/* As the calls on channels, in the order of a stream: neither returns an error of the other side. The slots of a link
 * are given out in turn. */
SL_MUST_CHECK sl_status sl_device_links_reserve(sl_device_links *links, int i, const sl_message *message,
                                                sl_stream *stream, void **slot);
SL_MUST_CHECK sl_status sl_device_links_commit(sl_device_links *links, int i, const void *slot, sl_stream *stream);
SL_MUST_CHECK sl_status sl_device_links_receive(sl_device_links *links, int i, const sl_message *expected,
                                                sl_stream *stream, void **slot);
SL_MUST_CHECK sl_status sl_device_links_release(sl_device_links *links, int i, const void *slot, sl_stream *stream);
/* A captured receive or reserve was launched again: counts its message, so that the end of the step finds its tag. */
SL_MUST_CHECK sl_status sl_device_links_repeat(sl_device_links *links, int i, const sl_message *message);

/* The end of a step: fetches the tags in the order of the stream that received; once it has been waited for, check
 * compares them and waits until all ranks have come so far. */
SL_MUST_CHECK sl_status sl_device_links_fetch(sl_device_links *links, sl_stream *in);
SL_MUST_CHECK sl_status sl_device_links_check(sl_device_links *links);

/* Of the running step: how many messages of channel i the sender's stream has sent, as one of its ends sees it now. To the
 * sender all have been if the receiver is done with the step. 0 for a channel of others. */
SL_MUST_CHECK sl_status sl_device_links_count_sent(sl_device_links *links, int i, int *out);
/* The other end of channel i, which this rank has an end of: a rank of the group. */
int sl_device_links_peer(const sl_device_links *links, int i);
/* Of channel i, which this rank sends on: whether the slot of the step's message `number` is free now. */
SL_MUST_CHECK sl_status sl_device_links_has_room(sl_device_links *links, int i, int number, bool *out);

#endif
