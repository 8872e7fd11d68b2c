"""Claims about phases and marks: what they held is what PyTorch's allocator said at their boundaries, to the byte."""

import json

from frameworks import same_results
from harness import claim, expect, expect_equal, tail

LOG = {"CULEAK_TIMELINE": "268435456"}
MIB = 1 << 20


def report(t, done, *options):
    code, out, err = t.cli("report", done.recording(done.pid()), "--json", *options)
    expect(code == 0, f"report {options}: exit code {code}\n{tail(out + err)}\n{done.story()}")
    return json.loads(out)


def figures(phase, phases, layer):
    """The figures of a layer on the GPU."""
    places = [i for i, series in enumerate(phases["series"]) if (series["layer"], series["place"]) == (layer, "GPU 0")]
    expect(len(places) == 1, f"no series {layer} on GPU 0 among {phases['series']}")
    return phase["figures"][places[0]]


@claim(over=["ranges", "record_function", "client", "lightning"], slow=True)
def figures_of_phases_are_those_of_the_allocator(t, mode):
    done = same_results(t, "phases", mode, env=LOG)
    phases = report(t, done, "--view", "phases:step")
    expect_equal(phases["log"]["lost"], 0, "events lost")
    expect_equal(len(phases["chosen"]), 4, f"phases called step\n{done.story()}")
    for number, step in enumerate(phases["chosen"]):
        expect("epoch" in step["within"] or mode == "lightning", f"step {number} lies within {step['within']}")
        tensors = figures(step, phases, "blocks")
        for ours, theirs in [("held_at_begin", "begin"), ("held_at_end", "end"), ("high_water", "peak")]:
            expect_equal(tensors[ours], done.fact(f"step_{number}_{theirs}"), f"step {number}: {ours} (got) and PyTorch's figure (expected)\n{done.story()}")
        grown = tensors["held_at_end"] - tensors["held_at_begin"]
        expect_equal(tensors["allocated"]["bytes"] - tensors["freed"]["bytes"], grown, f"step {number}: allocated minus freed, and growth")
        expect_equal(tensors["freed_within"]["bytes"] + tensors["left_behind"]["bytes"], tensors["allocated"]["bytes"], f"step {number}: freed within and left behind")
        left = sum(site["bytes"] for site in step["left_behind"])
        expect(left >= (number + 1) * MIB, f"step {number}: left {left} bytes behind, of which the list has {(number + 1) * MIB}")


@claim(slow=True)
def operators_of_emit_nvtx_are_one_row_each(t):
    done = same_results(t, "phases", "record_function", env=LOG)
    rows = report(t, done, "--view", "phases")["rows"]
    names = [row["name"] for row in rows]
    expect("aten::linear" in names or "aten::addmm" in names, f"no operator among {names[:40]}\n{done.story()}")
    numbered = [name for name in names if ", seq = " in name or ", op_id = " in name]
    expect(not numbered, f"rows with numbers of operators: {numbered[:5]}")


@claim(slow=True)
def a_round_that_keeps_memory_fails_at_its_mark(t):
    done = same_results(t, "phases", "rounds", env=LOG)
    recording = done.recording(done.pid())
    code, out, err = t.cli("check", recording, "--at", "mark:asleep", "--same-as-last", "--json")
    expect_equal(code, 1, f"exit code\n{tail(out + err)}\n{done.story()}")
    verdict = json.loads(out)
    grown = done.fact("asleep_2") - done.fact("asleep_1")
    expect_equal(verdict["judged"]["bytes"], grown, f"bytes judged (got) and growth of memory_allocated() (expected)\n{done.story()}")
    expect_equal(verdict["rows"][0]["stacks"][0]["frames"][verdict["rows"][0]["stacks"][0]["site"]]["function"], "rounds", "call site")
    code, out, err = t.cli("check", recording, "--at", "mark:asleep", "--not-above", "64MiB")
    expect_equal(code, 0, f"exit code with a high limit\n{tail(out + err)}")
