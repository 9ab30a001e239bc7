/* The records of a step over channels of the host. */
#include "comm/device_records.h"

#include "base/alloc.h"

#include <string.h>

enum { RECORD_CHANNELS = 1 << 30 }; /* added to the id of the link's channel */

struct sl_device_records {
    sl_device_links *links;
    sl_channel **channels; /* (count) by the numbers of the list; NULL: the link has none */
    uint32_t *record;      /* (1 + messages) the last one that came */
};

sl_status sl_device_records_open(sl_device_links *links, bool (*are_told)(const sl_device_link *link),
                                 sl_device_records **out)
{
    sl_status status = SL_OK;
    sl_device_records *records = NULL;
    sl_channel_spec *specs = NULL;
    sl_channel **opened = NULL;
    int count = 0, at = 0;
    size_t words = 1 + (size_t)links->messages;
    SL_TRY(SL_NEW(records));
    records->links = links;
    SL_TRY(SL_NEW_ARRAY(records->channels, links->count));
    SL_TRY(SL_NEW_ARRAY(records->record, (int64_t)words));
    SL_TRY(SL_NEW_ARRAY(specs, links->count));
    SL_TRY(SL_NEW_ARRAY(opened, links->count));
    for (int i = 0; i < links->count; i++) {
        const sl_channel_spec *spec = &links->list[i].spec;
        if (are_told(&links->list[i]))
            specs[count++] = (sl_channel_spec){ .id = RECORD_CHANNELS + spec->id,
                                                .src = spec->src,
                                                .dst = spec->dst,
                                                .capacity = 1,
                                                .max_bytes = words * sizeof *records->record };
    }
    SL_TRY(sl_group_open_channels(links->group, specs, count, opened));
    for (int i = 0; i < links->count; i++) {
        if (are_told(&links->list[i]))
            records->channels[i] = opened[at++];
    }
    *out = records;
    records = NULL; /* now the caller's */
done:
    sl_device_records_close(records);
    sl_free(opened);
    sl_free(specs);
    return status;
}

void sl_device_records_close(sl_device_records *records)
{
    if (!records)
        return;
    for (int i = 0; records->channels && i < records->links->count; i++)
        sl_channel_close(records->channels[i]);
    sl_free(records->channels);
    sl_free(records->record);
    sl_free(records);
}

static sl_message message_of(const sl_device_links *links)
{
    return (sl_message){ .step = links->step, .dtype = SL_I32, .shape = { 1, { 1 + links->messages } } };
}

sl_status sl_device_records_send(sl_device_records *records)
{
    sl_status status = SL_OK;
    const sl_device_links *links = records->links;
    sl_message message = message_of(links);
    for (int i = 0; i < links->count; i++) {
        const sl_device_link *link = &links->list[i];
        sl_channel *channel = records->channels[i];
        void *slot = NULL;
        if (!channel || !link->sends)
            continue;
        SL_TRY(sl_channel_reserve(channel, &message, &slot));
        uint32_t *record = slot;
        memset(record, 0, (1 + (size_t)links->messages) * sizeof *record);
        record[0] = (uint32_t)links->step;
        memcpy(record + 1, link->tags, (size_t)link->next * sizeof *record);
        SL_TRY(sl_channel_commit(channel, slot));
    }
done:
    return status;
}

sl_status sl_device_records_receive(sl_device_records *records, const sl_device_link *link, const uint32_t **out)
{
    sl_status status = SL_OK;
    sl_channel *channel = records->channels[link - records->links->list];
    sl_message message = message_of(records->links);
    void *slot = NULL;
    SL_TRY(sl_channel_receive(channel, &message, NULL, &slot));
    memcpy(records->record, slot, (1 + (size_t)records->links->messages) * sizeof *records->record);
    SL_TRY(sl_channel_release(channel, slot));
    *out = records->record;
done:
    return status;
}
