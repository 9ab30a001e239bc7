/* What outlives the ranks of a run: the launcher keeps sealed memory that they hand it, and gives it to the ranks that
 * it starts after them. */
#ifndef SL_COMM_LAUNCH_VAULT_H
#define SL_COMM_LAUNCH_VAULT_H

#include <sluice/base.h>

/* ---- The launcher's side --------------------------------------------------------------------- */

/* The memory of one step, one piece from each rank that has state of its own. */
typedef struct sl_generation {
    int64_t step;
    int parts;   /* pieces that make it whole; 0: there is none */
    int arrived; /* of them */
    int *memory; /* (parts) descriptors; -1: has not come */
} sl_generation;

/* Two generations: the newest whole one, and the one that is on its way. A generation counts once it is whole, so the
 * death of a rank at any moment leaves the one before it. */
typedef struct sl_vault {
    int sockets[2]; /* the launcher's end, the ranks' end. All ranks share the one end: the order in which they hand
                       memory in is the order in which it is taken */
    sl_generation whole, coming;
    bool progressed; /* a step was completed since sl_vault_settle() */
} sl_vault;

SL_MUST_CHECK sl_status sl_vault_create(sl_vault **out);
void sl_vault_destroy(sl_vault *vault); /* NULL is fine */
/* Takes and answers what has come; does not wait. */
void sl_vault_serve(sl_vault *vault);
/* Once all ranks have ended: what they left takes effect, and a generation that is not whole is dropped. Returns whether
 * they had completed a step. */
bool sl_vault_settle(sl_vault *vault);

/* ---- The ranks' side ------------------------------------------------------------------------- */

/* One piece of a generation; plain data. */
typedef struct sl_vault_part {
    int64_t step;
    int part, parts;
} sl_vault_part;

/* Hands over the memory, which is sealed against writing and resizing. The caller keeps and closes its descriptor. Not
 * to be called for a step before all ranks have called it for the one before. */
SL_MUST_CHECK sl_status sl_vault_put(int vault, const sl_vault_part *part, int memory);
/* A step was completed. */
SL_MUST_CHECK sl_status sl_vault_progress(int vault);

/* The newest whole generation, mapped read-only. */
typedef struct sl_vault_content {
    int64_t step;
    int parts; /* 0: nothing is kept */
    void **data;
    size_t *bytes;
} sl_vault_content;

SL_MUST_CHECK sl_status sl_vault_get(int vault, sl_vault_content *out);
void sl_vault_release(sl_vault_content *kept); /* leaves it empty; an empty one is fine */

#endif
