#!/usr/bin/env bash
# Tests verdicts in other programs: the JUnit XML is valid by the schema of Jenkins' xUnit plugin, and the workflow
# examples of docs/ci.md give the documented results on the fake driver, run as GitHub's and GitLab's runners run them.
#
#   tests/verdicts/run.sh [path of culeak]
#
# Needs a C compiler, python3, pip, and the network for the schema, which comes with the sources of pytest.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/../..
culeak=$(realpath "${1:-$root/target/debug/culeak}")
readonly PYTEST=9.0.1
readonly SCHEMA_SHA256=a1a816f58d1bf95ebabf371994df0b9246dee66ea9572fbec4f9296f1b2c0ff6
command -v xmllint >/dev/null || {
    apt-get update -q
    apt-get install -qy --no-install-recommends libxml2-utils
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() { printf 'FAILED  %s\n' "$*" >&2; exit 1; }
ok() { printf 'ok      %s\n' "$*"; }
expect_code() { # expect_code CODE COMMAND…
    local expected=$1 got=0
    shift
    "$@" || got=$?
    [ "$got" = "$expected" ] || fail "$* answered $got, not $expected"
}

python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary pytest "pytest==$PYTEST"
tar xzf "pytest-$PYTEST.tar.gz" --strip-components=3 "pytest-$PYTEST/testing/example_scripts/junit-10.xsd"
echo "$SCHEMA_SHA256  junit-10.xsd" | sha256sum --check --quiet
valid() { xmllint --noout --schema junit-10.xsd "$1" 2>"$1.errors" || { cat "$1.errors" >&2; fail "$1 is not valid"; }; }

# The schema must reject invalid files.
echo '<testsuites><testsuite><testcase/></testsuite></testsuites>' >bad.xml
xmllint --noout --schema junit-10.xsd bad.xml 2>/dev/null && fail "the schema takes anything"

mkdir bin
ln -s "$culeak" bin/culeak
export PATH=$work/bin:$PATH LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(culeak shim-path --fake-driver)

project() { # project NAME: a fresh checkout with a test program and a baseline
    mkdir "$work/$1"
    cd "$work/$1"
    git init --quiet
    cp "$root/tests/verdicts/gpu_tests.c" .
    cc -g -O1 gpu_tests.c -o gpu_tests "$LD_LIBRARY_PATH/libcuda.so.1"
    culeak run -o first --no-report -- ./gpu_tests 2>/dev/null
    culeak check first --baseline leaks.json --update-baseline 2>/dev/null
    export GITHUB_STEP_SUMMARY=$work/$1/summary.md
}

project clean
python3 "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" github >printed.txt || { cat printed.txt; fail "a clean program fails on GitHub"; }
grep -q passed summary.md || fail "no summary on GitHub"
if grep -q '^::error' printed.txt; then fail "a clean program is annotated"; fi
ok "GitHub: a program without new leaks passes, with a summary"

project leaking
expect_code 1 env LEAK=1 python3 "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" github >printed.txt
grep -q '^::error file=gpu_tests.c,line=20,.*new_leak' printed.txt || { cat printed.txt; fail "the leaking line is not annotated"; }
grep -qF 'new\_leak' summary.md || fail "the summary does not name the leak"
grep -q known_cache printed.txt && fail "a known leak is annotated"
ok "GitHub: a new leak fails, annotated on its line, and the summary is written all the same"

project gitlab-clean
python3 "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" gitlab >printed.txt || { cat printed.txt; fail "a clean program fails on GitLab"; }
valid_here() { cp leaks.xml "$work/$1.xml"; (cd "$work" && valid "$1.xml"); }
valid_here gitlab-clean
if grep -q '<failure' leaks.xml; then fail "a clean program fails a test"; fi
project gitlab-leaking
expect_code 1 env LEAK=1 python3 "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" gitlab >printed.txt
valid_here gitlab-leaking
grep -q '<failure.*new' leaks.xml || fail "the new leak fails no test"
ok "GitLab: the test report is valid, and fails for a new leak alone"

# Names with XML markup, several processes, limits on the total.
cd "$work"
cat >hostile.py <<'PYTHON'
import json, sys
snapshot = json.load(sys.stdin)
for location in snapshot["locations"]:
    for symbol in location["symbols"]:
        symbol["function"] = 'f<"&\x1b[31m]]>\u2028\ufffe' + symbol["function"]
        symbol["file"] = "/src/<!--&.cu"
json.dump(snapshot, sys.stdout)
PYTHON
culeak snapshot leaking/leaks/*.culeak -o - | python3 hostile.py >hostile.json
expect_code 1 culeak check hostile.json --format junit >hostile.xml
valid hostile.xml
LEAK=1 culeak run -o leaking/leaks --no-report -- leaking/gpu_tests 2>/dev/null
expect_code 1 culeak check leaking/leaks --max-leaked 1KiB --max-count 1 --max-per-site 1KiB --format junit >several.xml
valid several.xml
[ "$(grep -c '<testsuite ' several.xml)" = 2 ] || fail "two processes are not two suites"
culeak check leaking/leaks --max-leaked 1GiB --format junit >passed.xml
valid passed.xml
ok "JUnit: hostile names, several processes, passed and failed are valid by the schema"
