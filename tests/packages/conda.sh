#!/usr/bin/env bash
# Claims about the conda recipe: rattler-build builds it, its own tests pass in an environment that contains nothing else, and the
# package has the files of docs/install.md and nothing else.
#
#   tests/packages/conda.sh            compiles the command, and the libraries inside it as for a release
#
# No conda channel is used: the toolchain's packages are stand-ins, which set the variables that conda-forge's set and start this
# machine's tools. Therefore the built command needs this machine's glibc, and nothing here shows that it runs with an older one.
# The command alone is compiled without optimization, to save minutes.
# Needs Rust, a C compiler, and python3 with venv; installs rattler-build into a virtual environment in cargo's target folder.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
readonly RATTLER_BUILD=0.73.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED  $*"; exit 1; }
ok() { echo "ok      $*"; }

tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/conda-tools
[ -x "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check "py-rattler-build==$RATTLER_BUILD"
rattler_build() { # rattler_build TESTS RECIPE: builds a recipe of a file with the packages of the channel, and adds the result to it
    "$tools/bin/python" -W ignore - "$1" "$2" "$work/channel" <<'PYTHON'
import sys
from rattler_build.cli_api import build_recipes

tests, recipe, channel = sys.argv[1:]
build_recipes([recipe], channel=[f"file://{channel}"], output_dir=channel, test=tests)
PYTHON
}
stand_in() { # stand_in NAME COMMAND…: a package that these commands fill
    local name=$1 command
    mkdir -p "$work/$name"
    printf 'package:\n  name: %s\n  version: "2.17"\nabout:\n  license: MIT\nbuild:\n  script:\n' "$name" >"$work/$name/recipe.yaml"
    shift
    for command in 'mkdir -p $PREFIX/bin $PREFIX/etc/conda/activate.d' "$@"; do
        printf -- '    - %s\n' "$command" >>"$work/$name/recipe.yaml"
    done
    rattler_build skip "$work/$name/recipe.yaml" >"$work/log" 2>&1 || { cat "$work/log"; fail "the stand-in for $name"; }
}

mkdir -p "$work/channel/noarch"
echo '{"packages": {}, "packages.conda": {}}' >"$work/channel/noarch/repodata.json"
triple=$(rustc -vV | sed -n 's/^host: //p') conda=$(uname -m)-conda-linux-gnu
case $(uname -m) in
    x86_64) platform=linux-64 ;;
    *) platform=linux-$(uname -m) ;;
esac
# The compilers of conda-forge have other names than cc, and its Rust links with a search path.
cat >"$work/gcc.sh" <<END
export CC=\$CONDA_PREFIX/bin/$conda-cc CFLAGS='-O2 -ffunction-sections -pipe'
END
cat >"$work/rust.sh" <<END
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} PATH=$(dirname "$(command -v cargo)"):\$PATH
export CARGO_BUILD_TARGET=$triple CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$triple")_LINKER=\$CC CC_$(tr - _ <<<"$triple")=\$CC
export CARGO_PROFILE_RELEASE_OPT_LEVEL=0
export CARGO_BUILD_RUSTFLAGS="-C link-arg=-Wl,-rpath-link,\$PREFIX/lib -C link-arg=-Wl,-rpath,\$PREFIX/lib"
END
stand_in "gcc_$platform" "ln -s $(command -v cc) \$PREFIX/bin/$conda-cc" "cp $work/gcc.sh \$PREFIX/etc/conda/activate.d/activate-gcc.sh"
stand_in "rust_$platform" "cp $work/rust.sh \$PREFIX/etc/conda/activate.d/activate-rust.sh"
stand_in "sysroot_$platform" 'touch $PREFIX/bin/sysroot'
stand_in python "ln -s $(python3 -c 'import sys; print(sys.executable)') \$PREFIX/bin/python3"

if ! rattler_build native packaging/conda/recipe.yaml >"$work/log" 2>&1; then
    find "$work/channel/bld" -name conda_build.log -exec tail -n 50 {} + || true
    tail -n 50 "$work/log"
    fail "the recipe"
fi
package=$(ls "$work/channel/$platform"/culeak-*.conda)
ok "the recipe builds $(basename "$package"), $(du -h "$package" | cut -f1), and its tests pass"
"$tools/bin/python" - "$package" <<'PYTHON'
import re, sys
from rattler_build import Package

files = set(Package.from_file(sys.argv[1]).files)
pages = {path for path in files if re.fullmatch(r"share/man/man1/culeak(-[a-z-]+)?\.1", path)}
expected = {
    "bin/culeak",
    "include/culeak.h",
    "include/culeak_rmm.hpp",
    "share/bash-completion/completions/culeak",
    "share/zsh/site-functions/_culeak",
    "share/fish/vendor_completions.d/culeak.fish",
}
assert expected <= files, f"the package lacks {sorted(expected - files)}"
assert len(pages) > 10, pages
others = files - expected - pages
assert not others, f"the package also contains {sorted(others)}"
print(f"ok      {len(files)} files: the command, {len(pages)} manual pages, completions, headers")
PYTHON
"$tools/bin/python" -m zipfile -e "$package" "$work/unpacked"
tar -xf "$work"/unpacked/info-*.tar.zst -C "$work/unpacked"
grep -qE '^Rust standard library' "$work/unpacked/info/licenses/THIRD-PARTY-LICENCES.txt" || fail "the package has no licences of what is linked"
ok "the licences of what is linked"
