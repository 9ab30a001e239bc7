/* The communication suite: cases that every rank of a group runs, whatever the transport. A case returns a status and
 * asserts nothing; what failed is in the message. */
#ifndef SUITE_H
#define SUITE_H

#include <sluice/comm.h>

#include "support/sanitized.h"

typedef sl_status (*suite_function)(sl_group *group, uint64_t seed);

typedef struct suite_case {
    const char *name; /* what is true */
    suite_function run;
    int min_ranks;
    bool ends_run; /* the run has failed afterwards: nothing else can follow on the same group */
    int rounds;    /* how often to run it, each time with another seed; 0 is 1 */
} suite_case;

/* name is NULL at the end of each */
extern const suite_case suite_patterns[], suite_messages[], suite_channels[], suite_collectives[], suite_streams[],
    suite_failures[];

/* Fails with the place and the condition if it does not hold; needs `status` and `done:`. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            status = sl_fail(SL_ERR_INTERNAL, "%s:%d: not true: %s", __FILE__, __LINE__, #condition);                  \
            goto done;                                                                                                 \
        }                                                                                                              \
    } while (0)

/* The call must fail with that code and with a message that holds the text. */
#define CHECK_FAILS(call, code, text)                                                                                  \
    do {                                                                                                               \
        status = suite_expect((call), (code), (text), __FILE__, __LINE__);                                             \
        if (status != SL_OK)                                                                                           \
            goto done;                                                                                                 \
    } while (0)

sl_status suite_expect(sl_status got, sl_status expected, const char *text, const char *file, int line);

/* A reproducible stream of numbers. */
typedef struct suite_random {
    uint64_t state;
} suite_random;

uint64_t suite_next(suite_random *random);
int64_t suite_between(suite_random *random, int64_t low, int64_t high); /* both included */

/* Bytes that depend on the seed and their place only. */
void suite_fill(void *data, size_t bytes, uint64_t seed);
bool suite_is_filled(const void *data, size_t bytes, uint64_t seed);

/* A message of that many bytes. */
sl_message suite_bytes(int64_t step, int microbatch, size_t bytes);
/* Collective: opens a single channel. */
sl_status suite_open_one(sl_group *group, int id, int src, int dst, int capacity, size_t max_bytes, sl_channel **out);

/* Run a case; the status and message are those of the first rank that failed. */
sl_status suite_run_self(suite_function run, int size, const sl_group_options *options, uint64_t seed);
sl_status suite_run_threads(suite_function run, int size, const sl_group_options *options, uint64_t seed);
/* As processes: forks of this one, started by sl_launch. */
sl_status suite_run_local(suite_function run, int size, const sl_group_options *options, uint64_t seed);

/* Runs every case of the list that `size` ranks can run, with all its seeds; stops at the first that fails. With
 * `rounds` > 0 no case runs more often than that. */
typedef sl_status (*suite_runner)(suite_function run, int size, const sl_group_options *options, uint64_t seed);
sl_status suite_run_list(suite_runner runner, const suite_case *cases, int size, int rounds);

/* ---- Over MPI: the test starts itself under mpirun ---- */
bool suite_has_mpi(const char *flavour); /* "openmpi" or "mpich"; says why if not */
bool suite_is_mpi_rank(void);
/* mpirun's exit code; what it printed is in output. what: the program's only argument. */
int suite_mpirun(const char *flavour, int ranks, const char *what, char *output, size_t size);

#endif
