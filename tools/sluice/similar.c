/* Similar words: letters left out, added, changed, or swapped with their neighbor. */
#include "similar.h"

#include <string.h>

enum { LONGEST = 48 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The fewest single-letter edits and swaps of neighbors that turn a into b (optimal string alignment). */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][LONGEST + 1]; /* the row before the last, the last, this one */
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    if (a_length > LONGEST || b_length > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= b_length; j++)
        last[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        now[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            now[j] = least(last[j], now[j - 1]) + 1;
            now[j] = least(now[j], last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
        size_t *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[b_length];
}

similar_word similar_begin(const char *given, size_t length)
{
    /* A third of the letters may be wrong, one in a short word. */
    return (similar_word){ .given = given, .length = length, .distance = length < 6 ? 2 : length / 3 + 1 };
}

void similar_consider(similar_word *best, const char *word)
{
    const char *dot = strrchr(word, '.');
    size_t distance = edit_distance(best->given, best->length, word, strlen(word));
    if (dot && !memchr(best->given, '.', best->length))
        distance = least(distance, edit_distance(best->given, best->length, dot + 1, strlen(dot + 1)));
    if (distance < best->distance) {
        best->distance = distance;
        best->word = word;
    }
}
