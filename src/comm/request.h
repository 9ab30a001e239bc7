/* Batches of transfers from the inside. */
#ifndef SL_COMM_REQUEST_H
#define SL_COMM_REQUEST_H

#include "comm/transport.h"

/* Frees the requests of a link that closes, done or not. */
void sl_requests_free(sl_link *link);
/* Frees the pending requests that use the channel, which is about to close: their waits then fail. */
void sl_requests_forget(sl_link *link, const sl_channel *channel);

#endif
