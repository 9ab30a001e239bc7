/* Documents that share a row: where each begins, found from the token that ends the one before. */
#include <sluice/data.h>

void sl_document_positions(const int32_t *tokens, int64_t rows, int64_t seq, int32_t boundary, int32_t *positions)
{
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *row = tokens + r * seq;
        int32_t place = 0;
        for (int64_t t = 0; t < seq; t++) {
            positions[r * seq + t] = place;
            place = row[t] == boundary ? 0 : place + 1;
        }
    }
}

void sl_document_mask(const int32_t *tokens, int64_t count, int32_t boundary, int32_t ignored, int32_t *targets)
{
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] == boundary)
            targets[i] = ignored;
    }
}
