/* sluice bench: finds the benchmark and runs it. The program knows it as a command of its own. */
#include "bench.h"
#include "tools/sluice/command.h"
#include "tools/sluice/options.h"

#include <sluice/nn.h>
#include <sluice/shard.h>

#include "base/alloc.h"

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

sl_status bench_init_weights(sl_runtime *runtime)
{
    sl_status status = SL_OK;
    int count = 0;
    float *values = NULL;
    sl_stream *stream = sl_runtime_stream(runtime);
    const sl_param *params = sl_runtime_params(runtime, &count);
    for (int i = 0; i < count; i++) {
        sl_param_info info = { params[i].name, SL_F32, params[i].shape, params[i].init };
        int64_t elements = params[i].held.count;
        sl_dtype dtype = params[i].data.meta.dtype;
        SL_TRY(sl_alloc((size_t)elements + 1, sizeof *values, (void **)&values));
        sl_param_init(&info, 1, params[i].held.first, elements, values);
        SL_TRY(sl_f32_convert(values, elements, dtype, values));
        SL_TRY(sl_stream_copy(stream, SL_COPY_HOST_TO_DEVICE, params[i].data.data, values,
                              (size_t)elements * sl_dtype_size(dtype)));
        SL_TRY(sl_stream_synchronize(stream));
        sl_free(values);
        values = NULL;
    }
done:
    sl_free(values);
    return status;
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
