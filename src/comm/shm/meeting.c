/* Where ranks meet: a socket with a name in a private folder. */
#include "comm/shm/meeting.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define RETRY_MICROSECONDS 10000

/* ---- The folder ------------------------------------------------------------------------------ */

/* This user's, and nobody else can look into it or put anything there. */
static bool is_private(const char *folder)
{
    struct stat info;
    return lstat(folder, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() && !(info.st_mode & 077);
}

/* The first folder that is private; one in a shared folder is made. Another user who made it first only makes this user
 * go on to the next. */
static sl_status find_folder(sl_meeting *meeting, size_t size)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *temporary = getenv("TMPDIR"), *home = getenv("HOME");
    int used = snprintf(meeting->folder, size, "%s", runtime ? runtime : "");
    if (used > 0 && (size_t)used < size && is_private(meeting->folder))
        return SL_OK;
    meeting->own = true;
    for (int i = 0; i < 2; i++) {
        const char *parent = i == 0 ? temporary && *temporary ? temporary : "/tmp" : home;
        used = i == 0 ? snprintf(meeting->folder, size, "%s/sluice-%u", parent, (unsigned)geteuid())
                      : snprintf(meeting->folder, size, "%s/.sluice", parent ? parent : "");
        if (!parent || used < 0 || (size_t)used >= size)
            continue;
        (void)!mkdir(meeting->folder, 0700);
        if (is_private(meeting->folder))
            return SL_OK;
    }
    return sl_fail(SL_ERR_COMM,
                   "rendezvous: neither XDG_RUNTIME_DIR nor sluice-%u in TMPDIR nor .sluice in HOME is a folder that "
                   "belongs to this user alone",
                   (unsigned)geteuid());
}

/* Anew for each attempt: the folder goes with the last run that used it. */
static sl_status find_place(const char *key, sl_meeting *out)
{
    enum { NAME_BYTES = 40 }; /* "/sluice-", 16 digits, ".", a number */
    sl_meeting meeting = { .address.sun_family = AF_UNIX };
    sl_status status = find_folder(&meeting, sizeof meeting.folder - NAME_BYTES);
    if (status != SL_OK)
        return status;
    snprintf(meeting.address.sun_path, sizeof meeting.address.sun_path, "%.*s/sluice-%016llx",
             (int)(sizeof meeting.folder - NAME_BYTES), meeting.folder,
             (unsigned long long)XXH3_64bits(key, strlen(key)));
    *out = meeting;
    return SL_OK;
}

/* ---- The two sides --------------------------------------------------------------------------- */

static int connect_once(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* A listening socket gets its name by link(): whatever has the name listens, or its process is gone. */
static int listen_once(const struct sockaddr_un *address)
{
    struct sockaddr_un own = *address;
    size_t length = strlen(own.sun_path);
    snprintf(own.sun_path + length, sizeof own.sun_path - length, ".%d", (int)getpid());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), error = 0;
    if (fd < 0)
        return -1;
    unlink(own.sun_path); /* of a process that had this number before */
    if (bind(fd, (struct sockaddr *)&own, sizeof own) != 0 || listen(fd, 128) != 0 ||
        link(own.sun_path, address->sun_path) != 0)
        error = errno;
    unlink(own.sun_path);
    if (error == 0)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

/* Takes the name from a process that is gone. */
static void remove_stale(const struct sockaddr_un *address)
{
    int fd = connect_once(address);
    if (fd >= 0)
        close(fd);
    else if (errno == ECONNREFUSED)
        unlink(address->sun_path);
}

sl_status sl_meeting_listen(const char *key, double until, sl_meeting *meeting, int *out)
{
    for (;;) {
        sl_status status = find_place(key, meeting);
        if (status != SL_OK)
            return status;
        int fd = listen_once(&meeting->address);
        if (fd >= 0) {
            *out = fd;
            return SL_OK;
        }
        bool taken = errno == EEXIST;
        if ((!taken && errno != ENOENT) || sl_now() > until)
            return sl_fail(SL_ERR_COMM, "rendezvous as rank 0 at %s: %s%s", meeting->address.sun_path, strerror(errno),
                           taken ? " (another run has the same job and port)" : "");
        if (taken)
            remove_stale(&meeting->address);
        usleep(RETRY_MICROSECONDS); /* a run that just failed may not be gone yet */
    }
}

void sl_meeting_end(const sl_meeting *meeting)
{
    unlink(meeting->address.sun_path);
    if (meeting->own)
        (void)!rmdir(meeting->folder);
}

sl_status sl_meeting_connect(const char *key, double until, int *out)
{
    for (;;) {
        sl_meeting meeting;
        sl_status status = find_place(key, &meeting);
        if (status != SL_OK)
            return status;
        int fd = connect_once(&meeting.address);
        if (fd >= 0) {
            *out = fd;
            return SL_OK;
        }
        bool may_come = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
        if (!may_come || sl_now() > until)
            return sl_fail(SL_ERR_TIMEOUT, "rendezvous with rank 0 on this machine at %s: %s", meeting.address.sun_path,
                           strerror(errno));
        usleep(RETRY_MICROSECONDS);
    }
}
