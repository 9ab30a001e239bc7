/* Trees: their leaves in order with paths, and back; comparison of structures. */
#include "tensor/tree.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

/* ---- Walk ------------------------------------------------------------------------------------ */

/* The path of the node that is being looked at; grows and shrinks with the walk. */
typedef struct tree_path {
    char *text;
    size_t length, capacity;
} tree_path;

/* Adds a step (the key, or the number of a list's child); *before is what to go back to. */
static sl_status path_enter(tree_path *path, const sl_tree *tree, int index, size_t *before)
{
    char number[16];
    const char *step = tree->keys ? tree->keys[index] : number;
    snprintf(number, sizeof number, "%d", index);
    size_t length = strlen(step);
    sl_status status = SL_GROW(path->text, &path->capacity, path->length + length + 2);
    if (status != SL_OK)
        return status;
    *before = path->length;
    if (path->length > 0)
        path->text[path->length++] = '.';
    memcpy(path->text + path->length, step, length + 1);
    path->length += length;
    return SL_OK;
}

static void path_leave(tree_path *path, size_t before)
{
    path->length = before;
    path->text[before] = '\0';
}

static sl_status path_start(tree_path *path, const char *prefix)
{
    size_t length = prefix ? strlen(prefix) : 0;
    sl_status status = SL_GROW(path->text, &path->capacity, length + 1);
    if (status != SL_OK)
        return status;
    memcpy(path->text, prefix ? prefix : "", length + 1);
    path->length = length;
    return SL_OK;
}

/* ---- Flat ------------------------------------------------------------------------------------ */

/* How many leaves there are, and how long their paths are together. */
typedef struct tree_size {
    int leaves;
    size_t characters;
} tree_size;

static void measure_tree(const sl_tree *tree, size_t length, tree_size *size)
{
    if (tree->kind == SL_TREE_LEAF) {
        size->leaves++;
        size->characters += length + 1;
    }
    for (int i = 0; i < tree->count; i++)
        measure_tree(tree->children[i], length + 1 + (tree->keys ? strlen(tree->keys[i]) : 10), size);
}

typedef struct flattening {
    tree_path path;
    sl_tree_item *items;
    int count;
    char *room; /* for the next path */
} flattening;

static sl_status flatten(const sl_tree *tree, flattening *self)
{
    sl_status status = SL_OK;
    if (tree->kind == SL_TREE_LEAF) {
        memcpy(self->room, self->path.text, self->path.length + 1);
        self->items[self->count++] = (sl_tree_item){ .path = self->room, .leaf = &tree->leaf };
        self->room += self->path.length + 1;
    }
    for (int i = 0; i < tree->count; i++) {
        size_t before;
        SL_TRY(path_enter(&self->path, tree, i, &before));
        SL_TRY(flatten(tree->children[i], self));
        path_leave(&self->path, before);
    }
done:
    return status;
}

sl_status sl_tree_flatten(const sl_tree *tree, const char *prefix, sl_tree_item **out, int *count)
{
    sl_status status = SL_OK;
    tree_size size = { 0 };
    flattening self = { .count = 0 };
    char *block = NULL;

    measure_tree(tree, prefix ? strlen(prefix) : 0, &size);
    SL_TRY(SL_NEW_ARRAY(block, (size_t)size.leaves * sizeof *self.items + size.characters));
    self.items = (sl_tree_item *)(void *)block;
    self.room = block + (size_t)size.leaves * sizeof *self.items;
    SL_TRY(path_start(&self.path, prefix));
    SL_TRY(flatten(tree, &self));
    *out = self.items;
    *count = self.count;
    block = NULL;
done:
    sl_free(self.path.text);
    sl_free(block);
    return status;
}

/* ---- And back -------------------------------------------------------------------------------- */

static int count_leaves(const sl_tree *tree)
{
    tree_size size = { 0 };
    measure_tree(tree, 0, &size);
    return size.leaves;
}

static sl_status copy_tree(const sl_tree *structure, const sl_leaf **leaves, sl_tree **out)
{
    sl_status status = SL_OK;
    sl_tree *tree = NULL, *child = NULL;
    if (structure->kind == SL_TREE_LEAF)
        return sl_tree_leaf(*(*leaves)++, out);
    if (structure->kind == SL_TREE_NONE)
        return sl_tree_none(out);
    SL_TRY(structure->kind == SL_TREE_LIST ? sl_tree_list(&tree) : sl_tree_dict(&tree));
    for (int i = 0; i < structure->count; i++) {
        SL_TRY(copy_tree(structure->children[i], leaves, &child));
        SL_TRY(structure->keys ? sl_tree_put(tree, structure->keys[i], child) : sl_tree_append(tree, child));
    }
    *out = tree;
    tree = NULL;
done:
    sl_tree_destroy(tree);
    return status;
}

sl_status sl_tree_unflatten(const sl_tree *structure, const sl_leaf *leaves, int count, sl_tree **out)
{
    int wanted = count_leaves(structure);
    if (count != wanted)
        return sl_fail(SL_ERR_ARGUMENT, "%d leaves for a tree of %d", count, wanted);
    return copy_tree(structure, &leaves, out);
}

static sl_status bind_leaf(sl_leaf *leaf, const sl_view *view, int index)
{
    const sl_meta scalar = sl_leaf_view(leaf).meta;
    if (leaf->kind == SL_LEAF_TENSOR) {
        leaf->as.tensor = *view;
        return SL_OK;
    }
    if (!sl_meta_equal(&scalar, &view->meta)) {
        char text[128];
        return sl_fail(SL_ERR_SHAPE, "leaf %d is no tensor and gets %s", index,
                       sl_meta_text(&view->meta, text, sizeof text));
    }
    if (view->data)
        memcpy(&leaf->as, view->data, sl_meta_bytes(&scalar));
    return SL_OK;
}

static sl_status bind_tree(sl_tree *tree, const sl_view *views, int *index)
{
    sl_status status = SL_OK;
    if (tree->kind == SL_TREE_LEAF) {
        SL_TRY(bind_leaf(&tree->leaf, &views[*index], *index));
        ++*index;
    }
    for (int i = 0; i < tree->count; i++)
        SL_TRY(bind_tree(tree->children[i], views, index));
done:
    return status;
}

sl_status sl_tree_bind(sl_tree *tree, const sl_view *views, int count)
{
    int wanted = count_leaves(tree), index = 0;
    if (count != wanted)
        return sl_fail(SL_ERR_ARGUMENT, "%d views for a tree of %d leaves", count, wanted);
    return bind_tree(tree, views, &index);
}

/* ---- Comparison ------------------------------------------------------------------------------ */

/* What the node is, for messages. */
static const char *node_text(const sl_tree *tree, char *text, size_t size)
{
    static const char *const leaves[] = { "a tensor", "an integer", "a real number", "a text", "a pointer" };
    switch (tree->kind) {
    case SL_TREE_NONE:
        return "none";
    case SL_TREE_LEAF:
        return leaves[tree->leaf.kind];
    default:
        snprintf(text, size, "a %s of %d", tree->kind == SL_TREE_LIST ? "list" : "dict", tree->count);
        return text;
    }
}

static sl_status differ(const tree_path *path, const sl_tree *expected, const sl_tree *given)
{
    char a[32], b[32];
    return sl_fail(SL_ERR_SHAPE, "%s: expected %s, given %s", path->text, node_text(expected, a, sizeof a),
                   node_text(given, b, sizeof b));
}

static sl_status compare_nodes(const sl_tree *expected, const sl_tree *given, bool metas, tree_path *path)
{
    sl_status status = SL_OK;
    bool leaf = expected->kind == SL_TREE_LEAF;
    if (expected->kind != given->kind || expected->count != given->count ||
        (leaf && expected->leaf.kind != given->leaf.kind))
        return differ(path, expected, given);
    if (leaf && metas && expected->leaf.kind == SL_LEAF_TENSOR)
        return sl_meta_check(path->text, &expected->leaf.as.tensor.meta, &given->leaf.as.tensor.meta);
    for (int i = 0; i < expected->count; i++) {
        size_t before;
        if (expected->keys && strcmp(expected->keys[i], given->keys[i]) != 0)
            return sl_fail(SL_ERR_SHAPE, "%s: expected the key '%s', given '%s'", path->text, expected->keys[i],
                           given->keys[i]);
        SL_TRY(path_enter(path, expected, i, &before));
        SL_TRY(compare_nodes(expected->children[i], given->children[i], metas, path));
        path_leave(path, before);
    }
done:
    return status;
}

static sl_status compare_trees(const char *what, const sl_tree *expected, const sl_tree *given, bool metas)
{
    sl_status status = SL_OK;
    tree_path path = { 0 };
    SL_TRY(path_start(&path, what));
    SL_TRY(compare_nodes(expected, given, metas, &path));
done:
    sl_free(path.text);
    return status;
}

sl_status sl_tree_check(const char *what, const sl_tree *expected, const sl_tree *given)
{
    return compare_trees(what, expected, given, false);
}

sl_status sl_tree_check_metas(const char *what, const sl_tree *expected, const sl_tree *given)
{
    return compare_trees(what, expected, given, true);
}
