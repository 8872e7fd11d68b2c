#!/usr/bin/env bash
# Claims about packaging/gather.sh, with files that stand in for packages: a release has each file of each architecture, by the checksums that
# it lists, the provenance of each, and the newest section of the changelog. What was damaged since it was built is refused.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED  $*"; exit 1; }
version=$(sed -n '/^\[workspace\.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)

for machine in x86_64 aarch64; do
    mkdir "$work/$machine"
    for file in "culeak-$version-py3-none-manylinux_2_17_$machine.whl" "culeak-$version-$machine-linux.tar.gz" culeak.cdx.json THIRD-PARTY-LICENCES.txt; do
        echo "$machine $file" >"$work/$machine/$file"
    done
    (cd "$work/$machine" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
done
packaging/gather.sh "$work/out" "$work/x86_64" "$work/aarch64"
cd "$work/out/files"
[ "$(ls | wc -l)" -eq 10 ] && [ "$(wc -l <SHA256SUMS)" -eq 9 ] || fail "a release has these files: $(ls | tr '\n' ' ')"
sha256sum --quiet --strict --check SHA256SUMS || fail "the checksums of a release"
for machine in x86_64 aarch64; do
    [ "$(cat "culeak-$machine.cdx.json" "THIRD-PARTY-LICENCES-$machine.txt")" = "$(printf '%s culeak.cdx.json\n%s THIRD-PARTY-LICENCES.txt' $machine $machine)" ] || fail "the SBOM or the licences of $machine"
done
# The statement is about all other files, by the checksums that the release lists, and names the commit.
python3 - "$(git -C "$OLDPWD" rev-parse HEAD)" <<'PYTHON' || fail "the provenance of a release"
import json, sys

said = json.load(open("culeak.intoto.json"))
listed = {name: sum for sum, name in (line.split() for line in open("SHA256SUMS"))}
del listed["culeak.intoto.json"]
assert {subject["name"]: subject["digest"]["sha256"] for subject in said["subject"]} == listed, said
assert (said["_type"], said["predicateType"]) == ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"), said
assert said["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"gitCommit": sys.argv[1]}, said
assert said["predicate"]["runDetails"]["builder"]["id"], said
PYTHON
# Between two releases the newest section has no number yet; packaging/version.sh refuses to release it.
head -1 ../notes.md | grep -qE "^## (Unreleased$|(Unreleased: )?${version//./\\.}( |$))" || fail "the notes begin with $(head -1 ../notes.md)"
[ "$(grep -c '^## ' ../notes.md)" -eq 1 ] || fail "the notes have more than one section"
cd "$OLDPWD"
echo damaged >>"$work/aarch64/culeak-$version-aarch64-linux.tar.gz"
! packaging/gather.sh "$work/again" "$work/x86_64" "$work/aarch64" >"$work/log" 2>&1 || fail "a damaged package is part of a release"
echo "ok      a release has the files of both architectures, by their checksums, with their provenance; a damaged one is refused"
