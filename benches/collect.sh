#!/usr/bin/env bash
# Collects what the benches and the comparison need into a folder, for a machine that has no Rust: culeak with its preload
# library, the benches, the Rust program of the GPU suite, and heaptrack where it is installed here. The rest they need lies
# in the repository. The folder also serves tests/gpu/run.sh and tests/gpu/peers.sh.
#
#   benches/collect.sh FOLDER                                       here
#   CULEAK_BIN=FOLDER benches/run.sh                                there: tables of the benches
#   CULEAK_BIN=FOLDER benches/compare/run.sh                        there: the targets
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
folder=${1:?name a folder}
mkdir -p "$folder"
folder=$(realpath "$folder")

cargo build --release --locked -p culeak-cli
cargo build --release --locked --manifest-path tests/gpu/cudarc_victim/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}/cudarc"
# With its debug information: the suite asks for the line of its leak.
cp "${CARGO_TARGET_DIR:-target}/cudarc/release/victim-cudarc" "$folder/victim-cudarc"
built=$(cargo bench --no-run --locked --message-format=json -p culeak -p culeak-walker -p culeak-cpython |
    python3 -c 'import json, sys
for line in sys.stdin:
    told = json.loads(line)
    if told.get("executable"):
        print(told["target"]["kind"][0], told["target"]["name"], told["executable"])')
while read -r kind name path; do
    # Without debug information, which is most of them; unwinding needs none.
    if [ "$kind" = bench ]; then strip --strip-debug -o "$folder/$name" "$path"; fi
done <<<"$built"
strip --strip-debug -o "$folder/culeak" "${CARGO_TARGET_DIR:-target}/release/culeak"

if tool=$(command -v heaptrack); then
    home=$(dirname "$(dirname "$(readlink -f "$tool")")")
    mkdir -p "$folder/heaptrack/bin" "$folder/heaptrack/lib"
    cp "$tool" "$folder/heaptrack/bin/"
    cp -r "$home/lib/heaptrack" "$folder/heaptrack/lib/"
    # Its libraries, but for those that every machine has in the version that goes with its libc.
    ldd "$home"/lib/heaptrack/*.so "$home"/lib/heaptrack/libexec/* | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u |
        grep -Ev '/(libc|libm|libdl|libpthread|libgcc_s|libstdc\+\+)\.so' | xargs -r -I{} cp -L {} "$folder/heaptrack/lib/"
fi
du -sh "$folder"
