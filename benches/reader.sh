#!/usr/bin/env bash
# The readers of culeak, heaptrack and memray compared, on recordings of similar size.
#
#   benches/reader.sh [FOLDER]
#
# Makes three recordings in FOLDER (and uses them again the next time): ALLOCATIONS live allocations from about STACKS call
# stacks each, ours by `large_recording`, the others' by a C and a Python program recorded with those tools. Then reads each
# with its tool, alternately, ROUNDS times, and prints a table in Markdown: medians of wall and CPU time, most memory.
# The allocations have eight sizes. heaptrack's format stores neither address nor time of an allocation, so those of one size
# and stack are the same few bytes; memray's stores addresses, ours both.
#   ALLOCATIONS  default 10000000        STACKS  default 50000        ROUNDS  default 3        LIMIT  seconds a run, default 600
#   CULEAK_BIN   folder with `culeak` and `examples/large_recording`; default: target/release, built if need be
# Installs heaptrack with apt, and memray with pip into FOLDER/venv, if they are missing. Needs cc, python3 and 20 GB of memory.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$(mktemp -d "${TMPDIR:-/tmp}/culeak-reader.XXXXXX")}
mkdir -p "$folder" && cd "$folder"
allocations=${ALLOCATIONS:-10000000} stacks=${STACKS:-50000} rounds=${ROUNDS:-3} limit=${LIMIT:-600}

need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    export DEBIAN_FRONTEND=noninteractive
    [ -n "${UPDATED:-}" ] || { apt-get update -q >/dev/null; UPDATED=1; }
    apt-get install -qy --no-install-recommends "$2" >/dev/null
}
need cc gcc
need python3 python3
need heaptrack heaptrack
if ! [ -x venv/bin/memray ]; then
    python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -qy python3-venv; } >/dev/null
    python3 -m venv venv
    venv/bin/pip install -q memray
fi
bin=${CULEAK_BIN:-$root/target/release}
if [ -z "${CULEAK_BIN:-}" ]; then
    (cd "$root" && cargo build -q --release -p culeak-cli && cargo build -q --release --example large_recording)
fi

# Every allocation takes another of 8^k paths through eight functions, below a chain that makes stacks 20 to 40 frames deep.
cat > made.c <<'C'
#include <stdlib.h>
static unsigned long per_stack;
static int levels;
#define CALL(n) case n: return f##n(path >> 3, level - 1);
#define F(n) __attribute__((noinline)) static int f##n(unsigned long path, int level);
F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
__attribute__((noinline)) static int leaf(void) {
    for (unsigned long i = 0; i < per_stack; i++)
        if (!malloc(16 + 16 * (i & 7))) abort();
    __asm__ volatile("");
    return 1;
}
static inline __attribute__((always_inline)) int step(unsigned long path, int level) {
    if (level == 0) return leaf();
    switch (path & 7) { CALL(0) CALL(1) CALL(2) CALL(3) CALL(4) CALL(5) CALL(6) CALL(7) }
    return 0;
}
/* The addition keeps each call from becoming a jump. */
#undef F
#define F(n) __attribute__((noinline)) static int f##n(unsigned long path, int level) { int r = step(path, level) + n; __asm__ volatile(""); return r; }
F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
int main(int argc, char **argv) {
    unsigned long allocations = strtoul(argv[1], 0, 10), stacks = strtoul(argv[2], 0, 10);
    per_stack = allocations / stacks;
    levels = 28;
    int sum = 0;
    /* The innermost levels differ; the outer ones are shared, as in call trees. */
    for (unsigned long path = 0; path < stacks; path++) {
        unsigned long turned = 0;
        for (int digit = 0; digit < 6; digit++) turned |= (path >> 3 * digit & 7) << 3 * (15 - digit);
        sum += step(turned, levels);
    }
    return sum == 1;
}
C
cat > made.py <<'PY'
import sys
allocations, stacks = int(sys.argv[1]), int(sys.argv[2])
sys.setrecursionlimit(10_000)
kept = []
per_stack = range(allocations // stacks)
def leaf():
    for nth in per_stack:
        kept.append(bytes(1 + 16 * (nth & 7)))
functions = []
for number in range(8):
    exec(f"def f{number}(path, level):\n    return functions[path & 7](path >> 3, level - 1) if level else leaf()\nfunctions.append(f{number})")
for path in range(stacks):
    turned = 0
    for digit in range(6):
        turned |= (path >> 3 * digit & 7) << 3 * (15 - digit)
    functions[0](turned, 28)
PY
[ -s big.culeak ] || "$bin/examples/large_recording" big.culeak "$allocations" "$stacks"
if ! ls heaptrack.made.* >/dev/null 2>&1; then
    cc -g -O1 -fno-optimize-sibling-calls -o made made.c
    heaptrack -o heaptrack.made ./made "$allocations" "$stacks" >heaptrack.log 2>&1
fi
# So that each object is a separate allocation.
[ -s memray.bin ] || PYTHONMALLOC=malloc venv/bin/memray run -q -f -o memray.bin made.py "$allocations" "$stacks"
heaptrack_file=$(ls heaptrack.made.* | head -n 1)

cat > measure.py <<'PY'
import os, resource, statistics, subprocess, sys, time
rounds, limit, commands = int(sys.argv[1]), int(sys.argv[2]), [line.split("\t") for line in sys.stdin.read().splitlines()]
runs = {name: [] for name, _, _ in commands}
for _ in range(rounds):
    for name, _, command in commands:
        if None in runs[name]:
            continue
        began = time.monotonic()
        child = subprocess.Popen(["timeout", str(limit), "bash", "-c", "exec " + command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        errors = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - began
        # `check` finds leaks.
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            print(f"{name}: {os.waitstatus_to_exitcode(status)} {errors.decode()[-300:]}", file=sys.stderr)
            runs[name].append(None)
            continue
        runs[name].append((wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
for name, size, _ in commands:
    done = [run for run in runs[name] if run]
    if None in runs[name] or not done:
        print(f"| `{name}` | {size} | stopped or failed | | |")
        continue
    wall, cpu, memory = (statistics.median(column) for column in zip(*done))
    walls = sorted(run[0] for run in done)
    print(f"| `{name}` | {size} | {wall:.1f} s ({walls[0]:.1f} to {walls[-1]:.1f}) | {cpu:.1f} s | {memory:,.0f} MiB |")
PY
size() { du -m --apparent-size "$1" | cut -f1; }
export CULEAK_CACHE_DIR=
echo "$allocations live allocations, about $stacks stacks; $(heaptrack --version | head -n 1), memray $(venv/bin/memray --version); medians of $rounds runs by turns"
echo
echo "| command | the recording | wall (range) | CPU | most memory |"
echo "| --- | --- | --- | --- | --- |"
ours="$(size big.culeak) MB" theirs="$(size "$heaptrack_file") MB, compressed" memrays="$(size memray.bin) MB"
python3 measure.py "$rounds" "$limit" <<TABLE
culeak report	$ours	'$bin/culeak' report big.culeak
culeak report --json	$ours	'$bin/culeak' report big.culeak --json
culeak check	$ours	'$bin/culeak' check big.culeak
culeak snapshot	$ours	'$bin/culeak' snapshot big.culeak -o big.json --force
heaptrack_print	$theirs	heaptrack_print '$heaptrack_file'
memray stats	$memrays	venv/bin/memray stats memray.bin
memray summary	$memrays	venv/bin/memray summary memray.bin
memray flamegraph --leaks	$memrays	venv/bin/memray flamegraph --leaks -f -o memray.html memray.bin
TABLE
rm -f big.json memray.html
