"""Follows docs/quickstart.md: saves its programs, runs its commands on the fake driver, and compares the reports.

Usage: quickstart.py CULEAK FOLDER. The folder must be empty. Lines that install something are left out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

page = (Path(__file__).parents[1] / "docs/quickstart.md").read_text(encoding="utf-8")
culeak, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
(folder / "bin").mkdir()
(folder / "bin/culeak").symlink_to(culeak)
os.chdir(folder)
environment = {**os.environ, "PATH": f"{folder.resolve()}/bin:{os.environ['PATH']}", "NO_COLOR": "1"}
environment["LD_LIBRARY_PATH"] = subprocess.run(
    ["culeak", "shim-path", "--fake-driver"], env=environment, check=True, stdout=subprocess.PIPE, text=True
).stdout.strip()
environment["LIBRARY_PATH"] = environment["LD_LIBRARY_PATH"]

claims = 0
for section in re.split(r"^## ", page, flags=re.MULTILINE):
    name = re.search(r"Save this as `([^`]+)`", section)
    if not name:
        continue
    Path(name[1]).write_text(re.search(r"```\w+\n(.*?)```", section, re.DOTALL)[1], encoding="utf-8")
    lines = re.findall(r"^    (.*)$", section.split("```")[-1], flags=re.MULTILINE)
    commands = [line for line in lines if line.startswith(("g++ ", "culeak "))]
    expected = [line.strip() for line in lines if line not in commands]
    assert len(commands) >= 1 and len(expected) == 2, section
    for command in commands:
        done = subprocess.run(command, shell=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, (command, done.stdout)
    shown = [re.sub(r" +", " ", line.strip()) for line in done.stdout.splitlines()]
    for line in expected:
        assert re.sub(r" +", " ", line) in shown, f"{name[1]}: {line!r} is not in\n{done.stdout}"
    claims += 1
assert claims == 2, claims
print("ok      docs/quickstart.md: the programs and commands of the page give the reports of the page")
