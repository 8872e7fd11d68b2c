"""Runs the shell steps of the workflow examples of docs/ci.md as the runners do, and prints their exit codes.

Usage: workflows.py PAGE github|gitlab. Prints a line per step: its exit code and its command. Exits with the
workflow's own verdict. Deliberately absent: a reader of YAML; the examples are few lines of a fixed shape.
"""

import re
import subprocess
import sys
from pathlib import Path


def examples(page):
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    github = next(block for block in blocks if block.startswith("- run:"))
    gitlab = next(block for block in blocks if "script:" in block)
    return {"github": github_steps(github), "gitlab": gitlab_steps(gitlab)}


def github_steps(block):
    """(command, runs also after a failure) of each step."""
    steps = []
    for step in re.split(r"^- ", block, flags=re.MULTILINE)[1:]:
        command = re.search(r"run: (.*)", step).group(1)
        steps.append((command, "if: always()" in step))
    return steps


def gitlab_steps(block):
    script = re.search(r"script:\n((?: +- .*\n)+)", block).group(1)
    return [(line.strip()[2:], False) for line in script.splitlines()]


def run(steps):
    failed = False
    for command, always in steps:
        if failed and not always:
            print("skipped", command, flush=True)
            continue
        # GitHub's default shell; GitLab's is equivalent for these steps.
        code = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]).returncode
        print(code, command, flush=True)
        failed |= code != 0
    return failed


if __name__ == "__main__":
    steps = examples(Path(sys.argv[1]).read_text(encoding="utf-8"))[sys.argv[2]]
    assert len(steps) >= 2, steps
    sys.exit(run(steps))
