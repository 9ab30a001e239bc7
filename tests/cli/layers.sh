#!/usr/bin/env bash
# Holds the layers: reads the table "May include" of DESIGN.md and fails if an include reaches up or sideways.
. "$(dirname "$0")/common.bash"

# layers DESIGN.md: "layer allowed allowed ..." a line.
layers() {
    awk -F'|' '/^\| layer \| may include/ { table = 1; next }
               table && !/^\|/ { exit }
               table && !/^\|-/ { gsub(/[`,]/, " "); print $2, $3 }' "$1"
}

# violations ROOT LAYERS: prints "file:line: include: why" for each include that breaks the layers.
violations() {
    (cd "$1" && find src include tools bench -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null |
        xargs -0 -r grep -HnE '^[[:space:]]*#[[:space:]]*include' /dev/null) |
        awk -v layers="$2" -v root="$1" '
        BEGIN {
            while ((getline line < layers) > 0) {
                n = split(line, word, " ")
                known[word[1]] = 1
                for (i = 1; i <= n; i++)
                    allowed[word[1], word[i]] = 1
            }
        }
        function complain(why) { print file ":" number ": " include ": " why }
        function exists(path,   line, found) {
            found = (getline line < path) >= 0
            close(path)
            return found
        }
        {
            file = $0; sub(/:.*/, "", file)
            number = $0; sub(/^[^:]*:/, "", number); sub(/:.*/, "", number)
            include = $0; sub(/^[^:]*:[^:]*:[ \t]*/, "", include); sub(/[ \t]*(\/[*\/].*)?$/, "", include)
            split(file, part, "/")
            from = part[1] == "src" ? part[2] : part[1] == "include" ? part[3] : part[1]
            sub(/\.h$/, "", from)
            if (file == "include/sluice/sluice.h")
                next
            if (!(from in known)) {
                complain("DESIGN.md does not know the layer " from)
                next
            }
            if (match(include, /[<"][^>"]*/) == 0)
                next
            target = substr(include, RSTART + 1, RLENGTH - 1)
            quoted = substr(include, RSTART, 1) == "\""
            if (target ~ /^\.\.?\//) { complain("write the path from src/"); next }
            if (target ~ /^sluice\//) {
                to = target; sub(/^sluice\//, "", to); sub(/\.h$/, "", to)
                if (to == "sluice") {
                    if (from != "tools") complain("sluice.h is every layer at once")
                    next
                }
            } else if (quoted) {
                split(target, step, "/")
                to = step[1]
                folder = file; sub(/[^\/]*$/, "", folder)
                if (exists(root "/" folder target))
                    next # beside the file
            } else
                next # the system
            if (!(to in known)) complain("DESIGN.md does not know the layer " to)
            else if (from == "tools" && quoted && to != "base" && !(file ~ /\/ranks\.c$/ && to == "comm"))
                complain("the program is written on public headers")
            else if (!((from, to) in allowed)) complain(from " may not include " to)
        }'
}

layers "$SLUICE_SOURCE/DESIGN.md" >"$scratch/layers"
grep -q '^ *schedule *base *$' "$scratch/layers" || fail "the table of DESIGN.md was not understood"

# The check itself: a tree with one offence of each sort and one of each thing that is allowed.
mkdir -p "$scratch"/bad/{src/{base,device,comm,schedule,novel},include/sluice,tools/sluice,bench}
cd "$scratch/bad"
echo '#include "device/device.h"' >src/base/up.c
echo '#  include "comm/comm.h" // sideways' >src/schedule/sideways.c
echo '#include <sluice/schedule.h>' >include/sluice/comm.h
echo '#include "../base/alloc.h"' >src/device/dots.c
echo '#include <sluice/sluice.h>' >src/device/all.c
echo '#include "base/alloc.h"' >src/novel/new.c
echo '#include "elsewhere/x.h"' >src/device/unknown.c
touch src/comm/comm.h src/schedule/grid.h tools/sluice/command.h
printf '#include "base/alloc.h"\n#include <stdio.h>\n#include <sluice/base.h>\n#include "schedule/grid.h"\n' >src/schedule/good.c
printf '#include "command.h"\n#include <sluice/sluice.h>\n#include "base/alloc.h"\n' >tools/sluice/good.c
echo '#include "comm/comm.h"' >tools/sluice/ranks.c
echo '#include "schedule/grid.h"' >tools/sluice/private.c
printf '#include "tools/sluice/command.h"\n#include "schedule/grid.h"\n' >bench/good.c
echo '#include "bench/bench.h"' >tools/sluice/up.c
cat >"$scratch/expected" <<'EOF'
include/sluice/comm.h:1: #include <sluice/schedule.h>: comm may not include schedule
src/base/up.c:1: #include "device/device.h": base may not include device
src/device/all.c:1: #include <sluice/sluice.h>: sluice.h is every layer at once
src/device/dots.c:1: #include "../base/alloc.h": write the path from src/
src/device/unknown.c:1: #include "elsewhere/x.h": DESIGN.md does not know the layer elsewhere
src/novel/new.c:1: #include "base/alloc.h": DESIGN.md does not know the layer novel
src/schedule/sideways.c:1: #  include "comm/comm.h": schedule may not include comm
tools/sluice/private.c:1: #include "schedule/grid.h": the program is written on public headers
tools/sluice/up.c:1: #include "bench/bench.h": the program is written on public headers
EOF
violations "$scratch/bad" "$scratch/layers" | sort >"$out"
diff "$scratch/expected" "$out" >"$err" || fail "the offences of the sample tree are not the expected ones"

violations "$SLUICE_SOURCE" "$scratch/layers" >"$out"
[ ! -s "$out" ] || fail "includes that break the layers of DESIGN.md"
