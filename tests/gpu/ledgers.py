"""Claims about the ledger of a real device: every byte that the driver counts has a line, and PyTorch's lines match PyTorch's totals."""

import json

from claims import Watched
from frameworks import EXPANDABLE
from harness import HERE, claim, expect, expect_equal, Missing, site, tail

MIB = 1 << 20
PROGRAM = HERE / "victims" / "fw_ledger.py"


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
    if device["driver"]["knows_process"]:
        expect(200 * MIB <= sums["context"] <= 2048 * MIB, f"a context of {sums['context'] / MIB:.0f} MiB\n{shown}")
        expect(abs(device["unexplained"]) <= 64 * MIB, f"{device['unexplained'] / MIB:.1f} MiB unexplained\n{shown}")
    expect_line(report["rows"][0], "ledger_leak")
    expect(not any(row["pool"] and "device" in row["kinds"] for row in report["rows"]), f"segments beside their tensors\n{shown}")


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
