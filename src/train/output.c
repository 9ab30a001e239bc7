/* run.out: lock, metrics, events. */
#include "train/output.h"

#include "base/alloc.h"
#include "base/file.h"
#include "shard/checkpoint.h"
#include "train/attributes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* The newest checkpoint fits the plan. One that cannot be opened is left to the run, which looks for an older one. */
static sl_status check_newest(const sl_train_plan *plan, const char *folder, int64_t step)
{
    sl_status status = SL_OK;
    char *path = NULL;
    sl_checkpoint *checkpoint = NULL;
    SL_TRY(sl_checkpoint_make_path(folder, step, NULL, &path));
    if (sl_checkpoint_open(path, false, &checkpoint) == SL_OK)
        SL_TRY(sl_attributes_check(plan, checkpoint));
done:
    sl_checkpoint_close(checkpoint);
    sl_free(path);
    return status;
}

sl_status sl_train_check_output(const sl_train_plan *plan, bool resume)
{
    sl_status status = SL_OK;
    const sl_train_config *config = plan->config;
    char *folder = NULL;
    int64_t *steps = NULL;
    int count = 0, newest = 0;
    status = sl_folder_make(config->run.out);
    if (status != SL_OK)
        return sl_train_config_context(config, "run.out", status);
    if (access(config->run.out, W_OK | X_OK) != 0)
        return sl_train_config_context(
            config, "run.out", sl_fail(SL_ERR_IO, "%s cannot be written: %s", config->run.out, strerror(errno)));
    SL_TRY(sl_path_join(config->run.out, "checkpoints", &folder));
    SL_TRY(sl_checkpoint_list(folder, &steps, &count));
    while (newest < count && !sl_checkpoint_has_manifest(folder, steps[newest]))
        newest++;
    if (newest < count && !resume)
        SL_TRY(sl_train_config_fail(config, "run.out",
                                    "%s holds a run (checkpoint of step %" PRId64
                                    "): continue it with --resume, or choose another folder",
                                    config->run.out, steps[newest]));
    if (newest < count)
        SL_TRY(check_newest(plan, folder, steps[newest]));
done:
    sl_free(steps);
    sl_free(folder);
    return status;
}

sl_status sl_output_lock(sl_output_folder *output, const sl_train_config *config)
{
    sl_status status = SL_OK;
    char *path = NULL;
    SL_TRY(sl_folder_make(config->run.out));
    SL_TRY(sl_path_join(config->run.out, "lock", &path));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        SL_TRY(sl_fail(SL_ERR_IO, "open %s: %s", path, strerror(errno)));
    output->lock = fd + 1;
    for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            SL_TRY(sl_fail(SL_ERR_IO, "lock %s: %s", path, strerror(errno)));
        if (tries == 50)
            SL_TRY(sl_fail(SL_ERR_IO, "%s: another run is writing to this folder", config->run.out));
        usleep(100 * 1000);
    }
done:
    sl_free(path);
    return status;
}

sl_status sl_output_open(sl_output_folder *output, const sl_train_config *config, int64_t step)
{
    sl_status status = SL_OK;
    char *path = NULL, *board = NULL;
    SL_TRY(sl_path_join(config->run.out, "metrics.jsonl", &path));
    SL_TRY(sl_metrics_open(path, step, &output->metrics));
    if (config->log.tensorboard) {
        SL_TRY(sl_path_join(config->run.out, "tensorboard", &board));
        SL_TRY(sl_folder_make(board));
        SL_TRY(sl_tensorboard_open(board, &output->tensorboard));
    }
done:
    sl_free(board);
    sl_free(path);
    return status;
}

sl_status sl_output_write(sl_output_folder *output, const sl_step_report *report)
{
    sl_status status = SL_OK;
    SL_TRY(sl_metrics_write(output->metrics, report));
    if (output->tensorboard)
        SL_TRY(sl_tensorboard_write(output->tensorboard, report));
done:
    return status;
}

void sl_output_close(sl_output_folder *output)
{
    sl_metrics_close(output->metrics);
    sl_tensorboard_close(output->tensorboard);
    if (output->lock > 0)
        close(output->lock - 1); /* gives the lock back */
    *output = (sl_output_folder){ .lock = 0 };
}
