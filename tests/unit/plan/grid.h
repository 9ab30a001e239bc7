/* Rows of tests/data/planner/grid.csv. */
#ifndef TEST_PLAN_GRID_H
#define TEST_PLAN_GRID_H

#include <sluice/plan.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct grid_row {
    char planner[40];
    sl_plan_problem problem; /* without a limit in the file: the memory that the row's schedule takes */
    double stage_time, makespan;
    double bound_stage_time, bound_makespan;
} grid_row;

static inline FILE *grid_open(void)
{
    char path[1024], header[512];
    snprintf(path, sizeof path, "%s/planner/grid.csv", getenv("SLUICE_DATA"));
    FILE *file = fopen(path, "r");
    if (file && !fgets(header, sizeof header, file)) {
        fclose(file);
        return NULL;
    }
    return file;
}

static inline bool grid_next(FILE *file, grid_row *row)
{
    char line[512], *rest = line, *cells[17];
    if (!fgets(line, sizeof line, file))
        return false;
    for (int n = 0; n < 17; n++)
        cells[n] = strsep(&rest, ",");
    snprintf(row->planner, sizeof row->planner, "%s", cells[0]);
    int chunks = atoi(cells[2]);
    sl_plan_problem_init(&row->problem, atoi(cells[3]), atoi(cells[4]),
                         strcmp(cells[1], "v") == 0 ? SL_PLACEMENT_V : SL_PLACEMENT_LOOP, chunks);
    sl_stage_cost *stage = &row->problem.costs.stage;
    stage->f = atof(cells[5]) / chunks;
    stage->i = atof(cells[6]) / chunks;
    stage->w = atof(cells[7]) / chunks;
    stage->release = atof(cells[10]);
    row->problem.costs.latency = atof(cells[8]);
    row->problem.memory = atof(cells[9][0] ? cells[9] : cells[13]);
    row->stage_time = atof(cells[11]);
    row->makespan = atof(cells[12]);
    row->bound_stage_time = atof(cells[14]);
    row->bound_makespan = atof(cells[15]);
    return true;
}

static inline bool grid_is(const grid_row *row, const char *planner)
{
    return strncmp(row->planner, planner, strlen(planner)) == 0;
}

#endif
