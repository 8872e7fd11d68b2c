#!/usr/bin/env bash
# Claims that one version is named everywhere: in the workspace, its crates' requirements of each other, Cargo.lock, the
# changelog and the conda recipe; and in a tag. And that the tools that build the wheel have exact versions.
#
#   packaging/version.sh [TAG]
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
version=$(sed -n '/^\[workspace\.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
failures=0
differs() { echo "FAILED  $1, not $version"; failures=1; }

while read -r line; do
    [[ $line == *"version = \"$version\""* ]] || differs "Cargo.toml: $line"
done < <(sed -n '/^\[workspace\.dependencies\]/,/^$/{/^culeak/p}' Cargo.toml)
while read -r found; do
    [ "$found" = "$version" ] || differs "Cargo.lock: $found"
done < <(sed -n '/^name = "culeak/{n;s/^version = "\(.*\)"$/\1/p}' Cargo.lock)
grep -qE "^## (Unreleased: )?${version//./\\.}( |$)" CHANGELOG.md || differs "CHANGELOG.md: $(grep -m1 '^## ' CHANGELOG.md)"
grep -qF "version: \"$version\"" packaging/conda/recipe.yaml || differs "packaging/conda/recipe.yaml: $(grep -m1 'version:' packaging/conda/recipe.yaml)"
for tool in cargo-zigbuild maturin wheel ziglang; do
    grep -qxE "$tool==[0-9]+(\.[0-9]+)+" cli/python/build-tools.txt || { echo "FAILED  cli/python/build-tools.txt: no exact version of $tool"; failures=1; }
done
[ "${1:-v$version}" = "v$version" ] || differs "the tag: $1"
[ -z "${1:-}" ] || ! grep -q '^## Unreleased' CHANGELOG.md || { echo "FAILED  CHANGELOG.md: what $1 contains is still called Unreleased"; failures=1; }
[ "$failures" -eq 0 ] || exit 1
echo "ok      version $version everywhere"
