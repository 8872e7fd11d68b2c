#!/usr/bin/env bash
# Runs the benches and prints their tables: the walker and other unwinders, a walk along Python's frames, the recording
# alone, and a whole event on a driver that does nothing.
#
#   benches/run.sh [--quick] [NAME…]      names: walk, python, record, event; default: all
#
#   CULEAK_BIN    folder filled by benches/collect.sh; without it cargo builds and runs them
# `cargo bench --workspace` runs the first three and prints criterion's own output.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
quick=()
if [ "${1:-}" = --quick ]; then quick=(--quick); shift; fi
[ $# -gt 0 ] || set -- walk python record event

home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
for name in "$@"; do
    case $name in
        walk | python | record)
            export CRITERION_HOME=$home/$name
            if [ -n "${CULEAK_BIN:-}" ]; then
                "$CULEAK_BIN/$name" --bench --noplot "${quick[@]}"
            else
                declare -A package=([walk]=culeak-walker [python]=culeak-cpython [record]=culeak)
                cargo bench -p "${package[$name]}" --bench "$name" -- --noplot "${quick[@]}"
            fi >"$home/$name.log" 2>&1 || { cat "$home/$name.log" >&2; exit 1; }
            python3 -B benches/tables.py "$home/$name" ;;
        event)
            if [ -n "${CULEAK_BIN:-}" ]; then culeak=$CULEAK_BIN/culeak; else
                cargo build --release -p culeak-cli
                culeak=${CARGO_TARGET_DIR:-target}/release/culeak
            fi
            benches/event.sh "$culeak" ;;
        *) echo "$name: unknown bench; known are walk, python, record and event" >&2; exit 2 ;;
    esac
done
