/* Queues of mail in the order of streams. Mail for devices (mail.h) knows nothing of streams, so a thread of the rank stands
 * between them, the courier: it posts messages once the stream has come so far, and lets the stream go on, by a word in host
 * memory, once they have arrived or left. */
#ifndef SL_COMM_COURIER_H
#define SL_COMM_COURIER_H

#include "comm/mail.h"

typedef struct sl_mail_queue sl_mail_queue; /* batches of messages of one tag; posted one after the other */

/* The link must have mail; it and the device live longer. room: messages of a batch, at first. */
SL_MUST_CHECK sl_status sl_mail_queue_open(sl_link *link, sl_device *device, int tag, int room, sl_mail_queue **out);
/* Stops it. NULL is fine. */
void sl_mail_queue_close(sl_mail_queue *queue);

/* Whether one more batch can be put together. Fails if a message has. */
SL_MUST_CHECK sl_status sl_mail_queue_ask(sl_mail_queue *queue, bool *ready);
/* A message to or from a rank of the run, as part of the batch that is put together. */
SL_MUST_CHECK sl_status sl_mail_queue_add(sl_mail_queue *queue, bool sends, const void *data, size_t bytes, int peer);
/* Gives the batch to the stream: its messages start at once when the stream gets there, and the stream goes on when all of
 * them are done. An empty one is nothing. */
SL_MUST_CHECK sl_status sl_mail_queue_give(sl_mail_queue *queue, sl_stream *stream);
/* The run has failed: drops all messages, so that streams go on. Only close may follow. */
void sl_mail_queue_stop(sl_mail_queue *queue);

#endif
