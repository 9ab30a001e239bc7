/* "did you mean": the known word that a misspelled one is closest to. */
#ifndef SLUICE_SIMILAR_H
#define SLUICE_SIMILAR_H

#include <stddef.h>

typedef struct similar_word {
    const char *given;
    size_t length;
    size_t distance;  /* of the best word so far; more than it is no suggestion */
    const char *word; /* NULL while nothing is close enough */
} similar_word;

similar_word similar_begin(const char *given, size_t length);
/* Keeps word if it is closer than those before it. "steps" is as good as "run.steps". */
void similar_consider(similar_word *best, const char *word);

#endif
