/* Base: version, status and message, log, parsing of numbers, element types. Everything else builds on this.
 *
 * The rules of all headers:
 * - Functions are called sl_<noun>_<verb>, constants SL_<NOUN>_<VALUE>. A getter has the name of what it returns,
 *   sl_schedule_ranks; if a type is called so, `get_` comes before it: sl_device_get_memory fills an
 *   sl_device_memory.
 * - Objects are opaque. `create` makes one in memory and `destroy` ends it; `open` opens something that exists outside
 *   of it (a file, a device, a group of processes) and `close` closes it. Both take NULL. An array or a text that a call
 *   allocates for its caller is freed with sl_free.
 * - A call that can fail returns an sl_status. Its results are its last arguments, and are set only on success.
 * - `const` arguments are borrowed for the call unless the header says otherwise. A `const` pointer that a getter
 *   returns is borrowed from the object and lives as long as it.
 * - Options are plain structs in which zero, and NULL for the whole struct, mean the default. Fill them by field name.
 * - An object is used by one thread at a time, unless the header says otherwise.
 *
 * What may change: a patch version changes neither headers nor files. While the major version is 0 a minor version may
 * change both; each has a soname of its own, and find_package accepts the same minor version alone. Structs marked
 * SL_NAMED_FIELDS and enums may get further members in any version but a patch. */
#ifndef SLUICE_BASE_H
#define SLUICE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of these headers; sl_version() is that of the library which runs. */
#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0
#define SLUICE_VERSION "0.1.0"

#if defined(__GNUC__)
#define SL_API __attribute__((visibility("default")))
#define SL_MUST_CHECK __attribute__((warn_unused_result))
#define SL_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define SL_API
#define SL_MUST_CHECK
#define SL_PRINTF(format_at, args_at)
#endif

/* Structs that grow with the library: fill them by field name, { .ranks = 4 }, never by position. GCC warns otherwise. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__cplusplus)
#define SL_NAMED_FIELDS __attribute__((designated_init))
#else
#define SL_NAMED_FIELDS
#endif

/* ---- Status ---------------------------------------------------------------------------------- */

/* One list: the enum, the names and the texts come from it. */
#define SL_STATUS_LIST(X)                                                                                              \
    X(OK, "ok")                                                                                                        \
    X(ERR_ARGUMENT, "wrong argument")                                                                                  \
    X(ERR_MEMORY, "out of memory")                                                                                     \
    X(ERR_IO, "input/output error")                                                                                    \
    X(ERR_FORMAT, "malformed input")                                                                                   \
    X(ERR_SCHEDULE, "invalid schedule")                                                                                \
    X(ERR_SHAPE, "shape mismatch")                                                                                     \
    X(ERR_UNSUPPORTED, "not supported")                                                                                \
    X(ERR_COMM, "communication failed")                                                                                \
    X(ERR_PEER, "a peer failed")                                                                                       \
    X(ERR_TIMEOUT, "timed out")                                                                                        \
    X(ERR_STAGE, "a stage failed")                                                                                     \
    X(ERR_NUMERIC, "not a finite number")                                                                              \
    X(ERR_INTERNAL, "internal error")

typedef enum sl_status {
#define SL_STATUS_ENUM(name, text) SL_##name,
    SL_STATUS_LIST(SL_STATUS_ENUM)
#undef SL_STATUS_ENUM
} sl_status;

/* "ERR_IO" and "input/output error"; never NULL. */
SL_API const char *sl_status_name(sl_status status);
SL_API const char *sl_status_text(sl_status status);

/* Stores the message for this thread and returns code. Call it once, at the place that decides it is an error. Control
 * characters in it become '?', as in log lines, because names from files are shown on terminals. */
SL_API sl_status sl_fail(sl_status code, const char *format, ...) SL_PRINTF(2, 3);
SL_API sl_status sl_fail_v(sl_status code, const char *format, va_list args) SL_PRINTF(2, 0);

/* Puts "context: " before the message of the error that is on its way up; returns code. */
SL_API sl_status sl_fail_context(sl_status code, const char *format, ...) SL_PRINTF(2, 3);

/* Message of this thread's last failure; valid until its next one, never NULL. */
SL_API const char *sl_error_message(void);

/* Runs call and, if it fails, jumps to the label `done`; needs a variable `sl_status status`. */
#define SL_TRY(call)                                                                                                   \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != SL_OK)                                                                                           \
            goto done;                                                                                                 \
    } while (0)

/* ---- Log ------------------------------------------------------------------------------------- */

typedef enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG } sl_log_level;

/* Receives one line without its newline; may be called from any thread, one call at a time. It must neither log nor
 * fork. */
typedef void (*sl_log_callback)(void *user, sl_log_level level, const char *line);

/* NULL takes the callback away: then lines go to stderr if SLUICE_LOG is set, else nowhere. Once this returns, the old
 * callback does not run any more. */
SL_API void sl_log_set_callback(sl_log_callback callback, void *user);

/* Overrides SLUICE_LOG (error, warn, info or debug; warn if it is not set). */
SL_API void sl_log_set_level(sl_log_level level);
SL_API sl_log_level sl_log_get_level(void);
SL_API void sl_log(sl_log_level level, const char *format, ...) SL_PRINTF(2, 3);

/* ---- Numbers --------------------------------------------------------------------------------- */

/* The whole text must be the number: no blanks, no trailing junk, and min <= value <= max.
 * `what` names the value in the message ("--ranks"). The decimal point is a point in every locale: here, in files and
 * in messages. */
SL_API SL_MUST_CHECK sl_status sl_parse_int(const char *what, const char *text, int64_t min, int64_t max, int64_t *out);
SL_API SL_MUST_CHECK sl_status sl_parse_double(const char *what, const char *text, double min, double max, double *out);
/* true, yes, on, 1; false, no, off, 0; in any case. */
SL_API SL_MUST_CHECK sl_status sl_parse_bool(const char *what, const char *text, bool *out);

/* ---- Element types --------------------------------------------------------------------------- */

/* name of the enum, text form, bytes, name in safetensors */
#define SL_DTYPE_LIST(X)                                                                                               \
    X(F32, "f32", 4, "F32")                                                                                            \
    X(BF16, "bf16", 2, "BF16")                                                                                         \
    X(F16, "f16", 2, "F16")                                                                                            \
    X(I32, "i32", 4, "I32")                                                                                            \
    X(I64, "i64", 8, "I64")                                                                                            \
    X(U8, "u8", 1, "U8")                                                                                               \
    X(BOOL, "bool", 1, "BOOL")                                                                                         \
    X(F64, "f64", 8, "F64")

typedef enum sl_dtype {
#define SL_DTYPE_ENUM(name, text, bytes, safetensors) SL_##name,
    SL_DTYPE_LIST(SL_DTYPE_ENUM)
#undef SL_DTYPE_ENUM
        SL_DTYPE_COUNT
} sl_dtype;

SL_API const char *sl_dtype_name(sl_dtype dtype); /* "f32"; "?" for a value out of range */
SL_API size_t sl_dtype_size(sl_dtype dtype);      /* bytes; 0 for a value out of range */
SL_API SL_MUST_CHECK sl_status sl_dtype_parse(const char *text, sl_dtype *out);

#define SL_MAX_DIMS 6

/* A shape; rank 0 is a scalar. Plain data, compared with sl_shape_equal. */
typedef struct sl_shape {
    int rank;
    int64_t dims[SL_MAX_DIMS];
} sl_shape;

SL_API bool sl_shape_equal(const sl_shape *a, const sl_shape *b);
/* Product of the dims; fails on a negative dim, a rank out of range, or overflow. */
SL_API SL_MUST_CHECK sl_status sl_shape_count(const sl_shape *shape, int64_t *out);
/* Writes "[2, 3]" into text and returns it; cut if it does not fit. */
SL_API char *sl_shape_text(const sl_shape *shape, char *text, size_t size);

/* ---- Memory, time, version ------------------------------------------------------------------- */

SL_API void sl_free(void *block);    /* memory that a call allocated for its caller; NULL is fine */
SL_API double sl_now(void);          /* seconds of a clock that only goes forward */
SL_API const char *sl_version(void); /* SLUICE_VERSION of the library */

#ifdef __cplusplus
}
#endif
#endif
