/* Snapshots in memory: what a rank would write to a checkpoint goes to the launcher, which outlives it. */
#include "train/trainer.h"

#include "comm/launch/vault.h"

#include <unistd.h>

/* The place of this rank's part among those of all ranks that write, as the last notes say. */
static sl_vault_part own_part(const sl_trainer *trainer)
{
    sl_vault_part part = { .step = trainer->step };
    for (int r = 0; r < sl_group_size(trainer->world); r++) {
        if (r == sl_group_rank(trainer->world))
            part.part = part.parts;
        part.parts += trainer->notes[r].writer != 0;
    }
    return part;
}

static sl_status write_entries(sl_trainer *trainer, sl_snapshot_writer *writer)
{
    sl_status status = SL_OK;
    for (int i = 0; i < trainer->entry_count; i++) {
        const sl_tensor_entry *entry = &trainer->entries[i];
        const sl_view view = { .data = (void *)entry->data,
                               .meta = sl_meta_make(entry->dtype, entry->shape.rank, entry->shape.dims) };
        const void *host = NULL;
        SL_TRY(sl_trainer_read(trainer, &view, &host));
        SL_TRY(sl_snapshot_writer_write(writer, i, host));
    }
done:
    return status;
}

sl_status sl_trainer_keep(sl_trainer *trainer, int vault)
{
    sl_status status = SL_OK;
    sl_snapshot_writer *writer = NULL;
    int memory = -1;
    if (!trainer->writer)
        return SL_OK; /* its replica keeps the same */
    const sl_vault_part part = own_part(trainer);
    SL_TRY(sl_snapshot_writer_create(trainer->entries, trainer->entry_count, &writer));
    SL_TRY(write_entries(trainer, writer));
    SL_TRY(sl_snapshot_writer_seal(writer, &memory));
    SL_TRY(sl_vault_put(vault, &part, memory));
done:
    if (memory >= 0)
        close(memory);
    sl_snapshot_writer_destroy(writer);
    return status;
}
