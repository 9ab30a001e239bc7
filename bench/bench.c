/* sluice bench: finds the benchmark and runs it. The program knows it as a command of its own. */
#include "bench.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static const command benches[] = {
#define BENCH_ROW(kind, line) { .name = #kind, .summary = (line), .run = bench_##kind },
    BENCH_LIST(BENCH_ROW)
#undef BENCH_ROW
        { .name = NULL },
};

#define BENCH_LINE(name, summary) "\n" #name ": " summary "."

static const cli_usage usage = {
    .command = "bench",
    .synopsis = "KIND [OPTIONS]",
    .description =
        "Measures a part of Sluice on this machine. 'sluice bench KIND --help' describes one kind." BENCH_LIST(
            BENCH_LINE),
    .examples = "sluice bench schedule --format json",
    .min_operands = 1,
    .rest = true,
};

int64_t bench_peak_rss(void)
{
    struct rusage self;
    return getrusage(RUSAGE_SELF, &self) == 0 ? (int64_t)self.ru_maxrss * 1024 : 0;
}

int cmd_bench(int argc, char **argv)
{
    static const cli_option no_options[] = { { .name = NULL } };
    int code;
    for (const command *each = benches; argc == 2 && strcmp(argv[1], "--words=") == 0 && each->name; each++)
        puts(each->name); /* completion */
    if (!options_parse(&usage, no_options, &argc, argv, &code))
        return code;
    for (const command *each = benches; each->name; each++) {
        if (strcmp(argv[1], each->name) == 0)
            return each->run(argc - 1, argv + 1);
    }
    return usage_error("bench", "there is no benchmark '%.100s'", argv[1]);
}
