#!/usr/bin/env bash
# The cost of `culeak watch` at rest: CPU time and memory for processes on the fake driver that do nothing.
#
# Usage: benches/watch.sh CULEAK [PROCESSES [SECONDS]]
set -euo pipefail
culeak=$(realpath "$1") processes=${2:-64} seconds=${3:-180}
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
pids=()
stop() {
    # Only processes that this script started.
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
fake=$("$culeak" shim-path --fake-driver)
cc -g -O1 -D_GNU_SOURCE -DLOOKUP_LINKED -pthread -o "$work/victim" "$here/../tests/live/victim.c" "$fake/libcuda.so.1" -Wl,-rpath,"$fake" -ldl
mkdir "$work/runs"
shim=$("$culeak" shim-path)
for rank in $(seq 0 $((processes - 1))); do
    mkfifo "$work/fifo$rank"
    LD_PRELOAD=$shim CULEAK_OUTPUT=$work/runs/ CULEAK_QUIET=1 RANK=$rank "$work/victim" "$work/fifo$rank" >"$work/out$rank" &
    pids+=($!)
    echo "batch 10" >"$work/fifo$rank"
    echo "small 4096" >"$work/fifo$rank"
done
until [ "$(grep -l "did small" "$work"/out* 2>/dev/null | wc -l)" = "$processes" ]; do sleep 0.2; done
"$culeak" watch "$work/runs" --listen 0 2>"$work/log" &
agent=$!
pids+=("$agent")
until grep -q "metrics at" "$work/log"; do sleep 0.1; done
url=$(sed -n 's/.*metrics at //p' "$work/log")
exported() { python3 -c "import sys, urllib.request; print(urllib.request.urlopen('$url').read().decode())" 2>/dev/null | grep -c '^culeak_process_running{.*} 1' || true; }
until [ "$(exported)" = "$processes" ]; do sleep 0.5; done
ticks() { awk '{print $14 + $15 + $16 + $17}' "/proc/$agent/stat"; }
from=$(ticks)
sleep "$seconds"
to=$(ticks)
echo "$processes processes at rest, $seconds s: $(((to - from) * 10)) ms of CPU, $(awk "BEGIN {print ($to - $from) / $seconds}") % of a core;" \
    "$(awk '/VmRSS/ {print int($2 / 1024)}' "/proc/$agent/status") MiB; first pass $((from * 10)) ms"
