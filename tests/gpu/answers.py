"""Claims about the first lines of a report: the line to blame is in the first five, and the layers of a model are below its row."""

import json

from backward import MODELS
from harness import HERE, claim, expect, expect_equal, site, tail

PROGRAMS = [
    "kept_losses",
    "kept_features",
    "kept_by_a_helper",
    "kept_gradients",
    "optimizer_state",
    "kept_graphs",
    "pinned_batches",
    "freed_at_exit",
    "kept_arrays",
    "kept_modules",
    "kept_model",
    "kept_activations",
]


@claim(over=PROGRAMS)
def the_line_to_blame_is_in_the_first_five(t, name):
    done = t.run(t.python, HERE / "victims" / "fw_answers.py", name).must(0)
    code, out, err = t.cli("report", done.recording())
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    file, line = site(f"answer_{name}")
    first = out.splitlines()[:5]
    expect(any(f"{file}:{line}" in text for text in first), f"{file}:{line} is not in the first five lines:\n{tail(out, 40)}")


@claim()
def modules_of_code_that_are_kept_exist_at_their_line_when_the_script_ends(t):
    done = t.run(t.python, HERE / "victims" / "fw_answers.py", "kept_modules").must(0)
    code, out, err = t.cli("report", done.recording(), "--at", "end", "--json")
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    rows = json.loads(out)["objects"]["rows"]
    counts = {row["label"].rpartition(".")[2]: row["count"] for row in rows if row["kind"] == "module"}
    expect_equal(counts.get("reload"), 10, f"modules of reload, among {counts}")


@claim()
def plans_are_held_by_the_cache_and_not_by_words_of_a_library(t):
    done = t.run(t.python, HERE / "victims" / "fw_answers.py", "kept_plans", options=["--why"]).must(0)
    code, out, err = t.cli("why", done.recording(), "--json")
    expect_equal(code, 0, f"exit code of culeak why\n{tail(err)}")
    origins = json.loads(out)["origins"]
    text = tail(t.cli("why", done.recording())[1], 40)
    expect(origins, f"nothing holds the plans\n{text}")
    expect("libnvrtc" not in json.dumps(origins), f"words of libnvrtc hold memory\n{text}")
    first = json.dumps(max(origins, key=lambda origin: origin["bytes"])).lower()
    expect("cache" in first or "arena" in first, f"the first holder is neither CuPy's cache of plans nor its arena\n{text}")


# Tensors and bytes of the modules of a TransformerEncoderLayer(512, 8, 2048), with those in them.
LAYER = {
    "self_attn": (4, 4 * (3 * 512 * 512 + 3 * 512 + 512 * 512 + 512)),
    "self_attn.out_proj": (2, 4 * (512 * 512 + 512)),
    "linear1": (2, 4 * (2048 * 512 + 2048)),
    "linear2": (2, 4 * (512 * 2048 + 512)),
    "norm1": (2, 4 * 2 * 512),
    "norm2": (2, 4 * 2 * 512),
}
WHOLE = tuple(map(sum, zip(*(LAYER[name] for name in LAYER if "." not in name))))
# The allocator leaves a rest of at most this at the end of a block.
REST = 1 << 20


@claim()
def the_layers_of_a_model_are_below_its_row(t):
    done = t.run(t.python, HERE / "victims" / "fw_answers.py", "kept_model", options=["--why"]).must(0)
    recording = done.recording()
    code, out, err = t.cli("why", recording, "--json")
    expect_equal(code, 0, f"exit code of culeak why\n{tail(err)}")
    modules = json.loads(out).get("modules")
    expect(modules, f"no module owns any memory\n{tail(t.cli('why', recording)[1], 60)}")
    roots = [row for row in modules["tree"] if row["depth"] == 0]
    expect_equal([(row["path"], row["class"]) for row in roots], [("__main__.kept[0]", "TransformerEncoder")], "the models")
    rows = {row["path"]: row for row in modules["tree"]}
    wanted = {f"layers.{nth}.{name}": of for nth in range(6) for name, of in LAYER.items()}
    wanted |= {f"layers.{nth}": WHOLE for nth in range(6)} | {"__main__.kept[0]": (6 * WHOLE[0], 6 * WHOLE[1])}
    expect_equal(sorted(set(wanted) - set(rows)), [], f"modules without a row, among {sorted(rows)}")
    for path, (count, size) in wanted.items():
        row = rows[path]
        is_right = row["count"] == count and size <= row["bytes"] <= size + count * REST
        expect(is_right, f"{path} has {count} tensors of {size} bytes, but its row is {row}")
    for words in (["report", recording], ["report", recording, "--by", "module"], ["why", recording, "--by", "module"]):
        code, out, err = t.cli(*words)
        expect_equal(code, 0, f"exit code of culeak {words[0]}\n{tail(err)}")
        expect("layers.* (6 × TransformerEncoderLayer)" in out, f"the layers are not in culeak {words}\n{tail(out, 60)}")


@claim()
def each_model_that_is_still_there_is_one_line(t):
    done = t.run(t.python, HERE / "victims" / "fw_answers.py", "kept_models", options=["--why"]).must(0)
    recording = done.recording()
    code, out, err = t.cli("why", recording, "--json")
    expect_equal(code, 0, f"exit code of culeak why\n{tail(err)}")
    roots = [(row["path"], row["class"], row["count"]) for row in json.loads(out)["modules"]["tree"] if row["depth"] == 0]
    expect_equal(roots, [("__main__.teacher", "Sequential", 2), ("__main__.student", "Sequential", 2)], "models, the largest first")
    code, out, err = t.cli("report", recording, "--by", "module")
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    for name in ("teacher", "student"):
        lines = [line for line in out.splitlines() if f"__main__.{name} (Sequential)" in line]
        expect_equal(len(lines), 1, f"lines of {name}\n{tail(out, 40)}")


# Without workspaces of cuBLAS, which belong to no module.
SMALL_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:1", "CUBLASLT_WORKSPACE_SIZE": "1"}


@claim(over=MODELS, slow=True)
def most_bytes_of_a_model_belong_to_a_module(t, model):
    done = t.run(t.python, HERE / "victims" / "fw_models.py", model, "kept", env=SMALL_WORKSPACES, options=["--why"], timeout=200).must(0)
    # Workers of a compiler may have recordings too.
    recording = max((done.folder / "rec").glob("*.culeak"), key=lambda path: path.stat().st_blocks)
    code, out, err = t.cli("why", recording, "--json")
    expect_equal(code, 0, f"exit code of culeak why\n{tail(err)}\n{done.story()}")
    modules = json.loads(out)["modules"]
    expect(modules, f"no module owns any memory\n{tail(t.cli('why', recording)[1], 60)}")
    of_modules = sum(row["bytes"] for row in modules["tree"] if row["depth"] == 0)
    every = of_modules + modules["without"]["bytes"]
    (done.folder / "modules.json").write_text(json.dumps({"model": model, "bytes": every, "of modules": of_modules}))
    print(f"  {model}: {of_modules} of {every} bytes belong to a module ({of_modules / every:.1%})", flush=True)
    # What a node saves that is more than a dozen nodes away from a parameter, as in attention without a fused kernel, belongs to none.
    # FSDP's optimizer has tensors of its own for what it does not divide.
    expect(of_modules >= (0.5 if model == "fsdp" else 0.7) * every, f"{of_modules} of {every} bytes belong to a module\n{tail(t.cli('why', recording, '--by', 'module')[1], 60)}")


@claim()
def what_a_graph_keeps_of_a_forward_pass_is_below_the_layers(t):
    done = t.run(t.python, HERE / "victims" / "fw_answers.py", "kept_activations", options=["--why"]).must(0)
    code, out, err = t.cli("why", done.recording(), "--json")
    expect_equal(code, 0, f"exit code of culeak why\n{tail(err)}")
    modules = json.loads(out)["modules"]
    text = tail(t.cli("why", done.recording(), "--by", "module")[1], 60)
    layers = [row["bytes"] for row in modules["tree"] if row["path"] in {f"layers.{nth}" for nth in range(4)}]
    expect_equal(len(layers), 4, f"layers with a row\n{text}")
    expect(max(layers) <= 1.1 * min(layers), f"layers with equal activations have {layers}\n{text}")
    # The losses, and the workspaces of cuBLAS.
    without, root = modules["without"]["count"], modules["tree"][0]["count"]
    expect(without <= root / 20, f"{without} blocks belong to no module, {root} to the model\n{text}")
