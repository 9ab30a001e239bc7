/* sluice export: a checkpoint as a Hugging Face folder. */
#include "command.h"
#include "options.h"

#include <sluice/train.h>

#include <stdio.h>

#define NAME "export"

static const cli_usage usage = {
    .command = NAME,
    .synopsis = "--model DIR --output DIR [--dtype f32|bf16|f16] [--shard-gb G] [--overwrite]",
    .description = "Writes the model of a checkpoint (or of a run's newest) as a Hugging Face folder: config.json, "
                   "safetensors under Hugging Face's names, and the tokenizer's files; a model of bytes gets a "
                   "tokenizer.json of bytes. The folder appears as a whole, once everything is written.",
    .examples = "sluice export --model out --output my-model\n"
                "sluice export --model out/checkpoints/step-00000100 --output my-model --dtype bf16",
};

int cmd_export(int argc, char **argv)
{
    static const sl_dtype dtypes[] = { SL_F32, SL_BF16, SL_F16 };
    const char *model = NULL, *output = NULL;
    int dtype = 0, code;
    double shard_gb = 0;
    bool overwrite = false;
    sl_model_source *source = NULL;
    const cli_option table[] = {
        { .name = "model",
          .letter = 'm',
          .value = "DIR",
          .text = &model,
          .required = true,
          .help = "Checkpoint, folder of a run, or Hugging Face folder." },
        { .name = "output",
          .letter = 'o',
          .value = "DIR",
          .text = &output,
          .required = true,
          .help = "Folder to write; made if it does not exist." },
        { .name = "overwrite",
          .flag = &overwrite,
          .help = "Replace the model that is in the folder; its other files stay." },
        { .name = "dtype",
          .value = "TYPE",
          .words = "f32|bf16|f16",
          .choice = &dtype,
          .help = "Type of the weights (f32 by default: no bit is lost)." },
        { .name = "shard-gb",
          .value = "G",
          .real = &shard_gb,
          .least = 1e-6,
          .most = 1e6,
          .help = "Cut the weights into files of at most G gigabytes." },
        { .name = NULL },
    };
    log_to_stderr(NAME);
    if (!options_parse(&usage, table, &argc, argv, &code))
        return code;
    sl_status status = sl_model_source_open(model, &source);
    if (status == SL_OK)
        status = sl_model_source_export(source,
                                        &(sl_export_options){ .dtype = dtypes[dtype],
                                                              .shard_bytes = (size_t)(shard_gb * 1e9),
                                                              .overwrite = overwrite },
                                        output);
    if (status == SL_OK)
        printf("wrote %s from %s\n", output, sl_model_source_path(source));
    sl_model_source_close(source);
    return status == SL_OK ? EXIT_OK : refusal(NAME, status);
}
