#!/usr/bin/env bash
# Fetches the libraries of the HTML report again and compares them with what lies here. With --write: replaces it.
# To take a newer release: change its version here and in NOTICES.txt, run with --write, and run tests/html/run.sh.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

take() { # take PACKAGE VERSION FILE...: packs the package and unpacks these files of it
    local package=$1 version=$2
    shift 2
    (cd "$folder" && npm pack --silent "$package@$version" >/dev/null)
    for file in "$@"; do
        tar -xOf "$folder/$package-$version.tgz" "package/$file" > "$folder/$(basename "$file")"
    done
}
take d3-hierarchy 3.1.3 dist/d3-hierarchy.min.js
take d3-selection 3.0.1 dist/d3-selection.min.js

if [ "${1:-}" = --write ]; then
    cp "$folder"/*.min.js .
    sha256sum -- *.min.js > checksums
fi
(cd "$folder" && sha256sum --check "$OLDPWD/checksums")
sha256sum --check --quiet checksums
