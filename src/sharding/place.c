/* Where a shard lies, as text: "rank:1/cuda:0". */
#include <sluice/sharding.h>

#include <stdio.h>
#include <string.h>

/* The kinds of device that a placement may name. Whether this machine has one is the business of sl_device_open. */
static const char *const device_kinds[] = { "cpu", "cuda", "hip", "xpu", "hpu", "npu", "mps", "mtia", "xla", "meta" };

/* A kind, or a kind, a colon and a number without leading zeros. */
static bool is_device(const char *text)
{
    size_t length = strcspn(text, ":");
    bool known = false;
    for (size_t i = 0; i < sizeof device_kinds / sizeof *device_kinds; i++)
        known |= strlen(device_kinds[i]) == length && strncmp(device_kinds[i], text, length) == 0;
    if (!known || text[length] == '\0')
        return known;
    const char *number = text + length + 1;
    size_t digits = strspn(number, "0123456789");
    return digits >= 1 && digits <= 4 && number[digits] == '\0' && (number[0] != '0' || digits == 1);
}

static sl_status check_member(const char *text, int64_t rank, const int *ranks, int count)
{
    char list[128] = "";
    if (!ranks && rank >= count)
        return sl_fail(SL_ERR_ARGUMENT, "placement '%.60s': the group has ranks 0 to %d", text, count - 1);
    for (int i = 0; ranks && i < count; i++) {
        if (ranks[i] == rank)
            return SL_OK;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%d", i ? ", " : "", ranks[i]);
    }
    return ranks ? sl_fail(SL_ERR_ARGUMENT, "placement '%.60s': the group has ranks %s", text, list) : SL_OK;
}

sl_status sl_shard_place_parse(const char *text, const int *ranks, int count, sl_shard_place *out)
{
    sl_shard_place place = { .rank = -1, .device = "cpu" };
    char digits[16];
    int64_t rank;
    const char *slash = strchr(text, '/'), *device = text;

    if (strncmp(text, "rank:", 5) == 0) {
        size_t length = slash ? (size_t)(slash - text) - 5 : strlen(text) - 5;
        if (length >= sizeof digits)
            return sl_fail(SL_ERR_ARGUMENT, "placement '%.60s': the rank is too large", text);
        snprintf(digits, sizeof digits, "%.*s", (int)length, text + 5);
        if (sl_parse_int("rank", digits, 0, INT32_MAX, &rank) != SL_OK)
            return sl_fail_context(SL_ERR_ARGUMENT, "placement '%.60s'", text);
        sl_status status = check_member(text, rank, ranks, count);
        if (status != SL_OK)
            return status;
        place.rank = (int)rank;
        device = slash ? slash + 1 : place.device;
    }
    if (!is_device(device))
        return sl_fail(SL_ERR_ARGUMENT,
                       "placement '%.60s' is not rank:N/DEVICE, rank:N or DEVICE (such as cpu, cuda:0)", text);
    if (device != place.device)
        snprintf(place.device, sizeof place.device, "%s", device);
    *out = place;
    return SL_OK;
}

char *sl_shard_place_text(const sl_shard_place *placement, char *text, size_t size)
{
    if (placement->rank < 0)
        snprintf(text, size, "%s", placement->device);
    else
        snprintf(text, size, "rank:%d/%s", placement->rank, placement->device);
    return text;
}
