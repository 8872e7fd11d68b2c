#!/usr/bin/env bash
# `export --to` and `watch --to` against servers: local ones that play Pyroscope and OpenTelemetry receivers, check every field with the published
# protobuf definitions and misbehave in every way, and a real VictoriaMetrics.
#
# Usage: tests/push/run.sh CULEAK        a culeak built with `--features push`
#
# Needs python3 and pip, and root for the Debian packages that it installs. VictoriaMetrics is unpacked
# from Debian's package into cargo's target folder, and not installed. Nothing measures time: servers wait for the client and the
# client for servers, each with a limit.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
culeak=$(realpath "${1:?usage: tests/push/run.sh CULEAK}")
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readers=$target/push-readers
metrics=$target/push-victoria-metrics

# Debian 12 does not have the package, the release after it does. Its lists are kept apart from those of this system.
unpack_victoria_metrics() {
    local uri keys work apt
    # awk reads to the end: apt-get fails if the reader of its list has gone.
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | awk '/\/debian\// && !found++')
    keys=$(find /usr/share/keyrings -name 'debian-archive-keyring.*' -print -quit)
    work=$(mktemp -d)
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
    echo "deb [signed-by=$keys] $uri trixie main" >"$work/list"
    apt=(apt-get -q -o Dir::Etc::SourceList="$work/list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$work/lists"
        -o Dir::Cache="$work/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root -o Acquire::Languages=none
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Retries=3)
    "${apt[@]}" update
    (cd "$work" && "${apt[@]}" download victoria-metrics)
    dpkg-deb -x "$work"/victoria-metrics_*.deb "$work/unpacked"
    rm -rf "$metrics"
    mv "$work/unpacked" "$metrics"
    rm -rf "$work"
}

if ! command -v go >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends golang-go >/dev/null ||
        { apt-get update -q >/dev/null && apt-get install -qy --no-install-recommends golang-go >/dev/null; }
fi
folder=$(mktemp -d)
fetching=''
stop() {
    [ -z "$fetching" ] || kill "$fetching" 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT
if ! [ -x "$metrics/usr/bin/victoria-metrics" ]; then
    unpack_victoria_metrics >"$folder/fetch.log" 2>&1 &
    fetching=$!
fi
if ! "$readers/bin/python" -c 'import trustme, google.rpc, opentelemetry.proto.profiles.v1development' 2>/dev/null; then
    python3 -m venv "$readers"
    "$readers/bin/pip" install --quiet --disable-pip-version-check opentelemetry-proto googleapis-common-protos trustme
fi
"$readers/bin/python" -B tests/push/claims.py "$culeak" "$folder"
if [ -n "$fetching" ]; then
    wait "$fetching" || { cat "$folder/fetch.log" >&2; exit 1; }
    fetching=''
fi
"$readers/bin/python" -B tests/push/victoria_metrics.py "$culeak" "$folder" "$metrics/usr/bin/victoria-metrics"
