#!/usr/bin/env bash
# What one recorded event costs on a driver that does nothing: bare, recorded, recorded with sampled stacks, and recorded with
# libgcc's unwinder; and heaptrack on a malloc program of the same shape, if it is installed. Then how the cost scales with threads, and finally how
# many instructions an event takes.
#
#   benches/event.sh [CULEAK]          default: target/release/culeak
#   benches/event.sh --build FOLDER    only builds `event`, `stream`, `event-object`, `segment`, `malloc`, `control`, `count` and driver/libcuda.so.1 there
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

build() {
    mkdir -p "$1/driver"
    "${CC:-cc}" -O2 -shared -fPIC -DADDRESSES_PER_THREAD -DANSWERS_IOCTL -Wl,-soname,libcuda.so.1 tests/victims/tiny_driver.c -o "$1/driver/libcuda.so.1"
    "${CC:-cc}" -O2 -pthread benches/event.c "$1/driver/libcuda.so.1" -o "$1/event"
    "${CC:-cc}" -O2 -pthread -DSTREAM benches/event.c "$1/driver/libcuda.so.1" -o "$1/stream"
    "${CC:-cc}" -O2 -pthread -DEVENT benches/event.c "$1/driver/libcuda.so.1" -o "$1/event-object"
    "${CC:-cc}" -O2 -pthread -DSEGMENT benches/event.c "$1/driver/libcuda.so.1" -o "$1/segment"
    "${CC:-cc}" -O2 -pthread -DMALLOC benches/event.c -o "$1/malloc"
    "${CC:-cc}" -O2 -pthread -DCONTROL benches/event.c -o "$1/control"
    [ "$(uname -m)" != x86_64 ] || "${CC:-cc}" -O2 benches/count.c "$1/driver/libcuda.so.1" -o "$1/count"
}
if [ "${1:-}" = --build ]; then
    build "${2:?--build needs a folder}"
    exit
fi

culeak=$(realpath "${1:-target/release/culeak}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build "$work"
export LD_LIBRARY_PATH=$work/driver CULEAK_OUTPUT=$work/ CULEAK_QUIET=1 CULEAK_TEST_MAJOR=1
shim=$("$culeak" shim-path)

row() { # row NAME FRAMES THREADS COMMAND…: a line of three figures, or question marks without a result
    local figures
    figures=$("${@:4}" "$2" "$3" 2>/dev/null | grep -E '^[0-9.]+ [0-9.]+ [0-9]+$' || echo "? ? ?")
    printf '| %s | %s | %s | %s | %s | %s |\n' "$1" "$2" "$3" $figures
}
echo "| program | frames | threads | allocation, ns | free, ns | pairs a second, all threads |"
echo "| --- | --- | --- | --- | --- | --- |"
for frames in 10 20 40; do
    row "bare" $frames 1 "$work/event"
    row "culeak" $frames 1 env LD_PRELOAD="$shim" "$work/event"
    row "culeak, CULEAK_SAMPLE=512KiB" $frames 1 env LD_PRELOAD="$shim" CULEAK_SAMPLE=512KiB "$work/event"
    row "culeak, CULEAK_UNWINDER=libgcc" $frames 1 env LD_PRELOAD="$shim" CULEAK_UNWINDER=libgcc "$work/event"
    for object in stream event-object segment; do
        row "$object, bare" $frames 1 "$work/$object"
        row "$object, culeak" $frames 1 env LD_PRELOAD="$shim" "$work/$object"
    done
    row "malloc, bare" $frames 1 "$work/malloc"
    command -v heaptrack >/dev/null && row "malloc, heaptrack" $frames 1 heaptrack -o "$work/heap" "$work/malloc"
done
row "control: locked additions" 20 1 "$work/control"
for ((threads = 2; threads <= $(nproc); threads *= 2)); do
    row "control: locked additions" 20 $threads "$work/control"
    row "bare" 20 $threads "$work/event"
    row "culeak" 20 $threads env LD_PRELOAD="$shim" "$work/event"
    row "malloc, bare" 20 $threads "$work/malloc"
    command -v heaptrack >/dev/null && row "malloc, heaptrack" 20 $threads heaptrack -o "$work/heap" "$work/malloc"
done
if [ -x "$work/count" ]; then
    printf '\n%s\n' "instructions at 20 frames, the bench's own included:"
    LD_PRELOAD="$shim" "$work/count" 20
    printf '\n%s\n' "the same of a block that sampling leaves out:"
    CULEAK_SAMPLE=1TiB LD_PRELOAD="$shim" "$work/count" 20 | head -n 2
fi
