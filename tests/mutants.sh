#!/bin/bash
# Mutation testing: cargo-mutants changes one thing of a part at a time, and a test of that part must fail.
#
#   tests/mutants.sh lockfree|recording|check [SHARD]      SHARD, such as 2/12: a twelfth of the mutants
#
# Needs cargo-mutants (cargo install cargo-mutants). It works in a copy of the tree under target/mutants, where its results are, too: missed.txt has
# the changes that no test noticed. tests/README.md says which are known.
set -eu
cd "$(dirname "$(realpath "$0")")/.."
part=${1:-} shard=${2:-0/1}
case $part in
    lockfree) files=(-f 'src/lockfree/**/*.rs') features=(--no-default-features) tests=(lockfree::) ;;
    recording) files=(-f 'src/recording/*.rs') features=() tests=(recording:: reader:: timeline::) ;;
    check) files=(-f 'src/analysis/check.rs' -f 'src/analysis/check/*.rs') features=() tests=(check::) ;;
    *) sed -n '4p' "$0" >&2; exit 2 ;;
esac
# Code that x86-64 does not compile cannot fail there.
left_out=(--exclude '**/loom_models.rs' --exclude '**/tests.rs' --exclude '**/tests/*.rs' --exclude 'src/lockfree/sync/modelled.rs' --exclude-re 'with_tag')
copy=target/mutants/tree results=target/mutants/$part
mkdir -p "$copy" "$results"
git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$copy"
results=$(realpath "$results")
cd "$copy"
export CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0
exec cargo mutants --in-place -d . -p culeak "${features[@]}" "${files[@]}" "${left_out[@]}" --shard "$shard" --sharding round-robin \
    --timeout 90 -o "$results" -- --lib -- "${tests[@]}"
