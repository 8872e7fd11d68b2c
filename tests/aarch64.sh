#!/usr/bin/env bash
# The preload library built for aarch64, and its walker compared with libgcc in an emulator: as far as one gets without
# such a machine. What the emulator does otherwise than Linux is left out: signal frames, system calls given bad
# addresses, and where libraries are loaded again. Takes some minutes. Needs rustup; installs a nightly toolchain with
# its sources, cross compilers and qemu.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

command -v aarch64-linux-gnu-g++ qemu-aarch64 >/dev/null || {
    apt-get update -q
    apt-get install -qy --no-install-recommends g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
}
rustup toolchain install nightly --profile minimal --component rust-src >/dev/null

export CARGO_TARGET_DIR=target/aarch64 CROSS_COMPILE=aarch64-linux-gnu-
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu"
TARGET=(--target aarch64-unknown-linux-gnu --locked)

CARGO_PROFILE_DEV_PANIC=abort cargo +nightly build -Zbuild-std=std,panic_abort "${TARGET[@]}" -p culeak-shim
for names in \
    "--lib -- --skip unreadable_memory_is_an_error --skip the_fallback_reads" \
    "--test trail" \
    "--test oracle -- a_fiber a_full_slice a_hundred a_thread the_first" \
    "--test closing -- two_threads during_a_close"; do
    # shellcheck disable=SC2086 # several words
    cargo +nightly test -Zbuild-std=std,panic_abort,panic_unwind "${TARGET[@]}" -p culeak-walker $names
done
