/* The memory that the ranks of one machine share: one memfd a run. It starts with the control block, then come the
 * channels of the whole group's collectives, then what is allocated as channels are opened. Offsets only, no pointers:
 * processes map it where they like. It has no name, so it is gone with the last process that holds it. */
#ifndef SL_COMM_SHM_CONTROL_H
#define SL_COMM_SHM_CONTROL_H

#include "comm/transport.h"

#include <pthread.h>

enum { SL_SHM_LINE = 128, SL_SHM_MAX_RANKS = 1024 }; /* two cache lines: processors fetch them in pairs */

enum { SL_JOIN_TIMEOUTS = 4 }; /* a rank may read its data before it joins: it has this many hang timeouts */

typedef enum sl_shm_state { SL_SHM_ABSENT, SL_SHM_JOINED, SL_SHM_CLOSED, SL_SHM_GONE } sl_shm_state;

/* One rank, seen by all. */
typedef struct sl_shm_rank {
    /* Read by peers at each message: rung (incremented and woken) if the rank sleeps. */
    _Alignas(SL_SHM_LINE) _Atomic uint32_t bell;
    _Atomic uint32_t sleepers; /* threads of the rank that sleep or are about to */
    _Atomic uint32_t core;     /* on which the rank was last seen, counted from 1; 0 while it is not known */

    _Alignas(SL_SHM_LINE) _Atomic uint32_t state; /* sl_shm_state */
    _Atomic uint32_t beat;                        /* grows while the rank's process runs */
    _Atomic uint64_t wait[4];                     /* an sl_wait, packed, and since when; all zero for none */
    _Atomic uint64_t confirmed;                   /* when the rank itself last found, late, that it still waits */
    sl_streaming streaming;

    _Alignas(SL_SHM_LINE) _Atomic uint64_t note[SL_NOTE_BYTES / 8];
} sl_shm_rank;

typedef struct sl_shm_control {
    uint64_t magic;
    uint32_t version;
    uint32_t size;  /* ranks */
    uint32_t cores; /* that the process that made the memory may use; ranks may be bound to one of them each */
    uint64_t run_id;
    uint64_t room;                                    /* bytes of the file */
    double hang_timeout;                              /* seconds; negative for never */
    _Alignas(SL_SHM_LINE) _Atomic uint64_t allocated; /* offset of the first byte never given out */
    _Alignas(SL_SHM_LINE) sl_failure failure;
    _Atomic int32_t hung; /* rank + 1 of one that gave no sign of life; 0 for none */
    sl_shm_rank ranks[];  /* size of them */
} sl_shm_control;

/* A range mapped into this process, shared by its users. */
typedef struct sl_shm_map {
    uint64_t offset;
    size_t bytes;
    char *address;
    int users;
    struct sl_shm_map *next;
} sl_shm_map;

/* This process's view of the memory. Ranks that are threads share one. */
typedef struct sl_shm {
    int fd;
    sl_shm_control *control;
    size_t control_bytes;
    pthread_mutex_t lock; /* guards maps and users */
    sl_shm_map *maps;
    int users;
} sl_shm;

/* Makes the memory of a run of `size` ranks. The descriptor is closed on exec. */
sl_status sl_shm_create(int size, double hang_timeout, sl_shm **out);
/* Takes over fd, which another process made, once it has been found to be such memory. */
sl_status sl_shm_attach(int fd, sl_shm **out);
sl_shm *sl_shm_ref(sl_shm *shm);
void sl_shm_unref(sl_shm *shm); /* NULL is fine */

/* A range of its own for the caller, filled with zeros. If `now`, its memory is taken at once, so that a lack of it
 * is an error here and not a signal later; else page by page as it is touched. */
sl_status sl_shm_allocate(sl_shm *shm, size_t bytes, bool now, uint64_t *offset);
/* Gives the memory back; the offsets are not used again. Nobody touches the range from now on. */
void sl_shm_free(sl_shm *shm, uint64_t offset, size_t bytes);
sl_status sl_shm_map_range(sl_shm *shm, uint64_t offset, size_t bytes, char **address);
void sl_shm_unmap_range(sl_shm *shm, uint64_t offset);

/* Where the channels of the whole group's collectives begin: after the control block of `size` ranks. */
uint64_t sl_shm_mesh_offset(int size);

/* See sl_transport.fail. Also for processes that are no rank (the launcher). Returns whether it was the first. */
bool sl_shm_fail(sl_shm *shm, int rank, sl_status code, const char *text);
/* The failure of a rank that has given no sign of life for the hang timeout: names what all ranks were last doing. */
void sl_shm_fail_hung(sl_shm *shm, int rank);
/* Fails the run if `rank` waits in a circle, or for a rank of one: each of its ranks has waited for the next one for the
 * hang timeout, and can do nothing else. */
void sl_shm_fail_circle(sl_shm *shm, int rank);
/* Wakes the rank if it sleeps. */
void sl_shm_ring(sl_shm_rank *rank);
void sl_shm_ring_all(sl_shm *shm);

/* Tells the others on which core this rank, whose thread calls, runs. */
void sl_shm_note_core(sl_shm_rank *rank);
void sl_shm_set_note(sl_shm_rank *rank, const char *text);
void sl_shm_set_wait(sl_shm_rank *rank, const sl_wait *wait, double since); /* sl_now() when it began */
/* The rank waits for that still, now. One that is stopped cannot say so, perhaps has what it waited for: it is in no circle. */
void sl_shm_confirm_wait(sl_shm_rank *rank);
/* "2F3 of step 7, waiting to receive on channel 5 from rank 1": what the rank is or was last doing; returns text. */
char *sl_shm_describe(const sl_shm_rank *rank, char *text, size_t size);

#endif
