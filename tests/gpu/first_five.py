"""In how many programs the first five lines of the report name the line to blame, from the results of tests/gpu/run.sh.

    first_five.py OUT [CULEAK]

OUT is the folder of `run.sh --out`. The programs are those that keep memory as people do by accident (fw_answers.py, fw_ends.py), one for each
function that has one line marked `# site:`, the one to blame. The text of `culeak report` on the first recording counts. Fails if fewer than 50 of 55
name the line.
"""

import ast
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# 50 of 55.
WANTED = 50 / 55
PROGRAMS = {"fw_answers", "fw_ends"}
# These have dropped what they kept.
CLEAN = {"repaired"}


def blamed(path, function):
    """(file name, line) of the only marked line of a function; `None` if there is not exactly one."""
    text = path.read_text()
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == function]
    if len(found) != 1:
        return None
    lines = range(found[0].lineno, found[0].end_lineno + 1)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if number in lines and re.search(r"# site: \w+", line)]
    return (path.name, marked[0]) if len(marked) == 1 else None


def program(command):
    """(file, line, name) of the line to blame in the program that this command line ran under culeak; `None` if none is known."""
    words = command.split()
    at = [nth for nth, word in enumerate(words) if pathlib.Path(word).stem in PROGRAMS and word.endswith(".py")]
    if len(at) != 1 or at[0] + 1 >= len(words) or CLEAN & set(words):
        return None
    path = HERE / "victims" / os.path.basename(words[at[0]])
    place = blamed(path, words[at[0] + 1]) if path.exists() else None
    return place and (*place, f"{path.stem} {words[at[0] + 1]}")


def is_named(report, file, line):
    return any(re.search(rf"\b{re.escape(file)}:{line}\b", text) for text in report.splitlines()[:5])


def judged(out, report_of):
    """{program: whether the first five lines of its report name the line}. `report_of`: the text for a recording."""
    results = {}
    for run in sorted((out / "runs").glob("*")):
        recordings = sorted((run / "rec").glob("*.culeak"))
        found = program((run / "command").read_text()) if recordings and (run / "command").exists() else None
        if found and found[2] not in results:
            file, line, name = found
            results[name] = is_named(report_of(recordings[0]), file, line)
    return results


def main(out, culeak="culeak"):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CULEAK_")}
    report_of = lambda recording: subprocess.run([culeak, "report", recording], env=environment, capture_output=True, text=True).stdout
    results = judged(pathlib.Path(out), report_of)
    missed = [name for name, named in results.items() if not named]
    print(*(f"not in the first five lines: {name}" for name in missed), sep="\n", end="\n" if missed else "")
    print(f"{len(results) - len(missed)} of {len(results)} programs have the line to blame in the first five lines of the report")
    return 0 if results and len(results) - len(missed) >= WANTED * len(results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
