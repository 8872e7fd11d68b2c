#!/usr/bin/env bash
# Claims about the crates: each contains the licence, and is packed from what its own folder and its dependencies have; the
# command installs from the packed crates in a folder that contains nothing else of this repository, without a network, and
# passes its demo.
#
#   tests/packages/crates.sh            all claims; compiles every dependency, in the dev profile
#   tests/packages/crates.sh --quick    packs the crates and checks their lists of files
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo package --workspace --no-verify --locked --allow-dirty --quiet --target-dir "$work/packed" 2>"$work/messages" ||
    { cat "$work/messages"; exit 1; }
crates=("$work"/packed/package/*.crate)
members=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["packages"]))')
[ "${#crates[@]}" -eq "$members" ] || { echo "FAILED  ${#crates[@]} crates of $members packages"; exit 1; }
for crate in "${crates[@]}"; do
    tar -tzf "$crate"
    tar -xOzf "$crate" "$(basename "$crate" .crate)/LICENSE" 2>/dev/null | cmp -s - LICENSE || { echo "FAILED  $(basename "$crate") lacks LICENSE" >&2; exit 1; }
done >"$work/files"
if grep -E '/(tests|golden|benches|examples|target)/|_tests\.rs|/tests\.rs|\.(sh|pyc)$' "$work/files"; then
    echo "FAILED  crates contain files that only tests and development need"
    exit 1
fi
# Files that the sources include. Tests may include what the crate lacks: `cargo install` does not compile them.
python3 - "${crates[@]}" <<'PYTHON'
import posixpath, re, sys, tarfile

for path in sys.argv[1:]:
    with tarfile.open(path) as crate:
        names = crate.getnames()
        for source in filter(lambda name: name.endswith(".rs"), names):
            text = crate.extractfile(source).read().decode().split("#[cfg(test)]")[0]
            for included in re.findall(r'include_(?:str|bytes)!\((?:concat!\()?"([^"]+)"', text):
                wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), included))
                outside = not wanted.startswith(names[0].split("/")[0] + "/")
                if not outside and not any(name == wanted or name.startswith(wanted + "/") for name in names):
                    sys.exit(f"FAILED  {path}: {source} includes {included}, which the crate lacks")
PYTHON
echo "ok      $members crates, $(wc -l <"$work/files") files, $(du -ch "${crates[@]}" | tail -1 | cut -f1)"
[ "${1:-}" != --quick ] || exit 0

# A folder of sources, as a registry would give them: all dependencies, and the packed crates.
cargo vendor --locked --quiet "$work/sources" >/dev/null
for crate in "${crates[@]}"; do
    tar -xzf "$crate" -C "$work/sources"
    folder=$work/sources/$(basename "$crate" .crate)
    printf '{"files":{},"package":"%s"}' "$(sha256sum "$crate" | cut -d' ' -f1)" >"$folder/.cargo-checksum.json"
done
mkdir "$work/.cargo"
cat >"$work/.cargo/config.toml" <<END
[source.crates-io]
replace-with = "folder"
[source.folder]
directory = "$work/sources"
[net]
offline = true
END
cd "$work"
CARGO_TARGET_DIR=$work/target cargo install --quiet --debug --locked --path "$work"/sources/culeak-cli-* --root "$work/installed"
XDG_CACHE_HOME=$work/cache "$work/installed/bin/culeak" demo --fake >"$work/demo" || { cat "$work/demo"; exit 1; }
echo "ok      the command installs from the packed crates, and passes its demo: $(tail -1 "$work/demo")"
