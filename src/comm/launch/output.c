/* Output of the ranks through the launcher: whole lines, each with its rank before it. */
#include "comm/launch/launch.h"
#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_LINE (1 << 20) /* a longer one is passed on in pieces */

sl_status sl_launch_streams_open(sl_launch_child *child, int write_ends[2])
{
    for (int i = 0; i < 2; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0)
            return sl_fail(SL_ERR_IO, "pipe: %s", strerror(errno));
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        child->streams[i] = (sl_launch_stream){ .from = ends[0], .to = STDOUT_FILENO + i };
        write_ends[i] = ends[1];
    }
    return SL_OK;
}

/* False if nobody can read it any more. */
static bool write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(fd, data, bytes);
        if (written > 0) {
            data += written;
            bytes -= (size_t)written;
        } else if (written < 0 && errno == EAGAIN) {
            poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1);
        } else if (written < 0 && errno != EINTR) {
            return false;
        }
    }
    return true;
}

/* The line in the buffer, in one write so that lines of different ranks do not mix. */
static void write_line(sl_launch_stream *stream, int rank, size_t length)
{
    char tag[16];
    int tagged = snprintf(tag, sizeof tag, "[%d] ", rank);
    char *whole = NULL;
    if (stream->to < 0 || sl_alloc(length + (size_t)tagged + 1, 1, (void **)&whole) != SL_OK)
        return;
    memcpy(whole, tag, (size_t)tagged);
    memcpy(whole + tagged, stream->line, length);
    whole[(size_t)tagged + length] = '\n';
    if (!write_all(stream->to, whole, (size_t)tagged + length + 1))
        stream->to = -1;
    sl_free(whole);
}

static void take_text(sl_launch_stream *stream, int rank, const char *text, size_t bytes)
{
    if (SL_GROW(stream->line, &stream->capacity, stream->used + bytes) != SL_OK)
        return;
    memcpy(stream->line + stream->used, text, bytes);
    stream->used += bytes;
    for (;;) {
        char *end = memchr(stream->line, '\n', stream->used);
        size_t length = end ? (size_t)(end - stream->line) : stream->used;
        if (!end && stream->used < LONGEST_LINE)
            return;
        write_line(stream, rank, length);
        size_t taken = length + (end != NULL);
        stream->used -= taken;
        memmove(stream->line, stream->line + taken, stream->used);
    }
}

void sl_launch_stream_pump(sl_launch_stream *stream, int rank)
{
    char text[16384];
    ssize_t got;
    while ((got = read(stream->from, text, sizeof text)) > 0 || (got < 0 && errno == EINTR)) {
        if (got > 0)
            take_text(stream, rank, text, (size_t)got);
        if (stream->to < 0)
            break; /* the rank learns of it as it would without the launcher: its next write fails */
    }
    if (got == 0 || stream->to < 0)
        sl_launch_stream_finish(stream, rank);
}

void sl_launch_stream_finish(sl_launch_stream *stream, int rank)
{
    if (stream->from < 0)
        return;
    int from = stream->from;
    stream->from = -1;
    char text[16384];
    for (ssize_t got; (got = read(from, text, sizeof text)) > 0;)
        take_text(stream, rank, text, (size_t)got);
    if (stream->used > 0)
        write_line(stream, rank, stream->used);
    close(from);
    sl_free(stream->line);
    stream->line = NULL;
    stream->used = stream->capacity = 0;
}
