#!/usr/bin/env bash
# What an event costs in training steps of PyTorch, without a GPU: PyTorch's allocator for the CPU is replaced by one that reports its
# blocks as a GPU's (allocator.cpp). x86-64 only; needs g++.
#
#   benches/steps/run.sh [CULEAK] [STEPS]      default: target/release/culeak 20
#
#   PYTHON    a Python that has torch; default: python3
# A row for each way to record: nanoseconds and instructions of a report (medians; of the first row, what the measurement and PyTorch's
# own function take), the share of stacks that are known again by the words that their walk read, and walks in 1,000 events.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
culeak=$(realpath "${1:-$here/../../target/release/culeak}")
steps=${2:-20}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

torch=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
"${CXX:-g++}" -std=c++20 -O2 -shared -fPIC -I"$torch/include" "$here/allocator.cpp" -L"$torch/lib" -lc10 -o "$work/libc10_cuda.so"
shim=$("$culeak" shim-path)
walk=$(nm "$shim" | sed -n 's/ t .*culeak_shim6stacks4Walk5stack17h.*//p')
if [ -z "$walk" ]; then echo "$shim has no symbols: walks are not counted" >&2; fi

row() { # row NAME OFFSET [VARIABLE…]
    env "${@:3}" "$python" -B "$here/step.py" "$work/libc10_cuda.so" "$2" "$steps" "$1"
}
recorded() { # recorded NAME [VARIABLE…]
    row "$1" "${walk:-0}" LD_PRELOAD="$shim" CULEAK_OUTPUT="$work/" CULEAK_QUIET=1 "${@:2}"
}
echo "| | events a step | allocation, ns | its instructions | free, ns | its instructions | stacks known again | walks in 1,000 events |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
row bare 0
recorded "every tensor"
recorded "\`--record native-frames\`" CULEAK_STACKS=native
row "\`--record python-frames\`" 0 LD_PRELOAD="$shim" CULEAK_OUTPUT="$work/" CULEAK_QUIET=1 CULEAK_STACKS=python
recorded "\`--sample 512KiB\`" CULEAK_SAMPLE=512KiB
