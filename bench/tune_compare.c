/* Rounds of predictions and measurements: what they say of a configuration, and of all configurations of a case. */
#include "tune_compare.h"

#include <math.h>

/* Of a round: seconds as measured and as predicted; the rest as shares of the measured seconds. */
enum { MEASURED, PREDICTED, PREDICTED_SHARE, WORK, IDLE, EXCHANGE, UPDATE, ROUND_NUMBERS };

sl_status tune_add_round(tune_moments *rounds, double measured, const sl_tune_choice *predicted)
{
    const double numbers[ROUND_NUMBERS] = { [MEASURED] = measured,
                                            [PREDICTED] = predicted->seconds,
                                            [PREDICTED_SHARE] = predicted->seconds / measured,
                                            [WORK] = predicted->work / measured,
                                            [IDLE] = predicted->idle / measured,
                                            [EXCHANGE] = predicted->exchange / measured,
                                            [UPDATE] = predicted->update / measured };
    return sl_tune_moments_add(rounds, numbers, ROUND_NUMBERS);
}

/* Both sides of a round have seen the same speed of the processors, so a prediction is compared with its own round's
 * measurement, and the median of the rounds counts. What slows a moment never speeds it up: of seconds alone the lower
 * quartile is steadier. */
void tune_take_rounds(const tune_moments *rounds, tune_row *row)
{
    double *shares[ROUND_NUMBERS] = { [PREDICTED_SHARE] = &row->predicted,
                                      [WORK] = &row->work,
                                      [IDLE] = &row->idle,
                                      [EXCHANGE] = &row->exchange,
                                      [UPDATE] = &row->update };
    row->measured = sl_tune_moments_quantile(rounds, MEASURED, 0.25);
    row->predicted_alone = sl_tune_moments_quantile(rounds, PREDICTED, 0.25);
    for (int i = PREDICTED_SHARE; i < ROUND_NUMBERS; i++)
        *shares[i] = row->measured * sl_tune_moments_quantile(rounds, i, 0.5);
}

void tune_compare_rows(tune_case *all)
{
    double agree = 0, pairs = 0, least = INFINITY, sum = 0;
    all->error = 0;
    for (int i = 0; i < all->count; i++) {
        const tune_row *row = &all->rows[i];
        double error = fabs(row->predicted / row->measured - 1);
        all->error = fmax(all->error, error);
        sum += error;
        least = fmin(least, row->measured);
        for (int j = 0; j < i; j++) {
            const tune_row *other = &all->rows[j];
            double order = (row->predicted_alone - other->predicted_alone) * (row->measured - other->measured);
            agree += order > 0 ? 1 : order < 0 ? -1 : 0;
            pairs++;
        }
    }
    all->mean_error = sum / all->count;
    all->tau = pairs > 0 ? agree / pairs : 1;
    all->chosen = all->rows[0].measured / least - 1;
}
