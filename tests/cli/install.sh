#!/usr/bin/env bash
# The installed tree is enough to build against, by pkg-config and by CMake, from C and C++, wherever it is moved.
. "$(dirname "$0")/common.bash"
consumer=$SLUICE_SOURCE/tests/cli/consumer

cmake --install "$SLUICE_BUILD" --prefix "$scratch/first" >"$out"
mv "$scratch/first" "$scratch/prefix"
prefix=$scratch/prefix

for file in bin/sluice lib/libsluice.so lib/cmake/sluice/sluiceConfig.cmake include/sluice/sluice.h \
    share/man/man1/sluice.1 share/bash-completion/completions/sluice share/doc/sluice/LICENSE; do
    [ -e "$prefix/$file" ] || fail "$file is not installed"
done
for command in $("$prefix/bin/sluice" --words | grep -v '^-'); do
    [ -s "$prefix/share/man/man1/sluice-$command.1" ] || fail "sluice-$command.1 is not installed"
done

# The soname is what programs are tied to; only sl_ names leave the library.
minor=$("$prefix/bin/sluice" --version | sed 's/sluice \([0-9]*\.[0-9]*\).*/\1/')
readelf -d "$prefix/lib/libsluice.so" | grep -q "SONAME.*\[libsluice.so.$minor\]" || fail "the soname is wrong"
nm -D --defined-only "$prefix/lib/libsluice.so" | awk '$3 !~ /^sl_/ { print $3 }' >"$out"
[ ! -s "$out" ] || fail "libsluice.so exports other names than sl_*"
nm -g --defined-only "$SLUICE_BUILD/src/libsluice.a" 2>/dev/null | awk 'NF == 3 && $3 !~ /^sl_/ { print $3 }' >"$out"
[ ! -s "$out" ] || fail "libsluice.a has other names than sl_* that could clash with a program's own"
comm -3 <(nm -D --defined-only "$prefix/lib/libsluice.so" | awk '{ print $3 }' | sort) \
    <({ grep -ohE '\bsl_[a-z0-9_]+\(' "$prefix"/include/sluice/*.h | tr -d '('
        sed -n 's/^SL_API extern const [a-z_]* \(.*\);/\1/p' "$prefix"/include/sluice/*.h | tr -s ', ' '\n'; } | sort -u) >"$out"
[ ! -s "$out" ] || fail "what the headers declare and what libsluice.so exports differ"

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
read -ra flags < <(pkg-config --cflags --libs sluice)
gcc -std=c11 -Wall -Wextra -Werror -o "$scratch/c" "$consumer/main.c" "${flags[@]}"
run 0 "$scratch/c"
prints "sluice $(pkg-config --modversion sluice)"
g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -o "$scratch/cxx" -x c++ "$consumer/main.c" "${flags[@]}"
run 0 "$scratch/cxx"

# The static library needs what the .pc file says with --static, and no libsluice.so.
read -ra flags < <(pkg-config --cflags --libs --static sluice)
gcc -std=c11 -o "$scratch/static" "$consumer/main.c" "${flags[@]/#-lsluice/"$SLUICE_BUILD/src/libsluice.a"}"
LD_LIBRARY_PATH='' run 0 "$scratch/static"

cmake -G Ninja -S "$consumer" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$prefix" >"$out" 2>"$err" || fail "find_package(sluice)"
cmake --build "$scratch/build" >"$out" 2>"$err" || fail "building with sluice::sluice"
unset LD_LIBRARY_PATH
run 0 "$scratch/build/consumer"
