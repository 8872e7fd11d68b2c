#!/usr/bin/env bash
# What one recorded event costs on a driver that does nothing: bare, recorded and a control by turns in one process, with all stacks, with
# sampled ones, and with libgcc's unwinder; and heaptrack on a malloc program of the same shape, if it is installed. Then how the cost
# scales with threads, what a new stack costs, and how many instructions an event takes.
#
#   benches/event.sh [CULEAK]          default: target/release/culeak
#   benches/event.sh --build FOLDER    only builds `event`, `stream`, `event-object`, `segment`, `malloc`, `stacks`, `count` and driver/libcuda.so.1 there
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

build() {
    mkdir -p "$1/driver"
    local driver=$1/driver/libcuda.so.1
    "${CC:-cc}" -O2 -shared -fPIC -DADDRESSES_PER_THREAD -DANSWERS_IOCTL -DPLAIN_NAMES -Wl,-soname,libcuda.so.1 tests/victims/tiny_driver.c -o "$driver"
    "${CC:-cc}" -O2 -pthread benches/event.c "$driver" -o "$1/event"
    "${CC:-cc}" -O2 -pthread -DSTREAM benches/event.c "$driver" -o "$1/stream"
    "${CC:-cc}" -O2 -pthread -DEVENT benches/event.c "$driver" -o "$1/event-object"
    "${CC:-cc}" -O2 -pthread -DSEGMENT benches/event.c "$driver" -o "$1/segment"
    "${CC:-cc}" -O2 -pthread -DMALLOC benches/event.c -o "$1/malloc"
    "${CC:-cc}" -O2 benches/stacks.c "$driver" -o "$1/stacks"
    [ "$(uname -m)" = x86_64 ] || return 0
    "${CC:-cc}" -O2 -shared -fPIC -Wl,-soname,libc10_cuda.so tests/victims/tiny_c10_cuda.c "$driver" -o "$1/driver/libc10_cuda.so"
    "${CC:-cc}" -O2 benches/count.c "$driver" "$1/driver/libc10_cuda.so" -o "$1/count"
}
if [ "${1:-}" = --build ]; then
    build "${2:?--build needs a folder}"
    exit
fi

culeak=$(realpath "${1:-target/release/culeak}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build "$work"
export LD_LIBRARY_PATH=$work/driver CULEAK_OUTPUT=$work/ CULEAK_QUIET=1
shim=$("$culeak" shim-path)

# rows NAME FRAMES THREADS COMMAND…: a line for each way of the process
rows() {
    "${@:4}" "$2" "$3" 2>/dev/null | awk -v name="$1" -v frames="$2" -v threads="$3" '
        /^WAY / { printf "| %s | %s | %s | %s | %s | %s | %s | %.2f |\n", name, frames, threads, $2, $3, $4, $5, $5 / $6; any = 1 }
        END { if (!any) printf "| %s | %s | %s | ? | ? | ? | ? | ? |\n", name, frames, threads }'
}
echo "| process | frames | threads | way | allocation, ns | free, ns | pairs a second, all threads | against one thread |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
for frames in 10 20 40; do
    rows "culeak" $frames 1 env LD_PRELOAD="$shim" "$work/event"
    rows "culeak, CULEAK_SAMPLE=512KiB" $frames 1 env LD_PRELOAD="$shim" CULEAK_SAMPLE=512KiB "$work/event"
    rows "culeak, CULEAK_UNWINDER=libgcc" $frames 1 env LD_PRELOAD="$shim" CULEAK_UNWINDER=libgcc "$work/event"
    for object in stream event-object segment; do
        rows "culeak, $object" $frames 1 env LD_PRELOAD="$shim" "$work/$object"
    done
    rows "malloc" $frames 1 "$work/malloc"
    if command -v heaptrack >/dev/null; then rows "malloc, heaptrack" $frames 1 heaptrack -o "$work/heap" "$work/malloc"; fi
done
for ((threads = 2; threads <= $(nproc); threads *= 2)); do
    rows "culeak" 20 $threads env LD_PRELOAD="$shim" "$work/event"
    rows "malloc" 20 $threads "$work/malloc"
    if command -v heaptrack >/dev/null; then rows "malloc, heaptrack" 20 $threads heaptrack -o "$work/heap" "$work/malloc"; fi
done
printf '\n%s\n' "an allocation at each of 100,000 new stacks of 22 frames:"
LD_PRELOAD="$shim" "$work/stacks" 100000 22
if [ -x "$work/count" ]; then
    printf '\n%s\n' "instructions at 20 frames, the bench's own included:"
    LD_PRELOAD="$shim" "$work/count" 20
    printf '\n%s\n' "the same of a block that sampling leaves out:"
    CULEAK_SAMPLE=1TiB LD_PRELOAD="$shim" "$work/count" 20 | head -n 4
fi
