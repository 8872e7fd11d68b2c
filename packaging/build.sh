#!/usr/bin/env bash
# Builds what a release distributes, for glibc 2.17 and newer: wheel, deb, rpm, tarball, licences, SBOM, checksums.
#
#   packaging/build.sh [--target TRIPLE] [--wheel WHEEL] FOLDER
#
# The command and the libraries inside it are compiled once, for the wheel; all other packages contain the wheel's command.
# --wheel takes an existing wheel and compiles nothing. The same sources, toolchain and SOURCE_DATE_EPOCH (default: the time of
# the last commit) give the same bits in any folder: packaging/compare.sh.
# Needs Rust, a C compiler, python3 with venv, binutils, dpkg-deb and rpmbuild; for another architecture also its binutils and
# qemu-user.
set -euo pipefail
here=$(dirname "$(realpath "$0")")

target='' wheel=''
while [[ ${1:-} == --* ]]; do
    case $1 in
        --target) target=$2 ;;
        --wheel) wheel=$(realpath "$2") ;;
        *) echo "build.sh: unknown option: $1" >&2; exit 2 ;;
    esac
    shift 2
done
out=$(realpath -m "${1:?usage: build.sh [--target TRIPLE] [--wheel WHEEL] FOLDER}")
mkdir -p "$out"
cd "$here/.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export LC_ALL=C.UTF-8 TZ=UTC

if [ -z "$wheel" ]; then
    CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    export CARGO_TARGET_DIR
    # No path of this machine in the result. The last prefix that matches counts.
    flags=("--remap-path-prefix=$PWD=/culeak" "--remap-path-prefix=$CARGO_TARGET_DIR=/culeak/target")
    sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
    cargo fetch --locked --quiet
    for registry in "$sources"/*; do flags+=("--remap-path-prefix=$registry=/cargo"); done
    # Separated by a character that no path contains.
    CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f' "${flags[@]}")
    export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%?}
    export CFLAGS="-ffile-prefix-map=$sources= -ffile-prefix-map=$CARGO_TARGET_DIR=/culeak/target"
    # Optimized across the parts of each crate, which Cargo.toml switches off for shorter builds.
    export CARGO_PROFILE_RELEASE_LTO=false
    cli/python/build.sh --portable ${target:+--target "$target"} "$out"
    unset CARGO_ENCODED_RUSTFLAGS CFLAGS CARGO_PROFILE_RELEASE_LTO
    wheel=$(ls -t "$out"/culeak-*.whl | head -1)
else
    cp "$wheel" "$out"
    packaging/licences.py ${target:+--target "$target"} "$out"
fi
packaging/pack.sh "$wheel" "$out"
