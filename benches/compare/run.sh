#!/bin/bash
# Compares culeak with no recorder, heaptrack, compute-sanitizer and PyTorch's own recorder: the cost of each, and culeak's targets.
#
#   benches/compare/run.sh [--only REGEX] [--out DIR] [--limit SECONDS] [--trial]
#   benches/compare/run.sh --sides [--out DIR] [--limit SECONDS] [--trial]
#
# Prints one row per target: its subject, the required figure, the measured one, and whether it is met or why it was not measured.
# Needs python3 and a C compiler; for the rows about the GPU also nvcc, a GPU and PyTorch; for the ratio to heaptrack also that.
#   CULEAK_BIN    folder with `culeak` and the bench `walk`, as benches/collect.sh fills it; default: target/release
#   CULEAK_SHIM   the preload library; default: libculeak.so in that folder, else the one inside culeak
#   NVCC          the compiler; default: the one on the PATH, else /usr/local/cuda/bin/nvcc
# --sides draws all tools side by side instead (sides.svg); for that also memray.
# --limit is the time for everything together (default 330 s): rows that no longer fit are not measured.
# --trial runs everything once and with small sizes, PyTorch on the CPU if necessary, to check that it works: its figures mean nothing.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

out="" script=targets.py arguments=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:?--out needs a folder}; shift 2 ;;
        --out=*) out=${1#--out=}; shift ;;
        --sides) script=sides.py; shift ;;
        -h | --help) sed -n '2,/^set -u/{/^set -u/!s/^# \{0,1\}//p}' "$0"; exit ;;
        *) arguments+=("$1"); shift ;;
    esac
done
out=${out:-$(mktemp -d "${TMPDIR:-/tmp}/culeak-compare.XXXXXX")}
mkdir -p "$out/bin" || exit 2
out=$(cd "$out" && pwd)

if ! "$root/benches/event.sh" --build "$out/bin" >"$out/bin/event.log" 2>&1; then
    echo "could not build event.c and its driver; see $out/bin/event.log" >&2
fi
rm -f "$out/bin/cost" "$out/bin/switch.so"
"${CC:-cc}" -O2 -shared -fPIC "$here/switch.c" -o "$out/bin/switch.so" || echo "could not build switch.c" >&2
# In a subshell: toolkit.sh exits if there is no nvcc.
(
    source "$root/tests/gpu/toolkit.sh"
    "$nvcc" -O2 -g -cudart static "$here/cost.cu" "${libraries[@]}" -o "$out/bin/cost"
) >"$out/bin/cost.log" 2>&1
exec python3 -B "$here/$script" --out "$out" "${arguments[@]}"
