#!/usr/bin/env bash
# Claims about the container recipe: it builds from the folder of packaging/build.sh, and the image does what the init container
# of packaging/kubernetes asks of it. Needs root, buildah and mmdebstrap, and no image registry: the base is made here.
#
#   tests/packages/container.sh FOLDER
set -euo pipefail
folder=$(realpath "${1:?usage: container.sh FOLDER}")
cd "$(dirname "$(realpath "$0")")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

mmdebstrap --quiet --variant=minbase "${CULEAK_SUITE:-trixie}" "$work/base.tar"
base=$(build from scratch)
build add --quiet "$base" "$work/base.tar" / >/dev/null
build commit --quiet "$base" localhost/base >/dev/null
build build --quiet --isolation chroot --pull-never --build-arg BASE=localhost/base \
    --build-arg TARGETARCH="$(dpkg --print-architecture)" --tag localhost/culeak -f packaging/container/Containerfile "$folder" >/dev/null
# The command of the init container, as the manifest has it.
command=$(sed -n "s/^ *command: \[sh, -c, '\(.*\)'\]$/\1/p" packaging/kubernetes/job.yaml)
[ -n "$command" ] || { echo "FAILED  job.yaml has no command of an init container"; exit 1; }
mkdir "$work/culeak"
image=$(build from --pull-never localhost/culeak)
build run --isolation chroot --volume "$work/culeak:/culeak" "$image" -- sh -c "$command"
tests/gate.sh "$work/culeak/libculeak.so" 2.17 >"$work/gate" || { cat "$work/gate"; exit 1; }
build run --isolation chroot "$image" -- culeak --version
echo "ok      the image builds, and its init command copies a library that passes the gate"
