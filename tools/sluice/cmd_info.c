/* sluice info: says what a file or folder is. */
#include "command.h"
#include "info.h"
#include "options.h"
#include "base/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "info"

static const cli_usage usage = {
    .command = NAME,
    .synopsis = "FILE|DIR [--verify] [--format json]",
    .description =
        "Describes a checkpoint, the folder of a run, a Hugging Face folder, a safetensors file, a token file "
        "or a schedule (CSV). The kind is found by looking into it.",
    .examples = "sluice info out\nsluice info out/checkpoints/step-00000100 --verify\nsluice info train.bin",
    .min_operands = 1,
    .max_operands = 1,
};

static bool has(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static sl_status describe_folder(const char *path, bool verify, info_writer *out)
{
    if (has(path, "manifest.json"))
        return info_checkpoint(path, verify, out);
    if (has(path, "config.json"))
        return info_model_folder(path, out);
    if (has(path, "checkpoints") || has(path, "metrics.jsonl"))
        return info_run(path, verify, out);
    return sl_fail(SL_ERR_FORMAT,
                   "%s: neither a run, a checkpoint (manifest.json) nor a Hugging Face folder "
                   "(config.json)",
                   path);
}

/* By content: safetensors begin with a length and '{', schedules are text, all else is tokens. */
static sl_status describe_file(const char *path, info_writer *out)
{
    unsigned char head[64] = { 0 };
    FILE *file = NULL;
    sl_status status = sl_file_open_stream(path, &file);
    if (status != SL_OK)
        return status;
    size_t count = fread(head, 1, sizeof head, file);
    fclose(file);
    if (count >= 9 && head[8] == '{' && head[6] == 0 && head[7] == 0)
        return info_safetensors(path, out);
    bool text = count > 0;
    for (size_t i = 0; i < count; i++)
        text = text && (head[i] == '\n' || head[i] == '\r' || (head[i] >= ' ' && head[i] < 127));
    const char *dot = strrchr(path, '.');
    if (text && dot && strcmp(dot, ".csv") == 0)
        return info_schedule(path, out);
    return info_tokens(path, text, out);
}

int cmd_info(int argc, char **argv)
{
    int format = 0, code;
    bool verify = false;
    const cli_option table[] = {
        { .name = "verify", .flag = &verify, .help = "Compare every byte of a checkpoint with its checksums." },
        FORMAT_OPTION_ROW(format),
        { .name = NULL },
    };
    log_to_stderr(NAME);
    if (!options_parse(&usage, table, &argc, argv, &code))
        return code;
    struct stat about;
    if (stat(argv[1], &about) != 0) {
        fprintf(stderr, "sluice " NAME ": %s: there is no such file or folder\n", argv[1]);
        return EXIT_FAILED;
    }
    info_writer out = { .as_json = format == FORMAT_JSON, .json = { .file = stdout } };
    sl_status status = S_ISDIR(about.st_mode) ? describe_folder(argv[1], verify, &out) : describe_file(argv[1], &out);
    if (status != SL_OK)
        return failure(NAME);
    info_end(&out);
    return EXIT_OK;
}
