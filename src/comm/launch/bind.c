/* Which cores a rank runs on. */
#include "comm/launch/launch.h"

#include "base/alloc.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A logical core, and where it is. */
typedef struct core_place {
    int package, core, number;
} core_place;

/* A number from the description of a core; 0 if there is none. */
static int read_topology(int number, const char *what)
{
    char path[96];
    int value = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", number, what);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%d", &value) != 1)
        value = 0;
    fclose(file);
    return value;
}

static int by_place(const void *left, const void *right)
{
    const core_place *a = left, *b = right;
    if (a->package != b->package)
        return a->package < b->package ? -1 : 1;
    if (a->core != b->core)
        return a->core < b->core ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

/* The cores that this process may use, threads of one physical core beside each other; returns their number. */
static int list_cores(int cores[CPU_SETSIZE])
{
    core_place places[CPU_SETSIZE];
    cpu_set_t allowed;
    int count = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return 0;
    for (int number = 0; number < CPU_SETSIZE; number++) {
        if (CPU_ISSET((size_t)number, &allowed))
            places[count++] = (core_place){ .package = read_topology(number, "physical_package_id"),
                                            .core = read_topology(number, "core_id"),
                                            .number = number };
    }
    qsort(places, (size_t)count, sizeof *places, by_place);
    for (int i = 0; i < count; i++)
        cores[i] = places[i].number;
    return count;
}

/* Whether rank r is to stay on core r, counted round. If some cores had more ranks than others, or ranks had several threads,
 * the kernel divides their time better. */
static bool goes_round(const sl_launch_sharing *sharing, int count)
{
    int ranks = sharing->ranks;
    return count > 0 && (sharing->bind == SL_BIND_CORE || (sharing->bind == SL_BIND_AUTO && sharing->threads <= 1 &&
                                                           ranks > count && ranks % count == 0));
}

void sl_launch_share_cores(const sl_launch_sharing *sharing, const int *cores, int count, bool are_all,
                           cpu_set_t *masks)
{
    int ranks = sharing->ranks, threads = sharing->threads > 1 ? sharing->threads : 1;
    if (goes_round(sharing, count)) {
        for (int r = 0; r < ranks; r++)
            CPU_SET((size_t)cores[r % count], &masks[r]);
    } else if (sharing->bind == SL_BIND_AUTO && (int64_t)ranks * threads <= count && are_all) {
        for (int r = 0; r < ranks; r++) {
            for (int i = r * count / ranks; i < (r + 1) * count / ranks; i++)
                CPU_SET((size_t)cores[i], &masks[r]);
        }
    }
}

static int by_number(const void *left, const void *right)
{
    int a = *(const int *)left, b = *(const int *)right;
    return (a > b) - (a < b);
}

void sl_launch_choose_cores(const sl_launch_sharing *sharing, cpu_set_t *masks)
{
    int cores[CPU_SETSIZE], count = list_cores(cores);
    if (sharing->bind == SL_BIND_CORE)
        qsort(cores, (size_t)count, sizeof *cores, by_number);
    sl_launch_share_cores(sharing, cores, count, count == (int)sysconf(_SC_NPROCESSORS_ONLN), masks);
}

sl_status sl_launch_resolve_bind(sl_launch_bind *bind)
{
    static const char *const words[] = { [SL_BIND_AUTO] = "auto", [SL_BIND_NONE] = "none", [SL_BIND_CORE] = "core" };
    const char *text = getenv("SLUICE_BIND");
    if (*bind != SL_BIND_AUTO || !text || !*text)
        return SL_OK;
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++) {
        if (strcmp(text, words[i]) == 0) {
            *bind = (sl_launch_bind)i;
            return SL_OK;
        }
    }
    return sl_fail(SL_ERR_ARGUMENT, "SLUICE_BIND is \"%s\"; auto, none or core are possible", text);
}

sl_status sl_launch_count_shared(int ranks, int threads, int *out)
{
    sl_status status = SL_OK;
    sl_launch_sharing sharing = { .ranks = ranks, .threads = threads };
    int cores[CPU_SETSIZE], count = list_cores(cores);
    SL_TRY(sl_launch_resolve_bind(&sharing.bind));
    *out = ranks > count && goes_round(&sharing, count) ? count : 0;
done:
    return status;
}

static bool shares_core(const cpu_set_t *masks, int ranks, int rank)
{
    for (int r = 0; r < ranks; r++) {
        if (r != rank && CPU_EQUAL(&masks[r], &masks[rank]))
            return true;
    }
    return false;
}

/* The kernel lets a normal thread that is woken interrupt the one that runs. Then a microbatch that comes to a rank overtakes
 * one that is half done in another rank of the core, and from there on both are on the same core at the same time. */
static void wait_for_turns(void)
{
    if (sched_getscheduler(0) == SCHED_OTHER) /* else somebody has chosen */
        sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 });
}

void sl_launch_take_cores(const cpu_set_t *masks, int ranks, int rank)
{
    if (CPU_COUNT(&masks[rank]) == 0)
        return;
    sched_setaffinity(0, sizeof *masks, &masks[rank]);
    if (shares_core(masks, ranks, rank))
        wait_for_turns();
}

sl_status sl_launch_bind_thread(int ranks, int threads, int rank)
{
    sl_status status = SL_OK;
    sl_launch_sharing sharing = { .ranks = ranks, .threads = threads };
    cpu_set_t *masks = NULL;
    SL_TRY(sl_launch_resolve_bind(&sharing.bind));
    SL_TRY(SL_NEW_ARRAY(masks, ranks));
    sl_launch_choose_cores(&sharing, masks);
    sl_launch_take_cores(masks, ranks, rank);
done:
    sl_free(masks);
    return status;
}
