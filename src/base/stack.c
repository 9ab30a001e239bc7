/* Stacks of this process's threads: a signal makes the thread write its frames down. */
#include "base/stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

/* Of the handler and what the kernel returns to from it; a sanitizer adds its own. */
enum { OWN_FRAMES = 2, MORE_FRAMES = 8 };

static void *captured[SL_STACK_FRAMES + MORE_FRAMES];
static void *interrupted;         /* where the thread was */
static atomic_int captured_count; /* -1 while nothing has been captured */

static void *place_of(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (void *)(uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (void *)(uintptr_t)context->uc_mcontext.pc;
#else
    (void)context;
    return NULL;
#endif
}

static void note_frames(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    interrupted = place_of(context);
    atomic_store(&captured_count, backtrace(captured, SL_STACK_FRAMES + MORE_FRAMES));
}

/* The first frame that is the thread's own. */
static int first_frame(int count)
{
    for (int i = 0; i < count && i <= MORE_FRAMES; i++) {
        if (captured[i] == interrupted)
            return i;
    }
    return OWN_FRAMES;
}

void sl_stack_prepare(void)
{
    void *frame;
    (void)backtrace(&frame, 1); /* its first call loads a library */
}

int sl_stack_capture(pthread_t thread, void *frames[SL_STACK_FRAMES])
{
    struct sigaction action = { .sa_sigaction = note_frames, .sa_flags = SA_RESTART | SA_SIGINFO };
    sigemptyset(&action.sa_mask);
    atomic_store(&captured_count, -1);
    if (sigaction(SIGPROF, &action, NULL) != 0 || pthread_kill(thread, SIGPROF) != 0)
        return 0;
    for (int i = 0; i < 1000 && atomic_load(&captured_count) < 0; i++)
        usleep(1000);
    int found = atomic_load(&captured_count), first = first_frame(found), count = found - first;
    if (count <= 0)
        return 0;
    count = count < SL_STACK_FRAMES ? count : SL_STACK_FRAMES;
    memcpy(frames, captured + first, (size_t)count * sizeof *frames);
    return count;
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* A file in memory, of which only what is looked at is read: a driver's library has 100 MB and no symbols. */
typedef struct mapped_file {
    const uint8_t *data;
    size_t size;
} mapped_file;

static bool map_file(const char *path, mapped_file *out)
{
    struct stat about;
    void *data = MAP_FAILED;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &about) == 0 && about.st_size > 0)
        data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (data == MAP_FAILED)
        return false;
    *out = (mapped_file){ .data = data, .size = (size_t)about.st_size };
    return true;
}

/* The function at that address of the file, from the symbol table that a linker leaves unless told to strip it. */
static bool find_symbol(const mapped_file *file, ElfW(Addr) address, char *name, size_t size)
{
    const ElfW(Ehdr) *header = (const void *)file->data;
    if (file->size < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_shentsize != sizeof(ElfW(Shdr)) || header->e_shoff > file->size ||
        header->e_shnum > (file->size - header->e_shoff) / sizeof(ElfW(Shdr)))
        return false;
    const ElfW(Shdr) *sections = (const void *)(file->data + header->e_shoff);
    for (int s = 0; s < header->e_shnum; s++) {
        const ElfW(Shdr) *table = &sections[s];
        if (table->sh_type != SHT_SYMTAB || table->sh_link >= header->e_shnum)
            continue;
        const ElfW(Shdr) *strings = &sections[table->sh_link];
        if (table->sh_offset > file->size || table->sh_size > file->size - table->sh_offset ||
            strings->sh_offset > file->size || strings->sh_size > file->size - strings->sh_offset)
            return false;
        const ElfW(Sym) *symbols = (const void *)(file->data + table->sh_offset);
        for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
            const ElfW(Sym) *symbol = &symbols[i];
            if ((symbol->st_info & 15) != STT_FUNC || address < symbol->st_value ||
                address - symbol->st_value >= symbol->st_size || symbol->st_name >= strings->sh_size)
                continue;
            snprintf(name, size, "%.*s", (int)(strings->sh_size - symbol->st_name),
                     (const char *)file->data + strings->sh_offset + symbol->st_name);
            return true;
        }
    }
    return false;
}

static void name_frame(void *frame, char *name, size_t size)
{
    Dl_info info;
    struct link_map *module = NULL;
    mapped_file file;
    if (!dladdr1(frame, &info, (void **)&module, RTLD_DL_LINKMAP) || !module) {
        snprintf(name, size, "%p", frame);
        return;
    }
    const char *path = module->l_name[0] ? module->l_name : "/proc/self/exe"; /* the program's own has no name */
    ElfW(Addr) address = (ElfW(Addr))frame - module->l_addr;
    if (map_file(path, &file)) {
        bool found = find_symbol(&file, address, name, size);
        munmap((void *)(uintptr_t)file.data, file.size);
        if (found)
            return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    if (info.dli_sname)
        snprintf(name, size, "%s", info.dli_sname);
    else
        snprintf(name, size, "%s+%#lx", slash ? slash + 1 : info.dli_fname, (unsigned long)address);
}

char *sl_stack_text(void *const *frames, int count, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        char name[128];
        /* A frame but the first holds where a call returns to, which may be past the end of the caller. */
        name_frame(i == 0 ? frames[i] : (char *)frames[i] - 1, name, sizeof name);
        if (used + strlen(name) + 4 > size)
            break;
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " < " : "", name);
    }
    return text;
}
