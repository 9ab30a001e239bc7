#!/usr/bin/env bash
# The library inside a program of somebody else's: C++, threads, a locale whose numbers have commas.
. "$(dirname "$0")/common.bash"

# A locale with a decimal comma and otherwise nothing, so that none needs to be installed.
{
    printf '<code_set_name> ASCII\n<comment_char> %%\n<escape_char> /\n<mb_cur_min> 1\n<mb_cur_max> 1\nCHARMAP\n'
    for code in {0..127}; do printf '<U%04X> /x%02x c%d\n' "$code" "$code" "$code"; done
    echo 'END CHARMAP'
} >"$scratch/charmap"
printf 'LC_NUMERIC\ndecimal_point ","\nthousands_sep ""\ngrouping -1\nEND LC_NUMERIC\n' >"$scratch/source"
localedef -c -f "$scratch/charmap" -i "$scratch/source" "$scratch/comma" >"$out" 2>"$err" || true # warns of what is not in it

g++ -std=c++17 -O1 -Wall -Wextra -Wpedantic -Werror -I"$SLUICE_SOURCE/include" -o "$scratch/host" \
    "$SLUICE_SOURCE/tests/cli/consumer/host.cc" -L"$SLUICE_BUILD/src" -lsluice -pthread -Wl,-rpath,"$SLUICE_BUILD/src"
mkdir "$scratch/files"
run 0 timeout 120 env -u LC_ALL LOCPATH="$scratch" "$scratch/host" "$scratch/files"
silent
