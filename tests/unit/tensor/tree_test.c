/* Trees: building, paths, flat and back, comparison. */
#include <sluice/tensor.h>

#include "support/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float memory[16];

static sl_leaf tensor(int64_t rows)
{
    sl_meta meta = sl_meta_make(SL_F32, 2, (int64_t[]){ rows, 2 });
    return sl_leaf_tensor(memory, &meta);
}

/* { kv: { key: [3, 2], value: none }, mask: [ [1, 2], 7 ], name: "rope" }, put in another order */
static sl_tree *sample(void)
{
    sl_tree *tree = NULL, *mask = NULL, *kv = NULL, *none = NULL;
    ok(sl_tree_dict(&tree));
    ok(sl_tree_put_leaf(tree, "name", sl_leaf_text("rope")));
    ok(sl_tree_list(&mask));
    ok(sl_tree_append_leaf(mask, tensor(1)));
    ok(sl_tree_append_leaf(mask, sl_leaf_int(7)));
    ok(sl_tree_put(tree, "mask", mask));
    ok(sl_tree_dict(&kv));
    ok(sl_tree_none(&none));
    ok(sl_tree_put(kv, "value", none));
    ok(sl_tree_put_leaf(kv, "key", tensor(3)));
    ok(sl_tree_put(tree, "kv", kv));
    return tree;
}

static void leaves_have_paths(void **state)
{
    (void)state;
    static const char *const paths[] = { "kv.key", "mask.0", "mask.1", "name" };
    sl_tree *tree = sample();
    sl_tree_item *items = NULL;
    int count = 0;
    ok(sl_tree_flatten(tree, NULL, &items, &count));
    assert_int_equal(count, 4);
    for (int i = 0; i < count; i++) {
        assert_string_equal(items[i].path, paths[i]);
        assert_ptr_equal(items[i].leaf, sl_tree_find_leaf(tree, paths[i]));
    }
    assert_string_equal(items[3].leaf->as.text, "rope");
    sl_free(items);
    ok(sl_tree_flatten(tree, "batch", &items, &count));
    assert_string_equal(items[1].path, "batch.mask.0");
    sl_free(items);

    assert_int_equal(sl_tree_get_kind(tree), SL_TREE_DICT);
    assert_int_equal(sl_tree_count(tree), 3);
    assert_string_equal(sl_tree_key(tree, 1), "mask");
    assert_null(sl_tree_key(sl_tree_at(tree, 1), 0));
    assert_null(sl_tree_at(tree, 3));
    assert_null(sl_tree_at(tree, -1));
    assert_ptr_equal(sl_tree_find(tree, ""), tree);
    assert_int_equal(sl_tree_get_kind(sl_tree_find(tree, "kv.value")), SL_TREE_NONE);
    assert_null(sl_tree_find_leaf(tree, "kv"));
    static const char *const nowhere[] = { "mask.2", "mask.00", "mask.01", "mask.-1",  "mask.x",          "kv.",
                                           ".kv",    "kv..key", "key",     "kv.key.0", "mask.99999999999" };
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++)
        assert_null(sl_tree_find(tree, nowhere[i]));
    sl_tree_destroy(tree);
}

static void a_single_leaf_is_a_tree(void **state)
{
    (void)state;
    sl_tree *tree = NULL;
    sl_tree_item *items = NULL;
    int count = 0;
    ok(sl_tree_leaf(sl_leaf_real(0.5), &tree));
    ok(sl_tree_flatten(tree, "rate", &items, &count));
    assert_int_equal(count, 1);
    assert_string_equal(items[0].path, "rate");
    sl_free(items);
    ok(sl_tree_flatten(tree, NULL, &items, &count));
    assert_string_equal(items[0].path, "");
    sl_free(items);
    sl_tree_destroy(tree);
    ok(sl_tree_list(&tree)); /* nothing is a list of no leaves */
    ok(sl_tree_flatten(tree, NULL, &items, &count));
    assert_int_equal(count, 0);
    sl_free(items);
    sl_tree_destroy(tree);
    sl_tree_destroy(NULL);
}

static void comes_back_from_its_leaves(void **state)
{
    (void)state;
    sl_tree *tree = sample(), *copy = NULL;
    const sl_leaf leaves[] = { tensor(5), tensor(6), sl_leaf_int(-1), sl_leaf_text("alibi") };
    says(sl_tree_unflatten(tree, leaves, 3, &copy), "3 leaves for a tree of 4");
    ok(sl_tree_unflatten(tree, leaves, 4, &copy));
    ok(sl_tree_check("copy", tree, copy));
    assert_int_equal(sl_tree_find_leaf(copy, "kv.key")->as.tensor.meta.shape.dims[0], 5);
    assert_int_equal(sl_tree_find_leaf(copy, "mask.1")->as.integer, -1);
    assert_string_equal(sl_tree_find_leaf(copy, "name")->as.text, "alibi");
    says(sl_tree_check_metas("copy", tree, copy), "copy.kv.key");
    sl_tree_destroy(copy);
    sl_tree_destroy(tree);
}

/* What is no tensor travels as one scalar. */
static void every_leaf_is_a_view_and_back(void **state)
{
    (void)state;
    int thing = 0;
    const sl_leaf leaves[] = { tensor(2), sl_leaf_int(INT64_MIN), sl_leaf_real(-0.25), sl_leaf_text("word"),
                               sl_leaf_pointer(&thing) };
    enum { COUNT = sizeof leaves / sizeof *leaves };
    sl_tree *tree = NULL;
    sl_view views[COUNT];
    ok(sl_tree_list(&tree));
    for (int i = 0; i < COUNT; i++) {
        views[i] = sl_leaf_view(&leaves[i]);
        assert_int_equal(views[i].meta.shape.rank, i == 0 ? 2 : 0);
    }
    ok(sl_tree_append_leaf(tree, tensor(9)));
    ok(sl_tree_append_leaf(tree, sl_leaf_int(0)));
    ok(sl_tree_append_leaf(tree, sl_leaf_real(0)));
    ok(sl_tree_append_leaf(tree, sl_leaf_text("")));
    ok(sl_tree_append_leaf(tree, sl_leaf_pointer(NULL)));
    ok(sl_tree_bind(tree, views, COUNT));
    assert_int_equal(sl_tree_find_leaf(tree, "0")->as.tensor.meta.shape.dims[0], 2);
    assert_true(sl_tree_find_leaf(tree, "1")->as.integer == INT64_MIN);
    assert_true(sl_tree_find_leaf(tree, "2")->as.real == -0.25);
    assert_string_equal(sl_tree_find_leaf(tree, "3")->as.text, "word");
    assert_ptr_equal(sl_tree_find_leaf(tree, "4")->as.pointer, &thing);
    views[1].data = NULL; /* as its gradient is */
    ok(sl_tree_bind(tree, views, COUNT));
    assert_true(sl_tree_find_leaf(tree, "1")->as.integer == INT64_MIN);
    says(sl_tree_bind(tree, views, 4), "4 views for a tree of 5 leaves");
    sl_view wrong[COUNT];
    memcpy(wrong, views, sizeof wrong);
    wrong[1] = views[0];
    says(sl_tree_bind(tree, wrong, COUNT), "leaf 1 is no tensor and gets f32 [2, 2]");
    sl_tree_destroy(tree);
}

static void names_what_differs(void **state)
{
    (void)state;
    sl_tree *tree = sample(), *other = sample(), *small = NULL, *list = NULL;
    ok(sl_tree_check("x", tree, other));
    ok(sl_tree_check_metas("x", tree, other));
    sl_leaf leaves[] = { tensor(3), sl_leaf_int(1), sl_leaf_int(7), sl_leaf_text("rope") };
    sl_tree *changed = NULL;
    ok(sl_tree_unflatten(tree, leaves, 4, &changed));
    says(sl_tree_check("x", tree, changed), "x.mask.0: expected a tensor, given an integer");
    sl_tree_destroy(changed);
    leaves[1] = tensor(4);
    ok(sl_tree_unflatten(tree, leaves, 4, &changed));
    ok(sl_tree_check("x", tree, changed));
    says(sl_tree_check_metas("x", tree, changed), "x.mask.0");
    ok(sl_tree_put_leaf(changed, "zero", sl_leaf_int(0)));
    says(sl_tree_check("x", tree, changed), "x: expected a dict of 3, given a dict of 4");
    sl_tree_destroy(changed);
    ok(sl_tree_dict(&small));
    ok(sl_tree_put_leaf(small, "a", sl_leaf_int(0)));
    ok(sl_tree_dict(&list));
    ok(sl_tree_put_leaf(list, "b", sl_leaf_int(0)));
    says(sl_tree_check("x", small, list), "x: expected the key 'a', given 'b'");
    says(sl_tree_check("x", tree, small), "x: expected a dict of 3, given a dict of 1");
    says(sl_tree_check("x", sl_tree_find(tree, "kv.value"), small), "x: expected none, given a dict of 1");
    sl_tree_destroy(small);
    sl_tree_destroy(list);
    sl_tree_destroy(tree);
    sl_tree_destroy(other);
}

static void refuses_what_is_no_tree(void **state)
{
    (void)state;
    sl_tree *tree = NULL, *leaf = NULL, *list = NULL;
    ok(sl_tree_dict(&tree));
    ok(sl_tree_put_leaf(tree, "a", sl_leaf_int(1)));
    says(sl_tree_put_leaf(tree, "a", sl_leaf_int(2)), "the dict has key 'a' already");
    says(sl_tree_put_leaf(tree, "", sl_leaf_int(2)), "is no key");
    says(sl_tree_put_leaf(tree, "a.b", sl_leaf_int(2)), "'a.b' is no key");
    says(sl_tree_append_leaf(tree, sl_leaf_int(2)), "is no list");
    ok(sl_tree_list(&list));
    says(sl_tree_put_leaf(list, "a", sl_leaf_int(2)), "is no dict");
    says(sl_tree_leaf(sl_leaf_text(NULL), &leaf), "a text that is NULL");
    assert_null(leaf);
    assert_int_equal(sl_tree_count(tree), 1);
    sl_tree_destroy(list);
    sl_tree_destroy(tree);
}

static void keeps_many_keys_in_order(void **state)
{
    (void)state;
    sl_tree *tree = NULL;
    sl_tree_item *items = NULL;
    int count = 0;
    ok(sl_tree_dict(&tree));
    for (int i = 0; i < 500; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%03d", i * 7 % 500);
        ok(sl_tree_put_leaf(tree, key, sl_leaf_int(i * 7 % 500)));
    }
    ok(sl_tree_flatten(tree, "deep.down", &items, &count));
    assert_int_equal(count, 500);
    for (int i = 0; i < count; i++) {
        char path[32];
        snprintf(path, sizeof path, "deep.down.k%03d", i);
        assert_string_equal(items[i].path, path);
        assert_int_equal(items[i].leaf->as.integer, i);
    }
    sl_free(items);
    sl_tree_destroy(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_have_paths),          cmocka_unit_test(a_single_leaf_is_a_tree),
        cmocka_unit_test(comes_back_from_its_leaves), cmocka_unit_test(every_leaf_is_a_view_and_back),
        cmocka_unit_test(names_what_differs),         cmocka_unit_test(refuses_what_is_no_tree),
        cmocka_unit_test(keeps_many_keys_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
