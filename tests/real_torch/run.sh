#!/usr/bin/env bash
# PyTorch's own caching allocator, the libraries of its wheel unchanged, on the fake driver: no GPU needed, but 530 MB of
# downloads, which is why CI plays it with stand-ins (tests/tensors.rs).
#
#   tests/real_torch/run.sh DIR [TORCH VERSION]      DIR keeps what was downloaded
#
# Of CUDA's runtime only what the allocator calls is made here: its allocations go to the fake driver, all else succeeds
# and does nothing. The last line is `ok` and the events compared.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
mkdir -p "${1:?usage: run.sh DIR [TORCH VERSION]}"
dir=$(cd "$1" && pwd)
version=${2:-2.11.0}
python=${PYTHON:-python3}

fetch() { # fetch PACKAGE VERSION: unpacked into DIR/PACKAGE
    [ -d "$dir/$1" ] && return
    "$python" -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: --dest "$dir/wheels" "$1==$2"
    "$python" -m zipfile -e "$dir/wheels/$(tr - _ <<<"$1")"-*.whl "$dir/$1"
}
fetch torch "$version"
fetch nvidia-cuda-runtime '13.*'
fetch nvidia-cuda-crt '13.*'
torch=$dir/torch/torch
headers=$(dirname "$(find "$dir/nvidia-cuda-runtime/" -name cuda_runtime_api.h)")
crt=$(dirname "$(find "$dir/nvidia-cuda-crt/" -type d -name crt)")

cargo build --quiet --manifest-path "$sources/Cargo.toml" -p culeak-cli -p culeak-fake-driver
target=${CARGO_TARGET_DIR:-$sources/target}/debug
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$target/libculeak_fake_driver.so" "$work/libcuda.so.1"

# A runtime that has every function the allocator asks for.
nm -D --undefined-only "$torch/lib/libc10_cuda.so" | sed -nE 's/.* U (cuda[A-Za-z0-9_]+).*/\1/p' | sort -u >"$work/wanted"
sed -nE 's/^[a-z ]+\*? ?(cuda[A-Za-z0-9_]+)\(.*\{.*/\1/p' "$here/runtime.c" | sort -u >"$work/made"
{
    echo "#include \"$here/runtime.c\""
    comm -23 "$work/wanted" "$work/made" | sed 's/.*/int &(void) { return 0; }/'
} >"$work/runtime.c"
soname=$(readelf -d "$torch/lib/libc10_cuda.so" | sed -n 's/.*NEEDED.*\[\(libcudart.*\)\]/\1/p')
echo "$soname { global: cuda*; local: *; };" >"$work/map"
cc -O1 -shared -fPIC -I"$sources/tests/victims" "$work/runtime.c" "$work/libcuda.so.1" \
    -Wl,-soname,"$soname" -Wl,--version-script="$work/map" -o "$work/$soname"
g++ -std=c++20 -O1 -g -shared -fPIC -I"$torch/include" -I"$headers" -I"$crt" "$here/program.cpp" \
    "$torch/lib/libc10.so" "$torch/lib/libc10_cuda.so" -Wl,--unresolved-symbols=ignore-in-shared-libs -o "$work/program.so"

export LD_LIBRARY_PATH="$work:$torch/lib" CULEAK_OUTPUT="$work/r.culeak" CULEAK_QUIET=1
culeak() { LD_LIBRARY_PATH= "$target/culeak" "$@"; }
shim=$(culeak shim-path)
# Loaded RTLD_LOCAL, as Python loads extension modules.
run="import ctypes; ctypes.CDLL('$work/program.so').run()"
"$python" -c "$run" >"$work/bare"
LD_PRELOAD=$shim "$python" -c "$run" >"$work/recorded"
cmp "$work/bare" "$work/recorded"
culeak snapshot "$work/r.culeak" --no-symbols -o "$work/r.json"
"$python" - "$work/recorded" "$work/r.json" "$work"/r.out-of-memory-*.culeak-snapshot <<'PYTHON'
import json
import sys

said = dict(line.split() for line in open(sys.argv[1]))
snapshot = json.load(open(sys.argv[2]))
table = snapshot["allocations"]
rows = [{**table["calls"][row[4]], "bytes": row[1]} for row in table["rows"]]
tensors = [row for row in rows if row["kind"] == "tensor"]
segments = [row for row in rows if row["kind"] == "device"]
[told] = snapshot["allocators"]
assert sum(row["bytes"] for row in tensors) == told["live_bytes"] == int(said["allocated"]), (tensors, told, said)
assert sum(row["bytes"] for row in segments) == told["reserved_bytes"] == int(said["reserved"]), (segments, told, said)
assert (told["mismatches"], told["unseen_bytes"], snapshot["losses"]["unknown_blocks"]) == (0, 0, 0), told
assert told["events"] == int(said["events"]), (told, said)
assert any(row["kind"] == "tensor" and row["bytes"] == 1 << 50 for row in snapshot["refused"]), snapshot["refused"]
assert len(sys.argv) == 4, f"one request was given up, and {len(sys.argv) - 3} snapshots were kept"
print("ok", told["events"], "events")
PYTHON
