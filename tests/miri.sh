#!/usr/bin/env bash
# The lock-free parts in Miri: every access is checked, including races and weak memory. Takes a minute or two. Needs the
# nightly toolchain with miri: rustup component add --toolchain nightly miri rust-src
#
#   tests/miri.sh
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
# Property tests read their configuration from the environment and the current folder.
export MIRIFLAGS="-Zmiri-disable-isolation"
cargo +nightly miri test -p culeak --no-default-features --lib -- index:: segmented:: table:: peak:: shards::
cargo +nightly miri test -p culeak-walker --lib -- table:: rule:: cfi:: read_sets::
