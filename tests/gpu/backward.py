"""Claims about backward passes of PyTorch: the line that called `backward()` is in the stack of what the pass allocates."""

import collections
import json
import os

from frameworks import same_results, snapshot_of
from harness import GRADIENTS, claim, expect, expect_equal, site
from tensors import snapshots

MODES = ["native", "custom", "hook", "checkpointed", "reentrant", "generator", "threads", "fails", "ddp", "data_parallel", "two_devices", "extension", "compiled"]


@claim(over=MODES, slow=True)
def a_tensor_of_backward_has_the_lines_of_the_waiting_thread_and_of_its_operator(t, mode):
    done = same_results(t, "backward", mode, env={"TORCH_EXTENSIONS_DIR": str(t.out / "extensions")})
    snapshot = snapshot_of(done)
    reported = done.lines()
    expect(reported, f"the program reported nothing\n{done.story()}")
    for label, address, frames in reported:
        snapshot.expect_lines(label, address, frames, inside=True)
        [row] = [row for row in snapshot.of_kind("tensor") if row["address"] == address]
        lines = snapshot.forward_lines(row)
        expect(any(file == "fw_backward.py" and function != "<module>" for function, file, _ in lines), f"{label}: no line of the forward pass is the program's: {lines}, in\n    {snapshot.show(row)}\n{snapshot.where()}")


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


def stacks_of_tensors(t, recording, story):
    """(bytes, frames) of each stack on which PyTorch's allocator handed out blocks, freed or not, from the log of a recording."""
    code, out, err = t.cli("report", recording, "--view", "churn", "--by", "stack", "--kind", "tensor", "--json")
    expect(code == 0, f"{recording}: no events\n{err}\n{story}")
    return [(row["allocated"]["bytes"], row["stack"]["frames"]) for row in json.loads(out)["rows"]]


def is_of_backward(frames):
    return any((frame["function"] or "").endswith("_engine_run_backward") for frame in frames)


def gradient_of(frames):
    """The lines of the forward pass that the block is a gradient of, or near, innermost first."""
    return [frame for frame in frames if (frame["function"] or "").startswith(GRADIENTS)]


def expect_shares(t, done, name, recording):
    """99.5 % of the bytes have a Python line, and 95 % of those of backward a line of the forward pass."""
    sums = collections.Counter()
    without = collections.Counter()
    for bytes_, frames in stacks_of_tensors(t, recording, done.story()):
        names = [frame["function"] or "" for frame in frames]
        has_line = any((frame["file"] or "").endswith(".py") for frame in frames)
        is_backward, has_forward = is_of_backward(frames), bool(gradient_of(frames))
        sums["all"] += bytes_
        sums["lined"] += bytes_ * has_line
        sums["backward"] += bytes_ * is_backward
        sums["forward"] += bytes_ * (is_backward and has_forward)
        if not has_line or is_backward and not has_forward:
            inner = ("c10::", "at::", "std::", "void ", "(anonymous namespace)")
            without[" < ".join([name.split("(")[0][-60:] for name in names if not name.startswith(inner)][:14])] += bytes_
    (done.folder / "shares.json").write_text(json.dumps({"model": name, **sums}))
    largest = "".join(f"\n    {bytes_}  {stack}" for stack, bytes_ in without.most_common(8))
    expect(sums["backward"], f"no bytes of backward: {dict(sums)}\n{done.story()}")
    expect(sums["lined"] >= 0.995 * sums["all"], f"{sums['lined']} of {sums['all']} bytes have a Python line; without one or without a line of the forward pass:{largest}")
    expect(sums["forward"] >= 0.95 * sums["backward"], f"{sums['forward']} of {sums['backward']} bytes of backward have a line of the forward pass; the others:{largest}")


@claim(over=MODELS, slow=True)
def what_a_model_allocates_has_a_line_and_its_backward_a_line_of_the_forward_pass(t, model):
    done = same_results(t, "models", model, env={"CULEAK_TIMELINE": "256MiB"})
    # Workers of a compiler may have recordings too.
    expect_shares(t, done, model, max((done.folder / "rec").glob("*.culeak"), key=lambda recording: recording.stat().st_blocks))


# By how fw_lightning.py trains: the line of the program that is the call site of what backward allocates. If Lightning calls backward itself,
# that is the line that called Lightning.
TRAINS = {
    "single": "lightning_fit",
    "manual": "lightning_manual",
    "accumulated": "lightning_fit",
    "checkpointed": "lightning_fit",
    "ddp": "lightning_fit",
    "ddp_manual": "lightning_manual",
    "ddp_two": "lightning_fit",
}


@claim(over=sorted(TRAINS), slow=True)
def what_lightning_trains_has_the_lines_of_the_program_in_backward(t, how):
    done = same_results(t, "lightning", how, env={"CULEAK_TIMELINE": "256MiB", "CULEAK_DEPTH": "256"})
    pids = {int(words[0]) for words in done._lines("LINES")}
    expect_equal(len(pids), 2 if how == "ddp_two" else 1, f"processes that trained\n{done.story()}")
    reported = [(int(pid), int(address, 16), json.loads(frames)) for pid, _, address, frames in done._lines("LINES")]
    for pid, address, frames in reported:
        done.snapshot(pid).expect_lines("kept", address, frames, inside=True)
    place = site(TRAINS[how])
    forward = {site(label) for label in ("lightning_first", "lightning_gelu", "lightning_second", "lightning_loss", "lightning_checkpoint")}
    for pid in pids:
        recording = done.recording(pid)
        expect_shares(t, done, how, recording)
        elsewhere, of_backward, known = collections.Counter(), 0, set()
        for bytes_, frames in stacks_of_tensors(t, recording, done.story()):
            if not is_of_backward(frames):
                continue
            of_backward += bytes_
            gradients = gradient_of(frames)
            at = next((frame for frame in frames if frame["role"] == "user" and frame not in gradients), None)
            if not at or (os.path.basename(at["file"] or ""), at["line"]) != place:
                elsewhere[f"{at['function']} {at['file']}:{at['line']}" if at else "(no call site)"] += bytes_
            known |= {(os.path.basename(frame["file"]), frame["line"]) for frame in gradients} & forward
        # Python that runs on autograd's thread has its own line: functions, hooks, and what is computed again.
        own = sum(bytes_ for line, bytes_ in elsewhere.items() if "fw_lightning.py" in line)
        expect(sum(elsewhere.values()) == own, f"of {of_backward} bytes of backward, these are not at {place}: {elsewhere.most_common(8)}\n{done.story()}")
        expect(own < of_backward / 2 or how == "checkpointed", f"of {of_backward} bytes of backward, {own} are at {elsewhere.most_common(8)}\n{done.story()}")
        expect(len(known) >= 3, f"lines of the forward pass: {sorted(known)}, of {sorted(forward)}\n{done.story()}")
