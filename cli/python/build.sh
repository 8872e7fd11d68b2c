#!/usr/bin/env bash
# Builds the wheel `culeak`: the command with the preload library inside, and the pytest plugin.
#
#   cli/python/build.sh [--portable] [--target TRIPLE] [--debug] FOLDER
#
# Without --portable, the wheel runs on machines with a glibc at least as new as this one's. With it, the wheel runs on glibc
# 2.17 and newer (manylinux_2_17): zig provides the old libraries to link with; and it contains the SBOM and the licences of all that
# is linked, which packaging/licences.py writes to FOLDER. --target builds for another machine, such as
# aarch64-unknown-linux-gnu, and implies --portable; it needs `rustup target add TRIPLE`, the target's binutils, and no compiler but zig. Of a
# TRIPLE with musl, the command is static, and the libraries in it are still those for programs with glibc, as NVIDIA's driver needs it; add
# the same TRIPLE with gnu, too. --debug uses cargo's dev profile, for tests.
# Needs Rust, a C compiler and python3 with venv; installs maturin, and for --portable zig and cargo-zigbuild, in the versions of
# build-tools.txt, into a virtual environment in cargo's target folder.
set -euo pipefail
here=$(dirname "$(realpath "$0")")

portable='' profile=release triple=$(rustc -vV | sed -n 's/^host: //p')
while [[ ${1:-} == --* ]]; do
    case $1 in
        --portable) portable=yes ;;
        --target) portable=yes triple=${2:?--target needs a triple}; shift ;;
        --debug) profile=dev ;;
        *) echo "build.sh: unknown option: $1" >&2; exit 2 ;;
    esac
    shift
done
out=$(realpath -m "${1:?usage: build.sh [--portable] [--target TRIPLE] [--debug] FOLDER}")

cd "$here/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR=$target
tools=$target/wheel-tools
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --constraint "$here/build-tools.txt" maturin ${portable:+ziglang cargo-zigbuild wheel}
PATH=$tools/bin:$PATH

# maturin takes licences and files of the package from below the folder of pyproject.toml only.
work=$(mktemp -d)
trap 'rm -rf "$work" "$here/licences" "$here/culeak/skills"' EXIT
mkdir -p "$here/licences"
cp LICENSE "$here/licences"
rm -rf "$here/culeak/skills"
cp -r skills "$here/culeak"

options=(--profile "$profile" --locked --out "$out")
if [ -n "$portable" ]; then
    with_glibc=${triple/-musl/-gnu}
    # First the libraries to embed, with the same profile as in cli/build.rs, but linked for the old glibc.
    CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=debuginfo CARGO_PROFILE_RELEASE_LTO=fat \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_TARGET_DIR=$target/portable \
        cargo zigbuild --release --locked --target "$with_glibc.2.17" --package culeak-shim --package culeak-hold --package culeak-audit --package culeak-fake-driver
    export CULEAK_PREBUILT_SHIM=$target/portable/$with_glibc/release/libculeak_shim.so
    export CULEAK_PREBUILT_HOLD=$target/portable/$with_glibc/release/libculeak_hold.so
    export CULEAK_PREBUILT_AUDIT=$target/portable/$with_glibc/release/libculeak_audit.so
    export CULEAK_PREBUILT_FAKE_DRIVER=$target/portable/$with_glibc/release/libculeak_fake_driver.so
    tests/gate.sh "$CULEAK_PREBUILT_SHIM" 2.17
    export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    mkdir -p "$out"
    packaging/licences.py --target "$triple" "$out"
    cp "$out/THIRD-PARTY-LICENCES.txt" "$here/licences"
    tag=manylinux_2_17
    [[ $triple != *-musl ]] || tag=musllinux_1_2
    options+=(--zig --target "$triple" --compatibility "$tag" --sbom-include "$out/culeak.cdx.json")
else
    # Installers accept this tag; a package index would not.
    options+=(--compatibility linux)
fi
# Not stripped by the linker: the demo names its own functions, and zig removes symbols with the debug information.
cd "$here"
CARGO_PROFILE_RELEASE_STRIP=none maturin build "${options[@]}"
[ -n "$portable" ] || exit 0
# The debug information is half of the wheel, and that of zig's start files contains the path of cargo's target folder. Functions that
# optimization shares between a crate's modules are named NAME.llvm.NUMBER; the number is a hash of the compiler's intermediate code,
# which may differ between two builds of the same machine code.
strip=strip
[[ $triple == "$(uname -m)"-* ]] || strip=${triple%%-*}-linux-gnu-strip
wheel=$(ls -t "$out"/culeak-*.whl | head -1)
"$tools/bin/python" -m wheel unpack --dest "$work" "$wheel"
"$strip" --strip-debug --wildcard --strip-symbol='*.llvm.*' "$work"/culeak-*/culeak-*.data/scripts/culeak
rm "$wheel"
"$tools/bin/python" -m wheel pack --dest-dir "$out" "$work"/culeak-*
