/* sluice info: says what a file or folder is. */
#include "command.h"
#include "info.h"
#include "options.h"

#include <sluice/comm.h>
#include <sluice/kernel.h>

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "info"
enum { HEAD_BYTES = 64 };

static const cli_usage usage = {
    .command = NAME,
    .synopsis = "[FILE|DIR] [--verify] [--format json]",
    .description =
        "Describes a checkpoint, the folder of a run, a Hugging Face folder, a safetensors file, a token file "
        "or a schedule (CSV). The kind is found by looking into it. Without a file it describes this installation: "
        "its version, the devices that it can use, NCCL, or why it cannot, and how messages between ranks go.",
    .examples =
        "sluice info\nsluice info out\nsluice info out/checkpoints/step-00000100 --verify\nsluice info train.bin",
    .min_operands = 0,
    .max_operands = 1,
};

/* The device and what its kernels run on, or why it cannot be opened. */
static void describe_device(const char *spec, info_writer *out, sl_device **opened)
{
    char text[256];
    if (sl_device_open(spec, NULL, opened) == SL_OK)
        info_text(out, spec, sl_kernel_describe(*opened, text, sizeof text));
    else
        info_text(out, spec, sl_error_message());
}

static void describe_installation(info_writer *out)
{
    char text[512];
    sl_device *cpu = NULL, *gpu = NULL;
    info_text(out, "version", sl_version());
    describe_device("cpu", out, &cpu);
    describe_device("cuda", out, &gpu);
    info_text(out, "nccl", sl_nccl_describe(text, sizeof text));
    info_text(out, "messages", sl_device_links_describe(gpu, text, sizeof text));
    sl_device_close(gpu);
    sl_device_close(cpu);
}

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

static bool ends_in(const char *path, const char *ending)
{
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ending) == 0;
}

/* Files of others that say what they are; NULL for all the rest. */
static const char *foreign_kind(const unsigned char *head, size_t count)
{
    static const struct {
        const char *begins, *kind;
    } known[] = {
        { "\x7f"
          "ELF",
          "a program or library (ELF)" },
        { "PK\x03\x04", "a zip archive (as PyTorch's .pt and .bin are)" },
        { "\x1f\x8b", "compressed by gzip" },
        { "\x28\xb5\x2f\xfd", "compressed by zstd" },
        { "\x89PNG", "a PNG picture" },
        { "%PDF", "a PDF document" },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].begins);
        if (count >= length && memcmp(head, known[i].begins, length) == 0)
            return known[i].kind;
    }
    return NULL;
}

static bool is_control(unsigned char byte)
{
    return byte == 127 || (byte < ' ' && byte != '\n' && byte != '\r' && byte != '\t' && byte != '\f');
}

/* UTF-8 without control characters; a character that the head cuts off is none of the file's faults. */
static bool is_text(const unsigned char *head, size_t count)
{
    size_t at = 0;
    while (at < count && count - at >= (count == HEAD_BYTES ? 4 : 1)) {
        size_t length = sl_utf8_length(head + at, count - at);
        if (length == 0 || is_control(head[at]))
            return false;
        at += length;
    }
    return count > 0;
}

/* By content: safetensors begin with a length and '{', schedules are text. Tokens may be any bytes, so that a raw token
 * file is known by its ending alone. */
static sl_status describe_file(const char *path, info_writer *out)
{
    unsigned char head[HEAD_BYTES] = { 0 };
    FILE *file = NULL;
    sl_status status = sl_file_open_stream(path, &file);
    if (status != SL_OK)
        return status;
    size_t count = fread(head, 1, sizeof head, file);
    fclose(file);
    const char *foreign = foreign_kind(head, count);
    if (foreign)
        return sl_fail(SL_ERR_FORMAT, "%s: it is %s, which Sluice does not read", path, foreign);
    if (ends_in(path, ".safetensors") || (count >= 9 && head[8] == '{' && head[6] == 0 && head[7] == 0))
        return info_safetensors(path, out);
    bool text = is_text(head, count);
    if (text && ends_in(path, ".csv"))
        return info_schedule(path, out);
    return text ? info_text_file(path, out) : info_tokens(path, ends_in(path, ".bin"), out);
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
    info_writer out = { .as_json = format == FORMAT_JSON, .json = { .file = stdout } };
    struct stat about;
    if (argc == 1) {
        describe_installation(&out);
        info_end(&out);
        return EXIT_OK;
    }
    if (stat(argv[1], &about) != 0 || access(argv[1], S_ISDIR(about.st_mode) ? R_OK | X_OK : R_OK) != 0) {
        fprintf(stderr, "sluice " NAME ": open %s: %s\n", argv[1], strerror(errno));
        return EXIT_FAILED;
    }
    sl_status status = S_ISDIR(about.st_mode) ? describe_folder(argv[1], verify, &out) : describe_file(argv[1], &out);
    if (status != SL_OK)
        return refusal(NAME, status);
    info_end(&out);
    return EXIT_OK;
}
