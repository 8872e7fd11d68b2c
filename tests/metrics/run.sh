#!/usr/bin/env bash
# `export -f openmetrics` and `culeak watch` with a real Prometheus and a real node_exporter: figures are those of `culeak report`,
# an alert fires, rules and dashboard query what exists; hostile peers and names; the systemd unit.
#
# Usage: tests/metrics/run.sh [PATH_OF_CULEAK]
#
# The Debian packages are unpacked and not installed, so that no service starts. Ports are chosen by the kernel or found free.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
culeak=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/culeak}")
tools="$(realpath "${CARGO_TARGET_DIR:-target}")/metrics-tools"

need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends "$2" >/dev/null || { apt-get update -q >/dev/null && apt-get install -qy --no-install-recommends "$2" >/dev/null; }
}
need cc gcc
need python3 python3
need systemd-analyze systemd

if ! [ -x "$tools/usr/bin/promtool" ] || ! [ -x "$tools/usr/bin/prometheus-node-exporter" ]; then
    packages=$(mktemp -d)
    (cd "$packages" && {
        apt-get download -q prometheus prometheus-node-exporter >/dev/null 2>&1 ||
            { apt-get update -q >/dev/null && apt-get download -q prometheus prometheus-node-exporter >/dev/null; }
    })
    mkdir -p "$tools"
    for package in "$packages"/*.deb; do dpkg-deb -x "$package" "$tools"; done
    rm -rf "$packages"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fake=$("$culeak" shim-path --fake-driver)
cc -g -O1 -D_GNU_SOURCE -DLOOKUP_LINKED -pthread -o "$work/victim" tests/live/victim.c "$fake/libcuda.so.1" -Wl,-rpath,"$fake" -ldl
mkdir "$work/nvml"
cc -shared -fPIC -o "$work/nvml/libnvidia-ml.so.1" tests/victims/nvml.c
python3 -B tests/metrics/claims.py "$culeak" "$tools/usr/bin" "$work"
