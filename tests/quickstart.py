"""Follows docs/quickstart.md: saves its programs, runs its commands on the fake driver, and compares the reports.

Usage: quickstart.py CULEAK FOLDER. The folder must be empty. Lines that install something are left out. On a GPU,
tests/gpu/pages.py does the same with the real driver.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/quickstart.md"


def examples(folder):
    """(name of the program's file, commands, lines of the report) of each example, whose file is saved in the folder."""
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        name = re.search(r"Save this as `([^`]+)`", section)
        if not name:
            continue
        (folder / name[1]).write_text(re.search(r"```\w+\n(.*?)```", section, re.DOTALL)[1], encoding="utf-8")
        lines = re.findall(r"^    (.*)$", section.split("```")[-1], flags=re.MULTILINE)
        commands = [line for line in lines if line.startswith(("g++ ", "culeak "))]
        expected = [line.strip() for line in lines if line not in commands]
        assert len(commands) >= 1 and len(expected) == 2, section
        yield name[1], commands, expected


def missing(expected, printed):
    """The lines of the page that were not printed; columns may be wider."""
    shown = [re.sub(r" +", " ", line.strip()) for line in printed.splitlines()]
    return [line for line in expected if re.sub(r" +", " ", line) not in shown]


def main(culeak, folder):
    (folder / "bin").mkdir()
    (folder / "bin/culeak").symlink_to(culeak)
    os.chdir(folder)
    environment = {**os.environ, "PATH": f"{folder.resolve()}/bin:{os.environ['PATH']}", "NO_COLOR": "1"}
    environment["LD_LIBRARY_PATH"] = subprocess.run(
        ["culeak", "shim-path", "--fake-driver"], env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    environment["LIBRARY_PATH"] = environment["LD_LIBRARY_PATH"]
    claims = 0
    for name, commands, expected in examples(Path()):
        for command in commands:
            done = subprocess.run(command, shell=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, (command, done.stdout)
        assert not missing(expected, done.stdout), f"{name}: {missing(expected, done.stdout)} is not in\n{done.stdout}"
        claims += 1
    assert claims == 2, claims
    print("ok      docs/quickstart.md: the programs and commands of the page give the reports of the page")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
