/* The vault: sealed memory changes hands over a socket that all ranks share. A message is whole or was never sent. */
#include "comm/launch/vault.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FDS_A_MESSAGE = 64,
    PARTS_LIMIT = 1 << 16,
    SEALS = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK,
};

typedef enum vault_word {
    VAULT_PUT,      /* with the memory */
    VAULT_GET,      /* with the socket to answer on */
    VAULT_PROGRESS, /* with nothing */
    VAULT_GIVE,     /* the answer: parts from `part` on, as many as descriptors come with it */
    VAULT_NONSENSE,
} vault_word;

typedef struct vault_message {
    uint32_t word; /* vault_word */
    int32_t part, parts;
    int64_t step;
} vault_message;

/* ---- Messages -------------------------------------------------------------------------------- */

static sl_status send_message(int socket, const vault_message *message, const int *fds, int count, int flags)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_A_MESSAGE * sizeof(int))] = { 0 };
    struct iovec vector = { .iov_base = (void *)message, .iov_len = sizeof *message };
    struct msghdr header = { .msg_iov = &vector, .msg_iovlen = 1 };
    ssize_t sent;
    if (count > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, (size_t)count * sizeof(int));
    }
    while ((sent = sendmsg(socket, &header, flags | MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    return sent < 0 ? sl_fail(SL_ERR_IO, "send to the vault: %s", strerror(errno)) : SL_OK;
}

/* fds has room for FDS_A_MESSAGE; *count of them are the caller's. False if nothing has come, or nobody is there. */
static bool receive_message(int socket, int flags, vault_message *message, int *fds, int *count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_A_MESSAGE * sizeof(int))];
    struct iovec vector = { .iov_base = message, .iov_len = sizeof *message };
    struct msghdr header = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    ssize_t got;
    *count = 0;
    while ((got = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    if (got <= 0)
        return false;
    if (got != sizeof *message)
        message->word = VAULT_NONSENSE;
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&header); each; each = CMSG_NXTHDR(&header, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
            continue;
        *count = (int)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(each), (size_t)*count * sizeof(int));
    }
    return true;
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

/* ---- The launcher's side --------------------------------------------------------------------- */

static void drop(sl_generation *generation)
{
    close_all(generation->memory, generation->parts);
    sl_free(generation->memory);
    *generation = (sl_generation){ .parts = 0 };
}

static sl_status begin(sl_generation *generation, int64_t step, int parts)
{
    int *memory = NULL;
    sl_status status = SL_NEW_ARRAY(memory, parts);
    if (status != SL_OK)
        return status;
    for (int i = 0; i < parts; i++)
        memory[i] = -1;
    drop(generation);
    *generation = (sl_generation){ .step = step, .parts = parts, .memory = memory };
    return SL_OK;
}

/* Takes the descriptor over, also if it fails. */
static sl_status take(sl_vault *vault, const vault_message *message, int memory)
{
    sl_status status = SL_OK;
    sl_generation *coming = &vault->coming;
    int seals = fcntl(memory, F_GET_SEALS);
    if (message->parts < 1 || message->parts > PARTS_LIMIT || message->part < 0 || message->part >= message->parts)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "part %d of %d", message->part, message->parts));
    if (seals < 0 || (seals & SEALS) != SEALS)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "part %d of step %" PRId64 " is not sealed", message->part, message->step));
    if (coming->parts != message->parts || coming->step != message->step)
        SL_TRY(begin(coming, message->step, message->parts));
    if (coming->memory[message->part] >= 0)
        SL_TRY(sl_fail(SL_ERR_FORMAT, "part %d of step %" PRId64 " came twice", message->part, message->step));
    coming->memory[message->part] = memory;
    memory = -1;
    if (++coming->arrived == coming->parts) {
        drop(&vault->whole);
        vault->whole = *coming;
        *coming = (sl_generation){ .parts = 0 };
    }
done:
    close_all(&memory, 1);
    return status;
}

/* A rank that does not take its answer is about to die: nobody waits for it. */
static sl_status give(const sl_vault *vault, int to)
{
    sl_status status = SL_OK;
    const sl_generation *whole = &vault->whole;
    vault_message message = { .word = VAULT_GIVE, .step = whole->step, .parts = whole->parts };
    do {
        int left = whole->parts - message.part, count = left < FDS_A_MESSAGE ? left : FDS_A_MESSAGE;
        SL_TRY(send_message(to, &message, count > 0 ? whole->memory + message.part : NULL, count, MSG_DONTWAIT));
        message.part += count;
    } while (message.part < whole->parts);
done:
    return status;
}

static sl_status serve_one(sl_vault *vault, const vault_message *message, int *fds, int count)
{
    sl_status status = SL_OK;
    if (message->word == VAULT_PROGRESS)
        vault->progressed = true;
    else if (message->word == VAULT_GET && count == 1)
        status = give(vault, fds[0]);
    else if (message->word == VAULT_PUT && count == 1)
        status = take(vault, message, fds[--count]);
    else if (message->word == VAULT_PUT)
        status = sl_fail(SL_ERR_IO, "part %d of step %" PRId64 " came without its memory (ulimit -n may be too low)",
                         message->part, message->step);
    else
        status = sl_fail(SL_ERR_FORMAT, "a message of another program");
    close_all(fds, count);
    return status;
}

void sl_vault_serve(sl_vault *vault)
{
    vault_message message;
    int fds[FDS_A_MESSAGE], count;
    while (receive_message(vault->sockets[0], MSG_DONTWAIT, &message, fds, &count)) {
        if (serve_one(vault, &message, fds, count) != SL_OK)
            sl_log(SL_LOG_WARN, "a snapshot in memory is left out: %s", sl_error_message());
    }
}

bool sl_vault_settle(sl_vault *vault)
{
    sl_vault_serve(vault);
    drop(&vault->coming);
    bool progressed = vault->progressed;
    vault->progressed = false;
    return progressed;
}

sl_status sl_vault_create(sl_vault **out)
{
    sl_status status = SL_OK;
    sl_vault *vault = NULL;
    SL_TRY(SL_NEW(vault));
    vault->sockets[0] = vault->sockets[1] = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, vault->sockets) != 0)
        SL_TRY(sl_fail(SL_ERR_IO, "socketpair: %s", strerror(errno)));
    *out = vault;
    vault = NULL;
done:
    sl_vault_destroy(vault);
    return status;
}

void sl_vault_destroy(sl_vault *vault)
{
    if (!vault)
        return;
    drop(&vault->whole);
    drop(&vault->coming);
    close_all(vault->sockets, 2);
    sl_free(vault);
}

/* ---- The ranks' side ------------------------------------------------------------------------- */

sl_status sl_vault_put(int vault, const sl_vault_part *part, int memory)
{
    const vault_message message = { .word = VAULT_PUT, .part = part->part, .parts = part->parts, .step = part->step };
    return send_message(vault, &message, &memory, 1, 0);
}

sl_status sl_vault_progress(int vault)
{
    const vault_message message = { .word = VAULT_PROGRESS };
    return send_message(vault, &message, NULL, 0, 0);
}

static sl_status map_part(sl_vault_content *kept, int part, int memory)
{
    struct stat about;
    if (fstat(memory, &about) != 0 || about.st_size <= 0)
        return sl_fail(SL_ERR_FORMAT, "part %d of the snapshot in memory is empty", part);
    void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, memory, 0);
    if (data == MAP_FAILED)
        return sl_fail(SL_ERR_MEMORY, "map part %d of the snapshot in memory: %s", part, strerror(errno));
    kept->data[part] = data;
    kept->bytes[part] = (size_t)about.st_size;
    return SL_OK;
}

static sl_status map_message(sl_vault_content *kept, const vault_message *message, const int *fds, int count)
{
    sl_status status = SL_OK;
    if (message->word != VAULT_GIVE || message->parts < 0 || message->parts > PARTS_LIMIT ||
        (kept->data && (message->parts != kept->parts || message->step != kept->step)) || message->part < 0 ||
        message->part > message->parts - count)
        return sl_fail(SL_ERR_FORMAT, "the vault gave part %d of %d", message->part, message->parts);
    if (!kept->data) {
        SL_TRY(SL_NEW_ARRAY(kept->data, message->parts));
        SL_TRY(SL_NEW_ARRAY(kept->bytes, message->parts));
        kept->parts = message->parts;
        kept->step = message->step;
    }
    for (int i = 0; i < count; i++)
        SL_TRY(map_part(kept, message->part + i, fds[i]));
done:
    return status;
}

sl_status sl_vault_get(int vault, sl_vault_content *out)
{
    sl_status status = SL_OK;
    sl_vault_content kept = { .parts = 0 };
    int answer[2] = { -1, -1 }, got = 0;
    const vault_message ask = { .word = VAULT_GET };
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, answer) != 0)
        return sl_fail(SL_ERR_IO, "socketpair: %s", strerror(errno));
    SL_TRY(send_message(vault, &ask, &answer[1], 1, 0));
    close(answer[1]); /* the launcher has one of its own; should it go, the wait below ends */
    answer[1] = -1;
    do {
        vault_message message;
        int fds[FDS_A_MESSAGE], count;
        if (!receive_message(answer[0], 0, &message, fds, &count))
            SL_TRY(sl_fail(SL_ERR_IO, "the vault did not answer"));
        status = map_message(&kept, &message, fds, count);
        close_all(fds, count);
        SL_TRY(status);
        got += count;
    } while (got < kept.parts);
    *out = kept;
    kept = (sl_vault_content){ .parts = 0 };
done:
    close_all(answer, 2);
    sl_vault_release(&kept);
    return status;
}

void sl_vault_release(sl_vault_content *kept)
{
    for (int i = 0; i < kept->parts; i++) {
        if (kept->data[i])
            munmap(kept->data[i], kept->bytes[i]);
    }
    sl_free(kept->data);
    sl_free(kept->bytes);
    *kept = (sl_vault_content){ .parts = 0 };
}
