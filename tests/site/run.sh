#!/usr/bin/env bash
# Builds the site (docs/site/build.sh), and claims that it is whole and works from a folder, in a browser without a network. Needs python3
# with venv, g++, make, and Chromium or Chrome.
#
#     tests/site/run.sh PATH_OF_CULEAK [SITE]      SITE keeps the site
set -euo pipefail
culeak=$(realpath "${1:?usage: run.sh PATH_OF_CULEAK [SITE]}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
browser=$(command -v chromium || command -v google-chrome) || { echo "run.sh: neither chromium nor google-chrome is installed" >&2; exit 1; }
site=$(realpath -m "${2:-$work/site}")
cd "$(dirname "$(realpath "$0")")/../.."
docs/site/build.sh "$site" "$culeak"
tools=${CARGO_TARGET_DIR:-target}/site-tools
"$tools/bin/pip" install --quiet --disable-pip-version-check playwright
"$tools/bin/python" -B tests/site/claims.py "$site" "$browser"
