#!/usr/bin/env bash
# Builds everything for aarch64 and runs the tests of .ci/run that need no other program, in an emulator with signed return
# addresses (PAC), landing pads (BTI) and the atomics of current processors. No aarch64 machine is needed:
#
#   tests/aarch64/run.sh [STEP ...]      # build, gate, demo, crates, claims; by default all of them
#
# `claims` is tests/main.rs without the tests in not-run.txt, and takes most of the time: about three seconds each.
# Needs root on a Debian or Ubuntu machine with Rust from rustup, Linux 6.7 or newer, and a network. The emulated machine
# is made once, in cargo's target folder (or CULEAK_AARCH64).
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
here=$PWD/tests/aarch64
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
machine=$(realpath -m "${CULEAK_AARCH64:-$target/aarch64-machine}")

command -v aarch64-linux-gnu-g++ mmdebstrap unshare >/dev/null || {
    apt-get update -q
    apt-get install -qy --no-install-recommends debian-archive-keyring g++-aarch64-linux-gnu libc6-dev-arm64-cross \
        mmdebstrap util-linux
}
rustup target add aarch64-unknown-linux-gnu
[ -e "$machine/complete" ] || { rm -rf "$machine"; "$here/prepare.sh" "$machine"; }

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$here/inside.sh $machine"
# Debug information of all crates would be most of what the emulator reads; the names that the demo needs remain.
export CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0
options=(--locked --target aarch64-unknown-linux-gnu)
features=(--features culeak-cli/full)
culeak=$target/aarch64-unknown-linux-gnu/debug/culeak

build() {
    cargo build "${options[@]}" "${features[@]}" -p culeak-cli
}

gate() {
    "$here/inside.sh" "$machine" bash -c 'exec tests/gate.sh "$("$0" shim-path)"' "$culeak"
}

demo() {
    "$here/inside.sh" "$machine" "$culeak" demo
}

# The emulator handles system calls with bad addresses and signal frames in its own way.
crates() {
    cargo test "${options[@]}" -p culeak-elf -p culeak -p culeak-cpython --lib
    cargo test "${options[@]}" -p culeak-walker --lib -- --skip unreadable_memory_is_an_error --skip the_fallback_reads
    cargo test "${options[@]}" -p culeak-walker --test aarch64 --test read_sets
    cargo test "${options[@]}" -p culeak-walker --test oracle -- a_fiber a_full_slice a_hundred a_thread the_first
    cargo test "${options[@]}" -p culeak-walker --test closing -- two_threads during_a_close
}

claims() {
    local skipped=() name
    while read -r name _; do
        [[ $name == '#'* || -z $name ]] || skipped+=(--skip "$name")
    done <"$here/not-run.txt"
    cargo test "${options[@]}" "${features[@]}" -p culeak-cli --test main -- "${skipped[@]}"
}

[ $# -gt 0 ] || set -- build gate demo crates claims
for step; do
    printf '\n== aarch64: %s\n' "$step"
    "$step"
done
