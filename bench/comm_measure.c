/* The measurement of `sluice bench comm`: messages between two ranks, and memcpy. */
#include "comm_measure.h"

#include "base/alloc.h"

#include <string.h>

const size_t comm_sizes[COMM_SIZES] = {
    8, 64, 512, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 12 << 20, 64 << 20
};
enum { SLOTS = 4, PAGE = 4096, HEAD = 128 /* bytes before each slot, as in a channel */ };

/* Messages of a round: a few milliseconds' worth, so that some rounds meet no other process and the answer to the last
 * one hardly counts; at least once round the slots. */
static int count_for(size_t bytes)
{
    size_t count = ((size_t)64 << 20) / (bytes + 4096);
    return count < SLOTS ? SLOTS : count > 2000 ? 2000 : (int)count;
}

static void keep_larger(double fresh, double *best)
{
    if (fresh > *best)
        *best = fresh;
}

static void keep_smaller(double fresh, double *best)
{
    if (*best <= 0 || fresh < *best)
        *best = fresh;
}

static sl_message message_of(int number, size_t bytes)
{
    return (sl_message){ .microbatch = number, .dtype = SL_U8, .shape = { 1, { (int64_t)bytes } } };
}

/* A word of every cache line, so that the message has really come to this core. */
static uint64_t use(const void *data, size_t bytes)
{
    const volatile uint64_t *words = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / 8; i += 8)
        sum += words[i];
    return sum;
}

/* What a message costs the two sides. */
enum work {
    HAND_OVER, /* a plain copy in, nothing read */
    READ,      /* a copy for another core, everything read */
};

static sl_status send_one(sl_channel *channel, int number, const void *source, size_t bytes, enum work work)
{
    sl_message message = message_of(number, bytes);
    void *data = NULL;
    sl_status status = sl_channel_reserve(channel, &message, &data);
    if (status != SL_OK)
        return status;
    if (work == READ)
        sl_channel_fill(data, source, bytes);
    else
        memcpy(data, source, bytes);
    return sl_channel_commit(channel, data);
}

static sl_status receive_one(sl_channel *channel, int number, size_t bytes, enum work work)
{
    sl_message message = message_of(number, bytes);
    void *data = NULL;
    sl_status status = sl_channel_receive(channel, &message, NULL, &data);
    if (status != SL_OK)
        return status;
    if (work == READ)
        use(data, bytes);
    return sl_channel_release(channel, data);
}

/* channels[0] goes from rank 0 to rank 1, channels[1] back. */
static sl_status measure_latency(sl_group *group, sl_channel **channels, const void *source, size_t bytes, double *best)
{
    sl_status status = SL_OK;
    int count = (count_for(bytes) + 1) / 2, rank = sl_group_rank(group);
    SL_TRY(sl_group_barrier(group));
    double start = sl_now();
    for (int i = 0; i < count; i++) {
        if (rank == 0)
            SL_TRY(send_one(channels[0], i, source, bytes, READ));
        SL_TRY(receive_one(channels[1 - rank], i, bytes, READ));
        if (rank == 1)
            SL_TRY(send_one(channels[1], i, source, bytes, READ));
    }
    keep_smaller((sl_now() - start) / count / 2 * 1e6, best);
done:
    return status;
}

/* Messages one way; the first lap over the slots is for getting them out of other caches. */
static sl_status measure_stream(sl_group *group, sl_channel **channels, const void *source, size_t bytes,
                                enum work work, double *best)
{
    sl_status status = SL_OK;
    int count = count_for(bytes), rank = sl_group_rank(group);
    double start = 0;
    for (int i = -SLOTS; i < count; i++) {
        if (i == 0) {
            SL_TRY(sl_group_barrier(group));
            start = sl_now();
        }
        SL_TRY(rank == 0 ? send_one(channels[0], i, source, bytes, work) : receive_one(channels[0], i, bytes, work));
    }
    /* The answer to the last one. */
    SL_TRY(rank == 0 ? receive_one(channels[1], count, 8, READ) : send_one(channels[1], count, source, 8, READ));
    keep_larger((double)bytes * count / (sl_now() - start) * 1e-9, best);
done:
    return status;
}

/* The sender's copies without messages: from one source into as many slots in turn, laid out alike, which are this
 * process's own. */
static void measure_memcpy(char *slots, const char *source, size_t bytes, double *best)
{
    int count = count_for(bytes);
    double start = 0;
    for (int i = -SLOTS; i < count; i++) {
        if (i == 0)
            start = sl_now();
        memcpy(slots + (size_t)((i + SLOTS) % SLOTS) * (HEAD + bytes) + HEAD, source, bytes);
        __asm__ volatile("" : : "r"(slots) : "memory"); /* each copy counts */
    }
    keep_larger((double)bytes * count / (sl_now() - start) * 1e-9, best);
}

/* The copies and the messages they are compared with take turns: both then find the machine and its caches alike. */
static sl_status measure_size(sl_group *group, char *slots, const char *source, int rounds, int s,
                              struct comm_figures *out)
{
    sl_status status = SL_OK;
    size_t bytes = comm_sizes[s];
    sl_channel *channels[2];
    const sl_channel_spec specs[2] = { { 0, 0, 1, SLOTS, bytes }, { 1, 1, 0, SLOTS, bytes } };
    SL_TRY(sl_group_open_channels(group, specs, 2, channels));
    for (int round = 0; round < rounds; round++)
        SL_TRY(measure_latency(group, channels, source, bytes, &out->latency_us[s]));
    for (int round = 0; round < rounds; round++) {
        if (sl_group_rank(group) == 0)
            measure_memcpy(slots, source, bytes, &out->memcpy_gb_per_s[s]);
        SL_TRY(measure_stream(group, channels, source, bytes, HAND_OVER, &out->gb_per_s[s]));
    }
    for (int round = 0; round < rounds; round++)
        SL_TRY(measure_stream(group, channels, source, bytes, READ, &out->read_gb_per_s[s]));
    SL_TRY(sl_group_barrier(group));
    sl_channel_close(channels[0]);
    sl_channel_close(channels[1]);
done:
    return status;
}

sl_status comm_measure_ranks(int rounds, struct comm_figures *out)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    char *source = NULL, *slots = NULL;
    size_t largest = comm_sizes[COMM_SIZES - 1];
    SL_TRY(sl_group_open(NULL, &group));
    SL_TRY(sl_alloc_aligned(largest, PAGE, (void **)&source));
    memset(source, 1, largest);
    if (sl_group_rank(group) == 0) {
        SL_TRY(sl_alloc_aligned(SLOTS * (HEAD + largest), PAGE, (void **)&slots));
        memset(slots, 1, SLOTS * (HEAD + largest));
    }
    for (int s = 0; s < COMM_SIZES; s++)
        SL_TRY(measure_size(group, slots, source, rounds, s, out));
done:
    if (status != SL_OK && group)
        sl_group_fail(group, status);
    sl_group_close(group);
    sl_free(source);
    sl_free(slots);
    return status;
}

void comm_keep_better(const struct comm_figures *fresh, struct comm_figures *best)
{
    for (int s = 0; s < COMM_SIZES; s++) {
        keep_smaller(fresh->latency_us[s], &best->latency_us[s]);
        keep_larger(fresh->gb_per_s[s], &best->gb_per_s[s]);
        keep_larger(fresh->read_gb_per_s[s], &best->read_gb_per_s[s]);
        keep_larger(fresh->memcpy_gb_per_s[s], &best->memcpy_gb_per_s[s]);
    }
}
