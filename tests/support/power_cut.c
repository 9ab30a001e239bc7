/* Power cuts, replayed. Reads what a run did to its files (strace -ff -ttt -y -xx), and makes every state that a power
 * cut could have left after each of its operations: names whose folder was not synced since may be there or not, in any
 * combination, and bytes that were not synced may be there, missing or zeros. In each state the newest checkpoint must be
 * at least the last one that was complete, with the bits that the run wrote.
 *
 *   power_cut LOG ROOT REFERENCE SCRATCH   LOG: the merged trace; ROOT: absolute path of the folder that the run's folder
 *                                          run/ was made in; REFERENCE: a checkpoints folder with all of them
 */
#include <sluice/shard.h>

#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_OPERATIONS = 4096, MOST_NODES = 2048, MOST_NAMES = 64, MOST_STATES = 128, MOST_OPEN = 24, PATH = 4096 };

typedef enum operation_kind { MAKE, RENAME, REMOVE, WRITE, SYNC } operation_kind;

/* Folders and files by number, so that a rename does not change what an operation is about. 0 is the root. */
typedef struct operation {
    operation_kind kind;
    int folder, to_folder; /* whose names change */
    char name[96], to[96];
    int node; /* that is made, renamed, removed, written or synced */
    size_t offset, bytes;
    unsigned char *data;
} operation;

typedef struct node {
    bool is_folder;
    int names; /* of a folder */
    struct {
        char name[96];
        int node; /* -1: removed */
    } entries[MOST_NAMES];
} node;

static operation operations[MOST_OPERATIONS];
static int operation_count;
static node nodes[MOST_NODES];
static int node_count = 1;

static void die(const char *what, const char *about)
{
    fprintf(stderr, "power_cut: %s: %s\n", what, about);
    exit(2);
}

/* "folder/name", or the name alone if it is absolute. */
static void join(const char *folder, const char *name, char out[PATH])
{
    bool absolute = name[0] == '/';
    if (strlen(folder) + strlen(name) + 2 > PATH)
        die("a path is too long", name);
    strcpy(out, absolute ? "" : folder);
    if (!absolute)
        strcat(out, "/");
    strcat(out, name);
}

/* ---- A tree of names ------------------------------------------------------------------------- */

static int find(const node *folder, const char *name)
{
    for (int i = 0; i < folder->names; i++) {
        if (folder->entries[i].node >= 0 && strcmp(folder->entries[i].name, name) == 0)
            return folder->entries[i].node;
    }
    return -1;
}

static void put(node *folder, const char *name, int child)
{
    int i = 0;
    while (i < folder->names && strcmp(folder->entries[i].name, name) != 0)
        i++;
    if (i == folder->names && folder->names++ == MOST_NAMES)
        die("too many names in a folder", name);
    snprintf(folder->entries[i].name, sizeof folder->entries[i].name, "%s", name);
    folder->entries[i].node = child;
}

static void drop(node *folder, const char *name, int child)
{
    if (find(folder, name) == child)
        put(folder, name, -1);
}

static void apply_names(node *tree, const operation *op)
{
    if (op->kind == MAKE)
        put(&tree[op->folder], op->name, op->node);
    if (op->kind == REMOVE)
        drop(&tree[op->folder], op->name, op->node);
    if (op->kind == RENAME) {
        drop(&tree[op->folder], op->name, op->node);
        put(&tree[op->to_folder], op->to, op->node);
    }
}

/* ---- Reading the trace ----------------------------------------------------------------------- */

static const char *root;

/* The node of an absolute path, and the folder and name of its last part. False if it is not below the root. */
static bool look_up(const char *path, int *folder, char name[96], int *child)
{
    size_t length = strlen(root);
    if (strncmp(path, root, length) != 0 || (path[length] != '/' && path[length] != '\0'))
        return false;
    *folder = -1;
    *child = 0;
    name[0] = '\0';
    for (const char *part = path + length; *part;) {
        part += strspn(part, "/");
        size_t size = strcspn(part, "/");
        if (size == 0)
            break;
        if (*child < 0)
            return false;
        *folder = *child;
        snprintf(name, 96, "%.*s", (int)size, part);
        *child = find(&nodes[*folder], name);
        part += size;
    }
    return true;
}

static operation *add(operation_kind kind)
{
    if (operation_count == MOST_OPERATIONS)
        die("too many operations", root);
    operation *op = &operations[operation_count++];
    *op = (operation){ .kind = kind, .folder = -1, .to_folder = -1 };
    return op;
}

/* Next argument of the call: a quoted text ("\x61..") as bytes, or a descriptor with its path (3</a/b>) as that path. */
static const char *take(const char *at, char *out, size_t *length)
{
    size_t used = 0;
    at += strspn(at, " ,");
    if (*at == '"') {
        for (at++; *at && *at != '"'; at += 4) {
            unsigned value = 0;
            if (sscanf(at, "\\x%2x", &value) != 1)
                die("a text of the trace is not in hexadecimal", at);
            out[used++] = (char)value;
        }
        at++;
    } else if (strchr("0123456789A", *at)) {
        const char *open = strpbrk(at, "<,)");
        if (open && *open == '<') {
            for (at = open + 1; *at && *at != '>'; at += 4) {
                unsigned value = 0;
                if (sscanf(at, "\\x%2x", &value) != 1)
                    break;
                out[used++] = (char)value;
            }
            if (used == 0)
                for (at = open + 1; *at && *at != '>';)
                    out[used++] = *at++;
            at++;
        } else {
            at = open;
        }
    }
    out[used] = '\0';
    *length = used;
    return at;
}

static void note_made(const char *path, bool is_folder)
{
    int folder, child;
    char name[96];
    if (!look_up(path, &folder, name, &child) || child >= 0)
        return;
    operation *op = add(MAKE);
    op->folder = folder;
    op->node = node_count++;
    snprintf(op->name, sizeof op->name, "%s", name);
    nodes[op->node] = (node){ .is_folder = is_folder };
    apply_names(nodes, op);
}

static void note_removed(const char *path)
{
    int folder, child;
    char name[96];
    if (!look_up(path, &folder, name, &child) || child < 0)
        return;
    operation *op = add(REMOVE);
    op->folder = folder;
    op->node = child;
    snprintf(op->name, sizeof op->name, "%s", name);
    apply_names(nodes, op);
}

static void note_renamed(const char *from, const char *to)
{
    int folder, child, to_folder, old;
    char name[96], to_name[96];
    if (!look_up(from, &folder, name, &child) || !look_up(to, &to_folder, to_name, &old) || child < 0)
        return;
    operation *op = add(RENAME);
    op->folder = folder;
    op->to_folder = to_folder;
    op->node = child;
    snprintf(op->name, sizeof op->name, "%s", name);
    snprintf(op->to, sizeof op->to, "%s", to_name);
    apply_names(nodes, op);
}

static size_t lengths[MOST_NODES]; /* of files, while the trace is read: write() appends */

static void note_written(const char *path, const char *data, size_t bytes, size_t offset, bool append)
{
    int folder, child;
    char name[96];
    if (!look_up(path, &folder, name, &child) || child < 0)
        return;
    operation *op = add(WRITE);
    op->node = child;
    op->bytes = bytes;
    op->offset = append ? lengths[child] : offset;
    op->data = malloc(bytes + 1);
    memcpy(op->data, data, bytes);
    if (op->offset + bytes > lengths[child])
        lengths[child] = op->offset + bytes;
}

static void note_synced(const char *path)
{
    int folder, child;
    char name[96];
    if (look_up(path, &folder, name, &child) && child >= 0)
        add(SYNC)->node = child;
}

static void read_call(const char *call)
{
    static char first[1 << 22], second[1 << 22], third[1 << 12], fourth[1 << 12];
    char path[PATH], to[PATH];
    size_t length, bytes;
    const char *result = strrchr(call, '=');
    if (!result || result[2] == '-' || result[2] == '?')
        return;
    const char *at = strchr(call, '(') + 1;
    if (strncmp(call, "mkdir(", 6) == 0) {
        take(at, first, &length);
        note_made(first, true);
    } else if (strncmp(call, "openat(", 7) == 0) {
        at = take(at, first, &length);
        at = take(at, second, &length);
        join(first, second, path);
        if (strstr(at, "O_CREAT"))
            note_made(path, false);
    } else if (strncmp(call, "pwrite64(", 9) == 0 || strncmp(call, "write(", 6) == 0) {
        at = take(at, first, &length);
        at = take(at, second, &bytes);
        unsigned long long asked = 0, offset = 0;
        sscanf(at, ", %llu, %llu", &asked, &offset);
        note_written(first, second, (size_t)atoll(result + 2), (size_t)offset, call[0] == 'w');
    } else if (strncmp(call, "fsync(", 6) == 0 || strncmp(call, "fdatasync(", 10) == 0) {
        take(at, first, &length);
        note_synced(first);
    } else if (strncmp(call, "rename(", 7) == 0) {
        at = take(at, first, &length);
        take(at, second, &length);
        note_renamed(first, second);
    } else if (strncmp(call, "renameat(", 9) == 0 || strncmp(call, "renameat2(", 10) == 0) {
        at = take(at, first, &length);
        at = take(at, second, &length);
        at = take(at, third, &length);
        take(at, fourth, &length);
        join(first, second, path);
        join(third, fourth, to);
        note_renamed(path, to);
    } else if (strncmp(call, "unlink(", 7) == 0 || strncmp(call, "rmdir(", 6) == 0) {
        take(at, first, &length);
        note_removed(first);
    } else if (strncmp(call, "unlinkat(", 9) == 0) {
        at = take(at, first, &length);
        take(at, second, &length);
        join(first, second, path);
        note_removed(path);
    }
}

static void read_trace(const char *path)
{
    char *line = NULL;
    size_t capacity = 0;
    FILE *file = fopen(path, "r");
    if (!file)
        die("open", path);
    while (getline(&line, &capacity, file) > 0) {
        const char *call = strchr(line, ' '); /* after the time */
        if (call && strchr(call, '('))
            read_call(call + 1);
    }
    free(line);
    fclose(file);
}

/* ---- States ---------------------------------------------------------------------------------- */

static bool is_name_operation(const operation *op)
{
    return op->kind == MAKE || op->kind == RENAME || op->kind == REMOVE;
}

/* Whether a sync of the node comes after operation `from` and not after `cut`. */
static bool synced_between(int which, int from, int cut)
{
    for (int i = from + 1; i <= cut; i++) {
        if (operations[i].kind == SYNC && operations[i].node == which)
            return true;
    }
    return false;
}

/* What may or may not have reached the disk when the power went after operation `cut`. */
typedef struct open_question {
    int operation; /* whose names may be missing; -1: the bytes of a file */
    int file;
} open_question;

static int list_open(int cut, open_question open[MOST_OPEN])
{
    int count = 0;
    for (int i = 0; i <= cut && count < MOST_OPEN; i++) {
        const operation *op = &operations[i];
        if (is_name_operation(op) &&
            !(synced_between(op->folder, i, cut) && (op->to_folder < 0 || synced_between(op->to_folder, i, cut))))
            open[count++] = (open_question){ .operation = i };
        bool listed = false;
        for (int k = 0; k < count; k++)
            listed = listed || (open[k].operation < 0 && open[k].file == op->node);
        if (op->kind == WRITE && !listed && !synced_between(op->node, i, cut) && count < MOST_OPEN)
            open[count++] = (open_question){ .operation = -1, .file = op->node };
    }
    return count;
}

typedef enum fate { LOST, KEPT, ZEROS } fate; /* of names: LOST or KEPT */

static fate fate_of(const open_question *open, int count, const fate *fates, int operation_index, int file)
{
    for (int i = 0; i < count; i++) {
        if (open[i].operation == operation_index && (operation_index >= 0 || open[i].file == file))
            return fates[i];
    }
    return KEPT;
}

static void write_file(const char *path, int file, int cut, fate unsynced)
{
    FILE *out = fopen(path, "w");
    if (!out)
        die("write", path);
    for (int i = 0; i <= cut; i++) {
        const operation *op = &operations[i];
        if (op->kind != WRITE || op->node != file)
            continue;
        bool synced = synced_between(file, i, cut);
        if (!synced && unsynced == LOST)
            continue;
        fseek(out, (long)op->offset, SEEK_SET);
        for (size_t b = 0; b < op->bytes; b++)
            fputc(synced || unsynced == KEPT ? op->data[b] : 0, out);
    }
    fclose(out);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void write_tree(const node *tree, int folder, const char *path, int cut, const open_question *open, int count,
                       const fate *fates)
{
    mkdir(path, 0777);
    for (int i = 0; i < tree[folder].names; i++) {
        char inside[PATH];
        int child = tree[folder].entries[i].node;
        if (child < 0)
            continue;
        join(path, tree[folder].entries[i].name, inside);
        if (nodes[child].is_folder)
            write_tree(tree, child, inside, cut, open, count, fates);
        else
            write_file(inside, child, cut, fate_of(open, count, fates, -1, child));
    }
}

/* The last checkpoint whose name was on disk by the cut: nothing may take it away any more, but a newer one. */
static int64_t complete_at(int cut)
{
    int64_t step = -1;
    for (int i = 0; i <= cut; i++) {
        const operation *op = &operations[i];
        if (op->kind == RENAME && strncmp(op->to, "step-", 5) == 0 && !strchr(op->to, '.') &&
            synced_between(op->to_folder, i, cut) && atoll(op->to + 5) > step)
            step = atoll(op->to + 5);
    }
    return step;
}

static bool same_bits(const sl_checkpoint *given, const char *reference)
{
    char path[PATH], name[64];
    sl_checkpoint *expected = NULL;
    snprintf(name, sizeof name, "step-%08" PRId64, sl_checkpoint_step(given));
    join(reference, name, path);
    if (sl_checkpoint_open(path, true, &expected) != SL_OK)
        die("the reference", sl_error_message());
    bool same = sl_checkpoint_count(given) == sl_checkpoint_count(expected);
    for (int i = 0; same && i < sl_checkpoint_count(expected); i++) {
        const sl_tensor_entry *entry = sl_checkpoint_at(expected, i), *own = sl_checkpoint_find(given, entry->name);
        if (!own || sl_tensor_entry_compare(own, entry, &same) != SL_OK)
            same = false;
    }
    sl_checkpoint_close(expected);
    return same;
}

/* What the next run would find in the state. */
static bool check_state(const char *state, const char *reference, int cut)
{
    char folder[PATH];
    sl_checkpoint *found = NULL;
    int64_t complete = complete_at(cut), step = -1;
    join(state, "run/checkpoints", folder);
    const char *what = NULL;
    if (sl_checkpoint_open_newest(folder, &found) != SL_OK)
        what = sl_error_message();
    else if (found && !same_bits(found, reference))
        what = "the bits are not those that were written";
    step = found ? sl_checkpoint_step(found) : -1;
    if (!what && step < complete)
        what = "a complete checkpoint is lost";
    if (!what && found && sl_checkpoint_clean(folder, step) != SL_OK)
        what = sl_error_message();
    if (what)
        printf("after operation %d: found step %" PRId64 ", complete was %" PRId64 ": %s\n", cut, step, complete, what);
    sl_checkpoint_close(found);
    return !what;
}

static int states, failures;

/* One state: every open question has its answer. */
static void try_state(int cut, const open_question *open, int count, const fate *fates, const char *scratch,
                      const char *reference)
{
    static node tree[MOST_NODES];
    char state[PATH];
    memset(tree, 0, sizeof tree[0] * (size_t)node_count);
    for (int i = 0; i <= cut; i++) {
        if (fate_of(open, count, fates, i, -1) != LOST)
            apply_names(tree, &operations[i]);
    }
    join(scratch, "state", state);
    nftw(state, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    write_tree(tree, 0, state, cut, open, count, fates);
    states++;
    failures += !check_state(state, reference, cut);
}

/* All answers to the open questions, or MOST_STATES of them by chance if there are more. */
static void cut_after(int cut, const char *scratch, const char *reference)
{
    open_question open[MOST_OPEN];
    fate fates[MOST_OPEN];
    int count = list_open(cut, open);
    uint64_t total = 1;
    for (int i = 0; i < count; i++)
        total *= open[i].operation < 0 ? 3 : 2;
    for (uint64_t n = 0; n < total && n < MOST_STATES; n++) {
        uint64_t number = n;
        for (int i = 0; i < count; i++) {
            uint64_t choices = open[i].operation < 0 ? 3 : 2;
            fates[i] = (fate)(total <= MOST_STATES ? number % choices : (uint64_t)rand() % choices);
            number /= choices;
        }
        try_state(cut, open, count, fates, scratch, reference);
    }
}

static void ignore_log(void *user, sl_log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        die("usage", "power_cut LOG ROOT REFERENCE SCRATCH");
    root = argv[2];
    nodes[0] = (node){ .is_folder = true };
    sl_log_set_callback(ignore_log, NULL);
    srand(1);
    read_trace(argv[1]);
    int published = 0;
    for (int i = 0; i < operation_count; i++)
        published += operations[i].kind == RENAME && strncmp(operations[i].to, "step-", 5) == 0;
    if (operation_count < 50 || published == 0)
        die("the trace holds no run with checkpoints", argv[1]);
    for (int cut = 0; cut < operation_count && failures < 20; cut++)
        cut_after(cut, argv[4], argv[3]);
    printf("%d operations, %d states after a power cut, %d wrong\n", operation_count, states, failures);
    return failures > 0;
}
