#!/usr/bin/env bash
# The lock-free parts with real threads under ThreadSanitizer, and one planted race that it must find. Needs the nightly
# toolchain with rust-src: rustup component add --toolchain nightly rust-src
#
#   tests/tsan.sh
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/tsan

check() { # check RUSTFLAGS ARGUMENT…
    RUSTFLAGS="-Zsanitizer=thread $1" cargo +nightly test -Zbuild-std --target "$target" "${@:2}"
}
check "" -p culeak --no-default-features --lib -- index:: segmented:: table:: peak::
check "" -p culeak-walker --lib -- table::

if seen=$(check "--cfg planted_race" -p culeak --no-default-features --lib -- a_planted_race 2>&1); then
    echo "FAILED  the planted race was not found"
    exit 1
fi
grep -q "WARNING: ThreadSanitizer: data race" <<<"$seen" || { echo "$seen" | tail -n 30; exit 1; }
echo "ok      no race, and the planted one was found"
