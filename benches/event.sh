#!/usr/bin/env bash
# What one recorded event costs on a driver that does nothing: bare, recorded, and recorded with libgcc's unwinder; and
# heaptrack on the same shape of malloc program, where it is installed. Medians of 15 repeats of 20,000 events, ns.
#
#   benches/event.sh [CULEAK]      default: target/release/culeak
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
culeak=$(realpath "${1:-target/release/culeak}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/driver"
cc -O2 -shared -fPIC -Wl,-soname,libcuda.so.1 tests/victims/tiny_driver.c -o "$work/driver/libcuda.so.1"
cc -O2 benches/event.c "$work/driver/libcuda.so.1" -o "$work/event"
cc -O2 -DMALLOC benches/event.c -o "$work/malloc"
export LD_LIBRARY_PATH=$work/driver CULEAK_OUTPUT=$work/ CULEAK_QUIET=1
shim=$("$culeak" shim-path)

row() { # row NAME DEPTH COMMAND…
    local figures
    figures=$("${@:3}" 2>/dev/null | tail -n 1)
    printf '| %s | %s | %s | %s |\n' "$1" "$2" ${figures:-? ?}
}
echo "| program | frames | allocation, ns | free, ns |"
echo "| --- | --- | --- | --- |"
for frames in 10 20 40; do
    row "bare" $frames "$work/event" $frames
    row "culeak" $frames env LD_PRELOAD="$shim" "$work/event" $frames
    row "culeak, CULEAK_UNWINDER=libgcc" $frames env LD_PRELOAD="$shim" CULEAK_UNWINDER=libgcc "$work/event" $frames
    row "malloc, bare" $frames "$work/malloc" $frames
    if command -v heaptrack >/dev/null; then
        row "malloc, heaptrack" $frames sh -c "heaptrack -o $work/heap $work/malloc $frames | grep -E '^[0-9]+ [0-9]+$'"
    fi
done
