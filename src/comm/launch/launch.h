/* The launcher from the inside. sl_launch forks the keeper, a process of its own that starts the ranks and waits for
 * them; everything that ranks start stays below the keeper, which can therefore end all of it. */
#ifndef SL_COMM_LAUNCH_LAUNCH_H
#define SL_COMM_LAUNCH_LAUNCH_H

#include "comm/launch/vault.h"
#include "comm/shm/control.h"

#include <sched.h>
#include <signal.h>
#include <sys/types.h>

/* Output of a rank on its way through the launcher, cut into lines. */
typedef struct sl_launch_stream {
    int from; /* read end; -1 once closed */
    int to;   /* descriptor of the launcher; -1 once nobody reads it */
    char *line;
    size_t used, capacity;
} sl_launch_stream;

typedef struct sl_launch_child {
    int rank;
    pid_t pid; /* also its process group; 0 before it starts */
    int pidfd;
    int socket[2];  /* the launcher's end, the rank's end */
    double stopped; /* seconds for which it is known to be stopped; 0 if it runs */
    bool is_stopped;
    bool is_dying;               /* the kernel takes it down: what it ended by is known, and told */
    bool ended;                  /* it has been waited for */
    int wait_status;             /* as waitpid gives it, once dying */
    double ended_at;             /* when that was known */
    bool is_cause;               /* its end is the run's failure */
    sl_launch_stream streams[2]; /* stdout, stderr, if output is tagged */
} sl_launch_child;

/* Memory that the caller of sl_launch and the keeper share. */
typedef struct sl_launch_page {
    _Atomic uint32_t beat; /* grows while the caller runs */
    _Atomic bool done;     /* the rest is set */
    sl_status status;
    char message[512]; /* of a status that is not SL_OK */
    sl_launch_result result;
} sl_launch_page;

/* The keeper's state. */
typedef struct sl_launcher {
    const sl_launch_options *options;
    int caller_fd; /* pidfd of the process that called sl_launch */
    const sl_launch_page *page;
    uint32_t caller_beat; /* last seen */
    double grace;
    sl_shm *shm;
    sl_launch_child *children; /* (ranks) */
    cpu_set_t *cores;          /* (ranks) that each rank runs on; empty: any */
    int signal_fd;
    sigset_t forwarded;                /* signals for the ranks, blocked here */
    sigset_t old_mask;                 /* the caller's */
    struct sigaction old_child_action; /* of SIGCHLD */
    bool harmless;  /* the run's failure is a rank that ended early and well: it concerns who still needs it */
    double looked;  /* when it last looked for stopped ranks */
    double ending;  /* when the run began to end: a failure or a signal; 0 before */
    bool by_signal; /* because of a signal: ranks may want time, to write a checkpoint */
    bool told_term; /* SIGTERM has been sent */
    bool told_kill;
    struct pollfd *polls; /* (3 + 4 * ranks) */

    sl_vault *vault;    /* what ranks that are started again find; NULL if none ever are */
    int restart;        /* how often the ranks were started before */
    const char *reason; /* why they are started again; "" the first time */
    bool starts_again;  /* once a rank is lost: nobody then waits for the others */
} sl_launcher;

/* Starts the ranks as often as the options say: the keeper's work. */
sl_status sl_launch_attempts(const sl_launcher *launcher, sl_launch_result *out);
/* Kills and reaps all that the ranks left. */
void sl_launch_end_descendants(void);

/* What the kernel says of a process; all zero if there is none. */
typedef struct sl_launch_process {
    pid_t parent;
    bool is_exiting;
    int wait_status; /* that waitpid will give, if it is exiting; 0 if this may not be known */
} sl_launch_process;
sl_launch_process sl_launch_process_read(pid_t pid);

/* Starts the ranks once and waits for all of them. The caller has set caller_fd, page and the masks. */
sl_status sl_launch_run(sl_launcher *launcher, sl_launch_result *out);

typedef struct sl_launch_sharing {
    sl_launch_bind bind;
    int ranks, threads; /* the latter: of each rank; 0: one */
} sl_launch_sharing;

/* Sets the cores of each rank; those of ranks that are not bound stay empty. */
void sl_launch_choose_cores(const sl_launch_sharing *sharing, cpu_set_t *masks);
/* The same for these cores; are_all: the machine has no others. */
void sl_launch_share_cores(const sl_launch_sharing *sharing, const int *cores, int count, bool are_all,
                           cpu_set_t *masks);
/* What SLUICE_BIND says in place of SL_BIND_AUTO. */
sl_status sl_launch_resolve_bind(sl_launch_bind *bind);
/* If such ranks are more than the cores and rank r is bound to core r, counted round: the number of cores; else 0. */
sl_status sl_launch_count_shared(int ranks, int threads, int *out);
/* Binds the calling thread to the rank's cores, if it has any. If it shares them with another rank it does not interrupt that
 * one when it is woken, but waits for its turn (SCHED_BATCH). */
void sl_launch_take_cores(const cpu_set_t *masks, int ranks, int rank);
/* Binds the calling thread as that rank would be. */
sl_status sl_launch_bind_thread(int ranks, int threads, int rank);
/* Starts the child: forks, binds, executes. Returns in the parent only. */
sl_status sl_launch_start(sl_launcher *launcher, sl_launch_child *child);

/* Makes the pipes of a child's output. */
sl_status sl_launch_streams_open(sl_launch_child *child, int write_ends[2]);
/* Passes on what has come; closes the stream at its end. */
void sl_launch_stream_pump(sl_launch_stream *stream, int rank);
/* Passes on an unfinished line and closes. */
void sl_launch_stream_finish(sl_launch_stream *stream, int rank);

/* "was killed by signal 9 (Killed)" or "exited with code 3"; returns text. */
char *sl_launch_end_text(int wait_status, char *text, size_t size);
/* What the end of the run means, as far as it is known. */
sl_launch_end sl_launch_judge_end(const sl_launcher *launcher);
/* Once all have ended. */
void sl_launch_report(const sl_launcher *launcher, sl_launch_result *result);

#endif
