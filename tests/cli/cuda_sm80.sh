#!/usr/bin/env bash
# The kernels for GPUs compile for sm_80, too: `./bootstrap test` builds the module for sm_90a alone. Here are those with
# instructions or code of one architecture (of a header that most include, one of its users), with SLUICE_TEST_FULL all.
# Hardly optimized, as nothing runs them.
. "$(dirname "$0")/common.bash"
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "$SLUICE_BUILD/CMakeCache.txt")
if [ -z "$nvcc" ] || [ ! -f "$SLUICE_BUILD/libsluice_cuda.so" ]; then
    echo "SKIPPED: the CUDA module was not built" >&2
    exit 77
fi
cd "$SLUICE_SOURCE"

# users FILE: the kernels that are in it, or include it.
users() {
    local files=$1 header found
    for _ in 1 2 3; do
        found=$files
        for header in $found; do
            files+=$'\n'$(grep -lF "#include \"${header#src/}\"" src/cuda/*.cu src/cuda/*.cuh || true)
        done
        files=$(sort -u <<<"$files")
    done
    grep '\.cu$' <<<"$files"
}
if [ -n "${SLUICE_TEST_FULL:-}" ]; then
    files=$(ls src/cuda/*.cu)
else
    files=$(for file in $(grep -lwE 'asm|__CUDA_ARCH__' src/cuda/*.cu src/cuda/*.cuh); do
        found=$(users "$file")
        if [ "$(wc -l <<<"$found")" -le 4 ]; then echo "$found"; else head -1 <<<"$found"; fi
    done | sort -u)
fi
grep -q attention_mma.cu <<<"$files" || fail "the kernels with instructions of their own were not found"
for file in $files; do
    run 0 "$nvcc" -std=c++17 --fmad=false -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wshadow,-Werror -D_GNU_SOURCE \
        -Iinclude -Isrc -arch=sm_80 -Xcicc -O1 -Xptxas -O0 -cubin -o "$scratch/cubin" "$file"
done
echo "compiled for sm_80: $files"

# An instruction that sm_80 lacks does not pass.
cat >"$scratch/newer.cu" <<'END'
__global__ void newer(void) { asm volatile("fence.proxy.async;"); }
END
run 255 "$nvcc" -arch=sm_80 -Xcicc -O1 -Xptxas -O0 -cubin -o "$scratch/cubin" "$scratch/newer.cu"
complains 'sm_90'
