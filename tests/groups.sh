#!/usr/bin/env bash
# Runs the tests that `cargo test` leaves out because they need more than Rust, a C compiler and python3. A group is named by
# what it needs: its tests are marked `#[ignore = "needs root"]`, for example.
#
#     tests/groups.sh [OPTION OF CARGO TEST ...]      all groups; fails if a test of a group fails or does not run
#     tests/groups.sh --list
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

groups=("g++" "git" "jemalloc, tcmalloc and mimalloc" "musl-gcc" "pip" "ptrace" "root" "the headers and the library of Python")

tests_of() { # tests_of GROUP: the names of its tests
    git ls-files '*.rs' | xargs grep -hA1 -F "#[ignore = \"needs $1\"]" | sed -n 's/^ *fn \([a-z0-9_]*\).*/\1/p'
}

if [ "${1:-}" = --list ]; then
    for group in "${groups[@]}"; do printf '%4d  needs %s\n' "$(tests_of "$group" | wc -l)" "$group"; done
    exit
fi
names=() wanted=0
for group in "${groups[@]}"; do
    mapfile -t found < <(tests_of "$group")
    [ "${#found[@]}" -gt 0 ] || { echo "the group \"needs $group\" has no test" >&2; exit 1; }
    printf '%4d tests need %s\n' "${#found[@]}" "$group"
    names+=("${found[@]}") wanted=$((wanted + ${#found[@]}))
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test "$@" -- --ignored "${names[@]}" 2>&1 | tee "$log"
passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log" | awk '{ sum += $1 } END { print sum + 0 }')
echo "$passed tests of groups passed, $wanted wanted"
[ "$passed" -ge "$wanted" ]
