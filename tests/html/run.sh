#!/usr/bin/env bash
# Tests the HTML report in a real browser. Needs python3, pip and g++; installs Chromium if it is missing, and its driver in a
# separate folder. CULEAK_SCREENSHOTS=FOLDER keeps screenshots.
#
#     tests/html/run.sh [PATH_OF_CULEAK [CLAIM…]]
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
culeak=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/culeak}")
shift $(($# > 0))
# TIMELINE_EVENTS: the size of the large timeline; ten million take a minute without optimization.
events=${TIMELINE_EVENTS:-1000000}
driver="${CARGO_TARGET_DIR:-target}/html-driver"

if ! command -v chromium >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends chromium || { apt-get update -q && apt-get install -qy --no-install-recommends chromium; }
fi
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends python3-venv; }
if ! [ -x "$driver/bin/python" ] || ! "$driver/bin/python" -c 'import playwright' 2>/dev/null; then
    python3 -m venv "$driver"
    "$driver/bin/pip" install --quiet --disable-pip-version-check playwright
fi

# The checked-in libraries are unchanged since they were fetched; vendor/fetch.sh compares them with the releases.
(cd cli/src/html/vendor && sha256sum --check --quiet checksums)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$driver/bin/python" -B tests/html/snapshots.py "$folder"
cargo build --quiet --locked --example timeline_recording
recorder="${CARGO_TARGET_DIR:-target}/debug/examples/timeline_recording"
"$recorder" "$folder/timeline.culeak" 60000 2000 >/dev/null
"$recorder" "$folder/large-timeline.culeak" "$events" 0 24 >/dev/null
"$driver/bin/python" -B tests/html/claims.py "$culeak" "$folder" "$(command -v chromium)" "$@"
