#!/usr/bin/env bash
# Checks whether the cost of a pair of allocation and free depends on where the loader maps things: the same loop in many
# processes with random addresses, bare and recorded. Prints the median and the worst figure of each, and every run that took
# more than three times the median, with how often it walked the loader's list in the loop.
#
#   benches/layouts.sh [--runs N] [--torch] [CULEAK]     default: 100 runs, target/release/culeak
#
#   --torch   torch.empty and del on a GPU (PYTHON names the interpreter; default python3) instead of the stand-ins on a
#             driver that does nothing; lookups are counted too
# A lookup in the loop is a defect whatever the times are, so the exit code is 1 if there was one.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

runs=100 torch=""
while [ $# -gt 0 ]; do
    case $1 in
        --runs) runs=${2:?--runs needs a number}; shift 2 ;;
        --torch) torch=1; shift ;;
        -*) echo "$1: unknown option; known are --runs and --torch" >&2; exit 2 ;;
        *) break ;;
    esac
done
culeak=$(realpath "${1:-target/release/culeak}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build() { "${CC:-cc}" -O2 -pthread -D_GNU_SOURCE "$@" -ldl; }

mkdir "$work/driver" "$work/out"
build -shared -fPIC tests/victims/counts_look_ups.c -o "$work/counts.so"
if [ -n "$torch" ]; then
    cat >"$work/loop.py" <<'PYTHON'
import ctypes, time, torch
look_ups = ctypes.c_ulong.in_dll(ctypes.CDLL(None), "look_ups")
def pairs(count):
    for _ in range(count):
        tensor = torch.empty(512, device="cuda")
        del tensor
pairs(1000)
before, began = look_ups.value, time.perf_counter_ns()
pairs(20000)
print(f"{(time.perf_counter_ns() - began) / 20000:.0f} ns a pair, {look_ups.value - before} look-ups")
PYTHON
    loop=("${PYTHON:-python3}" "$work/loop.py")
else
    build -shared -fPIC -Wl,-soname,libcuda.so.1 tests/victims/tiny_driver.c -o "$work/driver/libcuda.so.1"
    build -shared -fPIC tests/victims/libc10.c -o "$work/libc10.so"
    build -shared -fPIC tests/victims/libc10_cuda.c "$work/libc10.so" "$work/driver/libcuda.so.1" -o "$work/libc10_cuda.so"
    build tests/victims/call_sites.c "$work/driver/libcuda.so.1" -o "$work/call_sites"
    loop=("$work/call_sites" tensors "$work/libc10_cuda.so")
    export LD_LIBRARY_PATH=$work/driver
fi
export CULEAK_OUTPUT=$work/out/ CULEAK_QUIET=1
shim=$("$culeak" shim-path)

# Each kind of address layout: random for every process, not random, and from the bottom up as in old kernels.
measure() { # measure NAME PRELOAD
    local run way
    for ((run = 0; run < runs; run++)); do
        case $run in
            0) way="setarch -R" ;;
            1) way="setarch -L" ;;
            *) way="" ;;
        esac
        $way env LD_PRELOAD="$2" "${loop[@]}" | sed -n "s/^\([0-9]*\) ns a pair, \([0-9]*\) look-ups/\1 \2 $run ${way:-random}/p"
        rm -f "$work"/out/*
    done >"$work/$1"
    sort -n "$work/$1" | awk -v name="$1" -v runs="$runs" '
        { ns[NR] = $1; line[NR] = $0; if ($2) walked++ }
        END {
            if (NR != runs) { printf "%s: only %d of %d runs printed a figure\n", name, NR, runs; exit 1 }
            median = ns[int((NR + 1) / 2)]
            printf "| %s | %d | %d | %d | %d |\n", name, NR, median, ns[NR], walked
            for (i = 1; i <= NR; i++) if (ns[i] > 3 * median) {
                split(line[i], of, " ")
                slow = slow sprintf("  run %s of %s (addresses: %s): %d ns a pair, %d look-ups\n", of[3], name, substr(line[i], index(line[i], of[4])), of[1], of[2])
            }
            if (slow) printf "%s", slow >"/dev/stderr"
            exit walked > 0
        }'
}
echo "| program | runs | median, ns a pair | worst | runs with look-ups in the loop |"
echo "| --- | --- | --- | --- | --- |"
failed=0
measure bare "$work/counts.so" || failed=1
measure culeak "$work/counts.so:$shim" || failed=1
exit $failed
