#!/usr/bin/env bash
# Puts what packaging/build.sh has built for several architectures into one folder, as a release has it: OUT/files with their provenance and one
# SHA256SUMS, and OUT/notes.md, which is the newest section of the changelog. The SBOM and the licences, of one name in all FOLDERs, get the
# architecture in their names.
#
#   packaging/gather.sh OUT FOLDER…
set -euo pipefail
here=$(dirname "$(realpath "$0")")
[ $# -ge 2 ] || { echo "usage: gather.sh OUT FOLDER…" >&2; exit 2; }
out=$(realpath -m "$1")
shift
mkdir -p "$out"
mkdir "$out/files"
for folder; do
    (cd "$folder" && sha256sum --quiet --strict --check SHA256SUMS)
    machine=$(ls "$folder"/culeak-*-linux.tar.gz | sed 's/.*-\([a-z0-9_]*\)-linux\.tar\.gz$/\1/')
    for file in "$folder"/*; do
        case $(basename "$file") in
            SHA256SUMS) continue ;;
            culeak.cdx.json) name=culeak-$machine.cdx.json ;;
            THIRD-PARTY-LICENCES.txt) name=THIRD-PARTY-LICENCES-$machine.txt ;;
            *) name=$(basename "$file") ;;
        esac
        [ ! -e "$out/files/$name" ] || { echo "gather.sh: two folders have a $name" >&2; exit 1; }
        cp "$file" "$out/files/$name"
    done
done
"$here/provenance.py" "$out/files"
(cd "$out/files" && sha256sum -- * >"$out/SHA256SUMS" && mv "$out/SHA256SUMS" .)
awk '/^## / && seen++ { exit } seen' "$here/../CHANGELOG.md" >"$out/notes.md"
