/* How this process was started. */
#include "comm/environment.h"

sl_status sl_environment_transport(const char **out)
{
    *out = "self";
    return SL_OK;
}
