/* Packing of plain values; both ends are this library, so that the layout is its own. */
#include "runtime/pack.h"

#include "base/alloc.h"

#include <string.h>

sl_status sl_pack_put(sl_pack *pack, const void *value, size_t bytes)
{
    sl_status status = SL_OK;
    SL_TRY(SL_GROW(pack->data, &pack->capacity, pack->size + bytes));
    if (bytes)
        memcpy(pack->data + pack->size, value, bytes);
    pack->size += bytes;
done:
    return status;
}

sl_status sl_pack_int(sl_pack *pack, int64_t value)
{
    return sl_pack_put(pack, &value, sizeof value);
}

sl_status sl_pack_text(sl_pack *pack, const char *text)
{
    sl_status status = SL_OK;
    size_t bytes = strlen(text) + 1;
    SL_TRY(sl_pack_int(pack, (int64_t)bytes));
    SL_TRY(sl_pack_put(pack, text, bytes));
done:
    return status;
}

void sl_pack_free(sl_pack *pack)
{
    sl_free(pack->data);
    *pack = (sl_pack){ 0 };
}

void sl_unpack_get(sl_unpack *unpack, void *value, size_t bytes)
{
    if (unpack->broken || (size_t)(unpack->end - unpack->at) < bytes) {
        unpack->broken = true;
        memset(value, 0, bytes);
        return;
    }
    memcpy(value, unpack->at, bytes);
    unpack->at += bytes;
}

int64_t sl_unpack_int(sl_unpack *unpack)
{
    int64_t value;
    sl_unpack_get(unpack, &value, sizeof value);
    return value;
}

const char *sl_unpack_text(sl_unpack *unpack)
{
    int64_t bytes = sl_unpack_int(unpack);
    if (bytes < 1 || bytes > unpack->end - unpack->at || unpack->at[bytes - 1] != '\0') {
        unpack->broken = true;
        return "";
    }
    const char *text = unpack->at;
    unpack->at += bytes;
    return text;
}
