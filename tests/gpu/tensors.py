"""Claims about the tensor level: blocks of PyTorch's caching allocator, buffers of XLA, and automatic snapshots.

Each program requests a snapshot at each of its steps and prints what its framework holds then, to the byte.
"""

import json

from frameworks import EXPANDABLE, ORDERED, UNCACHED, same_results
from harness import HERE, Missing, allocations, claim, expect, expect_equal, site, tail

MODES = ["steps", "threads", "loader_fork", "loader_spawn", "compiled", "graph", "leaks", "graph_pool"]


def snapshots(t, done):
    """Automatic snapshots beside the recordings, as (path, snapshot without symbols), in the order in which they were taken."""
    found = []
    for path in sorted((done.folder / "rec").glob("*.culeak-snapshot")):
        json_path = path.with_suffix(".json")
        code, out, err = t.cli("snapshot", path, "--no-symbols", "--force", "-o", json_path)
        expect(code == 0, f"{path}: cannot be read\n{tail(out + err)}")
        found.append((path, json.loads(json_path.read_text())))
    return sorted(found, key=lambda one: one[1]["taken"]["at_ns"])


def tensors(data):
    return [row for row in allocations(data) if row["kind"] == "tensor"]


def expect_matching_totals(t, data, whose):
    """PyTorch's own total was that of our rows after every event."""
    [allocator] = data["allocators"] or [None]
    expect(allocator, f"{whose}: PyTorch's allocator reported nothing")
    expect_equal((allocator["mismatches"], allocator["unseen_bytes"]), (0, 0), f"{whose}: events after which the totals differ, and bytes allocated before the first event")
    expect_equal(allocator["live_bytes"], sum(row["bytes"] for row in tensors(data)), f"{whose}: PyTorch's total (expected) and that of the rows (got)")
    for field in ("lost_allocations", "lost_stacks", "lost_snapshots", "unknown_blocks"):
        expect_equal(data["losses"][field], 0, f"{whose}: losses.{field}")


def expect_every_step(t, done):
    taken = snapshots(t, done)
    facts = [words[1] for words in done._lines("FACT") if words[1].startswith("at_")]
    expect(facts, f"the program printed no step\n{done.story()}")
    expect_equal([data["taken"]["automatic"]["name"] for _, data in taken], facts, f"automatic snapshots, by name\n{done.story()}")
    for path, data in taken:
        name = data["taken"]["automatic"]["name"]
        got = sum(row["bytes"] for row in tensors(data))
        expect_equal(got, done.fact(name), f"{name}: bytes in tensors (got) and torch.cuda.memory_allocated() (expected), {path}")
        expect_matching_totals(t, data, name)


@claim(over=MODES, slow=True)
def tensors_add_up_to_memory_allocated_at_every_step(t, mode):
    done = same_results(t, "tensors", mode)
    expect_every_step(t, done)
    if mode.startswith("loader"):
        expect_equal(len(done.recordings()), 1, f"recordings; workers that never use CUDA have none\n{done.story()}")


@claim(over=["steps", "threads", "graph"], slow=True)
def tensors_add_up_with_expandable_segments(t, mode):
    expect_every_step(t, same_results(t, "tensors", mode, env=EXPANDABLE))


@claim(slow=True)
def tensors_lie_within_device_memory_from_cuda(t):
    done = same_results(t, "tensors", "steps")
    _, data = snapshots(t, done)[2]
    segments = [(r["address"], r["address"] + r["bytes"]) for r in allocations(data) if r["kind"] == "device"]
    outside = [hex(r["address"]) for r in tensors(data) if not any(a <= r["address"] and r["address"] + r["bytes"] <= b for a, b in segments)]
    expect(not outside, f"tensors outside of all device memory: {outside}")


@claim(over=["uncached", "ordered"], slow=True)
def where_the_allocator_is_not_used_there_are_no_tensors(t, mode):
    env = {"uncached": UNCACHED, "ordered": ORDERED}[mode]
    done = same_results(t, "torch", mode, env=env)
    data = done.snapshot(done.pid()).data
    expect_equal((len(tensors(data)), data["allocators"]), (0, []), "rows of tensors, and totals of an allocator")


@claim(over=["losses_with_graphs", "activations_kept", "reference_cycle"], slow=True)
def a_leaked_tensor_is_named_by_its_python_line(t, label):
    done = same_results(t, "tensors", "leaks")
    snapshot = done.snapshot(done.pid())
    [live] = [l for l in done.live() if l.label == label]
    snapshot.expect_site(snapshot.find(live), label)


@claim(slow=True)
def a_forgotten_pinned_buffer_is_named_by_its_python_line(t):
    done = same_results(t, "tensors", "leaks")
    snapshot = done.snapshot(done.pid())
    rows = [row for row in snapshot.of_kind("pinned", "registered") if row["address"] == done.fact("forgotten_pinned")]
    expect_equal(len(rows), 1, f"pinned rows at {done.fact('forgotten_pinned'):#x}\n{snapshot.where()}")
    snapshot.expect_site(rows[0], "forgotten_pinned")


@claim(slow=True)
def a_tensor_in_the_pool_of_a_cuda_graph_is_named_by_its_python_line(t):
    done = same_results(t, "tensors", "graph_pool")
    snapshot = done.snapshot(done.pid())
    [live] = done.live()
    snapshot.expect_site(snapshot.find(live), "graph_pool_leak")


@claim(slow=True)
def a_tensor_leaked_by_a_cpp_extension_is_named_by_the_python_line_that_called_it(t):
    done = same_results(t, "tensors", "extension", env={"TORCH_EXTENSIONS_DIR": str(t.out / "extensions")})
    expect_every_step(t, done)
    snapshot = done.snapshot(done.pid())
    [live] = done.live()
    row = snapshot.find(live)
    snapshot.expect_site(row, "extension_leak")
    modules = [module for _, _, _, module in snapshot.frames(row)]
    expect(any("leaky" in module for module in modules), f"the extension is not in the stack of\n    {snapshot.show(row)}")


@claim(slow=True)
def pytorchs_profiler_receives_the_same_events_as_without_culeak(t):
    done = same_results(t, "tensors", "profiler")
    expect(int(done.results()[0].split()[2]) > 0, f"the profiler received no memory events, with or without culeak: {done.results()}")


@claim(slow=True)
def running_out_of_memory_leaves_a_snapshot_with_the_python_line(t):
    done = same_results(t, "tensors", "out_of_memory")
    taken = [(path, data) for path, data in snapshots(t, done) if data["taken"]["automatic"]["reason"] == "out_of_memory"]
    expect_equal(len(taken), 1, f"snapshots, for one line that failed twice\n{done.story()}")
    path, data = taken[0]
    failed = data["failed"][data["taken"]["automatic"]["failed"]]
    expect_equal((failed["kind"], failed["bytes"], failed["error"]), ("tensor", 1 << 46, 2), "the request that failed")
    expect_matching_totals(t, data, path.name)
    messages = [line for line in done.err.splitlines() if line.startswith("culeak: out of memory")]
    expect(len(messages) == 1 and str(path) in messages[0], f"no message on stderr names the snapshot: {messages}")
    code, out, err = t.cli("report", path)
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    file, line = site("torch_out_of_memory")
    expect(f"{file}:{line}" in out, f"{file}:{line} is not in the report of the snapshot:\n{tail(out, 40)}")


@claim(slow=True)
def ten_million_tensor_events_on_eight_threads_are_all_counted(t):
    command = [t.python, HERE / "victims" / "fw_tensors.py", "million"]
    done = t.run(*command, timeout=500).must(0)
    expect_every_step(t, done)
    snapshot = done.snapshot(done.pid())
    [live] = done.live()
    snapshot.find(live)
    [counter] = [c for c in snapshot.data["counters"] if c["kind"] == "tensor"]
    events = counter["total_count"] + counter["freed_count"]
    expect(events >= done.fact("events"), f"{events} events were counted, {done.fact('events')} happened")
    expect_equal(snapshot.data["allocators"][0]["events"], events, "events by PyTorch's calls (got) and by our counters (expected)")
    snapshot.expect_sane()


@claim(slow=True)
def no_pool_makes_each_tensor_a_separate_allocation(t):
    folder = t.folder("no-pool")
    code, out, err = t.cli("run", "--no-pool", "--no-report", "-o", folder / "rec", "--", t.python, HERE / "victims" / "fw_torch.py", "uncached")
    if code != 0:
        raise Missing(f"a working torch\n{tail(err)}")
    expect("PYTORCH_NO_CUDA_MEMORY_CACHING=1" in err, f"the message does not name the variable that was set:\n{tail(err)}")
    [recording] = (folder / "rec").glob("*.culeak")
    [live] = [line.split() for line in out.splitlines() if line.startswith("LIVE")]
    snapshot = t.snapshot(recording, folder / "snapshot.json")
    rows = [row for row in snapshot.of_kind("device") if row["address"] == int(live[4], 16)]
    expect_equal([row["bytes"] for row in rows], [int(live[5])], "rows at the address of the tensor")


# ---- JAX ----


@claim(slow=True)
def buffers_of_jax_are_its_live_arrays(t):
    env = {"CULEAK_JAX_BUFFERS": "addresses", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".05"}
    command = [t.python, HERE / "victims" / "fw_buffers.py"]
    bare = t.run(*command, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".05"}, how="bare", timeout=200)
    if bare.code != 0:
        raise Missing(f"a working jax\n{tail(bare.err)}")
    # The bare library: `culeak run` sets this variable itself, through an option.
    done = t.run(*command, env=env, how="preload", timeout=200).must(0)
    expect_equal(done.results(), bare.results(), "results with and without culeak")
    snapshot = done.snapshot(done.pid())
    wanted = sorted((l.address, l.bytes) for l in done.live())
    rows = snapshot.of_kind("buffer")
    expect_equal(len(done.live()), done.fact("live_arrays"), "live arrays that were printed")
    missing = [f"{address:#x} of {size} bytes" for address, size in wanted if (address, size) not in {(r["address"], r["bytes"]) for r in rows}]
    expect(not missing, f"live arrays without a row: {missing}\n{snapshot.where()}")
    extra = [snapshot.show(r) for r in rows if (r["address"], r["bytes"]) not in set(wanted)]
    expect(not extra, f"{len(extra)} rows that are no live array:\n    {extra[:5]}\n{snapshot.where()}")
    # A physical row has a handle in place of an address: its address is that of its mapping.
    slabs = [row for row in snapshot.of_kind("device", "async", "mapping") if row["requested"] > 1 << 30]
    for row in rows:
        within = any(s["address"] <= row["address"] < s["address"] + s["requested"] for s in slabs)
        expect(within, f"not in a slab ({[snapshot.show(s) for s in slabs]}): {snapshot.show(row)}")
    snapshot.expect_sane()
