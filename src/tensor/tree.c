/* Trees: how they are built, looked at, and taken down. */
#include "tensor/tree.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* ---- Leaves ---------------------------------------------------------------------------------- */

sl_leaf sl_leaf_tensor(void *data, const sl_meta *meta)
{
    return (sl_leaf){ .kind = SL_LEAF_TENSOR, .as.tensor = { .data = data, .meta = *meta } };
}

sl_leaf sl_leaf_int(int64_t value)
{
    return (sl_leaf){ .kind = SL_LEAF_INT, .as.integer = value };
}

sl_leaf sl_leaf_real(double value)
{
    return (sl_leaf){ .kind = SL_LEAF_REAL, .as.real = value };
}

sl_leaf sl_leaf_text(const char *text)
{
    return (sl_leaf){ .kind = SL_LEAF_TEXT, .as.text = text };
}

sl_leaf sl_leaf_pointer(void *pointer)
{
    return (sl_leaf){ .kind = SL_LEAF_POINTER, .as.pointer = pointer };
}

_Static_assert(sizeof(void *) == sizeof(int64_t), "an address is one i64");

sl_view sl_leaf_view(const sl_leaf *leaf)
{
    if (leaf->kind == SL_LEAF_TENSOR)
        return leaf->as.tensor;
    return (sl_view){ .data = (void *)(uintptr_t)&leaf->as,
                      .meta = sl_meta_make(leaf->kind == SL_LEAF_REAL ? SL_F64 : SL_I64, 0, NULL) };
}

/* ---- Making ---------------------------------------------------------------------------------- */

static sl_status make(sl_tree_kind kind, sl_tree **out)
{
    sl_tree *tree = NULL;
    sl_status status = SL_NEW(tree);
    if (status != SL_OK)
        return status;
    tree->kind = kind;
    *out = tree;
    return SL_OK;
}

void sl_tree_destroy(sl_tree *tree)
{
    if (!tree)
        return;
    for (int i = 0; i < tree->count; i++) {
        sl_tree_destroy(tree->children[i]);
        if (tree->keys)
            sl_free(tree->keys[i]);
    }
    sl_free(tree->children);
    sl_free(tree->keys);
    sl_free(tree->text);
    sl_free(tree);
}

sl_status sl_tree_leaf(sl_leaf leaf, sl_tree **out)
{
    sl_status status = SL_OK;
    sl_tree *tree = NULL;
    if ((unsigned)leaf.kind > SL_LEAF_POINTER || (leaf.kind == SL_LEAF_TEXT && !leaf.as.text))
        return sl_fail(SL_ERR_ARGUMENT, "a leaf of no kind, or a text that is NULL");
    SL_TRY(make(SL_TREE_LEAF, &tree));
    tree->leaf = leaf;
    if (leaf.kind == SL_LEAF_TEXT) {
        SL_TRY(sl_strdup(leaf.as.text, &tree->text));
        tree->leaf.as.text = tree->text;
    }
    *out = tree;
    tree = NULL;
done:
    sl_tree_destroy(tree);
    return status;
}

sl_status sl_tree_none(sl_tree **out)
{
    return make(SL_TREE_NONE, out);
}

sl_status sl_tree_list(sl_tree **out)
{
    return make(SL_TREE_LIST, out);
}

sl_status sl_tree_dict(sl_tree **out)
{
    return make(SL_TREE_DICT, out);
}

sl_status sl_tree_append(sl_tree *list, sl_tree *child)
{
    sl_status status = SL_OK;
    if (list->kind != SL_TREE_LIST)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "append to a tree that is no list"));
    SL_TRY(SL_GROW(list->children, &list->child_capacity, list->count + 1));
    list->children[list->count++] = child;
    child = NULL;
done:
    sl_tree_destroy(child);
    return status;
}

/* The first child whose key is not before this one. */
static int place_of_key(const sl_tree *dict, const char *key)
{
    int low = 0, high = dict->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(dict->keys[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int child_of_key(const sl_tree *dict, const char *key)
{
    int place = place_of_key(dict, key);
    return place < dict->count && strcmp(dict->keys[place], key) == 0 ? place : -1;
}

sl_status sl_tree_put(sl_tree *dict, const char *key, sl_tree *child)
{
    sl_status status = SL_OK;
    char *copy = NULL;
    if (dict->kind != SL_TREE_DICT)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "key '%s' for a tree that is no dict", key));
    if (!key[0] || strchr(key, '.'))
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "'%s' is no key: it is empty or has a '.'", key));
    if (child_of_key(dict, key) >= 0)
        SL_TRY(sl_fail(SL_ERR_ARGUMENT, "the dict has key '%s' already", key));
    SL_TRY(sl_strdup(key, &copy));
    SL_TRY(SL_GROW(dict->children, &dict->child_capacity, dict->count + 1));
    SL_TRY(SL_GROW(dict->keys, &dict->key_capacity, dict->count + 1));
    int place = place_of_key(dict, key);
    size_t behind = (size_t)(dict->count - place);
    memmove(&dict->children[place + 1], &dict->children[place], behind * sizeof(*dict->children));
    memmove(&dict->keys[place + 1], &dict->keys[place], behind * sizeof(*dict->keys));
    dict->children[place] = child;
    dict->keys[place] = copy;
    dict->count++;
    child = NULL;
    copy = NULL;
done:
    sl_free(copy);
    sl_tree_destroy(child);
    return status;
}

sl_status sl_tree_append_leaf(sl_tree *list, sl_leaf leaf)
{
    sl_tree *child = NULL;
    sl_status status = sl_tree_leaf(leaf, &child);
    return status == SL_OK ? sl_tree_append(list, child) : status;
}

sl_status sl_tree_put_leaf(sl_tree *dict, const char *key, sl_leaf leaf)
{
    sl_tree *child = NULL;
    sl_status status = sl_tree_leaf(leaf, &child);
    return status == SL_OK ? sl_tree_put(dict, key, child) : status;
}

/* ---- Looking --------------------------------------------------------------------------------- */

sl_tree_kind sl_tree_get_kind(const sl_tree *tree)
{
    return tree->kind;
}

int sl_tree_count(const sl_tree *tree)
{
    return tree->count;
}

const sl_tree *sl_tree_at(const sl_tree *tree, int index)
{
    return index >= 0 && index < tree->count ? tree->children[index] : NULL;
}

const char *sl_tree_key(const sl_tree *tree, int index)
{
    return tree->keys && index >= 0 && index < tree->count ? tree->keys[index] : NULL;
}

/* The child that the first `length` characters of path name; NULL: none. */
static const sl_tree *child_named(const sl_tree *tree, const char *path, size_t length)
{
    char name[128];
    int64_t index;
    if (length == 0 || length >= sizeof name)
        return NULL;
    memcpy(name, path, length);
    name[length] = '\0';
    if (tree->kind == SL_TREE_DICT)
        return sl_tree_at(tree, child_of_key(tree, name));
    if (tree->kind != SL_TREE_LIST || strspn(name, "0123456789") != length || length > 9)
        return NULL;
    index = strtol(name, NULL, 10);
    return (name[0] == '0') == (length == 1 && index == 0) ? sl_tree_at(tree, (int)index) : NULL;
}

const sl_tree *sl_tree_find(const sl_tree *tree, const char *path)
{
    while (tree && path[0]) {
        size_t length = strcspn(path, ".");
        tree = child_named(tree, path, length);
        path += length;
        if (path[0] == '.' && path[1] == '\0')
            return NULL;
        path += path[0] == '.';
    }
    return tree;
}

const sl_leaf *sl_tree_find_leaf(const sl_tree *tree, const char *path)
{
    const sl_tree *found = sl_tree_find(tree, path);
    return found && found->kind == SL_TREE_LEAF ? &found->leaf : NULL;
}
