"""Claims about programs that forget what has no address: executable graphs, modules, process groups, handles of libraries.

Each is named by line, with its number and what the driver took for it, and the sum at each step is NVML's figure, to the byte.
"""

import collections
import json
import os

from harness import HOST, claim, expect, expect_equal, site, tail
from stepped import MIB, at_line, count_of, expect_figures, has_line, ledger, line, objects_in, place, program, python, run, run_with_figures, shown, step_of, symbols

NCCL = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
THREADS = 16
# The others are cases of requests.c.
PYTHON = {"triton": ["shapes"], "compiled": ["graphs"], "groups": ["groups", "one"]}


def command(t, name):
    return python(t, *PYTHON[name]) if name in PYTHON else [program(t, "requests"), name]


LONG = ["compiled", "groups", "triton", "modules", "graphs"]


@claim(over=LONG, alone=True)
def a_long_program_has_at_each_step_what_nvml_counts(t, name):
    expect_figures(t, run_with_figures(t, command(t, name), NCCL))


def long_run(t, name):
    return run(t, command(t, name), NCCL)


# ---- a graph for each request ----


@claim(slow=True)
def executables_that_requests_forget_are_counted_by_line_and_have_their_bytes(t):
    done = long_run(t, "graphs")
    snapshot = symbols(t, done, "006_requests")
    found = at_line(snapshot, "graph-exec", "request_graph")
    expect_equal(len(found), done.fact("forgotten"), f"executables of {place('request_graph')}; all objects: {objects_in(snapshot.data)}\n{done.story()}")
    device = ledger(t, done, "006_requests")
    executables = line(device, "graph_execs")
    expect_equal((executables["count"], executables["destroyed"]), (300, 0), f"executables in the ledger\n{shown(device)}")
    expect(executables["bytes"] >= 300 * 100 << 10, f"bytes of executables\n{shown(device)}")
    expect(has_line(executables["parts"][0]["place"], "request_graph"), f"the call site of {executables['parts'][0]}")
    earlier = [line(ledger(t, done, f"{step:03d}_requests"), "graph_execs")["bytes"] for step in (2, 4, 6)]
    expect(earlier[0] < earlier[1] < earlier[2], f"bytes of executables after 60, 180 and 300 requests: {earlier}")


@claim(slow=True)
def forgotten_executables_fail_a_check_that_names_their_line(t):
    done = long_run(t, "graphs")
    code, out, err = t.cli("check", done.recording(), "--allow", "graph-exec=16")
    expect_equal(code, 1, f"exit code of the check\n{tail(out + err)}")
    expect("300 graph-exec objects are 284 over the limit of 16" in out and place("request_graph") in out, f"the verdict\n{tail(out, 30)}")
    code, out, err = t.cli("check", done.recording(), "--allow", "graph-exec=300")
    expect_equal(code, 0, f"exit code of the check within its limit\n{tail(out + err)}")


# ---- a module for each shape ----


@claim(slow=True)
def modules_of_many_shapes_are_counted_and_their_code_grows_as_nvml_says(t):
    done = long_run(t, "modules")
    for shapes in (0, 250, 500, 750, 1000):
        snapshot = symbols(t, done, f"shapes_{shapes}")
        expect_equal(len(at_line(snapshot, "module", "shape_module")), shapes, f"modules of {place('shape_module')}\n{done.story()}")
    for step, left in (("shapes_500_left", 500), ("unloaded", 0)):
        expect_equal(len(at_line(symbols(t, done, step), "module", "shape_module")), left, f"modules at the step {step}\n{done.story()}")
    first, last = ledger(t, done, "shapes_0"), ledger(t, done, "shapes_1000")
    code = line(last, "code")["bytes"] - line(first, "code")["bytes"]
    grown = last["process"]["bytes"] - first["process"]["bytes"]
    expect(code > 0, f"code of 1,000 modules\n{shown(last)}")
    # The sum is NVML's figure by another claim.
    expect_equal(code, grown, f"growth of code and of the process, from\n{shown(first)}\nto\n{shown(last)}")


@claim(slow=True)
def kernels_that_triton_specialises_are_modules_of_the_line_that_launches_them(t):
    done = long_run(t, "triton")
    expect_equal(done.results(), ["sum 500500 500500"], "what the kernels computed")
    for shapes in (0, 250, 1000):
        found = at_line(symbols(t, done, f"shapes_{shapes}"), "module", "shape_triton")
        expect_equal(len(found), shapes, f"modules of {place('shape_triton')}\n{done.story()}")
    first, last = ledger(t, done, "shapes_0"), ledger(t, done, "shapes_1000")
    code = [line(device, "code")["bytes"] for device in (first, last)]
    local = [line(device, "local_memory")["bytes"] for device in (first, last)]
    grown = last["process"]["bytes"] - first["process"]["bytes"]
    expect_equal(code[1] - code[0] + local[1] - local[0], grown, f"growth of code and local memory, and of the process, from\n{shown(first)}\nto\n{shown(last)}")


# ---- graphs of PyTorch ----


@claim(slow=True)
def executables_of_pytorch_are_counted_by_line(t):
    done = long_run(t, "compiled")
    for name in ("start", "captured_10", "captured_20", "compiled_10", "compiled_20"):
        _, data = step_of(t, done, name)
        count = count_of(data, "graph-exec")
        expect_equal(count, done.fact(f"graphs_{name}"), f"executables at {name}, and CUDAGraphs of the program; all objects: {objects_in(data)}\n{done.story()}")
    last = symbols(t, done, "compiled_20")
    expect_equal(len(at_line(last, "graph-exec", "shapes_instantiated")), 20, f"executables of {place('shapes_instantiated')}\n{done.story()}")
    by_compile = len(at_line(last, "graph-exec", "shapes_compiled"))
    expect(by_compile >= 20, f"{by_compile} executables of {place('shapes_compiled')}, one for each of 20 shapes\n{done.story()}")
    device = ledger(t, done, "compiled_20")
    executables = line(device, "graph_execs")
    expect_equal(executables["count"], done.fact("graphs_compiled_20"), f"executables in the ledger\n{shown(device)}")
    expect(executables["bytes"] > 0, f"bytes of executables\n{shown(device)}")


@claim(slow=True)
def private_pools_of_pytorchs_graphs_are_named_by_line(t):
    done = long_run(t, "compiled")
    pools = [live for live in done.live() if live.label == "private_pool"]
    expect(len(pools) >= 21, f"only {len(pools)} segments in private pools\n{done.story()}")
    snapshot = symbols(t, done, "compiled_20")
    known = {site(label): label for label in ("shapes_captured", "shapes_instantiated", "shapes_compiled")}
    lines, unnamed = collections.Counter(), []
    for live in pools:
        row = snapshot.find(live)
        here = [known[key] for _, file, number, _ in snapshot.frames(row) if (key := (os.path.basename(file or ""), number)) in known]
        lines.update(here[:1])
        unnamed += [] if here else [snapshot.show(row)]
    expect(not unnamed, f"{len(unnamed)} of {len(pools)} segments have no line of the program, the first:\n    {unnamed[:1]}\n{snapshot.where()}")
    expect(lines["shapes_captured"] >= 20 and lines["shapes_compiled"] >= 1, f"segments of private pools by line: {dict(lines)}")


# ---- process groups ----


def expect_named_growth(t, done, pid=None):
    """What is there once more for each further group has a line of the program."""
    (before, _), (after, _) = step_of(t, done, "groups_10", pid), step_of(t, done, "groups_20", pid)
    code, out, err = t.cli("diff", before, after, "--json", "--top", "1000")
    expect(code in (0, 1), f"exit code {code} of culeak diff\n{tail(out + err)}")
    diff = json.loads(out)
    grown = [row for row in diff["rows"] + (diff["objects"] or {"rows": []})["rows"] if row["count_delta"] >= 10]
    written = [f"{row['count_delta']:>5} {row['bytes_delta']:>12} {row['kinds'] if row['kinds'] else ''} {row['label']}" for row in grown]
    kept = [f"{name}: {objects_in(step_of(t, done, name, pid)[1])}" for name in ("groups_1", "groups_10", "groups_20")]
    (done.folder / f"groups-{pid}.txt").write_text("\n".join([*kept, *written]) + "\n")
    print("\n".join(f"  {text}" for text in [f"process groups of process {pid}", *kept, "grown from the 10th to the 20th:", *(written or ["nothing"])]), flush=True)
    lines = [site(label) for label in ("group_made", "group_used", "group_destroyed")]
    nameless = [row["label"] for row in grown if not any((os.path.basename(f["file"] or ""), f["line"]) in lines for f in row["stack"]["frames"])]
    expect(not nameless, f"what grows with each group, without a line of the program: {nameless}\n{done.story()}")


@claim(slow=True)
def what_destroyed_process_groups_leave_has_their_line(t):
    done = long_run(t, "groups")
    expect_equal(done.fact("groups"), 20, "groups that the program made")
    expect_named_growth(t, done)


@claim(slow=True)
def memory_of_a_process_group_is_nccls_until_the_group_is_destroyed(t):
    done = long_run(t, "groups")
    sums = {}
    for step in ("groups_0", "group_exists", "groups_1", "groups_20"):
        device = ledger(t, done, step)
        sums[step] = sum(entry["bytes"] for entry in device["lines"] if entry["what"] == "library" and entry["of"] == "NCCL")
        print(f"  {step}: NCCL {sums[step] / MIB:.1f} MiB, process {device['process']['bytes'] / MIB:.1f} MiB, objects {objects_in(step_of(t, done, step)[1])}", flush=True)
    expect(sums["groups_0"] == 0 and sums["group_exists"] > MIB, f"memory of NCCL before and in the first group: {sums}")
    expect(sums["groups_20"] < sums["group_exists"] + MIB, f"memory of NCCL after 20 groups: {sums}")


@claim(alone=True)
def each_rank_has_at_each_step_what_nvml_counts_on_its_device(t):
    done = run_with_figures(t, python(t, "groups", "ranks"), NCCL)
    ranks = {int(pid): int(name.rsplit("_", 1)[1]) for pid, name, _ in done._lines("FACT") if name.startswith("sum_")}
    expect_equal(sorted(ranks.values()), [0, 1], f"ranks\n{done.story()}")
    expect_figures(t, done, ranks.get)
    for pid in ranks:
        expect_named_growth(t, done, pid)


# ---- a handle of cuBLAS for each thread ----


def handles(t, case):
    return run(t, [program(t, "handles"), case])


@claim(over=["kept", "destroyed"], alone=True)
def handles_of_threads_have_at_each_step_what_nvml_counts(t, case):
    expect_figures(t, run_with_figures(t, [program(t, "handles"), case]))


@claim(alone=True)
def handles_of_pytorchs_threads_have_at_each_step_what_nvml_counts(t):
    expect_figures(t, run_with_figures(t, python(t, "handles")))


def rows_at(snapshot, *labels):
    lines = [site(label) for label in labels]
    return [row for row in snapshot.memory() if any((os.path.basename(file or ""), number) in lines for _, file, number, _ in snapshot.frames(row))]


def expect_equal_threads(snapshot, rows, bytes_of):
    """Each of the 16 threads has the same bytes in these rows."""
    by_thread = collections.Counter()
    for row in rows:
        by_thread[row["thread"]] += bytes_of(row)
    listed = sorted(by_thread.values())
    expect_equal(len(by_thread), THREADS, f"threads with such memory; bytes of each: {listed}\n{snapshot.where()}")
    # The first ones may take what all share.
    expect(listed[0] > 0 and listed[0] == listed[THREADS // 2], f"bytes of each thread: {listed}\n{snapshot.where()}")


@claim(slow=True)
def the_workspace_of_each_threads_handle_has_its_line(t):
    done = handles(t, "kept")
    snapshot = symbols(t, done, "threads_ended")
    rows = [row for row in rows_at(snapshot, "handle_created", "handle_used") if row["kind"] not in HOST]
    expect_equal_threads(snapshot, rows, lambda row: row["bytes"])
    device = ledger(t, done, "threads_ended")
    library = [entry for entry in device["lines"] if entry["what"] == "library" and entry["of"].startswith("cuBLAS")]
    expect_equal(sum(entry["bytes"] for entry in library), sum(row["bytes"] for row in rows), f"memory of cuBLAS in the ledger\n{shown(device)}")
    code, out, err = t.cli("report", step_of(t, done, "threads_ended")[0])
    expect(code == 0 and (place("handle_created") in out or place("handle_used") in out), f"the report\n{tail(out + err, 40)}")


@claim(slow=True)
def destroyed_handles_leave_no_workspace(t):
    done = handles(t, "destroyed")
    rows = rows_at(symbols(t, done, "threads_ended"), "handle_created", "handle_used")
    left = rows_at(symbols(t, done, "destroyed"), "handle_created", "handle_used")
    expect(rows, f"no workspace before the handles were destroyed\n{done.story()}")
    expect_equal([(row["address"], row["bytes"]) for row in left], [], f"workspaces of destroyed handles\n{done.story()}")


@claim(slow=True)
def the_workspace_of_each_of_pytorchs_threads_is_a_tensor_of_its_line(t):
    done = run(t, python(t, "handles"))
    expect_equal(done.results(), ["sums " + " ".join(["128"] * THREADS)], "results")
    snapshot = symbols(t, done, "threads_ended")
    rows = [row for row in rows_at(snapshot, "handle_mm") if row["kind"] == "tensor"]
    expect_equal_threads(snapshot, rows, lambda row: row["bytes"])
    tensors = sum(row["bytes"] for row in snapshot.of_kind("tensor"))
    expect_equal(tensors, done.fact("allocated"), f"tensors, against memory_allocated()\n{snapshot.where()}")
