/* Which cores a rank runs on. */
#include "comm/launch/launch.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
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
static int list_cores(core_place places[CPU_SETSIZE])
{
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
    return count;
}

/* An equal share of the machine's cores, unless there are too few or somebody else has chosen among them. */
static void share_cores(int ranks, cpu_set_t *masks)
{
    core_place places[CPU_SETSIZE];
    int count = list_cores(places);
    if (ranks > count || count != (int)sysconf(_SC_NPROCESSORS_ONLN))
        return;
    for (int r = 0; r < ranks; r++) {
        for (int i = r * count / ranks; i < (r + 1) * count / ranks; i++)
            CPU_SET((size_t)places[i].number, &masks[r]);
    }
}

/* Rank r on the r-th core that this process may use, counted round. */
static void take_cores(int ranks, cpu_set_t *masks)
{
    cpu_set_t allowed;
    int count = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
    for (int r = 0; r < ranks && count > 0; r++) {
        int wanted = r % count;
        for (size_t number = 0; number < CPU_SETSIZE; number++) {
            if (CPU_ISSET(number, &allowed) && wanted-- == 0)
                CPU_SET(number, &masks[r]);
        }
    }
}

void sl_launch_choose_cores(sl_launch_bind bind, int ranks, cpu_set_t *masks)
{
    if (bind == SL_BIND_AUTO)
        share_cores(ranks, masks);
    else if (bind == SL_BIND_CORE)
        take_cores(ranks, masks);
}
