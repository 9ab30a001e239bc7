#!/usr/bin/env bash
# The recipe "Adding an op" of docs/graph.md is true: every block of it, applied to a copy of the sources, gives an op
# that the tests of kernels, descriptions and gradients accept. Leaving a step out fails.
. "$(dirname "$0")/common.bash"

recipe=$scratch/recipe
awk '/^## / { inside = $0 == "## Adding an op" } inside' "$SLUICE_SOURCE/docs/graph.md" >"$recipe"

# apply TREE: each "In `FILE`, after `TEXT`:" (or before) puts the block below it after (before) the one line of FILE that
# has TEXT. Prints how many blocks there were.
apply() {
    awk -v root="$1" '
        function complain(why) { print file ": \"" anchor "\": " why >"/dev/stderr"; failed = 1 }
        function insert(   path, line, found, text) {
            path = root "/" file
            while ((getline line < path) > 0) {
                if (index(line, anchor)) {
                    found++
                    text = text (place == "after" ? line "\n" block : block line "\n")
                } else
                    text = text line "\n"
            }
            close(path)
            if (found != 1)
                complain("on " found + 0 " lines")
            printf "%s", text >path
            close(path)
            count++
        }
        /^In `/ {
            split($0, part, "`")
            file = part[2]
            place = part[3] ~ /before/ ? "before" : "after"
            anchor = part[4]
            waiting = 1
            next
        }
        waiting && /^```c$/ { block = ""; copying = 1; waiting = 0; next }
        copying && /^```$/ { copying = 0; insert(); next }
        copying { block = block $0 "\n" }
        END { print count + 0; exit failed }' "$recipe"
}

# build TREE: an archive of all layers up to graph and the emulation of AMX, which is what the tests need. Not optimized: it has
# to be quick.
build() {
    local tree=$1 layers tile
    layers=$(awk -F'|' '$2 ~ /^ graph $/ { gsub(/,/, " ", $3); print $3, "graph" }' "$SLUICE_SOURCE/DESIGN.md")
    [ -n "$layers" ] || fail "DESIGN.md has no row for graph"
    mkdir -p "$tree/objects"
    mkdir "$tree/src/emulated"
    for tile in tile_amx tile_amx_f32; do
        { echo '#include "support/amx/instructions.h"'; cat "$tree/src/kernel/cpu/$tile.c"; } >"$tree/src/emulated/$tile.c"
    done
    (cd "$tree" && for layer in $layers emulated; do find "src/$layer" -name '*.c'; done | grep -v -e /plugin/ -e /view/ |
        xargs -P2 -I{} bash -c '
            flags=
            case {} in
            *_avx512.c) flags="-mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma -mf16c" ;;
            *_amx.c | *_amx_f32.c | *_bf16.c)
                flags="-mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx512bf16 -mamx-tile -mamx-bf16 -mavx2 -mfma -mf16c" ;;
            *_avx2.c) flags="-mavx2 -mfma -mf16c" ;;
            esac
            name={} && name=${name//\//_}
            cc -std=c11 -D_GNU_SOURCE -DSLUICE_VERSION=\"0\" -DSLUICE_LIBDIR=\"lib\" -O0 -w $flags -Iinclude -Isrc -Itests \
                -c {} -o objects/$name.o') 2>"$err" || fail "the copy does not compile"
    ar rcs "$tree/library.a" "$tree"/objects/*.o
}

# test_of TREE NAME: compiles tests/unit/NAME.c against the copy.
test_of() {
    (cd "$1" && cc -std=c11 -D_GNU_SOURCE -O0 -w -Iinclude -Isrc -Itests -o "$(basename "$2")" "tests/unit/$2.c" \
        tests/support/{runner,amx}/*.c library.a -lcmocka $(pkg-config --libs jansson libxxhash) -lm -ldl -pthread) 2>"$err" || fail "$2 does not compile"
}

tree=$scratch/tree
mkdir -p "$tree/tests"
cp -r "$SLUICE_SOURCE"/{include,src} "$tree"
cp -r "$SLUICE_SOURCE"/tests/{unit,support} "$tree/tests"
blocks=$(apply "$tree" 2>"$err") || fail "the recipe does not fit the sources"
[ "$blocks" -ge 10 ] || fail "only $blocks blocks were found in the recipe"
build "$tree"

cases=$tree/tests/unit/kernel/cases.h
for name in 'kernel/every_op_test sqrt' 'kernel/mixed_test sqrt' op/description_test graph/ops_gradient_test; do
    read -r test op <<<"$name"
    test_of "$tree" "$test"
    run 0 "$tree/$(basename "$test")" $op
done
grep -q 'OK ] sqrt' "$err" "$out" || fail "the gradient of the new op was not tested"

# The tests notice what is missing: an op without its case, and a gradient without its own.
sed -i '/SL_OP_SQRT/d' "$cases"
sed -i '/OP(sqrt)/d' "$tree/tests/unit/graph/ops_gradient_test.c"
test_of "$tree" kernel/every_op_test
run 1 "$tree/every_op_test" sqrt
grep -q 'no case runs sqrt' "$err" "$out" || fail "a kernel without a case goes unnoticed"
test_of "$tree" graph/ops_gradient_test
run 1 "$tree/ops_gradient_test"
grep -q 'no case checks the gradient of sqrt' "$err" "$out" || fail "a gradient without a case goes unnoticed"
