/* What the messages of a step were, told by the host of the sender to that of the receiver when the step ends: for links whose
 * messages come without their tags. */
#ifndef SL_COMM_DEVICE_RECORDS_H
#define SL_COMM_DEVICE_RECORDS_H

#include "comm/device_link.h"

typedef struct sl_device_records sl_device_records;

/* Collective: for the links that are_told says. The links live longer. */
SL_MUST_CHECK sl_status sl_device_records_open(sl_device_links *links, bool (*are_told)(const sl_device_link *link),
                                               sl_device_records **out);
void sl_device_records_close(sl_device_records *records); /* NULL is fine */

/* Of the running step, for all links that this rank sends on. */
SL_MUST_CHECK sl_status sl_device_records_send(sl_device_records *records);
/* Of a link that this rank receives on, as sl_device_link_kind.get_record. */
SL_MUST_CHECK sl_status sl_device_records_receive(sl_device_records *records, const sl_device_link *link,
                                                  const uint32_t **out);

#endif
