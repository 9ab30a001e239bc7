/* Rendezvous over a Unix socket in a folder of the user's own: no port is opened, nobody else can take its name, and the
 * kernel vouches for the user. */
#include "comm/shm/rendezvous.h"
#include "comm/shm/meeting.h"
#include "base/alloc.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x736c7264u

struct hello {
    uint32_t magic;
    int32_t rank, size;
};

static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
}

static sl_status send_descriptor(int fd, int descriptor)
{
    char byte = 0;
    struct iovec part = { .iov_base = &byte, .iov_len = 1 };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { .space = { 0 } };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(fd, &message, MSG_NOSIGNAL) != 1)
        return sl_fail(SL_ERR_COMM, "rendezvous: send the memory's descriptor: %s", strerror(errno));
    return SL_OK;
}

static sl_status receive_descriptor(int fd, int *out)
{
    char byte = 0;
    struct iovec part = { .iov_base = &byte, .iov_len = 1 };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { .space = { 0 } };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *header = got == 1 ? CMSG_FIRSTHDR(&message) : NULL;
    if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
        return sl_fail(SL_ERR_COMM, "rendezvous: rank 0 refused or went away");
    memcpy(out, CMSG_DATA(header), sizeof *out);
    return SL_OK;
}

/* ---- Rank 0 ---------------------------------------------------------------------------------- */

/* One connection that greets as it should becomes the watch of its rank; others are closed. */
static sl_status admit(int fd, int size, sl_shm *shm, sl_watch *watches, int *count)
{
    struct hello hello = { 0 };
    bool valid = same_user(fd) && recv(fd, &hello, sizeof hello, 0) == sizeof hello && hello.magic == MAGIC;
    if (valid && (hello.size != size || hello.rank < 1 || hello.rank >= size)) {
        close(fd);
        return sl_fail(SL_ERR_COMM, "rendezvous: rank 0 has %d ranks, another process is rank %d of %d", size,
                       hello.rank, hello.size);
    }
    for (int i = 0; valid && i < *count; i++) {
        if (watches[i].rank == hello.rank) {
            close(fd);
            return sl_fail(SL_ERR_COMM, "rendezvous: two processes are rank %d", hello.rank);
        }
    }
    if (!valid || send_descriptor(fd, shm->fd) != SL_OK) {
        close(fd);
        return SL_OK;
    }
    watches[(*count)++] = (sl_watch){ .fd = fd, .rank = hello.rank };
    return SL_OK;
}

/* The first rank that has no watch. */
static int first_missing(const sl_watch *watches, int count)
{
    int rank = 1;
    for (int i = 0; i < count; i++) {
        if (watches[i].rank == rank) {
            rank++;
            i = -1; /* they came in any order */
        }
    }
    return rank;
}

/* Those that have come wait for the others, and may die over it. */
static sl_status check_watches(const sl_watch *watches, int count)
{
    char byte;
    for (int i = 0; i < count; i++) {
        if (recv(watches[i].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            return sl_fail(SL_ERR_PEER, "rendezvous: rank %d went away before all ranks had come", watches[i].rank);
    }
    return SL_OK;
}

/* After a failure: whoever comes a moment later hears at once that there is nothing to wait for. */
static void turn_away(int listener, int missing)
{
    struct pollfd poll_listener = { .fd = listener, .events = POLLIN };
    for (double until = sl_now() + 0.5; missing > 0 && sl_now() < until;) {
        int fd = poll(&poll_listener, 1, 50) > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0) {
            close(fd);
            missing--;
        }
    }
}

static sl_status serve(const char *key, int size, double wait, sl_shm *shm, sl_watch *watches, int *count)
{
    sl_status status = SL_OK;
    double until = sl_now() + wait;
    int listener = -1;
    sl_meeting meeting;
    SL_TRY(sl_meeting_listen(key, until, &meeting, &listener));
    while (*count < size - 1) {
        struct pollfd poll_listener = { .fd = listener, .events = POLLIN };
        if (poll(&poll_listener, 1, 100) > 0) {
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            const struct timeval limit = { .tv_sec = 5 };
            if (fd < 0)
                continue;
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            SL_TRY(admit(fd, size, shm, watches, count));
        } else if (sl_now() > until) {
            status = sl_fail(SL_ERR_TIMEOUT, "rendezvous: %d of %d ranks came within %g s; rank %d did not", *count + 1,
                             size, wait, first_missing(watches, *count));
            goto done;
        }
        SL_TRY(check_watches(watches, *count));
    }
done:
    if (status != SL_OK)
        sl_shm_fail(shm, 0, status, sl_error_message()); /* for those that have come */
    if (status != SL_OK && listener >= 0)
        turn_away(listener, size - 1 - *count);
    if (listener >= 0) {
        sl_meeting_end(&meeting);
        close(listener);
    }
    return status;
}

/* ---- The others ------------------------------------------------------------------------------ */

static sl_status connect_to(const char *key, double wait, int *out)
{
    sl_status status = SL_OK;
    int fd = -1;
    SL_TRY(sl_meeting_connect(key, sl_now() + wait, &fd));
    if (!same_user(fd)) {
        close(fd);
        return sl_fail(SL_ERR_COMM, "rendezvous: another user answers in the place of rank 0");
    }
    *out = fd;
done:
    return status;
}

static sl_status ask(const char *key, int rank, int size, double wait, sl_shm **shm, sl_watch *watch)
{
    sl_status status = SL_OK;
    const struct hello hello = { MAGIC, rank, size };
    int fd = -1, memory = -1;
    SL_TRY(connect_to(key, wait, &fd));
    if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
        status = sl_fail(SL_ERR_COMM, "rendezvous: %s", strerror(errno));
        goto done;
    }
    SL_TRY(receive_descriptor(fd, &memory));
    SL_TRY(sl_shm_attach(memory, shm));
    memory = -1;
    *watch = (sl_watch){ .fd = fd, .rank = 0 };
    fd = -1;
done:
    if (memory >= 0)
        close(memory);
    if (fd >= 0)
        close(fd);
    return status;
}

sl_status sl_rendezvous(const char *key, int rank, int size, double hang_timeout, sl_shm **shm, sl_watch **watches,
                        int *count)
{
    sl_status status = SL_OK;
    sl_shm *found = NULL;
    sl_watch *made = NULL;
    int connected = 0;
    double wait = hang_timeout > 0 ? SL_JOIN_TIMEOUTS * hang_timeout : INFINITY;
    SL_TRY(SL_NEW_ARRAY(made, size));
    if (rank == 0) {
        SL_TRY(sl_shm_create(size, hang_timeout, &found));
        SL_TRY(serve(key, size, wait, found, made, &connected));
    } else {
        SL_TRY(ask(key, rank, size, wait, &found, &made[0]));
        connected = 1;
    }
    *shm = found;
    *watches = made;
    *count = connected;
    made = NULL; /* now the caller's */
done:
    if (made) {
        for (int i = 0; i < connected; i++)
            close(made[i].fd);
        sl_free(made);
        sl_shm_unref(found);
    }
    return status;
}
