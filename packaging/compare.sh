#!/usr/bin/env bash
# Builds what packaging/build.sh has built once more, from the last commit in a folder of another name, and compares the bits.
#
#   packaging/compare.sh FOLDER           all of it, compiled again
#   packaging/compare.sh --pack FOLDER    the packages, made again from the folder's wheel
set -euo pipefail
pack=''
if [ "${1:-}" = --pack ]; then pack=yes; shift; fi
folder=$(realpath "${1:?usage: compare.sh [--pack] FOLDER}")
cd "$(dirname "$(realpath "$0")")/.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sources=$work/another/folder/for/the/sources
mkdir -p "$sources"
git archive HEAD | tar -x -C "$sources"
wheels=("$folder"/culeak-*.whl)
case ${wheels[0]} in
    *aarch64*) target=(--target aarch64-unknown-linux-gnu) ;;
    *) target=() ;;
esac
[ -z "$pack" ] || target+=(--wheel "${wheels[0]}")
CARGO_TARGET_DIR=$work/objects "$sources/packaging/build.sh" "${target[@]}" "$work/again"
if diff "$folder/SHA256SUMS" "$work/again/SHA256SUMS"; then
    echo "ok      $(wc -l <"$folder/SHA256SUMS") files are the same bit for bit"
else
    mkdir -p "$folder/differs"
    cp "$work"/again/* "$folder/differs"
    echo "FAILED  two builds differ; the second is in $folder/differs"
    exit 1
fi
