#!/usr/bin/env bash
# Makes a folder with an emulated aarch64 machine for inside.sh: qemu and a Debian tree.
#
#   tests/aarch64/prepare.sh FOLDER [SUITE]      # trixie by default
#
# The tree has programs of two architectures: what a test records is aarch64, and the compilers are this machine's own, for
# aarch64, which makes them ten times faster. Needs root, mmdebstrap, and about 900 MB.
set -euo pipefail
machine=$(realpath -m "${1:?usage: prepare.sh FOLDER [SUITE]}")
suite=${2:-trixie}
mkdir -p "$machine"

# Statically linked since trixie, so it runs where the tree is the root.
mmdebstrap --quiet --variant=extract --include=qemu-user trixie "$machine/emulator"
cp "$machine/emulator/usr/bin/qemu-aarch64" "$machine/qemu-aarch64"
rm -r "$machine/emulator"

emulated=(bash coreutils dash diffutils findutils grep gzip hostname libc-bin libc6-dev libjemalloc2 libmimalloc3
    libpython3-dev libtcmalloc-minimal4t64 login mawk mount procps python3 python3-minimal sed tar util-linux)
packages=$(printf '%s:arm64,' "${emulated[@]}")g++-aarch64-linux-gnu,gcc-aarch64-linux-gnu,base-files,base-passwd
# Without git's dependencies: perl's are of one architecture only.
# shellcheck disable=SC2016 # expanded by mmdebstrap's shell
git='cd "$1" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq -o APT::Sandbox::User=root download git:arm64 && dpkg-deb --extract git_*.deb . && rm git_*.deb'
mmdebstrap --quiet --variant=extract --architectures=amd64,arm64 --include="$packages" --extract-hook="$git" "$suite" "$machine/root"

# What the packages' scripts, which do not run here, would have done.
cd "$machine/root"
cp usr/share/base-passwd/passwd.master etc/passwd
cp usr/share/base-passwd/group.master etc/group
ln -sf dash usr/bin/sh
ln -sf mawk usr/bin/awk
for tool in ar as ld nm objcopy objdump readelf strip; do
    ln -sf "aarch64-linux-gnu-$tool" "usr/bin/$tool"
done
# All that the tests compile signs its return addresses (PAC) and has landing pads (BTI).
mkdir -p usr/local/bin
for compiler in cc:gcc gcc:gcc c++:g++ g++:g++; do
    printf '#!/bin/sh\nexec aarch64-linux-gnu-%s -mbranch-protection=standard "$@"\n' "${compiler#*:}" >"usr/local/bin/${compiler%:*}"
    chmod +x "usr/local/bin/${compiler%:*}"
done
touch "$machine/complete"
