"""culeak and compute-sanitizer's leak check: the bytes that each reports as left, and how long each takes. Writes a Markdown table.

The cost of recording is measured in benches/compare.
"""

import statistics
import sys

from claims import ENDS
from frameworks import UNCACHED
from harness import HERE, HOST, Failure, Missing
from pairs import alternating, exclusion, leaked, sanitizer, table

PAIRS = 5


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
    bare, watched = alternating(machine, command, env, PAIRS, codes=ENDS.get(command[-1], (0,)))
    last = watched[-1]
    snapshot, truth = last.snapshot(), last.live()
    own = [sum(l.bytes for l in truth if (l.kind in HOST) == host) for host in (False, True)]
    if not truth and "physical_bytes" in last.out:
        own[0] = last.fact("physical_bytes")
    ours = [sum(r["bytes"] for r in snapshot.memory() if (r["kind"] in HOST) == host) for host in (False, True)]
    full, full_seconds = sanitize(machine, command, env, [])
    excluded, excluded_seconds = sanitize(machine, command, env, exclusion([machine.program("rt-static"), "clean"]))
    seconds = [f"{statistics.median(run.seconds for run in runs):.2f}" for runs in (bare, watched)]
    return [*own, *ours, len(snapshot.memory()), full, excluded, *seconds, f"{full_seconds:.2f} ({excluded_seconds:.2f})"]


def sanitize(machine, command, env, options):
    done = machine.run(*sanitizer(*options), *command, env=env, how="bare", fresh=True, timeout=300)
    return leaked(done), done.seconds
