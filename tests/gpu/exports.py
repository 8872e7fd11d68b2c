"""Claims about PyTorch's own memory snapshots: culeak reads PyTorch's, and PyTorch reads those that culeak exports."""

import json

from frameworks import EXPANDABLE, same_results
from harness import claim, expect, expect_equal, tail

MIB = 1 << 20

READER = """
import os, pickle, sys
from torch.cuda import _memory_viz
snapshot = pickle.load(open(sys.argv[1], "rb"))
print(_memory_viz.segsum(snapshot))
states = [(block["state"], block["size"]) for segment in snapshot["segments"] for block in segment["blocks"]]
active = sum(size for state, size in states if state == "active_allocated")
print(f"FACT {os.getpid()} active {active:#x}")
assert _memory_viz.trace_plot(snapshot) and _memory_viz.segment_plot(snapshot)
"""


def ran(t, *words):
    code, out, err = t.cli(*words)
    expect(code == 0, f"culeak {' '.join(map(str, words))} gave exit code {code}\n{tail(out + err)}")
    return out


@claim(over=["", "expandable"], slow=True)
def a_snapshot_dumped_by_pytorch_has_the_bytes_that_pytorch_reports(t, mode):
    done = same_results(t, "dump", env=EXPANDABLE if mode else None)
    dump = done.folder / "dump.pickle"
    report = json.loads(ran(t, "report", dump, "--json"))
    tensors = sum(row["kinds"].get("tensor", {"bytes": 0})["bytes"] for row in report["rows"])
    expect_equal(tensors, done.fact("allocated"), f"bytes in tensors of {dump} (got) and memory_allocated()")
    expect_equal(report["totals"]["pool"]["bytes"], done.fact("reserved"), f"bytes in segments of {dump} (got) and memory_reserved()")
    expect_equal((report["rows"][0]["label"], report["rows"][0]["count"]), ("hold_weights", 6), f"the first row of {dump}")
    ran(t, "diff", dump, dump)


@claim(over=["", "expandable"], slow=True)
def pytorch_reads_what_culeak_exports_for_its_viewer(t, mode):
    done = same_results(t, "dump", env=EXPANDABLE if mode else None)
    written = done.folder / "culeak.pickle"
    ran(t, "export", done.recording(), "--format", "memory_viz", "--kind", "tensor", "--kind", "device", "--kind", "mapping",
        "--kind", "physical", "--kind", "reserved", "-o", written, "--force")
    read = t.run(t.python, "-c", READER, written, how="bare", timeout=120).must(0)
    active, allocated = read.fact("active"), done.fact("allocated")
    expect(active >= allocated, f"bytes in active blocks {active}, {allocated} allocated\n{read.story()}")
    ours = json.loads(ran(t, "report", written, "--json"))
    expect(any("hold_weights" in row["label"] for row in ours["rows"]), f"rows: {[row['label'] for row in ours['rows']]}")
