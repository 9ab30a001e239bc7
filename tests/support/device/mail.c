/* Stands in for a CUDA-aware MPI: mail between threads of one process, from and to memory of the tests' device. As MPI does, it
 * matches messages of a tag in their order and copies them while somebody asks. */
#include "support/device/internal.h"

#include "comm/mail.h"

#include <stdlib.h>
#include <string.h>

typedef struct letter {
    struct letter *next;
    uint64_t run;
    int from, to, tag;
    bool sends;
    char *data;
    size_t bytes;
    struct letter *other; /* with which it is matched */
    bool is_done;
} letter;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all below */
static letter *letters;                                  /* in the order of posting */
static int last_tag, passed;
static bool refuses, breaks;

static const char *find_obstacle(sl_link *link)
{
    (void)link;
    pthread_mutex_lock(&lock);
    bool refused = refuses;
    pthread_mutex_unlock(&lock);
    return refused ? "this MPI is not CUDA-aware" : NULL;
}

static sl_status new_tag(sl_link *link, int *out)
{
    (void)link;
    pthread_mutex_lock(&lock);
    *out = last_tag++;
    pthread_mutex_unlock(&lock);
    return SL_OK;
}

static bool match(const letter *a, const letter *b)
{
    return a->run == b->run && a->from == b->from && a->to == b->to && a->tag == b->tag && a->sends != b->sends &&
           !a->other && !b->other && !a->is_done && !b->is_done;
}

static sl_status post(const letter *what, sl_mail_ticket *out)
{
    letter *made = malloc(sizeof *made), **last = &letters, *found = NULL;
    if (!made)
        abort();
    *made = *what;
    pthread_mutex_lock(&lock);
    bool broken = breaks;
    for (; *last && !broken; last = &(*last)->next) {
        if (!found && match(*last, made))
            found = *last;
    }
    if (!broken)
        *last = made;
    if (found) {
        if (found->bytes != made->bytes)
            abort();
        found->other = made;
        made->other = found;
    }
    pthread_mutex_unlock(&lock);
    if (broken) {
        free(made);
        return sl_fail(SL_ERR_COMM, "MPI of the tests: broken");
    }
    memcpy(out->bytes, &made, sizeof made);
    return SL_OK;
}

static sl_status send_mail(sl_link *link, const void *data, size_t bytes, int to, int tag, sl_mail_ticket *out)
{
    return post(&(letter){ .run = link->run_id,
                           .from = link->rank,
                           .to = to,
                           .tag = tag,
                           .sends = true,
                           .data = (char *)data,
                           .bytes = bytes },
                out);
}

static sl_status receive_mail(sl_link *link, void *data, size_t bytes, int from, int tag, sl_mail_ticket *out)
{
    return post(
        &(letter){ .run = link->run_id, .from = from, .to = link->rank, .tag = tag, .data = data, .bytes = bytes },
        out);
}

/* Takes it out of the list. */
static void forget(letter *gone)
{
    letter **at = &letters;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    free(gone);
}

static void copy(const letter *one)
{
    const letter *from = one->sends ? one : one->other, *to = one->sends ? one->other : one;
    memcpy(test_device_near(to->data), test_device_near(from->data), from->bytes);
}

static sl_status test_mail(sl_link *link, sl_mail_ticket *ticket, bool *done)
{
    letter *asked;
    (void)link;
    memcpy(&asked, ticket->bytes, sizeof asked);
    pthread_mutex_lock(&lock);
    if (asked->other && !asked->is_done) {
        copy(asked);
        asked->is_done = asked->other->is_done = true;
        passed++;
    }
    *done = asked->is_done;
    if (asked->is_done) {
        if (asked->other)
            asked->other->other = NULL;
        forget(asked);
    }
    pthread_mutex_unlock(&lock);
    return SL_OK;
}

static void drop_mail(sl_link *link, sl_mail_ticket *ticket)
{
    letter *gone;
    (void)link;
    memcpy(&gone, ticket->bytes, sizeof gone);
    pthread_mutex_lock(&lock);
    if (gone->other)
        gone->other->other = NULL;
    forget(gone);
    pthread_mutex_unlock(&lock);
}

const sl_device_mail test_mail_service = {
    .find_obstacle = find_obstacle,
    .new_tag = new_tag,
    .send = send_mail,
    .receive = receive_mail,
    .test = test_mail,
    .drop = drop_mail,
};

void test_mpi_refuse(bool refuse)
{
    pthread_mutex_lock(&lock);
    refuses = refuse;
    pthread_mutex_unlock(&lock);
}

void test_mpi_break(bool broken)
{
    pthread_mutex_lock(&lock);
    breaks = broken;
    pthread_mutex_unlock(&lock);
}

int test_mpi_count(int *open)
{
    pthread_mutex_lock(&lock);
    int count = passed;
    *open = 0;
    for (const letter *each = letters; each; each = each->next)
        ++*open;
    pthread_mutex_unlock(&lock);
    return count;
}
