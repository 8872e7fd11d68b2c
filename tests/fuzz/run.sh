#!/usr/bin/env bash
# Fuzzes what reads bytes of strangers, guided by coverage: tests/fuzz/main.rs lists the targets.
#
#     tests/fuzz/run.sh [TARGET …]          all, or these; needs g++
#
#     FUZZ_SECONDS=600      for all targets together
#     FUZZ_JOBS=…           targets that run at a time; by default one on each processor
#     FUZZ_OPTIONS=…        further options of libFuzzer
#
# Inputs that lead to new code are collected in target/fuzz/corpus. The last lines say, for each target, how many inputs ran and which
# coverage they have. An input on which the target panics, hangs or takes too much memory is a finding: it is kept in
# target/fuzz/findings, and the exit code is 1. Once it is mended, copy it to tests/fuzz/inputs/TARGET, where `cargo test` reads it.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."

targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(grep -hoP '^    name: "\K\w+' tests/fuzz/*.rs)
jobs=${FUZZ_JOBS:-$(nproc)}
rounds=$(((${#targets[@]} + jobs - 1) / jobs))
seconds=$((${FUZZ_SECONDS:-600} / rounds))
# 0 is no limit.
[ "$seconds" -gt 0 ] || seconds=1
folder=$PWD/target/fuzz
# Each input is a file for a moment.
temporary=/tmp
[ ! -w /dev/shm ] || temporary=/dev/shm
mkdir -p "$folder/findings" "$folder/logs"

# What cargo-fuzz sets without a sanitizer, for a stable compiler. A target triple keeps it from build scripts. The embedded
# libraries are not needed.
coverage=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg culeak_fuzz)
for library in SHIM HOLD AUDIT FAKE_DRIVER; do export "CULEAK_PREBUILT_$library=/dev/null"; done
program=$(RUSTFLAGS="${coverage[*]}" CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0 \
    cargo test --locked --target-dir "$folder" --target "$(rustc -vV | sed -n 's/^host: //p')" \
    -p culeak-cli --bin culeak --no-run --message-format json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)

fuzz() { # fuzz TARGET
    local code=0
    FUZZ_TARGET=$1 FUZZ_CORPUS=$folder/corpus/$1 TMPDIR=$temporary \
        FUZZ_OPTIONS="-max_total_time=$seconds -timeout=25 -rss_limit_mb=2048 -max_len=131072 -print_final_stats=1 -artifact_prefix=$folder/findings/$1- ${FUZZ_OPTIONS:-}" \
        "$program" --ignored --exact --nocapture fuzz::reads >"$folder/logs/$1" 2>&1 || code=$?
    local did
    did=$(sed -n 's/^#\([0-9]*\).*DONE *cov: \([0-9]*\) ft: \([0-9]*\) corp: \([0-9]*\).*/\1 inputs, \2 edges, \3 features, corpus of \4/p' "$folder/logs/$1")
    printf '%-14s %s\n' "$1" "${did:-stopped: see $folder/logs/$1}"
    # Without figures it did not run.
    [ -n "$did" ] || [ "$code" -ne 0 ] || code=1
    return "$code"
}
export -f fuzz
export program folder seconds temporary
failed=0
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {}' || failed=1
find "$folder/findings" -type f -newer "$program" 2>/dev/null
exit $failed
