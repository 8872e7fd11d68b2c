"""Claims about the ledger of a real device: every byte that the driver counts has a line, and PyTorch's lines match PyTorch's totals."""

import json

from frameworks import EXPANDABLE
from harness import HERE, claim, expect, expect_equal, Missing, site, tail
from observed import Watched

MIB = 1 << 20
PROGRAM = HERE / "victims" / "fw_ledger.py"
ARRAYS = HERE / "victims" / "fw_ledger_arrays.py"
DRIVER = HERE / "victims" / "ledger_driver.py"


def report_of(t, what):
    code, out, err = t.cli("report", what, "--json")
    expect_equal(code, 0, f"exit code of culeak report {what}\n{tail(err)}")
    return json.loads(out)


def facts(watched):
    return {line.split()[2]: int(line.split()[3], 16) for line in watched.lines if line.startswith("FACT")}


def lines(device):
    found = {}
    for line in device["lines"]:
        key = line["what"] if line["of"] is None else f"{line['what']} {line['of']}"
        found[key] = line["bytes"]
    return found


def expect_line(row, label):
    """The row's call site is this line of Python."""
    stack = row["stacks"][0] if "stacks" in row else row["stack"]
    frame = stack["frames"][stack["site"]]
    got = ((frame["file"] or "").rsplit("/", 1)[-1], frame["line"])
    expect_equal(got, site(label), f"the call site of {row.get('label', 'the request')}: {frame}")


def expect_explained(device):
    """The driver's figure for the process is the sum of its lines, and next to nothing is unexplained."""
    shown = json.dumps({k: device[k] for k in ("driver", "process", "lines", "unexplained")}, indent=1)
    expect(device["process"] is not None, f"what the kernel driver gave was not recorded\n{shown}")
    expect_equal(device["process"]["difference"], 0, f"the driver's figure minus the sum of the lines\n{shown}")
    limit = max(MIB, device["driver"]["used_bytes"] // 1000)
    expect(abs(device["unexplained"]) <= limit, f"{device['unexplained'] / MIB:.1f} MiB unexplained\n{shown}")
    expect("unrecorded" not in lines(device), f"memory without a recorded block\n{shown}")


def explained(t, watched):
    """The lines of the only device of a running program, after these checks."""
    ledger = report_of(t, watched.pid)["ledger"]
    device = next(device for device in ledger["devices"] if device["lines"])
    if device["driver"] is None or device["driver"]["process_bytes"] is None:
        raise Missing(f"the driver's figure for the process: {ledger['missing'] or 'it does not know this process id'}")
    expect_explained(device)
    return device, lines(device)


# Alone, since concurrent changes by other processes would be unexplained.
@claim(over=["caching", "expandable"], alone=True)
def every_byte_that_the_driver_counts_has_a_line(t, mode):
    env = EXPANDABLE if mode == "expandable" else None
    with Watched(t, command=[t.python, PROGRAM], env=env) as watched:
        stated = facts(watched)
        report = report_of(t, watched.pid)
        ledger = report["ledger"]
    device = next(device for device in ledger["devices"] if device["lines"])
    if device["driver"] is None:
        raise Missing(f"the driver's side of the ledger: {ledger['missing']}")
    shown = f"ledger: {json.dumps({k: device[k] for k in ('driver', 'lines', 'unexplained', 'outside')}, indent=1)}"
    sums = lines(device)
    expect_equal(sum(sums.values()) + device["unexplained"], device["driver"]["used_bytes"], f"sum of all lines\n{shown}")
    expect_equal(sums["blocks PyTorch"], stated["allocated"], f"tensors, against memory_allocated()\n{shown}")
    expect_equal(sums["blocks PyTorch"] + sums["cached PyTorch"], stated["reserved"], f"tensors and cache, against memory_reserved()\n{shown}")
    expect_equal(ledger["pytorch"], [mode], "mode of PyTorch's allocator")
    [cache] = device["caches"]
    expect_equal(sum(segment["bytes"] for segment in cache["segments"]), stated["reserved"], f"bytes of all segments\n{shown}")
    expect(0 <= cache["fragmentation"] <= 1 and cache["largest_free_run"] > 0, f"fragmentation: {cache}")
    if device["driver"]["process_bytes"] is not None:
        own = sum(sums.get(what, 0) for what in ("context", "local_memory", "code"))
        expect(200 * MIB <= own <= 2048 * MIB, f"a context of {own / MIB:.0f} MiB\n{shown}")
        expect_explained(device)
    expect_line(report["rows"][0], "ledger_leak")
    expect(not any(row["pool"] and "device" in row["kinds"] for row in report["rows"]), f"segments beside their tensors\n{shown}")


@claim(alone=True)
def a_checkpointed_process_has_nothing_on_the_device_until_it_is_restored(t):
    def move(watched, what):
        done = t.run(t.python, HERE / "victims" / "checkpoint.py", watched.pid, what, how="bare").must(0)
        if "UNSUPPORTED" in done.out:
            raise Missing("a driver that can checkpoint processes")
        # CU_PROCESS_STATE_CHECKPOINTED and _RUNNING.
        expect_equal(done.fact("state"), {"checkpoint": 2, "restore": 0}[what], f"the state that the driver says, after {what}")

    with Watched(t, command=[t.python, PROGRAM]) as watched:
        reserved = facts(watched)["reserved"]
        move(watched, "checkpoint")
        asleep = report_of(t, watched.pid)
        code, text, err = t.cli("report", watched.pid)
        move(watched, "restore")
        awake = report_of(t, watched.pid)
    [device] = [device for device in asleep["ledger"]["devices"] if device["lines"]]
    shown = json.dumps(device["lines"], indent=1)
    moved = lines(device)["checkpointed"]
    expect(-moved >= reserved and sum(lines(device).values()) == 0, f"the host has {-moved} bytes of the blocks, {reserved} are PyTorch's\n{shown}")
    expect_equal(device["process"]["bytes"], 0, f"bytes of the process on the device\n{shown}")
    expect(code == 0 and "checkpointed: 0 B on GPU 0" in text, f"the report does not say it\n{tail(text + err)}")
    expect_equal([row["bytes"] for row in asleep["rows"]], [row["bytes"] for row in awake["rows"]], "rows while it is checkpointed and afterwards")
    [device] = [device for device in awake["ledger"]["devices"] if device["lines"]]
    expect("checkpointed" not in lines(device), f"after it was restored\n{json.dumps(device['lines'], indent=1)}")


@claim(alone=True)
def a_failed_request_leaves_a_snapshot_whose_report_begins_with_it(t):
    with Watched(t, command=[t.python, PROGRAM, "too-much"]) as watched:
        snapshots = sorted((watched.folder / "rec").glob("*out-of-memory*"))
        expect_equal(len(snapshots), 1, f"snapshots in {watched.folder / 'rec'}")
        report = report_of(t, snapshots[0])
        stated = facts(watched)
    failed = report["trigger"]
    expect(failed is not None, f"{snapshots[0]}: the report names no failed request")
    expect(failed["bytes"] >= 1 << 50, f"the failed request: {failed}")
    expect_line(failed, "ledger_too_much")
    expect_line(report["rows"][0], "ledger_leak")
    device = next(device for device in report["ledger"]["devices"] if device["lines"])
    expect_equal(lines(device)["blocks PyTorch"], stated["allocated"], "tensors at that time, against memory_allocated()")


@claim(alone=True)
def memory_of_cublas_that_is_not_from_pytorch_is_named_after_cublas(t):
    """cuBLAS takes its workspace from PyTorch here; what its handle allocates itself is its own."""
    with Watched(t, command=[t.python, PROGRAM]) as watched:
        report = report_of(t, watched.pid)
    device = next(device for device in report["ledger"]["devices"] if device["lines"])
    named = {line["of"] for line in device["lines"] if line["what"] == "library"}
    strangers = [row["label"] for row in report["rows"] if "cublas" in json.dumps(row["stacks"][0]["frames"][:4]).lower() and not row["library"] and not row["pool"]]
    expect(not strangers, f"rows through cuBLAS without an owner: {strangers}; libraries with a line: {named}")


@claim(alone=True)
def a_plain_program_is_explained_to_the_byte(t):
    with Watched(t) as watched:
        _, sums = explained(t, watched)
    expect(sums["context"] >= 16 * MIB and sums["local_memory"] >= 16 * MIB, f"context and local memory: {sums}")


@claim(over=["jax", "cupy"], alone=True)
def programs_on_other_frameworks_are_explained_to_the_byte(t, framework):
    if t.run(t.python, "-c", f"import {framework}", how="bare").code != 0:
        raise Missing(f"the Python package {framework}")
    with Watched(t, command=[t.python, ARRAYS, framework]) as watched:
        explained(t, watched)


@claim(alone=True)
def the_sum_is_the_drivers_figure_after_each_step_of_a_program(t):
    """Limits, blocks, churn, pools, arrays, streams, graphs and kernels, with the line that each of them changes."""
    with Watched(t, command=[t.python, DRIVER]) as watched:

        def step(word):
            watched.send(word)
            return explained(t, watched)

        _, first = explained(t, watched)
        expect_equal(set(first) & {"rounding", "streams", "graph_execs", "code", "cuda_pools"}, set(), "lines of a program that did nothing")
        _, small = step("small_limit")
        _, large = step("large_limit")
        _, usual = step("usual_limit")
        expect(small["local_memory"] < first["local_memory"] < large["local_memory"], f"local memory by stack limit: {small} {first} {large}")
        expect_equal(usual["local_memory"], first["local_memory"], "local memory with the usual limit again")
        _, sums = step("blocks")
        expect(sums["rounding"] > 0, f"rounding of blocks: {sums}")
        device, sums = step("churn")
        [rounding] = [line for line in device["lines"] if line["what"] == "rounding"]
        expect_equal(sum(part["bytes"] for part in rounding["parts"]), sums["rounding"], "free bytes of pages, by the blocks that keep them")
        _, sums = step("pools")
        expect(sums["cuda_pools"] > 0, f"the chunk of a pool: {sums}")
        _, sums = step("arrays")
        expect("arrays" in sums, f"rounding of arrays: {sums}")
        device, before = step("streams")
        [streams] = [line for line in device["lines"] if line["what"] == "streams"]
        expect_equal((streams["count"], streams["destroyed"]), (200, 0), f"streams: {streams}")
        device, after = step("fewer_streams")
        [streams] = [line for line in device["lines"] if line["what"] == "streams"]
        expect_equal((streams["count"], streams["destroyed"], after["streams"]), (100, 100, before["streams"]), "streams, and what is kept of those destroyed")
        # Its code fits into what the context has.
        _, plain = step("plain_kernel")
        device, deep = step("deep_kernel")
        expect(deep["local_memory"] > plain["local_memory"], f"local memory after a kernel with large frames: {deep}")
        [local] = [line for line in device["lines"] if line["what"] == "local_memory"]
        expect(local["parts"][0]["call"].startswith("cuLaunchKernel"), f"who enlarged local memory: {local}")
        device, sums = step("graphs")
        [executables] = [line for line in device["lines"] if line["what"] == "graph_execs"]
        expect_equal(executables["count"], 100, f"executable graphs: {executables}")
        expect(sums["graph_execs"] >= 100 * 100 << 10, f"bytes of executable graphs: {sums}")


@claim(alone=True)
def a_finished_program_has_the_same_ledger_without_the_drivers_figures(t):
    done = t.run(t.program("rt-static"), "kinds").must(0)
    code, out, err = t.cli("report", done.recording(done.pid()), "--json")
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    device = next(device for device in json.loads(out)["ledger"]["devices"] if device["process"])
    expect(device["process"]["peak_bytes"] >= 64 * MIB, f"the process's sum: {device['process']}")
    own = sum(line["bytes"] for line in device["lines"])
    expect_equal(own, device["process"]["bytes"], f"the lines of the process\n{json.dumps(device['lines'], indent=1)}")
