#!/usr/bin/env bash
# Every public header compiles on its own, as C and as C++, and sluice.h has them all.
. "$(dirname "$0")/common.bash"
cd "$SLUICE_SOURCE/include"
for header in sluice/*.h; do
    for compiler in "gcc -std=c11 -x c" "g++ -std=c++11 -x c++"; do
        # shellcheck disable=SC2086 # the words of the compiler
        echo "#include <$header>" | $compiler -I. -Wall -Wextra -Wpedantic -Werror -fsyntax-only - 2>"$err" ||
            fail "$header does not compile on its own with $compiler"
    done
    [ "$header" = sluice/sluice.h ] || grep -qF "#include <$header>" sluice/sluice.h ||
        fail "sluice.h does not include $header"
done
