/* The measurement of `sluice bench comm`: messages between two ranks, and memcpy. */
#include "bench_comm.h"

#include <stdlib.h>
#include <string.h>

const size_t comm_sizes[COMM_SIZES] = {
    8, 64, 512, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 12 << 20, 64 << 20
};
enum { SLOTS = 4 };

/* Messages of a round: a few milliseconds' worth, so that some rounds meet no other process. */
static int count_for(size_t bytes)
{
    size_t count = ((size_t)32 << 20) / (bytes + 4096);
    return count < 3 ? 3 : count > 2000 ? 2000 : (int)count;
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
    double us = (sl_now() - start) / count / 2 * 1e6;
    if (*best <= 0 || us < *best)
        *best = us;
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
    double rate = (double)bytes * count / (sl_now() - start) * 1e-9;
    if (rate > *best)
        *best = rate;
done:
    return status;
}

sl_status comm_measure_ranks(int rounds, struct comm_figures *out)
{
    sl_status status = SL_OK;
    sl_group *group = NULL;
    sl_channel *channels[2];
    char *source = NULL;
    SL_TRY(sl_group_open(NULL, &group));
    source = malloc(comm_sizes[COMM_SIZES - 1]);
    memset(source, 1, comm_sizes[COMM_SIZES - 1]);
    for (int s = 0; s < COMM_SIZES; s++) {
        const sl_channel_spec specs[2] = { { 0, 0, 1, SLOTS, comm_sizes[s] }, { 1, 1, 0, SLOTS, comm_sizes[s] } };
        SL_TRY(sl_group_open_channels(group, specs, 2, channels));
        for (int round = 0; round < rounds; round++) {
            SL_TRY(measure_latency(group, channels, source, comm_sizes[s], &out->latency_us[s]));
            SL_TRY(measure_stream(group, channels, source, comm_sizes[s], HAND_OVER, &out->gb_per_s[s]));
            SL_TRY(measure_stream(group, channels, source, comm_sizes[s], READ, &out->read_gb_per_s[s]));
        }
        SL_TRY(sl_group_barrier(group));
        sl_channel_close(channels[0]);
        sl_channel_close(channels[1]);
    }
done:
    if (status != SL_OK && group)
        sl_group_fail(group, status);
    sl_group_close(group);
    free(source);
    return status;
}

/* From one source into slots in turn, as the sender does. */
void comm_measure_memcpy(int rounds, double *best)
{
    char *source = malloc(comm_sizes[COMM_SIZES - 1]), *slots = malloc(SLOTS * comm_sizes[COMM_SIZES - 1]);
    memset(source, 1, comm_sizes[COMM_SIZES - 1]);
    memset(slots, 1, SLOTS * comm_sizes[COMM_SIZES - 1]);
    for (int s = 0; s < COMM_SIZES; s++) {
        for (int round = 0; round < rounds; round++) {
            int count = count_for(comm_sizes[s]);
            double start = sl_now();
            for (int i = 0; i < count; i++) {
                memcpy(slots + (size_t)(i % SLOTS) * comm_sizes[s], source, comm_sizes[s]);
                __asm__ volatile("" : : "r"(slots) : "memory"); /* each copy counts */
            }
            double rate = (double)comm_sizes[s] * count / (sl_now() - start) * 1e-9;
            best[s] = rate > best[s] ? rate : best[s];
        }
    }
    free(slots);
    free(source);
}

void comm_keep_better(const struct comm_figures *fresh, struct comm_figures *best)
{
    for (int s = 0; s < COMM_SIZES; s++) {
        if (best->latency_us[s] <= 0 || fresh->latency_us[s] < best->latency_us[s])
            best->latency_us[s] = fresh->latency_us[s];
        if (fresh->gb_per_s[s] > best->gb_per_s[s])
            best->gb_per_s[s] = fresh->gb_per_s[s];
        if (fresh->read_gb_per_s[s] > best->read_gb_per_s[s])
            best->read_gb_per_s[s] = fresh->read_gb_per_s[s];
    }
}
