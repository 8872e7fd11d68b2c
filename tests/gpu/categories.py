"""Claims about categories: what culeak calls each tensor, against torch.profiler's memory timeline and the program's own lists.

Each model trains or generates under culeak and under the profiler at once, and stops at a few instants. At each of them
tensors are compared by address, so two errors cannot cancel out.
"""

import collections
import csv
import io
import json

from harness import HERE, claim, expect, expect_equal, tail
from tensors import snapshots

MODELS = ["transformer", "resnet", "lora", "ddp", "compiled", "generate"]
# The bytes that have to agree, of all bytes in tensors.
AGREEMENT = 0.95
PROFILER = {
    "PARAMETER": "parameters",
    "OPTIMIZER_STATE": "optimizer-state",
    "GRADIENT": "gradients",
    "AUTOGRAD_DETAIL": "gradients",
    "INPUT": "inputs",
    "ACTIVATION": "activations",
}
# What the profiler has no category for.
UNKNOWN_TO_THE_PROFILER = {"workspace", "kv-cache", "communication", "other"}
PROGRAM = {
    "parameters": "parameters",
    "buffers": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer-state",
    "inputs": "inputs",
    "kv_cache": "kv-cache",
}
# The program lists all tensors of these categories.
LISTED = {"parameters", "optimizer-state", "kv-cache"}
# While a compiled graph's activations are saved, the profiler calls most of them parameters or inputs: it never sees the
# operators that would say otherwise. The program's lists, which are complete, show that they are neither.
PROFILER_IS_WRONG = {("compiled", "forward"), ("compiled", "middle")}

Block = collections.namedtuple("Block", "bytes category profiler program")


def instants(t, model):
    """The run, and (name, path, blocks) of each instant."""
    done = t.run(t.python, HERE / "victims" / "fw_categories.py", model, timeout=200).must(0)
    oracle = json.loads((done.folder / f"oracle.{done.pid()}.json").read_text())
    taken = snapshots(t, done)
    expect_equal([data["taken"]["automatic"]["name"] for _, data in taken], [f"at_{name}" for name in oracle], f"snapshots, by name\n{done.story()}")
    found = []
    for (path, _), (name, blocks) in zip(taken, oracle.items()):
        code, out, err = t.cli("export", path, "--format", "csv", "--output", "-")
        expect(code == 0, f"{path}: cannot be exported\n{tail(err)}")
        known = {address: words for address, *words in blocks}
        rows = [row for row in csv.DictReader(io.StringIO(out)) if row["kind"] == "tensor"]
        found.append((name, path, [Block(int(row["bytes"]), row["category"], *known.get(int(row["address"]), (None, None))) for row in rows]))
    return done, found


def expect_agreement(agrees, blocks, what):
    """`agrees`: whether culeak's category of a block is right."""
    total = sum(block.bytes for block in blocks)
    differing = collections.Counter()
    for block in blocks:
        if not agrees(block):
            differing[block[1:]] += block.bytes
    share = 1 - sum(differing.values()) / total
    shown = "".join(f"\n    {size} bytes: culeak {c}, profiler {p}, program {own}" for (c, p, own), size in differing.most_common(8))
    expect(total > 100 << 20, f"{what}: only {total} bytes in tensors, the claim is void")
    expect(share >= AGREEMENT, f"{what}: {share:.2%} of {total} bytes agree{shown}")


@claim(over=MODELS, slow=True)
def categories_agree_with_the_profilers_memory_timeline(t, model):
    _, found = instants(t, model)
    compared = [one for one in found if (model, one[0]) not in PROFILER_IS_WRONG]
    expect(len(compared) >= 2, f"{model}: only {len(compared)} instants")
    for name, path, blocks in compared:
        agrees = lambda block: block.category == PROFILER[block.profiler] if block.profiler in PROFILER else block.category in UNKNOWN_TO_THE_PROFILER
        expect_agreement(agrees, blocks, f"{model} at {name}, {path}")


@claim(over=MODELS, slow=True)
def categories_agree_with_the_tensors_that_the_program_lists(t, model):
    _, found = instants(t, model)
    for name, path, blocks in found:
        agrees = lambda block: block.category == PROGRAM[block.program] if block.program else block.category not in LISTED
        expect_agreement(agrees, blocks, f"{model} at {name}, {path}")
        listed = {PROGRAM[block.program] for block in blocks if block.program}
        expect(len(listed) >= 3, f"{model} at {name}: the program lists only {listed}")


@claim(over=MODELS, slow=True)
def categories_add_up_to_memory_allocated(t, model):
    done, found = instants(t, model)
    for name, path, blocks in found:
        allocated = done.fact(f"at_{name}")
        expect_equal(sum(block.bytes for block in blocks), allocated, f"{model} at {name}: bytes in the rows of the table, {path}")
        code, out, err = t.cli("report", path, "--by", "category", "--json")
        expect(code == 0, f"{path}: cannot be reported\n{tail(err)}")
        report = json.loads(out)
        expect_equal(sum(each["blocks"]["bytes"] for each in report["categories"]), allocated, f"{model} at {name}: bytes in the categories, {path}")
        rows = {row["label"]: row["kinds"].get("tensor", {}).get("bytes", 0) for row in report["rows"]}
        in_table = collections.Counter()
        for block in blocks:
            in_table[block.category] += block.bytes
        expect_equal({label: size for label, size in rows.items() if size}, dict(in_table), f"{model} at {name}: bytes in tensors by category, report (got) and table (expected)")
