"""Claims about backward passes of PyTorch: the line that called `backward()` is in the stack of what the pass allocates."""

import collections
import json

from frameworks import same_results, snapshot_of
from harness import claim, expect, site
from tensors import snapshots

MODES = ["native", "custom", "hook", "checkpointed", "reentrant", "generator", "threads", "fails", "ddp", "data_parallel", "extension", "compiled"]


@claim(over=MODES, slow=True)
def a_tensor_of_backward_has_the_lines_of_the_waiting_thread(t, mode):
    done = same_results(t, "backward", mode, env={"TORCH_EXTENSIONS_DIR": str(t.out / "extensions")})
    snapshot = snapshot_of(done)
    reported = done.lines()
    expect(reported, f"the program reported nothing\n{done.story()}")
    for label, address, frames in reported:
        snapshot.expect_lines(label, address, frames, inside=True)


@claim(slow=True)
def every_tensor_of_a_training_step_has_a_python_line_and_none_is_the_allocators(t):
    done = same_results(t, "backward", "training")
    [(path, _)] = snapshots(t, done)
    snapshot = t.snapshot(path, path.with_suffix(".named.json"), done.story())
    rows = snapshot.of_kind("tensor")
    total = sum(row["bytes"] for row in rows)
    lined = sum(row["bytes"] for row in rows if snapshot.python_frames(row))
    expect(lined >= 0.995 * total, f"{lined} of {total} bytes have a Python line\n{snapshot.where()}")
    file, line = site("training_backward")
    of_backward = [row for row in rows if any(f.endswith(file) and n == line for _, f, n in snapshot.python_frames(row))]
    expect(len(of_backward) > 50, f"only {len(of_backward)} tensors have {file}:{line}\n{snapshot.where()}")
    report = t.cli("report", path)[1]
    expect(f"{file}:{line}" in report, f"the report does not name {file}:{line}\n{report[:2000]}")
    expect("CachingAllocator::" not in report, f"a function of the allocator is named\n{report[:2000]}")


@claim(slow=True)
def a_gradient_has_the_line_of_its_operator_in_the_forward_pass(t):
    done = same_results(t, "backward", "forward")
    snapshot = snapshot_of(done)
    seen = collections.Counter()
    for label, address, _ in done.lines():
        [row] = [row for row in snapshot.of_kind("tensor") if row["address"] == address]
        lines = snapshot.forward_lines(row)
        file, line = site(label)
        expect([(f, n) for _, f, n in lines if f == file][:1] == [(file, line)], f"{label}: expected {file}:{line}, found {lines} in\n    {snapshot.show(row)}\n{snapshot.where()}")
        seen[label] += 1
    expect(len(seen) == 5, f"only {dict(seen)}\n{done.story()}")


@claim(slow=True)
def most_bytes_of_backward_have_a_line_of_the_forward_pass(t):
    done = same_results(t, "backward", "training")
    [(path, _)] = snapshots(t, done)
    snapshot = t.snapshot(path, path.with_suffix(".named.json"), done.story())
    file, line = site("training_backward")
    rows = [row for row in snapshot.of_kind("tensor") if any(f.endswith(file) and n == line for _, f, n in snapshot.python_frames(row))]
    lined = sum(row["bytes"] for row in rows if snapshot.forward_lines(row))
    total = sum(row["bytes"] for row in rows)
    expect(total and lined >= 0.95 * total, f"{lined} of {total} bytes of backward have a line of the forward pass\n{snapshot.where()}")


MODELS = ["gpt2", "vit", "resnet", "unet", "moe", "lora", "ddp", "fsdp", "compiled", "lightning"]


@claim(over=MODELS, slow=True)
def what_a_model_allocates_has_a_line_and_its_backward_a_line_of_the_forward_pass(t, model):
    done = same_results(t, "models", model, env={"CULEAK_TIMELINE": "256MiB"})
    # Workers of a compiler may have recordings too.
    path = max((done.folder / "rec").glob("*.culeak"), key=lambda recording: recording.stat().st_blocks)
    code, out, err = t.cli("report", path, "--view", "churn", "--by", "stack", "--kind", "tensor", "--json")
    expect(code == 0, f"{path}: no events\n{err}\n{done.story()}")
    sums = collections.Counter()
    without = collections.Counter()
    for row in json.loads(out)["rows"]:
        frames = row["stack"]["frames"]
        names = [frame["function"] or "" for frame in frames]
        has_line = any((frame["file"] or "").endswith(".py") for frame in frames)
        is_backward = any(name.endswith("_engine_run_backward") for name in names)
        has_forward = any(name.startswith("gradient of ") for name in names)
        bytes_ = row["allocated"]["bytes"]
        sums["all"] += bytes_
        sums["lined"] += bytes_ * has_line
        sums["backward"] += bytes_ * is_backward
        sums["forward"] += bytes_ * (is_backward and has_forward)
        if not has_line or is_backward and not has_forward:
            inner = ("c10::", "at::", "std::", "void ", "(anonymous namespace)")
            without[" < ".join([name.split("(")[0][-60:] for name in names if not name.startswith(inner)][:14])] += bytes_
    (done.folder / "shares.json").write_text(json.dumps({"model": model, **sums}))
    largest = "".join(f"\n    {bytes_}  {stack}" for stack, bytes_ in without.most_common(8))
    expect(sums["backward"], f"no bytes of backward: {dict(sums)}\n{done.story()}")
    expect(sums["lined"] >= 0.995 * sums["all"], f"{sums['lined']} of {sums['all']} bytes have a Python line; without one or without a line of the forward pass:{largest}")
    expect(sums["forward"] >= 0.95 * sums["backward"], f"{sums['forward']} of {sums['backward']} bytes of backward have a line of the forward pass; the others:{largest}")
