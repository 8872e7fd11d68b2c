#!/usr/bin/env bash
# What an allocation and its free cost a program that does much else in between.
#
#   benches/misses.sh [CULEAK]          default: target/release/culeak; needs valgrind
#   benches/misses.sh --times [CULEAK]  only the times
#
# First the data lines that they miss, by cachegrind's model of a cache of 32 KiB (8-way) and one of 1 MiB (16-way): with warm
# caches, and with 48 KiB or 2 MiB of other memory read after each event, which leaves nothing in the first or in either of them.
# A row is the difference between a recorded and a bare run, and between 4 rounds of 500 blocks and 2, for a pair. Then times:
# with warm caches, and with 2 MiB of other memory read and 1 MiB of other code run after each event, bare and recorded by turns in one
# process.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
times_only=""
if [ "${1:-}" = --times ]; then times_only=1; shift; fi
culeak=$(realpath "${1:-target/release/culeak}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/driver"
"${CC:-cc}" -O2 -shared -fPIC -DADDRESSES_PER_THREAD -DANSWERS_IOCTL -DPLAIN_NAMES -Wl,-soname,libcuda.so.1 tests/victims/tiny_driver.c -o "$work/driver/libcuda.so.1"
"${CC:-cc}" -O1 -fno-optimize-sibling-calls benches/misses.c "$work/driver/libcuda.so.1" -o "$work/misses"
export LD_LIBRARY_PATH=$work/driver CULEAK_OUTPUT=$work/ CULEAK_QUIET=1
shim=$("$culeak" shim-path)

run() { # run ROUNDS FLUSH [NAME=VALUE…]: instructions, lines missed in the first cache, in the last one
    env "${@:3}" valgrind --tool=cachegrind --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,16,64 \
        --cachegrind-out-file=/dev/null "$work/misses" "$1" 500 "$2" 2>&1 >/dev/null |
        awk '/I +refs:/ { gsub(",", ""); i = $4 } /D1 +misses:/ { gsub(",", ""); d = $4 } /LLd misses:/ { gsub(",", ""); l = $4 } END { print i, d, l }'
}
lines() {
    local flush rounds
    echo "| other memory read after an event | instructions | data lines missed in 32 KiB | in 1 MiB |"
    echo "| --- | --- | --- | --- |"
    for flush in 0 49152 2097152; do
        for rounds in 2 4; do
            read -r "bi$rounds" "bd$rounds" "bl$rounds" < <(run "$rounds" "$flush")
            read -r "ci$rounds" "cd$rounds" "cl$rounds" < <(run "$rounds" "$flush" "LD_PRELOAD=$shim")
        done
        awk -v f="$flush" -v i="$((ci4 - ci2 - bi4 + bi2))" -v d="$((cd4 - cd2 - bd4 + bd2))" -v l="$((cl4 - cl2 - bl4 + bl2))" \
            'BEGIN { printf "| %d KiB | %.0f | %.1f | %.1f |\n", f / 1024, i / 1000, d / 1000, l / 1000 }'
    done
}

# Medians of 9 processes of each kind of recording, by turns, in nanoseconds.
times() {
    local turn between
    for turn in 1 2 3 4 5 6 7 8 9; do
        for between in "0 4096" "2097152 1048576"; do
            echo "culeak, $between, $(LD_PRELOAD="$shim" "$work/misses" 8 500 $between)"
            echo "culeak --sample 512KiB, $between, $(LD_PRELOAD="$shim" CULEAK_SAMPLE=512KiB "$work/misses" 8 500 $between)"
        done
    done >"$work/times"
    python3 - "$work/times" <<'PYTHON'
import statistics, sys
seen = {}
for line in open(sys.argv[1]):
    way, between, figures = line.strip().split(", ")
    seen.setdefault((between, way), []).append([float(figure) for figure in figures.split()])
print("| memory read and code run after an event | recording | bare: allocation, free, ns | recorded: allocation, free, ns | pair, more than bare, ns (range) |")
print("| --- | --- | --- | --- | --- |")
for (between, way), runs in sorted(seen.items()):
    flush, code = (int(word) // 1024 for word in between.split())
    bare_allocation, bare_free, allocation, free = (statistics.median(column) for column in zip(*runs))
    more = [run[2] + run[3] - run[0] - run[1] for run in runs]
    print(
        f"| {flush} KiB, {code} KiB | {way} | {bare_allocation:.0f}, {bare_free:.0f} | {allocation:.0f}, {free:.0f} | "
        f"{statistics.median(more):.0f} ({min(more):.0f} to {max(more):.0f}) |"
    )
PYTHON
}

[ -n "$times_only" ] || lines
times
