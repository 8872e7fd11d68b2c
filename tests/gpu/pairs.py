"""Runs in pairs: a program bare and under a recorder alternately, so that both run under the same load; and tables of the results."""

import pathlib
import re
import shutil
import statistics
import subprocess
import sys

from harness import Missing


def alternating(machine, command, env=None, pairs=5, codes=(0,), how="run"):
    """Runs the program bare and under culeak alternately, after one warm-up run; returns both lists of finished runs."""
    run = lambda how: machine.run(*command, env=env, how=how, fresh=True, timeout=300).must(*codes)
    run("bare")
    each = [(run("bare"), run(how)) for _ in range(pairs)]
    return [bare for bare, _ in each], [watched for _, watched in each]


class Ratio:
    """The second of each pair divided by the first. Shown as the median and the range."""

    def __init__(self, first, second):
        self.each = [b / a for a, b in zip(first, second)]
        self.median = statistics.median(self.each)

    def __str__(self):
        return f"{self.median:.3f} ({min(self.each):.3f} to {max(self.each):.3f})"


def table(path, title, heads, rows):
    lines = [title, "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")
    print("\n".join(lines) + "\n", flush=True)


# ---- compute-sanitizer ----


def sanitizer(*options):
    tool = shutil.which("compute-sanitizer")
    if not tool:
        raise Missing("compute-sanitizer")
    return [tool, "--tool", "memcheck", "--leak-check", "full", *options]


def exclusion(program, found={}):
    """The option that excludes every kernel from memcheck; its spelling depends on the release. `program` does little and ends."""
    if not found:
        found["option"] = []
        for spelling in (["--kernel-name-exclude", "kernel_substring="], ["--kernel-name-exclude", "kns=_"], ["--kernel-name-exclude", "regex:.*"], ["--kernel-regex-exclude", "kns=.*"]):
            tried = subprocess.run([*sanitizer()[:1], *spelling, *map(str, program)], capture_output=True, text=True, timeout=120)
            if tried.returncode == 0 and "ERROR SUMMARY: 0" in tried.stdout + tried.stderr:
                found["option"] = spelling
                break
        print(f"kernels are excluded by {' '.join(found['option']) or 'nothing: no spelling was accepted'}", file=sys.stderr)
    return found["option"]


def leaked(run):
    """The leaks that compute-sanitizer reports."""
    output = run.out + run.err
    found = re.search(r"LEAK SUMMARY: (\d+) bytes leaked in (\d+) allocations", output)
    if found:
        return f"{found[1]} in {found[2]}"
    return "nothing" if "ERROR SUMMARY" in output else f"no summary (exit {run.code})"
