/* The measurement of `sluice bench comm`. */
#ifndef SLUICE_BENCH_COMM_MEASURE_H
#define SLUICE_BENCH_COMM_MEASURE_H

#include <sluice/comm.h>

enum { COMM_SIZES = 10 };

extern const size_t comm_sizes[COMM_SIZES]; /* bytes, growing */

/* One row of figures a size. */
struct comm_figures {
    double latency_us[COMM_SIZES];
    double gb_per_s[COMM_SIZES];
    double read_gb_per_s[COMM_SIZES];
    double memcpy_gb_per_s[COMM_SIZES]; /* of rank 0 */
};

/* As one of two ranks: opens the group and measures; the best of the rounds. */
sl_status comm_measure_ranks(int rounds, struct comm_figures *out);
void comm_keep_better(const struct comm_figures *fresh, struct comm_figures *best);

/* Messages through device links, printed: comm_device.c. */
sl_status comm_measure_links(const char *device, int ranks_as, int rounds, bool as_json);

#endif
