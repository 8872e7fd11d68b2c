#!/usr/bin/env bash
# Claims about the wheel: it installs into a clean virtual environment by the commands of its README, with the command and the pytest
# plugin, and both work there, on the fake driver that it contains; the command can export Parquet.
#
#   tests/wheel/run.sh               a wheel of the dev profile for this machine, like CI's other builds
#   tests/wheel/run.sh --portable    the wheel for glibc 2.17 and newer, as released; checks its requirements
#   tests/wheel/run.sh WHEEL         an existing one
#   tests/wheel/run.sh CULEAK        no wheel, but what it installs, with this command, so that nothing is built
#
# PYTHONS names other interpreters to try one after the other, e.g. "python3.8 python3.13".
set -euo pipefail
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends python3-venv; }
root=$(dirname "$(realpath "$0")")/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case ${1:-} in
    */culeak) built=$(realpath "$1") ;;
    *.whl) wheel=$(realpath "$1") ;;
    --portable) "$root/cli/python/build.sh" --portable "$work/dist" ;;
    '') "$root/cli/python/build.sh" --debug "$work/dist" ;;
    *) echo "run.sh: expected nothing, --portable, a wheel or a path of culeak, not $1" >&2; exit 2 ;;
esac
if [ -z "${built:-}" ]; then
    wheel=${wheel:-$(ls "$work"/dist/culeak-*.whl)}
    echo "wheel   $(basename "$wheel"), $(du -h "$wheel" | cut -f1)"
fi

as_wheel() { # as_wheel VENV: installs what the wheel has
    local site
    site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    cp -r "$root/cli/python/culeak" "$root"/cli/python/data/platlib/* "$site"
    cp -r "$root/skills" "$site/culeak"
    cp "$built" "$1/bin"
    mkdir "$site/culeak-0.dist-info"
    printf 'Metadata-Version: 2.1\nName: culeak\nVersion: 0\n' >"$site/culeak-0.dist-info/METADATA"
    python3 - "$root/cli/python/pyproject.toml" >"$site/culeak-0.dist-info/entry_points.txt" <<'END'
import sys, tomllib
for group, points in tomllib.load(open(sys.argv[1], "rb"))["project"]["entry-points"].items():
    print(f"[{group}]", *(f"{name} = {where}" for name, where in points.items()), sep="\n")
END
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check pytest
}

if [[ ${wheel:-} == *manylinux_2_17* ]]; then
    python3 -m venv "$work/audit"
    "$work/audit/bin/pip" install --quiet auditwheel
    "$work/audit/bin/auditwheel" show "$wheel" | tee "$work/audit.txt"
    # The tag must not promise more than the wheel provides.
    tr -s '\n ' ' ' <"$work/audit.txt" | grep -q 'consistent with the following platform tag: "manylinux_2_17_'
fi

# The commands by which its README installs it, from the folder that the README names.
mapfile -t commands < <(sed -nE 's/^    (pip install [^#]*[^# ]) *(#.*)?$/\1/p' "$root/cli/python/README.md")
[ "${#commands[@]}" -gt 0 ] || { echo "run.sh: the README names no command that installs the wheel" >&2; exit 1; }
mkdir -p "$work/dist"
[ -z "${wheel:-}" ] || [ -e "$work/dist/$(basename "$wheel")" ] || cp "$wheel" "$work/dist"

# In a folder where the source tree cannot be imported instead of the installed package.
cp -r "$root/cli/python/tests" "$work/tests"
cd "$work"
for python in ${PYTHONS:-python3}; do
    echo "== $("$python" --version)"
    rm -rf "$work/clean" "$work/cache"
    "$python" -m venv "$work/clean"
    [ -z "${built:-}" ] || { as_wheel "$work/clean"; commands=(); }
    for command in "${commands[@]}"; do
        PATH=$work/clean/bin:$PATH PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1 bash -c "$command"
    done
    "$work/clean/bin/python" -m pip install --quiet --disable-pip-version-check pytest-xdist
    export XDG_CACHE_HOME=$work/cache
    "$work/clean/bin/culeak" --version
    "$work/clean/bin/culeak" demo --fake >"$work/demo.txt" || { cat "$work/demo.txt"; exit 1; }
    # The procedure for agents, by the command of docs/agents.md.
    (mkdir -p "$work/agent" && cd "$work/agent" && rm -rf .claude && mkdir -p .claude/skills && PATH=$work/clean/bin:$PATH \
        bash -c "$(sed -n 's/^    \(cp -r .*culeak.__path__.*\)$/\1/p' "$root/docs/agents.md")")
    cmp "$work/agent/.claude/skills/gpu-memory-leak/SKILL.md" "$root/skills/gpu-memory-leak/SKILL.md"
    # Parquet is a feature of the build, which a wheel has.
    rm -rf "$work/recorded"
    LD_LIBRARY_PATH=$("$work/clean/bin/culeak" shim-path --fake-driver) \
        "$work/clean/bin/culeak" run --no-report -o "$work/recorded" -- "$work/clean/bin/culeak" demo-program </dev/null >/dev/null
    "$work/clean/bin/culeak" export "$work/recorded"/*.culeak --format parquet -o "$work/recorded/gpu.parquet"
    if [[ ${wheel:-} == *manylinux_2_17* ]]; then
        "$root/tests/gate.sh" "$("$work/clean/bin/culeak" shim-path)" 2.17
    fi
    "$work/clean/bin/python" -m pytest -q -p no:cacheprovider -n 2 tests
done
