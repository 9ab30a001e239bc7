#!/usr/bin/env bash
# A name stands for one thing: no two types of the library share one, also across folders and if they are private to a
# file.
. "$(dirname "$0")/common.bash"

# types ROOT: "name file:line" for each type that is defined with a body, or as another name of a type.
types() {
    (cd "$1" && find src include -name '*.[ch]' -print0 | xargs -0 awk '
        function found(name) { print name, FILENAME ":" FNR }
        { sub(/[ \t]*\/\*.*/, ""); sub(/SL_NAMED_FIELDS /, "") }
        /^(typedef )?(struct|union|enum) [A-Za-z_0-9]+ *\{/ { sub(/^typedef /, ""); split($0, word, /[ {]+/); found(word[2]); next }
        /^typedef .*\(\*[a-z_0-9]+\)/ { match($0, /\(\*[a-z_0-9]+\)/); found(substr($0, RSTART + 2, RLENGTH - 3)); next }
        /^typedef (struct|union|enum) ([A-Za-z_0-9]+) \2;$/ { next }
        /^typedef .*;$/ {
            count = split($0, word, /[ *;]+/)
            if (!(word[2] ~ /^(struct|union|enum)$/ && word[3] == word[count - 1])) found(word[count - 1])
        }')
}

# Defined more than once by intent: one name for the vectors of each instruction set, of which a file includes one; and
# what lies behind the interface of a transport, which each transport defines for itself.
shared='^(vf|vi|vd|vm) src/kernel/cpu/simd/|^sl_wire src/comm/'

doubles() {
    types "$1" | grep -vE "$shared" | sort | awk '$1 == last { print $1 ": " at ", " $2 } { last = $1; at = $2 }'
}

# The check itself.
mkdir -p "$scratch"/bad/{src/{a,b},include/sluice}
cat >"$scratch/bad/src/a/one.h" <<'EOF'
typedef struct sl_twice {
    int x;
} sl_twice;
typedef struct sl_opaque sl_opaque;
typedef enum sl_kind { SL_KIND_A } sl_kind;
typedef void (*sl_call)(int x);
EOF
cat >"$scratch/bad/src/b/two.c" <<'EOF'
struct sl_opaque { /* the body of what a header declares */
    int x;
};
struct SL_NAMED_FIELDS sl_twice {
    int y;
};
typedef unsigned sl_kind;
typedef int (*sl_call)(void);
EOF
doubles "$scratch/bad" >"$out"
diff - "$out" >"$err" <<'EOF' || fail "the doubles of the sample tree are not the expected ones"
sl_call: src/a/one.h:6, src/b/two.c:8
sl_kind: src/a/one.h:5, src/b/two.c:7
sl_twice: src/a/one.h:1, src/b/two.c:4
EOF

types "$SLUICE_SOURCE" >"$scratch/types"
grep -q '^sl_schedule src/' "$scratch/types" || fail "the types of the library were not found"
doubles "$SLUICE_SOURCE" >"$out"
[ ! -s "$out" ] || fail "types of the same name"
