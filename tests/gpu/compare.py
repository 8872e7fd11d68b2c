"""Measurements: culeak beside compute-sanitizer's leak check, and what recording costs. Each writes a Markdown table and prints it."""

import re
import shutil
import statistics
import subprocess
import sys

from claims import ENDS
from frameworks import UNCACHED
from harness import HERE, HOST, Failure, Missing

PAIRS = 5


def alternating(machine, command, env=None, pairs=PAIRS, codes=(0,)):
    """Runs the program bare and under culeak in turn, after one run that warms up; gives both lists of finished runs."""
    machine.run(*command, env=env, how="bare", fresh=True, timeout=300).must(*codes)
    bare, watched = [], []
    for _ in range(pairs):
        bare.append(machine.run(*command, env=env, how="bare", fresh=True, timeout=300).must(*codes))
        watched.append(machine.run(*command, env=env, fresh=True, timeout=300).must(*codes))
    return bare, watched


def table(path, title, heads, rows):
    lines = [title, "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    path.write_text("\n".join(lines) + "\n")
    print("\n".join(lines) + "\n", flush=True)


# ---- compute-sanitizer ----


def leak_checkers(machine):
    programs = [
        ("cudaMalloc, 1 leak", ["rt-static", "cudaMalloc"], None),
        ("every runtime kind, 12 leaks", ["rt-static", "kinds"], None),
        ("every driver kind, 7 leaks", ["drv", "kinds"], None),
        ("16 threads, 80 leaks", ["rt-static", "threads"], None),
        ("unwinding, 7 leaks", ["rt-static", "exceptions"], None),
        ("VMM, released while mapped", ["drv", "vmm_released_while_mapped"], None),
        ("graph memory", ["graphs", "launched"], None),
        ("frees everything", ["rt-static", "clean"], None),
        ("SIGKILL, 500 leaks", ["rt-static", "sigkill"], None),
        ("cudarc (Rust)", ["victim-cudarc"], None),
        ("PyTorch, caching off", [machine.python, HERE / "victims" / "fw_torch.py", "uncached"], UNCACHED),
        ("CuPy, no pool", [machine.python, HERE / "victims" / "fw_cupy.py", "no_pool"], None),
    ]
    rows = []
    for name, (program, *arguments), env in programs:
        try:
            if program == "victim-cudarc":
                program = machine.rust_program()
            elif program != machine.python:
                program = machine.program(program)
            command = [program, *arguments]
            rows.append([name, *compare_one(machine, command, env)])
        except (Failure, Missing) as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            rows.append([name, "did not run"] + ["-"] * 9)
    heads = ["program", "its own count: device bytes", "host bytes", "culeak: device bytes", "host bytes", "rows"]
    heads += ["compute-sanitizer: leaked", "kernels excluded", "bare, s", "culeak, s", "compute-sanitizer, s (kernels excluded)"]
    title = f"Bytes still allocated at exit, as the program, culeak and `compute-sanitizer --leak-check full` count them. Wall times: bare and culeak are medians of {PAIRS} alternating pairs, compute-sanitizer one run each."
    table(machine.out / "compare.md", title, heads, rows)


def compare_one(machine, command, env):
    bare, watched = alternating(machine, command, env, codes=ENDS.get(command[-1], (0,)))
    last = watched[-1]
    snapshot, truth = last.snapshot(), last.live()
    own = [sum(l.bytes for l in truth if (l.kind in HOST) == host) for host in (False, True)]
    if not truth and "physical_bytes" in last.out:
        own[0] = last.fact("physical_bytes")
    ours = [sum(r["bytes"] for r in snapshot.memory() if (r["kind"] in HOST) == host) for host in (False, True)]
    full, full_seconds = sanitize(machine, command, env, [])
    excluded, excluded_seconds = sanitize(machine, command, env, exclusion(machine))
    seconds = [f"{statistics.median(run.seconds for run in runs):.2f}" for runs in (bare, watched)]
    return [*own, *ours, len(snapshot.memory()), full, excluded, *seconds, f"{full_seconds:.2f} ({excluded_seconds:.2f})"]


def sanitize(machine, command, env, options):
    tool = shutil.which("compute-sanitizer")
    if not tool:
        raise Missing("compute-sanitizer")
    done = machine.run(tool, "--tool", "memcheck", "--leak-check", "full", *options, *command, env=env, how="bare", fresh=True, timeout=300)
    found = re.search(r"LEAK SUMMARY: (\d+) bytes leaked in (\d+) allocations", done.out + done.err)
    if found:
        return f"{found[1]} in {found[2]}", done.seconds
    return ("nothing" if "ERROR SUMMARY" in done.out + done.err else f"no summary (exit {done.code})"), done.seconds


def exclusion(machine, found={}):
    """The option that keeps memcheck away from every kernel; its spelling changed between releases."""
    if not found:
        found["option"] = []
        for spelling in (["--kernel-name-exclude", "kernel_substring="], ["--kernel-name-exclude", "kns=_"], ["--kernel-name-exclude", "regex:.*"], ["--kernel-regex-exclude", "kns=.*"]):
            tried = subprocess.run(
                [shutil.which("compute-sanitizer"), *spelling, machine.program("rt-static"), "clean"], capture_output=True, text=True, timeout=120
            )
            if tried.returncode == 0 and "ERROR SUMMARY: 0" in tried.stdout + tried.stderr:
                found["option"] = spelling
                break
        print(f"kernels are excluded by {' '.join(found['option']) or 'nothing: no spelling was accepted'}", file=sys.stderr)
    return found["option"]


# ---- what recording costs ----


def cost(machine):
    rows = []
    for name, case in [
        ("cudaMallocAsync + cudaFreeAsync, 100,000 pairs", "ordered_pair"),
        ("cudaMalloc + cudaFree, 10,000 pairs", "plain_pair"),
        ("cudaMalloc of 512 B, 20,000 kept alive", "many_live"),
    ]:
        bare, watched = alternating(machine, [machine.program("cost"), case], pairs=7)
        per_call = [[float(re.search(r"NANOSECONDS ([\d.]+)", run.out)[1]) for run in runs] for runs in (bare, watched)]
        without, beneath = map(statistics.median, per_call)
        ratios = [w / b for b, w in zip(*per_call)]
        own = watched[-1].snapshot().honesty
        rows.append([
            name, f"{without:.0f}", f"{beneath:.0f}", f"{beneath - without:+.0f}", f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}",
            f"{own['recorder_ns'] / max(own['events'], 1):.0f}",
            f"{statistics.median(r.seconds for r in bare):.2f}", f"{statistics.median(r.seconds for r in watched):.2f}",
        ])  # fmt: skip
    heads = ["operation", "bare, ns", "culeak, ns", "difference, ns", "ratio (median of pairs)", "ratio, range", "recorder's own estimate, ns per event", "whole run bare, s", "whole run culeak, s"]
    table(machine.out / "cost.md", "Cost of one operation; medians of 7 alternating pairs of runs.", heads, rows)
