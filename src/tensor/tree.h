/* Inside of trees. */
#ifndef SL_TENSOR_TREE_H
#define SL_TENSOR_TREE_H

#include <sluice/tensor.h>

struct sl_tree {
    sl_tree_kind kind;
    sl_leaf leaf;
    char *text;         /* of a leaf that is one */
    sl_tree **children; /* (count) */
    char **keys;        /* (count) of a dict, in rising order */
    int count;
    size_t child_capacity, key_capacity;
};

#endif
