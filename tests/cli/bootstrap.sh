#!/usr/bin/env bash
# ./bootstrap on a machine without the packages: installs as root or through sudo, else prints the one line to run.
. "$(dirname "$0")/common.bash"

# A machine of stubs: user $1 (a number), sudo if $2 is "sudo"; apt-get writes down what it was asked.
machine() {
    rm -rf "$scratch/bin" "$scratch/apt.log"
    mkdir "$scratch/bin"
    for tool in bash dirname env grep cat nproc; do
        ln -s "$(type -P $tool)" "$scratch/bin/$tool"
    done
    printf '#!/usr/bin/bash\necho %s\n' "$1" >"$scratch/bin/id"
    printf '#!/usr/bin/bash\nexit 1\n' >"$scratch/bin/dpkg-query"
    printf '#!/usr/bin/bash\necho "$*" >>"%s/apt.log"\n' "$scratch" >"$scratch/bin/apt-get"
    if [ "$2" = sudo ]; then
        printf '#!/usr/bin/bash\n[ "$1" = -n ] && shift\necho sudo >>"%s/apt.log"\nexec "$@"\n' "$scratch" >"$scratch/bin/sudo"
        ln -s "$(type -P true)" "$scratch/bin/true"
    fi
    chmod +x "$scratch"/bin/*
}
bootstrap() { run "$1" env -i PATH="$scratch/bin" "$SLUICE_SOURCE/bootstrap" "${@:2}"; }

machine 1000 none
for job in build demo test drill install-packages; do
    bootstrap 1 $job
    [ "$(grep -c apt-get "$err")" -eq 1 ] || fail "$job does not print exactly one apt line"
    grep -qE '^ +apt-get install -y --no-install-recommends .*\bcmake\b' "$err" || fail "$job prints no apt line"
    [ ! -e "$scratch/apt.log" ] || fail "$job ran apt-get as a plain user"
done

machine 0 none
bootstrap 0 install-packages
grep -qE '^install .*\bcmake\b.*\bclang-tidy\b' "$scratch/apt.log" || fail "root does not install the packages"

machine 1000 sudo
bootstrap 0 install-packages
grep -q '^sudo$' "$scratch/apt.log" || fail "sudo is not used"
grep -qE '^install .*\bcmake\b' "$scratch/apt.log" || fail "sudo does not install the packages"

machine 0 none
printf '#!/usr/bin/bash\nexit 100\n' >"$scratch/bin/apt-get"
bootstrap 1 build
complains "could not be installed"
grep -qE '^ +apt-get install -y --no-install-recommends .*\bcmake\b' "$err" || fail "a failed installation prints no apt line"

# The tests of a GPU from a build folder of another machine: nothing is installed, and without a GPU they are skipped.
mkdir -p "$scratch/tree/tests" "$scratch/build/tests"
cp "$SLUICE_SOURCE/bootstrap" "$scratch/tree"
cp -r "$SLUICE_SOURCE/tests/gpu" "$scratch/tree/tests"
ln -s "$SLUICE_SOURCE/tests/cli" "$SLUICE_SOURCE/tests/data" "$scratch/tree/tests"
ln -s "$SLUICE" "$scratch/build/sluice"
for code in 0 77 1; do
    printf '#!/bin/sh\necho "why"\nexit %s\n' $code >"$scratch/build/tests/gpu_code${code}_test"
    chmod +x "$scratch/build/tests/gpu_code${code}_test"
done
run 1 env SLUICE_PLUGIN_PATH=/nowhere CUDA_VISIBLE_DEVICES= "$scratch/tree/bootstrap" gpu-test "$scratch/build"
grep -qE '^gpu_code0_test +passed' "$out" || fail "a test that passes is not reported"
grep -qE '^gpu_code77_test +skipped: why' "$out" || fail "a skipped test is not reported with its reason"
grep -qE '^gpu_code1_test +FAILED' "$out" || fail "a test that fails is not reported"
[ "$(grep -cE '^(links|kill|oracle|train)\.sh +skipped: sluice eval: ' "$out")" -eq 4 ] || fail "the scripts are not skipped without a GPU"
rm "$scratch/build/tests/gpu_code1_test"
run 0 env CUDA_VISIBLE_DEVICES= "$scratch/tree/bootstrap" gpu-test "$scratch/build"
run 1 "$scratch/tree/bootstrap" gpu-test "$scratch/tree"
complains "is no build folder"

for wrong in "" frobnicate --help; do
    bootstrap 2 $wrong
    complains "usage: ./bootstrap"
done

# The test run: what the sanitizers need is built while other tests run, at a priority below everything, and whatever ends
# the run ends that build. The tools write down what they are asked; a build takes for ever.
machine 0 none
for tool in chrt mkdir pgrep rm sed setsid sleep sort xargs; do
    ln -s "$(type -P $tool)" "$scratch/bin/$tool"
done
stub() { { printf '#!/usr/bin/bash\nlog=%q\n' "$scratch/log" && cat; } >"$scratch/bin/$1" && chmod +x "$scratch/bin/$1"; }
stub dpkg-query <<<'echo "install ok installed"'
stub find <<<'exit 0'
stub clang-format <<<'exit 0'
stub clang-tidy <<<'echo "$0" >>"$log"'
stub cmake <<<'echo "cmake $*" >>"$log"'
stub ninja <<'E1'
chrt -p $$ >"$log.policy"
echo $$ >"$log.pid.${2#build/}"
exec sleep 1000
E1
stub ctest <<'E1'
echo "ctest $*" >>"$log"
case $2 in release) next=asan ;; asan) next=tsan ;; *) next= ;; esac
while [ -n "$next" ] && [ ! -s "$log.pid.$next" ]; do sleep 0.02; done
! grep -q "^$2\$" "$log.fail"
E1
ended() {
    local pid
    for pid in $(cat "$scratch"/log.pid.*); do
        ! kill -0 "$pid" 2>/dev/null || return 1
    done
}
: >"$scratch/log.fail"
run 0 env -i PATH="$scratch/bin" "$scratch/tree/bootstrap" test
sed -nE 's/^(cmake|ctest) --(preset|build --preset) ([a-z]+) .*/\1 \2 \3/p' "$scratch/log" | sed 's/ --preset//' | paste -sd, >"$out"
prints "cmake preset release,cmake build release,cmake preset asan,ctest preset release"
prints "ctest preset release,cmake preset asan,cmake build asan,cmake preset tsan,ctest preset asan"
prints "ctest preset asan,cmake preset tsan,cmake build tsan,ctest preset tsan"
grep -q SCHED_IDLE "$scratch/log.policy" || fail "the early build has a priority like the tests"
ended || fail "an early build goes on"
for preset in release asan; do
    rm "$scratch"/log*
    echo $preset >"$scratch/log.fail"
    run 1 env -i PATH="$scratch/bin" "$scratch/tree/bootstrap" test
    [ "$(tail -1 "$scratch/log" | cut -d' ' -f3)" = $preset ] || fail "it goes on after tests of $preset have failed"
    ended || fail "an early build goes on after a failed test"
done
