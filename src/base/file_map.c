/* Memory maps of files. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_status io_error(const char *verb, const char *path)
{
    return sl_fail(SL_ERR_IO, "%s %s: %s", verb, path, strerror(errno));
}

sl_status sl_file_map_open(const char *path, sl_file_map *out)
{
    sl_status status = SL_OK;
    sl_file_map map = { 0 };
    struct stat info;

    int fd = -1;
    SL_TRY(sl_file_open_input(path, &fd));
    if (fstat(fd, &info) != 0) {
        status = io_error("stat", path);
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        status = sl_fail(SL_ERR_IO, "open %s: not a regular file", path);
        goto done;
    }
    map.size = (size_t)info.st_size;
    if (map.size > 0) {
        void *data = mmap(NULL, map.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = io_error("map", path);
            goto done;
        }
        map.data = data;
    }
    *out = map;
done:
    if (fd >= 0)
        close(fd);
    return status;
}

void sl_file_map_close(sl_file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (sl_file_map){ 0 };
}
