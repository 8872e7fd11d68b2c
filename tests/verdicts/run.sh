#!/usr/bin/env bash
# Tests verdicts in other programs: the JUnit XML is valid by the schema of Jenkins' xUnit plugin, and the workflow
# examples of docs/ci.md and the GitHub action of packaging/action give the documented results on the fake driver, run as the
# runners of GitHub, GitLab and Jenkins run them. The action, the examples and this repository's workflows are valid by the schemas of
# check-jsonschema, and zizmor finds nothing unsafe in the action and the workflows. docs/quickstart.md and docs/ten-steps.md give the reports that they show, and
# so does the recording in the README; links between pages lead somewhere.
#
#   tests/verdicts/run.sh [path of culeak]
#
# Needs a C and a C++ compiler, make, patch, python3, pip, and the network for tools and the schema, which comes with the sources of pytest.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/../..
culeak=$(realpath "${1:-$root/target/debug/culeak}")
readonly PYTEST=9.0.1
readonly SCHEMA_SHA256=a1a816f58d1bf95ebabf371994df0b9246dee66ea9572fbec4f9296f1b2c0ff6
command -v xmllint >/dev/null || {
    apt-get update -q
    apt-get install -qy --no-install-recommends libxml2-utils
}
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends python3-venv; }
tools=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}/verdict-tools")
if ! "$tools/bin/python" -c 'import yaml' 2>/dev/null || ! [ -x "$tools/bin/zizmor" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check check-jsonschema==0.39.0 pyyaml==6.0.3 zizmor==1.32.0
fi
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

# --- the action and the examples by their schemas ---
action=$root/packaging/action/action.yml
"$tools/bin/check-jsonschema" --quiet --builtin-schema vendor.github-actions "$action"
workflows=("$root"/.github/workflows/*.yml)
"$tools/bin/check-jsonschema" --quiet --builtin-schema vendor.github-workflows "${workflows[@]}"
"$tools/bin/zizmor" --offline --quiet "$action" "${workflows[@]}"
"$tools/bin/python" - "$root/docs/ci.md" <<'PYTHON'
import re, sys, yaml
from pathlib import Path
blocks = re.findall(r"```yaml\n(.*?)```", Path(sys.argv[1]).read_text(encoding="utf-8"), re.DOTALL)
steps = [step for block in map(yaml.safe_load, blocks) if isinstance(block, list) for step in block]
job = {"runs-on": "ubuntu-24.04", "steps": steps}
Path("workflow.yml").write_text(yaml.safe_dump({"name": "x", "on": "push", "jobs": {"leaks": job}}))
Path(".gitlab-ci.yml").write_text(next(block for block in blocks if "script:" in block))
PYTHON
"$tools/bin/check-jsonschema" --quiet --builtin-schema vendor.github-workflows workflow.yml
"$tools/bin/check-jsonschema" --quiet --builtin-schema vendor.gitlab-ci .gitlab-ci.yml
# The schemas must reject invalid files, and zizmor an input or a tag's name in a script.
sed 's/^      shell: bash$//' "$action" >broken.yml
"$tools/bin/check-jsonschema" --quiet --builtin-schema vendor.github-actions broken.yml >/dev/null 2>&1 && fail "the schema of actions takes anything"
mkdir unsafe
sed 's/"\$COMMAND"/"${{ inputs.run }}"/' "$action" >unsafe/action.yml
"$tools/bin/zizmor" --offline --quiet unsafe/action.yml >/dev/null 2>&1 && fail "zizmor takes anything"
mkdir -p unsafe/.github/workflows
for workflow in "${workflows[@]}"; do
    sed 's/^    runs-on: .*$//' "$workflow" >broken.yml
    "$tools/bin/check-jsonschema" --quiet --builtin-schema vendor.github-workflows broken.yml >/dev/null 2>&1 && fail "the schema takes a job without a machine"
    sed 's/^        run: /&echo ${{ github.ref_name }}; /' "$workflow" >"unsafe/.github/workflows/$(basename "$workflow")"
    "$tools/bin/zizmor" --offline --quiet "unsafe/.github/workflows/$(basename "$workflow")" >/dev/null 2>&1 && fail "zizmor takes any workflow"
done
ok "the action, the examples and the workflows are valid by the schemas of GitHub and GitLab; zizmor finds nothing"

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
    mkdir "$work/$1/temporary"
    export GITHUB_STEP_SUMMARY=$work/$1/summary.md RUNNER_TEMP=$work/$1/temporary
}

project clean
"$tools/bin/python" "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" github >printed.txt || { cat printed.txt; fail "a clean program fails on GitHub"; }
grep -q passed summary.md || fail "no summary on GitHub"
if grep -q '^::error' printed.txt; then fail "a clean program is annotated"; fi
ok "GitHub: a program without new leaks passes, with a summary"

project leaking
expect_code 1 env LEAK=1 "$tools/bin/python" "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" github >printed.txt
grep -q '^::error file=gpu_tests.c,line=20,.*new_leak' printed.txt || { cat printed.txt; fail "the leaking line is not annotated"; }
grep -qF 'new\_leak' summary.md || fail "the summary does not name the leak"
grep -q known_cache printed.txt && fail "a known leak is annotated"
ok "GitHub: a new leak fails, annotated on its line, and the summary is written all the same"

project gitlab-clean
"$tools/bin/python" "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" gitlab >printed.txt || { cat printed.txt; fail "a clean program fails on GitLab"; }
valid_here() { cp leaks.xml "$work/$1.xml"; (cd "$work" && valid "$1.xml"); }
valid_here gitlab-clean
if grep -q '<failure' leaks.xml; then fail "a clean program fails a test"; fi
project gitlab-leaking
expect_code 1 env LEAK=1 "$tools/bin/python" "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" gitlab >printed.txt
valid_here gitlab-leaking
grep -q '<failure.*new' leaks.xml || fail "the new leak fails no test"
ok "GitLab: the test report is valid, and fails for a new leak alone"

project jenkins-clean
"$tools/bin/python" "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" jenkins >printed.txt || { cat printed.txt; fail "a clean program fails on Jenkins"; }
valid_here jenkins-clean
project jenkins-leaking
expect_code 1 env LEAK=1 "$tools/bin/python" "$root/tests/verdicts/workflows.py" "$root/docs/ci.md" jenkins >printed.txt
valid_here jenkins-leaking
grep -q '<failure.*new' leaks.xml || fail "the new leak fails no test"
[ -s leaks/report.html ] || fail "no page after a failure on Jenkins"
ok "Jenkins: the same, and a page is written all the same"

# --- the action ---
action() { "$tools/bin/python" "$root/tests/verdicts/workflows.py" "$action" action culeak="$culeak" run=./gpu_tests "$@"; }
project action-clean
action baseline=leaks.json >printed.txt || { cat printed.txt; fail "a clean program fails in the action"; }
grep -qx 'output verdict=passed' printed.txt || fail "the action does not say that the program passed"
grep -q passed summary.md || fail "no summary by the action"
if grep -q '^::error' printed.txt; then fail "the action annotates a clean program"; fi
project action-leaking
expect_code 1 env LEAK=1 "$tools/bin/python" "$root/tests/verdicts/workflows.py" "$action" action culeak="$culeak" run=./gpu_tests run-options=--why baseline=leaks.json >printed.txt
grep -q '^::error file=gpu_tests.c,line=20,.*new_leak.*; lost: no pointer to it is left' printed.txt ||
    { cat printed.txt; fail "the action does not annotate the leaking line with what holds the memory"; }
grep -qx 'output verdict=leaked' printed.txt || fail "the action does not say that the program leaks"
grep -qF 'new\_leak' summary.md || fail "the action's summary does not name the leak"
grep -q "^left out Keep recordings and reports.*'path': 'culeak'" printed.txt || { cat printed.txt; fail "the action keeps nothing"; }
for file in report.html leaks.sarif leaks.xml; do [ -s "culeak/$file" ] || fail "the action writes no $file"; done
(cd "$work" && cp action-leaking/culeak/leaks.xml action.xml && valid action.xml)
python3 -m json.tool culeak/leaks.sarif >/dev/null
ok "action: a new leak fails, annotated with what holds it, with summary, page, SARIF and JUnit; a clean program passes"
project action-limits
LEAK=1 action allow=1GiB,count=1000 summary=false artifact= 'check-options=--allow device=1GiB' >printed.txt || { cat printed.txt; fail "the limits of the action do not count"; }
if [ -e summary.md ]; then fail "a summary that was not wanted"; fi
grep -qx 'skipped Keep recordings and reports' printed.txt || fail "an artifact that was not wanted"
LEAK=1 action output=other fail=false >printed.txt || { cat printed.txt; fail "fail=false fails"; }
grep -qx 'output verdict=leaked' printed.txt || fail "fail=false hides the verdict"
expect_code 1 env LEAK=1 "$tools/bin/python" "$root/tests/verdicts/workflows.py" "$action" action culeak="$culeak" run='exit 3' output=none >printed.txt
grep -qx 'output verdict=error' printed.txt || { cat printed.txt; fail "nothing to judge is not an error"; }
# A process without a recording beside one with a recording is not passed over.
expect_code 1 "$tools/bin/python" "$root/tests/verdicts/workflows.py" "$action" action culeak="$culeak" run='./gpu_tests; CULEAK_DISABLE=1 ./gpu_tests' output=half allow=1GiB >printed.txt
grep -qx '2 Record' printed.txt || { cat printed.txt; fail "a process that was not recorded is no error"; }
# A value is text for the shell and nothing else.
action output='$(touch injected)' run='true; ./gpu_tests' allow='1GiB' >printed.txt || { cat printed.txt; fail "a folder with an odd name"; }
if [ -e injected ]; then fail "an input was executed"; fi
ok "action: limits, no summary, no artifact, only reporting, nothing to judge, odd names"

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
expect_code 1 culeak check leaking/leaks --allow 1KiB,count=1,site=1KiB --format junit >several.xml
valid several.xml
[ "$(grep -c '<testsuite ' several.xml)" = 2 ] || fail "two processes are not two suites"
culeak check leaking/leaks --allow 1GiB --format junit >passed.xml
valid passed.xml
ok "JUnit: hostile names, several processes, passed and failed are valid by the schema"

mkdir "$work/quickstart"
python3 "$root/tests/quickstart.py" "$culeak" "$work/quickstart"
python3 -B "$root/docs/images/tour.py" "$culeak" --check
mkdir "$work/ten-steps"
python3 "$root/tests/ten_steps.py" "$culeak" "$work/ten-steps"
python3 "$root/tests/links.py"
python3 "$root/tests/circles.py"
python3 "$root/tests/errors.py"
