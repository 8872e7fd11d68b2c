#!/usr/bin/env bash
# The dataset of `export -f dataset` and `watch --dataset` in DuckDB and PyArrow: every view of the dataset, compared with
# culeak's own report, trend and diff. With WITH_SPARK=1, also on Spark, whose answers must equal DuckDB's; this takes minutes, and
# installs pyspark and, if it is missing, a Java runtime. Needs a culeak built with `--features full`, the example many_ranks (cargo build
# --example many_ranks), python3 and pip.
#
#     [WITH_SPARK=1] tests/dataset/run.sh [PATH_OF_CULEAK]
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
culeak=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/culeak}")
many_ranks="${CARGO_TARGET_DIR:-target}/debug/examples/many_ranks"
readers="${CARGO_TARGET_DIR:-target}/dataset-readers"

packages=(duckdb ipykernel nbclient nbformat pyarrow)
imports='duckdb, nbclient, ipykernel, pyarrow'
if [ -n "${WITH_SPARK:-}" ]; then
    packages+=(pyspark)
    imports+=', pyspark'
else
    unset WITH_SPARK
fi
if [ -n "${WITH_SPARK:-}" ] && ! command -v java >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends openjdk-17-jre-headless ||
        { apt-get update -q && apt-get install -qy --no-install-recommends openjdk-17-jre-headless; }
fi
if ! "$readers/bin/python" -c "import $imports" 2>/dev/null; then
    python3 -m venv "$readers"
    "$readers/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
fi
[ -x "$many_ranks" ] || cargo build --quiet --locked --example many_ranks

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
LEAKING=17,40-43 NOISE=3 "$many_ranks" "$folder/job" 64 60
"$many_ranks" "$folder/calm" 16 60
"$readers/bin/python" -B tests/dataset/claims.py "$culeak" "$folder"
