/* The shared memory of a run: making it, mapping it, giving out ranges, the failure record and the notes. */
#include "comm/shm/control.h"
#include "comm/wait.h"
#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x534c554943453031u /* "SLUICE01" */
#define VERSION 1u
#define FILE_BYTES ((uint64_t)1 << 44) /* room for offsets, if no limit is set; only what is touched takes memory */
#define NOEXEC_SEAL 8u                 /* MFD_NOEXEC_SEAL, newer than some headers */
#define PAGE ((uint64_t)4096)

static uint64_t round_to_page(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static size_t control_bytes(int size)
{
    return (size_t)round_to_page(sizeof(sl_shm_control) + (size_t)size * sizeof(sl_shm_rank));
}

uint64_t sl_shm_mesh_offset(int size)
{
    return control_bytes(size);
}

/* Growing past the limit on file sizes would be a signal and not an error. */
static uint64_t file_bytes(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > FILE_BYTES)
        return FILE_BYTES;
    return limit.rlim_cur / (2 * PAGE) * (2 * PAGE);
}

static sl_status new_shm(int fd, size_t bytes, sl_shm **out)
{
    sl_status status = SL_OK;
    sl_shm *shm = NULL;
    SL_TRY(SL_NEW(shm));
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
        status = sl_fail(SL_ERR_MEMORY, "map %zu bytes of the run's memory: %s", bytes, strerror(errno));
        goto done;
    }
    shm->fd = fd;
    shm->control = address;
    shm->control_bytes = bytes;
    shm->users = 1;
    pthread_mutex_init(&shm->lock, NULL);
    *out = shm;
    shm = NULL; /* now the caller's */
done:
    sl_free(shm);
    return status;
}

static uint32_t count_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? (uint32_t)CPU_COUNT(&cores) : 1;
}

/* Data and no program, if the kernel knows the difference: some allow no other. */
static int create_file(void)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create("sluice", flags | NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create("sluice", flags) : fd;
}

sl_status sl_shm_create(int size, double hang_timeout, sl_shm **out)
{
    sl_status status = SL_OK;
    sl_shm *shm = NULL;
    uint64_t run_id = 0, room = file_bytes();

    if (room / 2 < control_bytes(size) + ((uint64_t)1 << 20))
        return sl_fail(SL_ERR_MEMORY, "the limit on file sizes (ulimit -f) leaves no room for the run's memory");
    int fd = create_file();
    if (fd < 0)
        return sl_fail(SL_ERR_IO, "memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)room) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        status = sl_fail(SL_ERR_IO, "size the run's memory: %s", strerror(errno));
        goto done;
    }
    if (getrandom(&run_id, sizeof run_id, 0) != sizeof run_id) {
        status = sl_fail(SL_ERR_IO, "getrandom: %s", strerror(errno));
        goto done;
    }
    SL_TRY(new_shm(fd, control_bytes(size), &shm));
    shm->control->version = VERSION;
    shm->control->size = (uint32_t)size;
    shm->control->cores = count_cores();
    shm->control->run_id = run_id;
    shm->control->hang_timeout = hang_timeout;
    /* The channels of collectives lie in the half of the file below this. */
    atomic_store(&shm->control->allocated, room / 2);
    shm->control->room = room;
    shm->control->magic = MAGIC;
    *out = shm;
    fd = -1; /* now the memory's */
done:
    if (fd >= 0)
        close(fd);
    return status;
}

sl_status sl_shm_attach(int fd, sl_shm **out)
{
    sl_status status = SL_OK;
    sl_shm *probe = NULL, *shm = NULL;
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW) ||
        fstat(fd, &info) != 0 || (uint64_t)info.st_size < control_bytes(1))
        return sl_fail(SL_ERR_COMM, "descriptor %d is not the memory of a run", fd);

    SL_TRY(new_shm(fd, control_bytes(1), &probe));
    const sl_shm_control *control = probe->control;
    if (control->magic != MAGIC || control->version != VERSION || control->size < 1 ||
        control->size > SL_SHM_MAX_RANKS || control->room != (uint64_t)info.st_size) {
        status = sl_fail(SL_ERR_COMM, "the run's memory was made by another version of sluice");
        goto done;
    }
    SL_TRY(new_shm(fd, control_bytes((int)control->size), &shm));
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    *out = shm;
done:
    if (probe) {
        probe->fd = -1; /* the caller's, or the other's */
        sl_shm_unref(probe);
    }
    return status;
}

sl_shm *sl_shm_ref(sl_shm *shm)
{
    pthread_mutex_lock(&shm->lock);
    shm->users++;
    pthread_mutex_unlock(&shm->lock);
    return shm;
}

void sl_shm_unref(sl_shm *shm)
{
    if (!shm)
        return;
    pthread_mutex_lock(&shm->lock);
    int users = --shm->users;
    pthread_mutex_unlock(&shm->lock);
    if (users > 0)
        return;
    munmap(shm->control, shm->control_bytes);
    if (shm->fd >= 0)
        close(shm->fd);
    pthread_mutex_destroy(&shm->lock);
    sl_free(shm);
}

sl_status sl_shm_allocate(sl_shm *shm, size_t bytes, bool now, uint64_t *offset)
{
    uint64_t rounded = round_to_page(bytes);
    uint64_t start = atomic_fetch_add(&shm->control->allocated, rounded);
    if (rounded > shm->control->room || start > shm->control->room - rounded)
        return sl_fail(SL_ERR_MEMORY, "the run's channels ask for more than %llu bytes of shared memory",
                       (unsigned long long)(shm->control->room / 2));
    bool failed = false;
    do
        failed = now && fallocate(shm->fd, 0, (off_t)start, (off_t)rounded) != 0;
    while (failed && errno == EINTR);
    if (failed)
        return sl_fail(SL_ERR_MEMORY, "%zu bytes of shared memory for channels: %s", bytes, strerror(errno));
    *offset = start;
    return SL_OK;
}

void sl_shm_free(sl_shm *shm, uint64_t offset, size_t bytes)
{
    fallocate(shm->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)round_to_page(bytes));
}

sl_status sl_shm_map_range(sl_shm *shm, uint64_t offset, size_t bytes, char **address)
{
    sl_status status = SL_OK;
    sl_shm_map *map = NULL;
    pthread_mutex_lock(&shm->lock);
    for (map = shm->maps; map && map->offset != offset; map = map->next)
        ;
    if (!map) {
        SL_TRY(SL_NEW(map));
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shm->fd, (off_t)offset);
        if (at == MAP_FAILED) {
            sl_free(map);
            status = sl_fail(SL_ERR_MEMORY, "map %zu bytes of shared memory: %s", bytes, strerror(errno));
            goto done;
        }
        *map = (sl_shm_map){ .offset = offset, .bytes = bytes, .address = at, .next = shm->maps };
        shm->maps = map;
    }
    map->users++;
    *address = map->address;
done:
    pthread_mutex_unlock(&shm->lock);
    return status;
}

void sl_shm_unmap_range(sl_shm *shm, uint64_t offset)
{
    pthread_mutex_lock(&shm->lock);
    sl_shm_map **at = &shm->maps;
    while (*at && (*at)->offset != offset)
        at = &(*at)->next;
    sl_shm_map *map = *at;
    if (map && --map->users == 0) {
        *at = map->next;
        munmap(map->address, map->bytes);
        sl_free(map);
    }
    pthread_mutex_unlock(&shm->lock);
}

bool sl_shm_fail(sl_shm *shm, int rank, sl_status code, const char *text)
{
    sl_failure *failure = &shm->control->failure;
    uint32_t state = SL_FAILURE_NONE;
    if (!atomic_compare_exchange_strong(&failure->state, &state, SL_FAILURE_BEING_SET)) {
        /* The other writer may have died over it: then this one takes its place. */
        for (int i = 0; i < 100 && state == SL_FAILURE_BEING_SET; i++) {
            usleep(1000);
            state = atomic_load(&failure->state);
        }
        if (state != SL_FAILURE_BEING_SET)
            return false;
    }
    failure->rank = rank;
    failure->code = (int32_t)code;
    snprintf(failure->text, sizeof failure->text, "%s", text);
    atomic_store(&failure->state, SL_FAILURE_SET);
    sl_shm_ring_all(shm);
    return true;
}

/* Notes and waits are read while they are written: words, so that a reader gets old or new ones and never a fault. */
void sl_shm_set_note(sl_shm_rank *rank, const char *text)
{
    uint64_t words[SL_NOTE_BYTES / 8] = { 0 };
    memcpy(words, text, strnlen(text, SL_NOTE_BYTES - 1));
    for (size_t i = 0; i < SL_NOTE_BYTES / 8; i++)
        atomic_store_explicit(&rank->note[i], words[i], memory_order_relaxed);
}

#define IN_ORDER ((uint64_t)1 << 63) /* in the first word */

/* The time is written first: a reader that finds the old time has not read words of a new wait (get_wait). */
void sl_shm_set_wait(sl_shm_rank *rank, const sl_wait *wait, double since)
{
    uint64_t first = (wait->in_order ? IN_ORDER : 0) | (uint64_t)wait->kind << 32 | (uint32_t)wait->peer;
    uint64_t second = (uint64_t)(uint32_t)wait->channel << 32 | (uint32_t)wait->microbatch;
    atomic_store(&rank->wait[3], (uint64_t)(since * 1e9));
    atomic_store(&rank->wait[0], first);
    atomic_store(&rank->wait[1], second);
    atomic_store(&rank->wait[2], (uint64_t)wait->step);
}

void sl_shm_confirm_wait(sl_shm_rank *rank)
{
    atomic_store(&rank->confirmed, (uint64_t)(sl_now() * 1e9));
}

/* *since: when it began. */
static sl_wait get_wait(const sl_shm_rank *rank, double *since)
{
    uint64_t first = atomic_load(&rank->wait[0]), second = atomic_load(&rank->wait[1]);
    const sl_wait wait = {
        .kind = (sl_wait_kind)(first >> 32 & 0xff),
        .peer = (int)(uint32_t)first,
        .channel = (int)(uint32_t)(second >> 32),
        .microbatch = (int)(uint32_t)second,
        .step = (int64_t)atomic_load(&rank->wait[2]),
        .in_order = (first & IN_ORDER) != 0,
    };
    *since = (double)atomic_load(&rank->wait[3]) * 1e-9;
    return wait;
}

char *sl_shm_describe(const sl_shm_rank *rank, char *text, size_t size)
{
    uint64_t words[SL_NOTE_BYTES / 8];
    for (size_t i = 0; i < SL_NOTE_BYTES / 8; i++)
        words[i] = atomic_load_explicit(&rank->note[i], memory_order_relaxed);
    char note[SL_NOTE_BYTES];
    memcpy(note, words, sizeof note);
    note[sizeof note - 1] = 0;

    double since;
    const sl_wait wait = get_wait(rank, &since);
    char waiting[256] = "";
    if (wait.kind != SL_WAIT_NOTHING)
        sl_wait_text(&wait, waiting, sizeof waiting);
    if (note[0] && waiting[0])
        snprintf(text, size, "%s, waiting %s", note, waiting);
    else if (waiting[0])
        snprintf(text, size, "waiting %s", waiting);
    else
        snprintf(text, size, "%s", note[0] ? note : "nothing noted");
    return text;
}

void sl_shm_fail_hung(sl_shm *shm, int rank)
{
    char text[SL_FAILURE_TEXT], doing[320];
    sl_shm_control *control = shm->control;
    int used = snprintf(text, sizeof text, "rank %d gave no sign of life for %g s; last doing: rank %d: %s", rank,
                        control->hang_timeout, rank, sl_shm_describe(&control->ranks[rank], doing, sizeof doing));
    for (uint32_t r = 0; r < control->size && used > 0 && (size_t)used < sizeof text; r++) {
        if ((int)r != rank)
            used += snprintf(text + used, sizeof text - (size_t)used, "; rank %u: %s", r,
                             sl_shm_describe(&control->ranks[r], doing, sizeof doing));
    }
    if (sl_shm_fail(shm, rank, SL_ERR_TIMEOUT, text))
        atomic_store(&control->hung, rank + 1);
}

/* ---- Circles --------------------------------------------------------------------------------- */

/* The rank that this one waits for; -1 if it may yet go on without that one. */
static int find_next(const sl_shm_control *control, int rank, double now)
{
    const sl_shm_rank *at = &control->ranks[rank];
    double since;
    sl_wait wait = get_wait(at, &since);
    bool is_message = wait.channel >= 0 && (wait.kind == SL_WAIT_RECEIVE || wait.kind == SL_WAIT_RESERVE);
    bool streams = atomic_load(&at->streaming.left) != 0;
    double streamed = (double)atomic_load(&at->streaming.last) * 1e-9; /* who waited for it may not have woken up yet */
    double confirmed = (double)atomic_load(&at->confirmed) * 1e-9;
    if (!is_message || !wait.in_order || streams || atomic_load(&at->state) != SL_SHM_JOINED ||
        confirmed - since < control->hang_timeout || now - streamed < control->hang_timeout)
        return -1;
    return wait.peer >= 0 && wait.peer < (int)control->size ? wait.peer : -1;
}

void sl_shm_fail_circle(sl_shm *shm, int rank)
{
    char text[SL_FAILURE_TEXT], doing[320];
    const sl_shm_control *control = shm->control;
    double now = sl_now();
    int first = rank;
    if (control->hang_timeout <= 0)
        return;
    for (uint32_t i = 0; i < control->size && first >= 0; i++) /* so many steps lead into the circle */
        first = find_next(control, first, now);
    if (first < 0)
        return;
    for (int r = find_next(control, first, now), start = first; r != start; r = find_next(control, r, now)) {
        if (r < 0)
            return;
        first = r < first ? r : first;
    }
    int used = snprintf(text, sizeof text, "rank %d waits in a circle that nothing ends; last doing:", first);
    for (int r = first, more = 1; more && used > 0 && (size_t)used < sizeof text; more = r != first) {
        used += snprintf(text + used, sizeof text - (size_t)used, "%s rank %d: %s", r == first ? "" : ";", r,
                         sl_shm_describe(&control->ranks[r], doing, sizeof doing));
        r = find_next(control, r, now);
        if (r < 0)
            return;
    }
    sl_shm_fail(shm, first, SL_ERR_TIMEOUT, text);
}
