"""Claims about unmodified Python programs on PyTorch, JAX, CuPy, numba and Triton.

Each program runs twice, with and without culeak, and must print the same results. What culeak recorded is then compared with
what the framework reports as held.
"""

import collections
import json
import os

from harness import HERE, Missing, claim, expect, expect_equal, tail

UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
ORDERED = {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
SLAB = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".05"}
PLATFORM = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def same_results(t, program, *mode, env=None):
    """Runs the program bare and under culeak; returns the run under culeak, whose results equal the bare one's."""
    command = [t.python, HERE / "victims" / f"fw_{program}.py", *mode]
    bare = t.run(*command, env=env, how="bare", timeout=200)
    if bare.code != 0:
        raise Missing(f"a working {program} (the program fails without culeak too)\n{tail(bare.err)}")
    done = t.run(*command, env=env, timeout=200).must(0)
    expect(bare.results(), f"the program printed no result\n{bare.story()}")
    expect_equal(done.results(), bare.results(), f"results with and without culeak\n{done.story()}")
    return done


def snapshot_of(done):
    """The snapshot of the program itself, not of other CUDA programs that it may have started."""
    return done.snapshot(done.pid())


def bytes_by_module(snapshot, kinds, module):
    """Bytes and number of rows of these kinds that were allocated through a module whose file name begins so."""
    rows = [row for row in snapshot.of_kind(*kinds) if any(os.path.basename(m).startswith(module) for _, _, _, m in snapshot.frames(row))]
    return sum(row["bytes"] for row in rows), len(rows)


def rows_by_size(snapshot):
    rows = sorted(snapshot.memory(), key=lambda row: -row["bytes"])
    return f"  rows that hold memory, largest first:{''.join(chr(10) + '    ' + snapshot.show(r) for r in rows[:6])}\n{snapshot.where()}"


def expect_pooled(t, done, expected):
    """The report marks as pools the device memory of the framework's caching allocator, to the byte."""
    recording = done.recording(done.pid())
    report = json.loads(t.cli("report", recording, "--by", "stack", "--json")[1])
    pools = [row for row in report["rows"] + report["pools"] if row["pool"]]
    on_device = sum(tally["bytes"] for row in pools for kind, tally in row["kinds"].items() if kind in ("device", "physical", "async"))
    named = [(row["label"], row["bytes"]) for row in pools]
    expect_equal(on_device, expected, f"device bytes marked as pools, which are {named}")
    # The frameworks' handles and workspaces are held too, although a check suppresses them by default.
    judged = json.loads(t.cli("check", recording, "--allow", "1TiB", "--no-builtin-suppressions", "--json")[1])
    held = sum(tally["bytes"] for tally in report["totals"]["held"].values())
    expect_equal(judged["judged"]["bytes"], held, "bytes that check counts: held memory without pools")


# ---- PyTorch ----


@claim(slow=True)
def segments_of_pytorchs_allocator_add_up_to_memory_reserved(t):
    done = same_results(t, "torch", "caching")
    snapshot = snapshot_of(done)
    got = bytes_by_module(snapshot, ["device"], "libc10_cuda")
    expect_equal(got, (done.fact("reserved"), done.fact("segments")), f"bytes and number of segments\n{rows_by_size(snapshot)}")
    snapshot.expect_sane()
    expect_pooled(t, done, done.fact("reserved"))


@claim(slow=True)
def a_leaked_pytorch_tensor_is_one_row_when_caching_is_off(t):
    done = same_results(t, "torch", "uncached", env=UNCACHED)
    snapshot = snapshot_of(done)
    row = snapshot.find(done.live()[0])
    expect_equal(row["api"], "cudaMalloc", "api")
    snapshot.expect_function(row, "at::")
    snapshot.expect_sane()
    expect_pooled(t, done, 0)


@claim(slow=True)
def a_leaked_pytorch_tensor_is_one_row_with_the_stream_ordered_backend(t):
    done = same_results(t, "torch", "ordered", env=ORDERED)
    snapshot = snapshot_of(done)
    row = snapshot.find(done.live()[0])
    expect(row["stream"] is not None, f"no stream: {snapshot.show(row)}")
    snapshot.expect_sane()


@claim(slow=True)
def expandable_segments_of_pytorch_add_up_to_memory_reserved(t):
    done = same_results(t, "torch", "expandable", env=EXPANDABLE)
    snapshot = snapshot_of(done)
    expect_equal(snapshot.bytes_of("physical"), done.fact("reserved"), f"bytes of physical memory\n{rows_by_size(snapshot)}")
    snapshot.expect_sane()


@claim(slow=True)
def pinned_memory_of_pytorch_is_found(t):
    done = same_results(t, "torch", "pinned")
    snapshot = snapshot_of(done)
    rows = [row for row in snapshot.of_kind("pinned", "registered") if row["address"] == done.fact("pinned")]
    expect(rows and rows[0]["bytes"] >= 1 << 20, f"no pinned row of 1 MiB at {done.fact('pinned'):#x}\n{rows_by_size(snapshot)}")


@claim(slow=True)
def a_cuda_graph_of_pytorch_replays_and_its_pool_is_counted(t):
    done = same_results(t, "torch", "graph")
    snapshot = snapshot_of(done)
    expect_equal(bytes_by_module(snapshot, ["device"], "libc10_cuda")[0], done.fact("reserved"), f"bytes of segments\n{rows_by_size(snapshot)}")


@claim(slow=True)
def the_pytorch_profiler_works_beside_culeak(t):
    done = same_results(t, "torch", "profiler")
    expect(int(done.results()[0].split()[1]) > 0, f"the profiler saw no kernel, with or without culeak: {done.results()}")


def stacks(snapshot):
    """Every row with memory as (kind, bytes, stack), the stack by file and address."""
    data = snapshot.data
    def place(location):
        module = location["module"]
        return (None if module is None else os.path.basename(data["modules"][module]["path"]), location["address"])
    def stack(row):
        found = data["stacks"][row["stack"]]
        return (found["truncated"], tuple(place(data["locations"][frame]) for frame in found["frames"]))
    return collections.Counter((row["kind"], row["bytes"], stack(row)) for row in snapshot.memory())


@claim(slow=True)
def both_unwinders_record_the_same_stacks_in_a_pytorch_training_step(t):
    seen = {}
    for unwinder, setting in (("own", {}), ("libgcc", {"CULEAK_UNWINDER": "libgcc"})):
        done = same_results(t, "torch", "training", env={**UNCACHED, **setting})
        seen[unwinder] = stacks(snapshot_of(done))
    expect(sum(seen["own"].values()) >= 100, f"only {sum(seen['own'].values())} rows: the claim is void")
    differing = (seen["own"] - seen["libgcc"]) + (seen["libgcc"] - seen["own"])
    expect(not differing, f"{sum(differing.values())} rows differ, the first: {next(iter(differing), None)}")


# ---- Python lines ----


def expect_python_lines(t, framework, env=None, inside=False):
    """Every allocation has the Python frames that Python reported when it was made, and the report names the first of them."""
    done = same_results(t, "lines", framework, env=env)
    snapshot = snapshot_of(done)
    python = snapshot.data["process"].get("python")
    expect(python and not python.get("no_frames"), f"no Python frames: {python}\n{snapshot.where()}")
    expect_equal(snapshot.losses["lost_python"], 0, f"losses.lost_python\n{snapshot.where()}")
    reported = done.lines()
    expect(len(reported) >= 8, f"the program reported only {len(reported)} allocations\n{done.story()}")
    for label, address, frames in reported:
        snapshot.expect_lines(label, address, frames, inside)
    report = t.cli("report", done.recording(done.pid()))[1]
    line = next(frames[0][2] for label, _, frames in reported if label == "step")
    expect(f"fw_lines.py:{line}" in report, f"the report does not name fw_lines.py:{line}\n{report[:2000]}")


@claim(slow=True)
def python_lines_of_an_uncached_pytorch_program_are_those_that_python_reports(t):
    expect_python_lines(t, "torch", env=UNCACHED)


@claim(slow=True)
def python_lines_of_a_cupy_program_are_those_that_python_reports(t):
    expect_python_lines(t, "cupy", inside=True)


@claim(slow=True)
def python_lines_of_a_numba_program_are_those_that_python_reports(t):
    expect_python_lines(t, "numba", inside=True)


# ---- JAX ----


@claim(slow=True)
def the_slab_of_jax_is_one_row(t):
    done = same_results(t, "jax", "preallocated", env=SLAB)
    snapshot = snapshot_of(done)
    limit = done.fact("limit")
    slabs = [row["bytes"] for row in snapshot.memory() if row["bytes"] >= limit * 0.9]
    expect(limit and len(slabs) == 1 and slabs[0] <= limit * 1.1, f"expected one row of about {limit} bytes, found {slabs}\n{rows_by_size(snapshot)}")
    expect_pooled(t, done, slabs[0])


@claim(slow=True)
def an_array_of_jax_is_found_with_the_platform_allocator(t):
    done = same_results(t, "jax", "platform", env=PLATFORM)
    snapshot = snapshot_of(done)
    at = done.fact("array")
    rows = [row["requested"] for row in snapshot.rows if row["address"] == at and row["kind"] != "reserved"]
    expect(len(rows) == 1 and 1_234_567 <= rows[0] < 1_234_567 + (2 << 20), f"no row for the array at {at:#x}\n{rows_by_size(snapshot)}")


# ---- CuPy ----


@claim(slow=True)
def a_leaked_cupy_array_is_one_row_without_the_pool(t):
    done = same_results(t, "cupy", "no_pool")
    snapshot = snapshot_of(done)
    snapshot.find(done.live()[0])
    snapshot.expect_sane()
    expect_pooled(t, done, 0)


@claim(slow=True)
def the_pool_of_cupy_adds_up_to_its_total(t):
    done = same_results(t, "cupy", "pooled")
    snapshot = snapshot_of(done)
    expect_equal(snapshot.bytes_of("device"), done.fact("total_bytes"), f"bytes of device memory\n{rows_by_size(snapshot)}")
    expect_pooled(t, done, done.fact("total_bytes"))


# ---- numba and Triton ----


@claim(slow=True)
def a_leaked_numba_array_is_one_row(t):
    done = same_results(t, "numba")
    snapshot = snapshot_of(done)
    snapshot.find(done.live()[0])
    snapshot.expect_sane()


@claim(slow=True)
def a_triton_kernel_computes_the_same_and_its_tensors_are_counted(t):
    done = same_results(t, "triton")
    snapshot = snapshot_of(done)
    expect_equal(bytes_by_module(snapshot, ["device"], "libc10_cuda")[0], done.fact("reserved"), f"bytes of segments\n{rows_by_size(snapshot)}")
