#!/usr/bin/env bash
# PyTorch's own caching allocator, the libraries of its wheel unchanged, on the fake driver: no GPU is needed, but 500 to 900 MB of
# downloads for each version, which is why CI uses stand-ins instead (tests/tensors.rs).
#
#   tests/real_torch/run.sh DIR [VERSION...]      default: one of each version that the model knows. DIR keeps what is used of the downloads
#
# Of CUDA's runtime only the functions that the allocator calls are implemented: allocations go to the fake driver, all others
# succeed and do nothing. The last line is `ok` and the number of events compared.
#
# Then a process that is not recorded is asked for its blocks and segments, which must be the allocator's own totals to the byte.
#
# Two versions are compared (docs/time.md), if both are asked for.
#
# At last `culeak whatif` predicts from each program's log what the allocator reserves under other settings, and the allocator says it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
mkdir -p "${1:?usage: run.sh DIR [VERSION...]}"
dir=$(cd "$1" && pwd)
python=${PYTHON:-python3}
versions=("${@:2}")
if [ ${#versions[@]} -eq 0 ]; then
    versions=(2.6.0 2.7.1 2.8.0 2.9.1 2.10.0 2.11.0 2.12.1)
fi
if [ ${#versions[@]} -gt 1 ]; then
    for version in "${versions[@]}"; do
        echo "== PyTorch $version"
        "$0" "$dir" "$version"
    done
    if [ -e "$dir/train-2.9.1.json" ] && [ -e "$dir/train-2.10.0.json" ]; then
        echo "== docs/time.md: two versions"
        shown=$(sed -n '/\$ culeak diff old/,/…/p' "$sources/docs/time.md" | sed '1d; $d')
        diff <(echo "$shown") <("${CARGO_TARGET_DIR:-$sources/target}/debug/culeak" diff "$dir/train-2.9.1.json" "$dir/train-2.10.0.json" | head -n 3)
        echo "ok the page shows what is printed"
    fi
    exit
fi
version=${versions[0]}

fetch() { # fetch PACKAGE VERSION FOLDER PART...: these parts of the wheel, into DIR/FOLDER
    [ -d "$dir/$3" ] && return
    "$python" -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: --dest "$dir/wheels" "$1==$2"
    "$python" - "$dir/wheels/$(tr - _ <<<"$1")"-*.whl "$dir/$3" "${@:4}" <<'PYTHON'
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith(tuple(sys.argv[3:]))])
PYTHON
    rm -r "$dir/wheels"
}
fetch torch "$version" "torch-$version/site-packages" torch/lib/libc10.so torch/lib/libc10_cuda.so torch/version.py torch/include/c10/ \
    torch/include/torch/headeronly/ "torch-$version.dist-info/METADATA"
fetch nvidia-cuda-runtime '13.*' nvidia-cuda-runtime ''
fetch nvidia-cuda-crt '13.*' nvidia-cuda-crt ''
torch=$dir/torch-$version/site-packages/torch
headers=$(dirname "$(find "$dir/nvidia-cuda-runtime/" -name cuda_runtime_api.h)")
crt=$(dirname "$(find "$dir/nvidia-cuda-crt/" -type d -name crt)")

cargo build --quiet --manifest-path "$sources/Cargo.toml" -p culeak-cli -p culeak-fake-driver
target=${CARGO_TARGET_DIR:-$sources/target}/debug
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$target/libculeak_fake_driver.so" "$work/libcuda.so.1"

# A runtime with every function that the allocator imports.
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
# Before 2.7, the wheels had the old ABI of strings.
abi=1
if nm -D "$torch/lib/libc10_cuda.so" | grep setAllocatorSettingsERKSs >/dev/null; then abi=0; fi
g++ -std=c++20 -D_GLIBCXX_USE_CXX11_ABI=$abi -O1 -g -shared -fPIC -I"$torch/include" -I"$headers" -I"$crt" "$here/program.cpp" \
    "$torch/lib/libc10.so" "$torch/lib/libc10_cuda.so" "$work/$soname" -Wl,--unresolved-symbols=ignore-in-shared-libs -o "$work/program.so"

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

printed = dict(line.split() for line in open(sys.argv[1]))
snapshot = json.load(open(sys.argv[2]))
table = snapshot["allocations"]
rows = [{**table["calls"][row[4]], "bytes": row[1]} for row in table["rows"]]
tensors = [row for row in rows if row["kind"] == "tensor"]
segments = [row for row in rows if row["kind"] == "device"]
[allocator] = snapshot["allocators"]
assert sum(row["bytes"] for row in tensors) == allocator["live_bytes"] == int(printed["allocated"]), (tensors, allocator, printed)
assert sum(row["bytes"] for row in segments) == allocator["reserved_bytes"] == int(printed["reserved"]), (segments, allocator, printed)
assert (allocator["mismatches"], allocator["unseen_bytes"], snapshot["losses"]["unknown_blocks"]) == (0, 0, 0), allocator
assert allocator["events"] == int(printed["events"]), (allocator, printed)
assert any(row["kind"] == "tensor" and row["bytes"] == 1 << 50 for row in snapshot["failed"]), snapshot["failed"]
assert len(sys.argv) == 4, f"one request failed, and {len(sys.argv) - 3} snapshots were taken"
print("ok", allocator["events"], "events")
PYTHON

# The same script under each version, for docs/time.md. The allocator reads this variable since 2.10.
PYTORCH_ALLOC_CONF=roundup_power2_divisions:4 CULEAK_OUTPUT="$work/train.culeak" LD_PRELOAD=$shim "$python" "$here/train.py" "$work/program.so"
culeak snapshot "$work/train.culeak" --force -o "$dir/train-$version.json"

# What is read of a process that runs without culeak, by settings.
for set in "" expandable_segments:True max_split_size_mb:32; do
    PYTORCH_ALLOC_CONF=$set PYTORCH_CUDA_ALLOC_CONF=$set "$python" - "$target/culeak" "$work/program.so" "${set:-default}" <<'PYTHON'
import json
import os
import subprocess
import sys

culeak, program, settings = sys.argv[1:]
run = f"import ctypes; ctypes.CDLL({program!r}).hold()"
held = subprocess.Popen([sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pid, count, allocated, reserved = map(int, held.stdout.readline().split())


def ask(*words):
    asked = [culeak, *words, "--json"]
    return json.loads(subprocess.run(asked, env={**os.environ, "LD_LIBRARY_PATH": ""}, stdout=subprocess.PIPE, check=True).stdout)


rows = ask("report", str(pid), "--by", "kind")["rows"]
read = [sum(row[of] for row in rows if row["label"] == "tensor") for of in ("count", "bytes")]
assert read == [count, allocated], (settings, read, count, allocated)
[pool] = ask("report", str(pid), "--view", "segments")["pools"]
read = (pool["live_bytes"], pool["reserved_bytes"])
assert read == (allocated, reserved), (settings, read, allocated, reserved)
held.communicate()
print("ok", settings, "not recorded:", count, "blocks,", allocated, "of", reserved, "bytes")
PYTHON
done

# The same of an allocator that is not understood: another backend, tables that were overwritten, and none.
for how in backend:cudaMallocAsync damaged uncached; do
    set=$how uncached=()
    case $how in damaged | uncached) set="" ;; esac
    [ "$how" != uncached ] || uncached=(PYTORCH_NO_CUDA_MEMORY_CACHING=1)
    env "${uncached[@]}" PYTORCH_ALLOC_CONF=$set PYTORCH_CUDA_ALLOC_CONF=$set "$python" - "$target/culeak" "$work/program.so" "$how" <<'PYTHON'
import json
import os
import subprocess
import sys

culeak, program, how = sys.argv[1:]
run = f"import ctypes; ctypes.CDLL({program!r}).storages({int(how == 'damaged')})"
held = subprocess.Popen([sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pid, count, size = map(int, held.stdout.readline().split())
environment = {**os.environ, "LD_LIBRARY_PATH": "", "CULEAK_QUIET": "0"}
asked = subprocess.run([culeak, "why", str(pid), "--json"], env=environment, capture_output=True, text=True)
total = json.loads(asked.stdout)["total"]
assert (total["count"], total["bytes"]) == (count, size), (how, total, count, size)
assert "found by their class" in asked.stderr and "NVML" in asked.stderr, asked.stderr
held.communicate()
print("ok", how, "not understood:", count, "storages,", size, "bytes")
PYTHON
done

# Peaks of the allocator (the second column) and of the model, by settings.
settings=("" expandable_segments:True max_split_size_mb:32 max_split_size_mb:128 roundup_power2_divisions:4)
both=max_split_size_mb:128,expandable_segments:True
tried=(--try "$both")
# Since 2.11.
if strings "$torch/lib/libc10.so" | grep -x large_segment_size_mb >/dev/null; then
    settings+=(large_segment_size_mb:64)
    tried+=(--try large_segment_size_mb:64)
fi
reserves() { # reserves PROGRAM SETTINGS: the peak in bytes
    # Most programs see a device that becomes full.
    local memory=8
    case $1 in fenced | converted) memory=64 ;; esac
    CULEAK_FAKE_BYTES=$((memory << 30)) PYTORCH_ALLOC_CONF=$2 PYTORCH_CUDA_ALLOC_CONF=$2 "$python" -c "import ctypes; ctypes.CDLL('$work/program.so').reserves(b'$1')"
}
for program in train cache random emptied streams waiting pooled fenced converted called; do
    own=("${settings[@]}")
    # Its settings are made by a call.
    [ "$program" != called ] || own=("")
    [ "$program" != fenced ] || own+=("$both")
    for set in "${own[@]}"; do
        CULEAK_TIMELINE=64MiB CULEAK_OUTPUT="$work/$program-$set.culeak" LD_PRELOAD=$shim reserves "$program" "$set" >"$work/peak"
        culeak whatif "$work/$program-$set.culeak" "${tried[@]}" --json >"$work/$program-$set.json" || true
        echo "$program $(cat "$work/peak") $set" >>"$work/measured"
    done
done
"$python" - "$work" "$version" <<'PYTHON'
import json
import sys

work, version, wrong = sys.argv[1], sys.argv[2], 0
measured = [line.rstrip("\n").split(" ") for line in open(f"{work}/measured")]
for program, peak, settings in measured:
    peak = int(peak)
    whatif = json.load(open(f"{work}/{program}-{settings}.json"))
    [own] = whatif["devices"]
    # Known from the files, or at least from the library.
    assert whatif["pytorch"] and version.startswith(whatif["pytorch"]), whatif["pytorch"]
    [default] = json.load(open(f"{work}/{program}-.json"))["devices"]
    predicted = {row["settings"]: row["peak_reserved_bytes"] for row in default["predictions"]}
    predicted[""] = default["predictions"][0]["peak_reserved_bytes"] if default["predictions"] else 0
    error = abs(predicted.get(settings, 0) - peak) / peak
    # Rounded sizes that the log does not have decide which block serves a request, so small programs of many sizes are further off.
    # A run of which nothing is replayed proves nothing.
    wrong += own["elsewhere"] > 0 or own["error"] > 0 or error > 0.20 or own["recorded_peak_bytes"] != peak
    print(f"{program:8} {peak >> 20:6} MiB, predicted {predicted.get(settings, 0) >> 20:6} ({error:6.1%}), own settings {own['error']:6.2%} of {own['pools']} pools  {settings or 'default'}")
assert not wrong, f"{wrong} wrong"
peaks = {(program, settings): int(peak) for program, peak, settings in measured}
# pytorch#193400: 14,060 MiB with both settings, less than 500 with either.
both = json.load(open(f"{work}/fenced-max_split_size_mb:128,expandable_segments:True.json"))["devices"][0]
MIB = 1 << 20
assert both["recorded_peak_bytes"] == 14060 * MIB, both["recorded_peak_bytes"]
best = both["predictions"][both["recommended"][0]]
assert best["peak_reserved_bytes"] < 500 * MIB and "," not in best["settings"], best
called = json.load(open(f"{work}/called-.json"))["devices"][0]
assert called["settings"] == "max_split_size_mb:32" and called["variable"].endswith("_set_allocator_settings"), called
assert peaks["called", ""] == peaks["train", "max_split_size_mb:32"], peaks
# vLLM#41268: 260 MiB of each layer's segment are pinned.
converted = json.load(open(f"{work}/converted-.json"))["devices"][0]
assert converted["recorded_peak_bytes"] == 36 * (530 + 270 + 260) * MIB, converted["recorded_peak_bytes"]
best = converted["predictions"][converted["recommended"][0]]
assert best["settings"].startswith("max_split_size_mb") and best["peak_reserved_bytes"] == peaks["converted", "max_split_size_mb:32"], best
print("ok", len(measured), "runs")
PYTHON
