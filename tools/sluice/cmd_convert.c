/* sluice convert: a checkpoint as a run of another mesh would have written it. */
#include "command.h"
#include "options.h"

#include <sluice/train.h>

#include <stdio.h>

#define NAME "convert"

static const cli_usage usage = {
    .command = NAME,
    .synopsis = "IN OUT [--pp P] [--dp D] [--shard none|optimizer|full] [--shard-group G]",
    .description =
        "Writes the checkpoint IN (or the newest of the run IN) into the folder OUT as a run of another mesh would "
        "have written it: a file for each rank, with that rank's shards. `sluice train --resume` with "
        "run.out=OUT goes on from it. A run reads checkpoints of any other mesh, so this is never needed; it "
        "saves ranks on slow disks from reading each other's files.\n"
        "Tensors go from file to file in blocks: memory does not grow with the model.",
    .examples = "sluice convert out wider --pp 4 --dp 2 --shard full\n"
                "sluice convert out/checkpoints/step-00000100 one-rank --pp 1 --dp 1",
    .min_operands = 2,
    .max_operands = 2,
};

int cmd_convert(int argc, char **argv)
{
    static const sl_shard_mode modes[] = { SL_SHARD_NONE, SL_SHARD_OPTIMIZER, SL_SHARD_FULL };
    int pp = 0, dp = 0, group = 0, shard = 0, code;
    char *written = NULL;
    const cli_option table[] = {
        { .name = "pp",
          .value = "P",
          .integer = &pp,
          .min = 1,
          .max = 65536,
          .help = "Ranks of a pipeline; as in the checkpoint's run by default." },
        { .name = "dp",
          .value = "D",
          .integer = &dp,
          .min = 1,
          .max = 65536,
          .help = "Replicas of each stage; as in the checkpoint's run by default." },
        { .name = "shard",
          .value = "MODE",
          .words = "none|optimizer|full",
          .choice = &shard,
          .help = "What the replicas share out, as parallel.shard (none by default)." },
        { .name = "shard-group",
          .value = "G",
          .integer = &group,
          .min = 1,
          .max = 65536,
          .help = "Replicas that share, as parallel.shard_group; all of them by default." },
        { .name = NULL },
    };
    log_to_stderr(NAME);
    if (!options_parse(&usage, table, &argc, argv, &code))
        return code;
    const sl_convert_options options = { .pp = pp, .dp = dp, .shard = modes[shard], .shard_group = group };
    sl_status status = sl_train_convert(argv[1], argv[2], &options, &written);
    if (status == SL_OK)
        printf("wrote %s\n", written);
    sl_free(written);
    return status == SL_OK ? EXIT_OK : refusal(NAME, status);
}
