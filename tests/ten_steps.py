"""Follows docs/ten-steps.md on the fake driver: its commands print what the page shows, and `make check` of the exercise fails
with each leak alone and passes with the solutions. The same programs print what the other pages show behind `$`, unless the line
is marked as an illustration.

Usage: ten_steps.py CULEAK FOLDER [--write]. The folder must be empty. --write writes the outputs into the pages; what they show
of each is cut where they have a line with "…". Needs g++, make, patch and Python 3.11 or
newer, which has the names of methods with their classes.
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/ten-steps.md"
EXERCISE = ROOT / "docs/example/exercise"
PROGRAMS = ["server.cpp", "train.py"]
MADE_UP = "  # illustration"
"""Behind a command whose output is not checked."""
RUNS = """make server
culeak run -o server-runs --timeline --snapshot mark --no-report -- ./server
culeak run -o train-runs --timeline --no-report -- python3 train.py
CULEAK_FAKE_BYTES=419430400 culeak run -o oom-runs --snapshot oom:1 --no-report -- ./server"""
"""What the commands of the other pages read."""

REPLACED = [
    (r"\b(server|python[\d.]*)\.[a-z0-9]{4}\.[\w-]+\.\d+\.", lambda m: ("server" if m[1] == "server" else "python3") + ".k3f9.gpu1.4711."),
    (r"\b(process +)\d+ ", r"\g<1>4711 "),
    (r"process \d+:", "process 4711:"),
    (r"^((before|after) +)\d+ ", r"\g<1>4711 "),
    (r"/\S*/python[\d.]*(?= train)", "python3"),
    (r"(\./server( quick)?|train\.py),? on [\w.-]+([,:])", r"\1, on gpu1\3"),
    (r"\b\d+(\.\d+)? (us|ms|s)\b", "12 ms"),
    ("12 ms to 12 ms old", "12 ms old"),
    (r"\d[\d,]* objects and pieces of memory in [\d.]+ \w+, ", "212 objects and pieces of memory in 972 KiB, "),
    (r"Python 3[\d.]+", "Python 3.12.1"),
    # Words that chance leaves on a stack.
    (r"19\d MiB of it only possibly", "196 MiB of it only possibly"),
]
"""What differs from run to run, outside of the folder."""


def run(command, folder, environment):
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = done.stdout.replace(str(folder), "/home/ada/exercise")
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return done.returncode, [line.rstrip() for line in text.rstrip().split("\n")] if text.strip() else []


def solved():
    """The text of each program, with all leaks fixed."""
    texts = {}
    for name in PROGRAMS:
        shutil.copy(EXERCISE / name, name)
    subprocess.run(["patch", "-s", "-i", EXERCISE / "solutions.patch"], check=True)
    for name in PROGRAMS:
        texts[name] = Path(name).read_text().splitlines(keepends=True)
        shutil.copy(EXERCISE / name, name)
    return texts


def with_leaks(name, fixed, leaks):
    """Writes a program in which only the changes with these numbers are missing, and returns how many there are."""
    planted = (EXERCISE / name).read_text().splitlines(keepends=True)
    changes, text = 0, []
    for what, a, b, c, d in difflib.SequenceMatcher(None, planted, fixed, autojunk=False).get_opcodes():
        is_leak = what != "equal" and changes in leaks
        changes += what != "equal"
        text += planted[a:b] if is_leak else fixed[c:d]
    Path(name).write_text("".join(text))
    return changes


def is_output(lines, at):
    return at < len(lines) and lines[at].startswith("    ") and not lines[at].startswith("    $ ")


def follow(page, environment, fixed, writes):
    """Runs the commands of a page, step by step, and compares or writes what they print. Returns how many there are."""
    lines, out, wrong = page.read_text().split("\n"), [], []
    at = followed = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        out.append(line)
        if page == PAGE and line.startswith("## 9."):  # step 8 has been done, up to the leak that the others hide
            with_leaks("server.cpp", fixed["server.cpp"], [])
            changes = with_leaks("train.py", fixed["train.py"], [])
            with_leaks("train.py", fixed["train.py"], [changes - 1])
        if page == PAGE and line.startswith("## 10."):
            with_leaks("train.py", fixed["train.py"], [])
        if not line.startswith("    $ ") or line.endswith(MADE_UP):
            continue
        followed += 1
        shown = []
        while is_output(lines, at) or not lines[at] and is_output(lines, at + 1):  # which may have empty lines
            shown.append(lines[at][4:].rstrip())
            at += 1
        _, printed = run(line[6:], Path.cwd(), environment)
        if "…" in shown and len(shown) > 1:
            printed = printed[: shown.index("…")] + ["…"]
        if shown != printed:
            wrong.append(f"{line}\n" + "\n".join(difflib.unified_diff(shown, printed, "the page", "printed", lineterm="")))
        out += [f"    {text}".rstrip() for text in printed]
    if writes:
        page.write_text("\n".join(out))
    else:
        assert not wrong, f"{page}: ten_steps.py --write writes what the commands print\n" + "\n".join(wrong)
    return followed


def follow_others(folder, environment, fixed, writes):
    """The pages besides the exercise's, in a folder of their own."""
    shutil.copytree(EXERCISE, folder)
    os.chdir(folder)
    code, printed = run(f"set -e; {RUNS}", folder, environment)
    assert code == 0, printed
    followed = sum(follow(page, environment, fixed, writes) for page in sorted((ROOT / "docs").glob("*.md")) if page != PAGE)
    assert followed > 5, followed
    os.chdir(folder.parent)
    print(f"ok      other pages: {followed} commands print what they show")


def main(culeak, folder, writes):
    os.chdir(folder)
    for name in ["Makefile", "solutions.patch"]:
        shutil.copy(EXERCISE / name, name)
    (folder / "bin").mkdir()
    (folder / "bin/culeak").symlink_to(culeak)
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "NO_COLOR": "1"}
    environment["MAKEFLAGS"] = "-s --no-print-directory"
    fake = subprocess.run([culeak, "shim-path", "--fake-driver"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    environment["LD_LIBRARY_PATH"] = environment["LIBRARY_PATH"] = fake
    fixed = solved()
    follow_others(folder / "others", environment, fixed, writes)
    follow(PAGE, environment, fixed, writes)
    print("ok      docs/ten-steps.md: the commands print what the page shows")

    leaks = 0
    for name, target in zip(PROGRAMS, ["check-server", "check-train"]):
        for number in range(with_leaks(name, fixed[name], [])):
            with_leaks(name, fixed[name], [number])
            code, printed = run(f"make {target}", folder, environment)
            assert code != 0 and any(line.startswith("failed: ") for line in printed), (name, number, printed)
            leaks += 1
        with_leaks(name, fixed[name], [])
    assert leaks == 10, leaks
    code, printed = run("make check", folder, environment)
    assert code == 0 and sum(line.startswith("passed: ") for line in printed) == 4, printed
    print("ok      the exercise: its check fails with each of the ten leaks alone, and passes with the solutions")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), "--write" in sys.argv[3:])
