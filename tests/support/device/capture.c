/* Captures of the tests' device: lists of what streams were given. */
#include "support/device/internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic int64_t launches;

int64_t test_device_launches(void)
{
    return launches;
}

/* ---- Captures -------------------------------------------------------------------------------- */

sl_status test_capture_begin(sl_stream *head)
{
    test_stream *stream = (test_stream *)head;
    if (stream->capture)
        return sl_fail(SL_ERR_ARGUMENT, "test device: the stream is captured already");
    stream->capture = calloc(1, sizeof *stream->capture);
    if (!stream->capture)
        abort();
    *stream->capture = (test_capture){ .head.stream = head, .streams = { stream }, .stream_count = 1 };
    return SL_OK;
}

/* Whether the first stream has waited for the last thing that another one was given. */
static bool is_joined(const test_capture *capture, const test_stream *stream)
{
    const test_event *last = NULL;
    bool waited = false;
    for (const task *each = capture->first; each; each = each->next) {
        if (each->stream == stream) {
            last = each->run == test_task_record ? each->event : NULL;
            waited = false;
        } else if (each->stream == capture->streams[0] && each->run == test_task_wait && each->event == last) {
            waited = true;
        }
    }
    return last && waited;
}

sl_status test_capture_end(sl_stream *head, sl_capture **out)
{
    test_capture *capture = ((test_stream *)head)->capture;
    bool joined = true;
    if (!capture || capture->head.stream != head)
        return sl_fail(SL_ERR_ARGUMENT, "test device: the stream has not begun a capture");
    capture->ended = true;
    for (int i = 0; i < capture->stream_count; i++) {
        capture->streams[i]->capture = NULL;
        joined = joined && (i == 0 || is_joined(capture, capture->streams[i]));
    }
    if (!joined) {
        test_capture_destroy(&capture->head);
        return sl_fail(SL_ERR_ARGUMENT, "test device: a captured stream is not waited for");
    }
    *out = &capture->head;
    return SL_OK;
}

sl_status test_capture_launch(sl_capture *head)
{
    launches++;
    for (const task *each = ((test_capture *)head)->first; each; each = each->next) {
        sl_stream *stream = &each->stream->head;
        sl_status status = SL_OK;
        if (each->run == test_task_record) {
            status = test_event_record(&each->event->head, stream);
        } else if (each->run == test_task_wait) {
            status = test_event_wait(stream, &each->event->head);
        } else {
            task *again = test_task_new(stream, each->run, each->args_bytes);
            memcpy(again, each, sizeof *each + each->args_bytes);
            again->next = NULL;
            status = test_task_give(again);
        }
        if (status != SL_OK)
            return status;
    }
    return SL_OK;
}

void test_capture_destroy(sl_capture *head)
{
    test_capture *capture = (test_capture *)head;
    while (capture->first) {
        task *next = capture->first->next;
        free(capture->first);
        capture->first = next;
    }
    free(capture);
}
