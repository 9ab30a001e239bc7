/* A program of somebody else: uses the installed library through <sluice/sluice.h> alone, from C or C++. */
#include <sluice/sluice.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    int64_t value = 0;
    if (sl_parse_int("value", "42", 0, 100, &value) != SL_OK || value != 42)
        return 1;
    if (sl_parse_int("value", "42x", 0, 100, &value) == SL_OK || !strstr(sl_error_message(), "42x"))
        return 1;
    printf("sluice %s\n", sl_version());
    return 0;
}
