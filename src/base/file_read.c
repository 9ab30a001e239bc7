/* Reading files with read(2). A bad sector, or a file that is cut while it is read, is an error with the file's name;
 * through a memory map it would be a signal. */
#include "base/file.h"

#include "base/alloc.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sl_status sl_file_open(const char *path, sl_file_reader *out)
{
    sl_status status = SL_OK;
    sl_file_reader reader = { .fd = -1 };
    struct stat info;

    SL_TRY(sl_file_open_input(path, &reader.fd));
    if (fstat(reader.fd, &info) != 0)
        SL_TRY(sl_fail(SL_ERR_IO, "stat %s: %s", path, strerror(errno)));
    if (!S_ISREG(info.st_mode))
        SL_TRY(sl_fail(SL_ERR_IO, "open %s: not a regular file", path));
    SL_TRY(sl_strdup(path, &reader.path));
    reader.size = (uint64_t)info.st_size;
    reader.device = (uint64_t)info.st_dev;
    reader.inode = (uint64_t)info.st_ino;
    *out = reader;
    reader = (sl_file_reader){ .fd = -1 };
done:
    sl_file_close(&reader);
    return status;
}

static sl_status fail_cut(const sl_file_reader *reader)
{
    struct stat now = { .st_size = 0 };
    fstat(reader->fd, &now);
    return sl_fail(SL_ERR_IO, "read %s: it had %llu bytes when it was opened, now it has %lld", reader->path,
                   (unsigned long long)reader->size, (long long)now.st_size);
}

sl_status sl_file_read_at(const sl_file_reader *reader, void *out, size_t bytes, uint64_t offset)
{
    char *to = out;
    while (bytes > 0) {
        size_t piece = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30; /* one call moves less than 2 GiB */
        ssize_t got = pread(reader->fd, to, piece, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sl_fail(SL_ERR_IO, "read %s at byte %llu: %s", reader->path, (unsigned long long)offset,
                           strerror(errno));
        if (got == 0)
            return fail_cut(reader);
        to += got;
        bytes -= (size_t)got;
        offset += (uint64_t)got;
    }
    return SL_OK;
}

void sl_file_close(sl_file_reader *reader)
{
    if (reader->path)
        sl_free(reader->path);
    if (reader->fd >= 0)
        close(reader->fd);
    *reader = (sl_file_reader){ .fd = -1 };
}

sl_status sl_file_read(const char *path, sl_file_bytes *out)
{
    sl_status status = SL_OK;
    sl_file_reader reader = { .fd = -1 };
    sl_file_bytes bytes = { .data = NULL };

    SL_TRY(sl_file_open(path, &reader));
    bytes.size = (size_t)reader.size;
    if (bytes.size > 0) {
        SL_TRY(sl_alloc(bytes.size, 1, (void **)&bytes.data));
        SL_TRY(sl_file_read_at(&reader, bytes.data, bytes.size, 0));
    }
    *out = bytes;
    bytes = (sl_file_bytes){ .data = NULL };
done:
    sl_file_bytes_free(&bytes);
    sl_file_close(&reader);
    return status;
}

void sl_file_bytes_free(sl_file_bytes *bytes)
{
    sl_free(bytes->data);
    *bytes = (sl_file_bytes){ .data = NULL };
}
