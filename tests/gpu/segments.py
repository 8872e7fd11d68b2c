"""Claims about segments: the memory that the kernel driver gave to the process is what NVML says, to the byte, at every step.

Each program prints NVML's figure at each of its steps and requests a snapshot of that name.
"""

from harness import Failure, Missing, Snapshot, claim, expect, expect_equal, tail
from tensors import snapshots

CASES = ["contexts", "limits", "kernels", "modules", "streams", "graphs", "pools", "arrays", "churn", "large", "vmm", "host", "green"]
UNKNOWN = (1 << 64) - 1
# The claim runs alone: if NVML numbers processes as another namespace does, the only one that it lists is the program.
ALONE = {"ALONE": "1"}
# The line whose call makes the driver take memory, and the driver's function on the same stack.
SITES = {
    "contexts": ("segments_context", "cuDevicePrimaryCtxRetain"),
    "modules": ("segments_module", "cuModuleLoadData"),
    "streams": ("segments_stream", "cuStreamCreate"),
    "graphs": ("segments_graph", "cuGraphInstantiate"),
    "arrays": ("segments_array", "cuArray3DCreate"),
    "churn": ("segments_churn", "cuMemAlloc"),
    "vmm": ("segments_vmm", "cuMemCreate"),
    "green": ("segments_green", "cuGreenCtxCreate"),
}


def segments(data):
    table, rows = data.get("segments"), []
    for places in table["rows"] if table else []:
        row = dict(zip(table["columns"], places))
        row.setdefault("requested", row["bytes"])
        rows.append({**table["calls"][row.pop("call")], **row})
    return rows


def total(data, kind="segment"):
    return sum(row["bytes"] for row in segments(data) if row["kind"] == kind)


def run(t, case, env=None):
    done = t.run(t.program("segments"), case, env={**(env or {}), **ALONE}, timeout=300).must(0)
    steps = [words[1] for words in done._lines("FACT") if words[1].startswith("at_")]
    expect(steps, f"the program printed no step\n{done.story()}")
    return done, steps


def expect_equal_steps(t, done, steps):
    """Every difference is printed, and written beside the logs."""
    # Others are made when memory runs out.
    named = ((data["taken"]["automatic"]["name"], data) for _, data in snapshots(t, done))
    taken = {name: data for name, data in named if name}
    rows, wrong = [], 0
    for name in steps:
        counted, data = done.fact(name), taken.get(name)
        if counted == UNKNOWN:
            raise Missing("NVML's figure of this process alone: other processes use the device, and it does not know our process ids")
        expect(data is not None, f"no snapshot of step {name} among {sorted(taken)}\n{done.story()}")
        losses = data["losses"]
        expect(losses.get("segments_ended") is None, f"{name}: {losses.get('segments_ended')}\n{done.story()}")
        expect_equal(losses.get("lost_segments", 0), 0, f"{name}: segments that were not recorded\n{done.story()}")
        difference = total(data) - counted
        wrong += difference != 0
        channels = sum(row["kind"] == "channel" for row in segments(data))
        rows.append(f"{name:32} NVML {counted:>14} recorded {total(data):>14} difference {difference:>12} host {total(data, 'host-segment'):>12} channels {channels}")
    (done.folder / "segments.txt").write_text("\n".join(rows) + "\n")
    expect(wrong == 0, f"{wrong} of {len(steps)} steps differ:\n" + tail("\n".join(rows), len(rows)) + f"\n{done.story()}")


@claim(over=CASES, alone=True)
def segments_are_what_nvml_counts_for_the_process(t, case):
    done, steps = run(t, case)
    expect_equal_steps(t, done, steps)


# Code arrives with the context instead of with the first launch.
@claim(over=["kernels", "modules"], alone=True)
def segments_are_what_nvml_counts_if_modules_are_loaded_eagerly(t, case):
    done, steps = run(t, case, env={"CUDA_MODULE_LOADING": "EAGER"})
    expect_equal_steps(t, done, steps)


@claim(over=["1", "32"], alone=True)
def channels_follow_the_number_of_connections(t, connections):
    done, steps = run(t, "contexts", env={"CUDA_DEVICE_MAX_CONNECTIONS": connections})
    expect_equal_steps(t, done, steps)
    first = next(data for _, data in snapshots(t, done) if data["taken"]["automatic"]["name"] == steps[0])
    channels = sum(row["kind"] == "channel" for row in segments(first))
    expect_equal(channels, {"1": 4, "32": 128}[connections], f"channels with {connections} connections\n{done.story()}")


@claim(over=sorted(SITES), alone=True)
def a_segment_has_the_programs_line_and_the_drivers_function(t, case):
    done, _ = run(t, case)
    label, function = SITES[case]
    paths = [path for path, _ in snapshots(t, done)]
    problem = None
    for path in (paths[0], paths[len(paths) // 2], paths[-1]):
        try:
            return expect_row(t.snapshot(path, path.with_suffix(".symbols.json"), done.story()), label, function)
        except Failure as error:
            problem = error
    raise problem


def expect_row(snapshot: Snapshot, label, function):
    rows = [row for row in segments(snapshot.data) if row["kind"] == "segment"]
    expect(rows, f"no segment\n{snapshot.where()}")
    named = [row for row in rows if any(f.startswith(function) and "libcuda" in module for f, _, _, module in snapshot.frames(row))]
    expect(named, f"no segment has {function} of libcuda on its stack; the stacks:\n" + "\n".join(snapshot.show(row) for row in rows[-5:]) + f"\n{snapshot.where()}")
    problem = None
    for row in named:
        try:
            return snapshot.expect_site(row, label)
        except Failure as error:
            problem = error
    raise problem
