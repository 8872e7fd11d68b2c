#!/usr/bin/env bash
# The search for holders: time of the copy and of the whole, memory of the CLI, and what the searched program loses meanwhile.
# Prints one row per program for docs/measurements.md.
#
#   benches/why.sh [CULEAK] [OPTIONS]     default: target/release/culeak
#     --objects N    Python objects of the plain program (10 million)
#     --heap GIB     its memory (2)
#     --pairs N      pairs of intervals with and without searches (5), each --seconds S (8)
#     --torch        a PyTorch process in training instead, on a GPU
#     --unrecorded   with --torch: started without culeak, and its allocator is read; --pairs 3 takes a minute
#
# The program runs on the first core, the CLI on the others: at least three cores, or the last column says nothing.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
culeak=target/release/culeak
case ${1:-} in "" | --*) ;; *) culeak=$1; shift ;; esac
exec python3 -B benches/why.py measure "$(realpath "$culeak")" "$@"
