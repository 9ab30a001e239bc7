/* Finding and copying a tokenizer's files. */
#include "train/tokenizer_files.h"

#include "base/alloc.h"
#include "base/file.h"

bool sl_tokenizer_files_exist(const char *folder)
{
    return sl_folder_has(folder, "tokenizer.json") ||
           (sl_folder_has(folder, "vocab.json") && sl_folder_has(folder, "merges.txt"));
}

static sl_status copy_file(const char *from, const char *to, const char *name)
{
    sl_status status = SL_OK;
    char *source = NULL, *target = NULL;
    sl_file_map map = { 0 };
    SL_TRY(sl_path_join(from, name, &source));
    SL_TRY(sl_path_join(to, name, &target));
    SL_TRY(sl_file_map_open(source, &map));
    SL_TRY(sl_file_replace(target, map.data, map.size));
done:
    sl_file_map_close(&map);
    sl_free(source);
    sl_free(target);
    return status;
}

sl_status sl_tokenizer_files_copy(const char *from, const char *to)
{
    static const char *const names[] = { "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
                                         "special_tokens_map.json" };
    sl_status status = SL_OK;
    if (from[0] == '\0' || !sl_tokenizer_files_exist(from))
        return SL_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (sl_folder_has(from, names[i]))
            SL_TRY(copy_file(from, to, names[i]));
    }
done:
    return status;
}
