/* Settings of a group from its caller and from the environment. */
#include "comm/options.h"

#include <stdlib.h>

#define HANG_TIMEOUT 30.0 /* seconds */

static sl_status read_seconds(const char *name, double *value)
{
    const char *text = getenv(name);
    return text && *text ? sl_parse_double(name, text, -1e9, 1e9, value) : SL_OK;
}

sl_status sl_options_given_timeout(const sl_group_options *given, double *out)
{
    double seconds = given ? given->hang_timeout : 0;
    sl_status status = seconds == 0 ? read_seconds("SLUICE_HANG_TIMEOUT", &seconds) : SL_OK;
    if (status == SL_OK)
        *out = seconds;
    return status;
}

sl_status sl_options_resolve(const sl_group_options *given, sl_group_options *out)
{
    sl_status status = SL_OK;
    sl_group_options options = given ? *given : (sl_group_options){ .transport = NULL };
    const char *text;
    if (!options.transport && (text = getenv("SLUICE_TRANSPORT")) && *text)
        options.transport = text;
    SL_TRY(sl_options_given_timeout(&options, &options.hang_timeout));
    if (options.hang_timeout == 0)
        options.hang_timeout = HANG_TIMEOUT;
    if (options.spin_us == 0)
        SL_TRY(read_seconds("SLUICE_SPIN_US", &options.spin_us));
    if (!options.checksum && (text = getenv("SLUICE_CHECKSUM")) && *text)
        SL_TRY(sl_parse_bool("SLUICE_CHECKSUM", text, &options.checksum));
    *out = options;
done:
    return status;
}
