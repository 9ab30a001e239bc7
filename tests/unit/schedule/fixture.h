/* The reference schedules: walks over them and reads their parameters off their names. */
#ifndef SCHEDULE_FIXTURE_H
#define SCHEDULE_FIXTURE_H

#include <sluice/schedule.h>

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

typedef struct fixture {
    char path[1024];
    char generator[64];
    int ranks, microbatches, stages_per_rank;
    bool lowered;
} fixture;

/* "NAME_ppP_mbM_vV.compute.csv" or ".comms.csv"; false for other files. */
static inline bool fixture_parse(const char *file, fixture *out)
{
    char kind[16] = "";
    if (sscanf(file, "%63[^_]_pp%d_mb%d_v%d.%15[a-z].csv", out->generator, &out->ranks, &out->microbatches,
               &out->stages_per_rank, kind) != 5)
        return false;
    out->lowered = strcmp(kind, "comms") == 0;
    return out->lowered || strcmp(kind, "compute") == 0;
}

/* Calls visit for each reference schedule of the form asked for; returns how many there were. */
static inline int fixtures_visit(bool lowered, void (*visit)(const fixture *given))
{
    const char *data = getenv("SLUICE_DATA");
    char folder[512];
    snprintf(folder, sizeof folder, "%s/schedules", data ? data : "tests/data");
    DIR *dir = opendir(folder);
    int count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        fixture each;
        if (!fixture_parse(entry->d_name, &each) || each.lowered != lowered)
            continue;
        snprintf(each.path, sizeof each.path, "%s/%s", folder, entry->d_name);
        visit(&each);
        count++;
    }
    if (dir)
        closedir(dir);
    return count;
}

#endif
