#!/usr/bin/env bash
# Builds the site: the pages of docs/, with a search, and a gallery of example reports that this script records; those of docs/site/gpu
# were recorded on a GPU by record.sh. It needs no server: open OUT/index.html.
#
#     docs/site/build.sh OUT PATH_OF_CULEAK
#
# Needs python3 (3.11 or newer) with venv, g++ and make; Sphinx is installed into cargo's target folder.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
out=$(realpath -m "${1:?usage: build.sh OUT PATH_OF_CULEAK}")
culeak=$(realpath "${2:?usage: build.sh OUT PATH_OF_CULEAK}")
cd "$here/../.."
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/site-tools
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check -r docs/site/requirements.txt

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/pages" "$work/examples"
python3 -B docs/site/examples.py "$culeak" "$work/examples"
python3 -B docs/site/stage.py "$work/pages" "$work/examples/gallery.md"
# A link that leads nowhere is a warning, and so an error.
SITE_VERSION=$("$culeak" --version | cut -d' ' -f2) SITE_EXAMPLES=$work/examples/files \
    "$tools/bin/python" -m sphinx --quiet --fail-on-warning --keep-going -c docs/site -d "$work/doctrees" "$work/pages" "$out"
rm -f "$out/.buildinfo" "$out/objects.inv"
echo "built $out/index.html: $(find "$out" -name '*.html' | wc -l) pages, $(du -sh "$out" | cut -f1)"
