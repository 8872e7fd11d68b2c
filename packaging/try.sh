#!/usr/bin/env bash
# Every claim about what packaging/build.sh has built in FOLDER, and about what is published from sources: the wheel, the deb, the rpm and
# the tarball, the container, the crates, the conda recipe; and that a second build gives the same bits. This is a release without publishing:
# release.yml runs it, each week too.
#
#   packaging/try.sh FOLDER
#
# Needs root, and what the scripts below name in their first lines.
set -euo pipefail
folder=$(realpath "${1:?usage: try.sh FOLDER}")
cd "$(dirname "$(realpath "$0")")/.."
claims() { printf '\n-- %s\n' "$*"; "$@"; }

claims packaging/version.sh
claims tests/wheel/run.sh "$folder"/culeak-*.whl
claims tests/packages/run.sh "$folder"
claims tests/packages/container.sh "$folder"
claims tests/packages/crates.sh
claims tests/packages/conda.sh
claims packaging/compare.sh "$folder"
