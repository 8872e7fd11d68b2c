"""Claims about the adapters (cli/python/culeak/adapters) on the real frameworks: each block of a pool that is in use is one row."""

import os

from frameworks import same_results, snapshot_of
from harness import HERE, claim, expect, expect_equal

# In front of what the caller's own PYTHONPATH offers, such as a folder with RMM.
FOLDERS = [str(HERE.parent.parent / "cli" / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
PACKAGE = {"PYTHONPATH": os.pathsep.join(FOLDERS)}


def adapted(t, mode, env=None):
    done = same_results(t, "adapters", mode, env={**PACKAGE, **(env or {})})
    said = [line for line in done.err.splitlines() if line.startswith("culeak: ") and not line.startswith(("culeak: recorded", "culeak: note"))]
    expect(not said, f"an adapter complains: {said}\n{done.story()}")
    return done


def expect_blocks(done, domain):
    """The rows of the domain are those that the program says are in use, with its lines."""
    snapshot = snapshot_of(done)
    rows = sorted((row["address"], row["bytes"]) for row in snapshot.of_kind("block") if row.get("domain") == domain)
    expected = sorted((live.address, live.bytes) for live in done.live() if live.kind == "block")
    expect(expected, f"the program holds nothing\n{done.story()}")
    expect_equal(rows, expected, f"blocks of {domain}\n{snapshot.where()}")
    expect_equal(snapshot.losses["unknown_blocks"], 0, "frees of blocks that were not recorded")
    for row in snapshot.of_kind("block"):
        if row.get("domain") == domain and row["bytes"] == 5000:
            functions = [function for function, _, _, _ in snapshot.frames(row)]
            expect("request" in functions, f"the leak is not named: {snapshot.show(row)}")
    snapshot.expect_sane()
    return snapshot


@claim(slow=True)
def arrays_in_the_pool_of_cupy_are_one_row_each(t):
    expect_blocks(adapted(t, "cupy"), "CuPy")


@claim(slow=True)
def blocks_of_a_pool_of_rmm_are_one_row_each(t):
    expect_blocks(adapted(t, "rmm"), "RMM")


@claim(slow=True)
def chunks_of_tensorflow_are_one_row_each_and_sum_up_to_what_it_says_is_in_use(t):
    done = adapted(t, "tensorflow")
    snapshot = snapshot_of(done)
    rows = [row for row in snapshot.of_kind("block") if row.get("domain") == "TensorFlow"]
    by_address = {row["address"]: row for row in rows}
    expect(done.live(), f"the program holds nothing\n{done.story()}")
    for live in done.live():
        row = by_address.get(live.address)
        expect(row is not None, f"no row for the tensor at {live.address:#x}\n{snapshot.where()}")
        expect_equal(row.get("requested", row["bytes"]), live.bytes, f"bytes asked for: {snapshot.show(row)}")
        functions = [function for function, _, _, _ in snapshot.frames(row)]
        expect("request" in functions, f"the leak is not named: {snapshot.show(row)}")
    expect_equal(sum(row["bytes"] for row in rows), done.fact("in_use"), f"bytes of chunks\n{snapshot.where()}")
    snapshot.expect_sane()


def pluggable(t):
    return {"PLUGGABLE": str(t.program("pluggable.so"))}


@claim(slow=True)
def tensors_of_a_pluggable_allocator_are_one_row_each(t):
    expect_blocks(adapted(t, "pluggable", pluggable(t)), "pluggable.so")


@claim(slow=True)
def a_pool_of_pytorch_is_a_phase_and_its_segments_are_blocks_of_its_allocator(t):
    done = adapted(t, "mem_pool", pluggable(t))
    snapshot = snapshot_of(done)
    names = {phase["name"] for phase in snapshot.data.get("phases", [])}
    expect(f"MemPool {done.fact('pool_first')}.{done.fact('pool_second')}" in names, f"phases {names}\n{done.story()}")
    segments = [row["bytes"] for row in snapshot.of_kind("block") if row.get("domain") == "pluggable.so"]
    expect_equal(sum(segments), done.fact("segments"), f"bytes of segments\n{snapshot.where()}")


@claim(slow=True)
def pages_of_a_kv_pool_on_the_device_are_counted_without_waiting_for_it(t):
    done = adapted(t, "sglang")
    snapshot = snapshot_of(done)
    rows = [row for row in snapshot.of_kind("block") if row.get("domain") == "SGLang"]
    expect_equal(len(rows), done.fact("pages"), f"pages in use\n{snapshot.where()}")
    expect_equal(done.fact("waited"), 0, f"the program waited for the device\n{done.story()}")
    leaked = [row for row in rows if "request" in [frame[0] for frame in snapshot.frames(row)]]
    expect_equal(len(leaked), done.fact("leaked"), "pages that a request leaked")

