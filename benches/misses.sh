#!/usr/bin/env bash
# How many cache lines an allocation and its free miss, by cachegrind's model of a cache of 32 KiB (8-way) and one of 1 MiB (16-way): with
# warm caches, and with 48 KiB or 2 MiB of other memory read after each event, which leaves nothing in the first or in either of them.
#
#   benches/misses.sh [CULEAK]          default: target/release/culeak; needs valgrind
#
# A row is the difference between a recorded and a bare run, and between 4 rounds of 500 blocks and 2, for a pair.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
culeak=$(realpath "${1:-target/release/culeak}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/driver"
"${CC:-cc}" -O2 -shared -fPIC -DADDRESSES_PER_THREAD -DANSWERS_IOCTL -Wl,-soname,libcuda.so.1 tests/victims/tiny_driver.c -o "$work/driver/libcuda.so.1"
"${CC:-cc}" -O1 -fno-optimize-sibling-calls benches/misses.c "$work/driver/libcuda.so.1" -o "$work/misses"
export LD_LIBRARY_PATH=$work/driver CULEAK_OUTPUT=$work/ CULEAK_QUIET=1
shim=$("$culeak" shim-path)

run() { # run ROUNDS FLUSH [NAME=VALUE…]: instructions, lines missed in the first cache, in the last one
    env "${@:3}" valgrind --tool=cachegrind --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,16,64 \
        --cachegrind-out-file=/dev/null "$work/misses" "$1" 500 "$2" 2>&1 >/dev/null |
        awk '/I +refs:/ { gsub(",", ""); i = $4 } /D1 +misses:/ { gsub(",", ""); d = $4 } /LLd misses:/ { gsub(",", ""); l = $4 } END { print i, d, l }'
}
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
