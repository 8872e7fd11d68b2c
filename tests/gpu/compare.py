"""culeak beside other tools, as Markdown tables: the bytes that compute-sanitizer's leak check reports as left, and what each tool
says of programs that forget executable graphs and handles of cuBLAS.

The cost of recording is measured in benches/compare.
"""

import re
import shutil
import statistics
import subprocess
import sys

from claims import ENDS
from frameworks import UNCACHED
from harness import HERE, HOST, Failure, Missing
from long_programs import rows_at
from observed import Watched
from pairs import alternating, exclusion, leaked, sanitizer, table
from stepped import MIB, at_line, ledger, line, place, python, run, symbols
from stepped import program as built

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


# ---- what has no address, and memory of libraries ----


def beyond_blocks(machine):
    programs = [
        ("300 requests, a graph each", lambda: [built(machine, "requests"), "graphs"], "006_requests", graphs("request_graph")),
        ("16 threads, a cuBLAS handle each", lambda: [built(machine, "handles"), "kept"], "threads_ended", workspaces("handle_created", "handle_used")),
        ("PyTorch, 16 threads, a product each", lambda: python(machine, "handles"), "threads_ended", workspaces("handle_mm")),
        ("PyTorch, 20 shapes captured, 20 compiled", lambda: python(machine, "graphs"), "compiled_20", graphs("shapes_instantiated", "shapes_compiled")),
    ]
    rows = []
    for name, command, step, found in programs:
        try:
            rows.append([name, *beside(machine, command(), step, found)])
        except (Failure, Missing) as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            rows.append([name, "did not run"] + ["-"] * 5)
    heads = ["program", "its own count", "culeak: by line", "culeak: process", "compute-sanitizer: leaked", "PyTorch's snapshot", "nvidia-smi: process"]
    title = "What remains of executable graphs and of handles when the program has done its work, as each tool shows it. compute-sanitizer reports at the end."
    table(machine.out / "compare-objects.md", title, heads, rows)


def beside(machine, command, step, found):
    done = run(machine, command)
    device = ledger(machine, done, step)
    by_line = found(machine, done, step, device)
    facts = {name: int(value, 16) for _, name, value in done._lines("FACT")}
    own = next(facts[name] for name in ("forgotten", "handles", "graphs_compiled_20") if name in facts)
    pytorch = f"{mib(facts['allocated'])} allocated, {mib(facts['reserved'])} reserved" if "reserved" in facts else "-"
    return [own, by_line, mib(device["process"]["bytes"]), by_sanitizer(machine, command), pytorch, by_nvidia_smi(machine, command)]


def by_sanitizer(machine, command):
    if not shutil.which("compute-sanitizer"):
        return "not on this machine"
    return leaked(machine.run(*sanitizer(), *command, how="bare", fresh=True, timeout=300))


def mib(size):
    return f"{size / MIB:.1f} MiB"


def graphs(*labels):
    def found(machine, done, step, device):
        snapshot = symbols(machine, done, step)
        counts = [f"{len(at_line(snapshot, 'graph-exec', label))} at {place(label)}" for label in labels]
        return f"{', '.join(counts)}; {mib(line(device, 'graph_execs')['bytes'])} for executables"

    return found


def workspaces(*labels):
    def found(machine, done, step, device):
        rows = rows_at(symbols(machine, done, step), *labels)
        # A tensor lies in a segment of the same line.
        blocks = [row for row in rows if row["kind"] == "tensor"] or rows
        return f"{mib(sum(row['bytes'] for row in blocks))} in {len(blocks)} blocks at {', '.join(map(place, labels))}"

    return found


def by_nvidia_smi(machine, command):
    """Its figure of the program, which waits for this after its work."""
    if not shutil.which("nvidia-smi"):
        return "not on this machine"
    with Watched(machine, how="bare", command=command, env={"WAIT": "1"}) as watched:
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
        listed = subprocess.run(query, capture_output=True, text=True).stdout
    found = dict(re.findall(r"(\d+), *(.+)", listed))
    if str(watched.pid) not in found and len(found) == 1:
        return next(iter(found.values()))
    return found.get(str(watched.pid), "does not list it")
