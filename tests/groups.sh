#!/usr/bin/env bash
# Runs the tests that `cargo test` leaves out because they need more than Rust, a C compiler and python3. A group is named by
# what it needs: its tests are marked `#[ignore = "needs root"]`, for example.
#
#     tests/groups.sh [OPTION OF CARGO TEST ...]      all groups but four; fails if a test of a group fails or does not run
#     tests/groups.sh --only GROUP [OPTION ...]       one group
#     tests/groups.sh --list
#     tests/groups.sh --others                        the packages that `cargo test` leaves out and their tests, as options of it
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

# These are large or long: minutes, CPython 3.14 (TRACE_PYTHON is one), a JDK of 17 or newer, PyTorch with numpy (TORCH_PYTHON has it).
large=("CPython 3.14" "Java" "minutes" "PyTorch")
groups=("g++" "git" "jemalloc, tcmalloc and mimalloc" "musl-gcc" "pip" "ptrace" "root" "the headers and the library of Python")

if [ "${1:-}" = --others ]; then
    cargo metadata --no-deps --format-version 1 --locked | python3 -c '
import json, sys
tree = json.load(sys.stdin)
usual = set(tree["workspace_default_members"])
others = [package for package in tree["packages"] if package["id"] not in usual]
tests = {target["name"] for package in others for target in package["targets"] if "test" in target["kind"]}
# The command is among them for what it asks of their dependencies, so that they are the same builds as in `cargo test`.
print("-p culeak-cli", *("-p " + package["name"] for package in others), "--lib", *("--test " + name for name in sorted(tests)))'
    exit
fi

tests_of() { # tests_of GROUP: the names of its tests
    git ls-files '*.rs' | xargs grep -hA1 -F "#[ignore = \"needs $1\"]" | sed -n 's/^ *fn \([a-z0-9_]*\).*/\1/p'
}

unknown=$(git ls-files '*.rs' | xargs grep -nE '^ *#\[ignore' | grep -vF 'ignore = "run by ' |
    grep -vFf <(printf '[ignore = "needs %s"]\n' "${groups[@]}" "${large[@]}")) || true
[ -z "$unknown" ] || { printf 'tests of no group:\n%s\n' "$unknown" >&2; exit 1; }
if [ "${1:-}" = --list ]; then
    for group in "${groups[@]}" "${large[@]}"; do printf '%4d  needs %s\n' "$(tests_of "$group" | wc -l)" "$group"; done
    exit
fi
[ "${1:-}" != --only ] || { groups=("$2"); shift 2; }
names=() wanted=0
for group in "${groups[@]}"; do
    mapfile -t found < <(tests_of "$group")
    [ "${#found[@]}" -gt 0 ] || { echo "the group \"needs $group\" has no test" >&2; exit 1; }
    printf '%4d tests need %s\n' "${#found[@]}" "$group"
    names+=("${found[@]}") wanted=$((wanted + ${#found[@]}))
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
others=$(tests/groups.sh --others)
# shellcheck disable=SC2086
{ cargo test "$@" -- --ignored "${names[@]}" && cargo test "$@" $others -- --ignored "${names[@]}"; } 2>&1 | tee "$log"
# Every test of a group ran, as often as its name stands in the sources.
left=0
while read -r times name; do
    ran=$(grep -cE "^test ([a-z0-9_:]*::)?$name \.\.\. ok" "$log") || true
    [ "$ran" -ge "$times" ] || { echo "ran $ran of $times times: $name" >&2; left=$((left + 1)); }
done < <(printf '%s\n' "${names[@]}" | sort | uniq -c)
echo "$((wanted - left)) of $wanted tests of groups passed"
[ "$left" -eq 0 ]
