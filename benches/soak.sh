#!/usr/bin/env bash
# A long stress test: 10^9 events over 64 threads that swap blocks while a timer's handler allocates every millisecond,
# children are forked and a library is opened and closed; then 10 million live allocations. On a driver that does nothing.
# Needs the built CLI, a C compiler and python3; no GPU, no Rust.
#
#   benches/soak.sh [CULEAK] [EVENTS] [THREADS] [LIVE]      default: target/release/culeak 1000000000 64 10000000
#
# Prints the size of the recording and of the process while it runs, and ok or FAILED for every claim.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
culeak=$(realpath "${1:-target/release/culeak}")
events=${2:-1000000000} threads=${3:-64} live=${4:-10000000} children=${CHILDREN:-200}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/driver"
cc -O2 -shared -fPIC -fvisibility=hidden -Wl,-soname,libcuda.so.1 tests/victims/tiny_driver.c -o "$work/driver/libcuda.so.1"
cc -O2 -g -pthread tests/victims/churn.c "$work/driver/libcuda.so.1" -ldl -o "$work/program"
cc -O2 -shared -fPIC -DLEAKS=unused -DBYTES=1 tests/victims/plugin.c "$work/driver/libcuda.so.1" -o "$work/plugin.so"
shim=$("$culeak" shim-path)
export LD_LIBRARY_PATH=$work/driver CULEAK_QUIET=1 CULEAK_OUTPUT=$work/out/

recorded() { # recorded FOLDER COMMAND…: runs it, and prints every ten seconds how large it and its recording are
    mkdir "$work/out"
    LD_PRELOAD=$shim "${@:2}" >"$work/output" &
    local process=$! second=0
    while kill -0 $process 2>/dev/null; do
        sleep 1
        second=$((second + 1))
        if [ $((second % 10)) = 0 ]; then
            printf '%5d s  recording %s KiB, process %s KiB\n' $second \
                "$(du -k "$work"/out/*."$process".culeak 2>/dev/null | cut -f1)" \
                "$(awk '/VmRSS/ { print $2 }' /proc/$process/status 2>/dev/null || true)"
        fi
    done
    wait $process || { echo "FAILED  the program ended with status $?"; cat "$work/output"; exit 1; }
    mv "$work/out" "$work/$1"
    mv "$work/output" "$work/$1/output"
    "$culeak" snapshot "$work/$1"/*."$process".culeak -o "$work/$1/parent.json" >/dev/null
}

echo "churn: $events events on $threads threads, $children children"
start=$(date +%s)
recorded churn "$work/program" churn "$work/plugin.so" "$threads" $((events / 2 / threads)) "$children"
echo "took $(($(date +%s) - start)) s"
echo "keep: $live live allocations"
recorded keep "$work/program" keep $((live / threads * threads)) "$threads"

python3 - "$work" "$children" <<'PYTHON'
import glob, json, os, re, sys

work, children = sys.argv[1], int(sys.argv[2])
failed = 0

def claim(text, holds, evidence=""):
    global failed
    failed += not holds
    print("ok     " if holds else "FAILED ", text, evidence)

def numbers(part):
    return [float(word) for word in re.findall(r"[0-9.]+", open(f"{work}/{part}/output").read())]

def lost(snapshot):
    losses = snapshot["losses"]
    return {name: losses[name] for name in losses if name.startswith("lost_") or name in ("unknown_frees", "vanished")
            if losses[name]}

def size(part, snapshot):
    return os.path.getsize(glob.glob(f"{work}/{part}/*.{snapshot['process']['pid']}.culeak")[0])

allocations, live = map(int, numbers("churn"))
snapshot = json.load(open(f"{work}/churn/parent.json"))
total = sum(counter["total_count"] for counter in snapshot["counters"])
claim("every allocation was counted", total == allocations, f"{total} of {allocations}")
claim("exactly the live allocations are recorded", len(snapshot["allocations"]["rows"]) == live,
      f"{len(snapshot['allocations']['rows'])} of {live}")
claim("nothing was lost", not lost(snapshot), lost(snapshot))
recordings = len(glob.glob(f"{work}/churn/*.culeak"))
claim("every child left a recording", recordings == children + 1, recordings - 1)
claim("the recording stayed below 8 MiB", size("churn", snapshot) < 8 << 20, f"{size('churn', snapshot) >> 10} KiB")

live, resident = numbers("keep")
snapshot = json.load(open(f"{work}/keep/parent.json"))
claim("every live allocation is recorded", len(snapshot["allocations"]["rows"]) == live, f"{len(snapshot['allocations']['rows'])}")
claim("nothing was lost", not lost(snapshot), lost(snapshot))
claim("stacks are stored once", len(snapshot["stacks"]) == 2, len(snapshot["stacks"]))
per = size("keep", snapshot) / live
claim("at most 96 bytes of file each", per <= 96, f"{per:.1f}")
print(f"        {resident:.1f} bytes of the process each, pages of the recording and the private index included")
sys.exit(failed > 0)
PYTHON
