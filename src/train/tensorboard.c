/* TensorBoard event files: records of length, checksum, data, checksum; the data is an Event in protobuf's encoding. */
#include "train/metrics.h"

#include "base/alloc.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct sl_tensorboard {
    FILE *file;
    char *path;
};

/* ---- Records --------------------------------------------------------------------------------- */

static uint32_t crc_table[256];
static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static void make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? value >> 1 ^ UINT32_C(0x82f63b78) : value >> 1;
        crc_table[byte] = value;
    }
}

uint32_t sl_crc32c(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t value = UINT32_MAX;
    pthread_once(&crc_once, make_crc_table);
    for (size_t i = 0; i < bytes; i++)
        value = crc_table[(value ^ at[i]) & 0xff] ^ value >> 8;
    return ~value;
}

static void put_fixed(unsigned char *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

/* The checksum is rotated and shifted, so that a checksum of data with checksums in it stays useful. */
static void put_masked_crc(unsigned char *to, const void *data, size_t bytes)
{
    uint32_t crc = sl_crc32c(data, bytes);
    put_fixed(to, (uint32_t)((crc >> 15 | crc << 17) + UINT32_C(0xa282ead8)), 4);
}

static sl_status write_record(sl_tensorboard *board, const unsigned char *data, size_t bytes)
{
    unsigned char head[12], tail[4];
    put_fixed(head, bytes, 8);
    put_masked_crc(head + 8, head, 8);
    put_masked_crc(tail, data, bytes);
    errno = 0;
    fwrite(head, 1, sizeof head, board->file);
    fwrite(data, 1, bytes, board->file);
    fwrite(tail, 1, sizeof tail, board->file);
    if (fflush(board->file) != 0 || ferror(board->file))
        return sl_fail(SL_ERR_IO, "write %s: %s", board->path, strerror(errno));
    return SL_OK;
}

/* ---- Events: Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5 } and
 * Summary { Value { string tag = 1; float simple_value = 2 } value = 1 } ---- */

typedef struct message {
    unsigned char bytes[1024];
    size_t used;
} message;

static void put_varint(message *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        to->bytes[to->used++] = (unsigned char)(value | 0x80);
    to->bytes[to->used++] = (unsigned char)value;
}

static void put_key(message *to, int field, int wire_type)
{
    put_varint(to, (uint64_t)(field << 3 | wire_type));
}

static void put_double(message *to, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(to, field, 1);
    put_fixed(to->bytes + to->used, bits, 8);
    to->used += 8;
}

static void put_float(message *to, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(to, field, 5);
    put_fixed(to->bytes + to->used, bits, 4);
    to->used += 4;
}

static void put_bytes(message *to, int field, const void *data, size_t bytes)
{
    put_key(to, field, 2);
    put_varint(to, bytes);
    memcpy(to->bytes + to->used, data, bytes);
    to->used += bytes;
}

static void put_value(message *summary, const char *tag, double value)
{
    message entry = { .used = 0 };
    if (!isfinite(value))
        return;
    put_bytes(&entry, 1, tag, strlen(tag));
    put_float(&entry, 2, (float)value);
    put_bytes(summary, 1, entry.bytes, entry.used);
}

static message begin_event(void)
{
    struct timespec now;
    message event = { .used = 0 };
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&event, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    return event;
}

sl_status sl_tensorboard_write(sl_tensorboard *board, const sl_step_report *report)
{
    message summary = { .used = 0 };
    put_value(&summary, "train/loss", report->loss);
    put_value(&summary, "val/loss", report->val_loss);
    put_value(&summary, "train/grad_norm", report->grad_norm);
    put_value(&summary, "train/lr", report->lr);
    put_value(&summary, "speed/ms", report->seconds * 1e3);
    put_value(&summary, "speed/tokens_per_s", report->tokens_per_s);
    put_value(&summary, "speed/mfu", report->mfu);
    put_value(&summary, "memory/peak", report->peak_memory);
    message event = begin_event();
    put_key(&event, 2, 0);
    put_varint(&event, (uint64_t)report->step);
    put_bytes(&event, 5, summary.bytes, summary.used);
    return write_record(board, event.bytes, event.used);
}

sl_status sl_tensorboard_open(const char *folder, sl_tensorboard **out)
{
    sl_status status = SL_OK;
    sl_tensorboard *board = NULL;
    char host[65] = "";
    size_t size = strlen(folder) + 128;
    gethostname(host, sizeof host - 1);
    SL_TRY(SL_NEW(board));
    SL_TRY(SL_NEW_ARRAY(board->path, size));
    snprintf(board->path, size, "%s/events.out.tfevents.%" PRId64 ".%s", folder, (int64_t)time(NULL), host);
    board->file = fopen(board->path, "ae");
    if (!board->file)
        SL_TRY(sl_fail(SL_ERR_IO, "open %s for writing: %s", board->path, strerror(errno)));
    message event = begin_event();
    static const char version[] = "brain.Event:2";
    put_bytes(&event, 3, version, sizeof version - 1);
    SL_TRY(write_record(board, event.bytes, event.used));
    *out = board;
    board = NULL;
done:
    sl_tensorboard_close(board);
    return status;
}

void sl_tensorboard_close(sl_tensorboard *board)
{
    if (!board)
        return;
    if (board->file)
        fclose(board->file);
    sl_free(board->path);
    sl_free(board);
}
