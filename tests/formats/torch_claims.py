"""Tests of exported files with PyTorch's tools. Called by run.sh with a Python that has torch: torch_claims.py CULEAK FOLDER."""

import pathlib
import pickle
import subprocess
import sys

from torch.cuda import _memory_viz

CULEAK, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])

for sample in ["leaky", "training"]:
    path = FOLDER / f"{sample}.for-torch"
    command = [CULEAK, "export", str(FOLDER / f"{sample}.json"), "--format", "memory_viz", "-o", str(path), "--force"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    snapshot = pickle.loads(path.read_bytes())
    stats = _memory_viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in stats
    lines = []
    _memory_viz.memory(snapshot, lambda text: lines.extend(text.splitlines()))
    active = sum(int(line.rsplit(" ", 1)[1]) for line in lines if ";active_allocated;" in line)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert active == sum(block["requested_size"] for block in blocks), lines[:3]
    assert any("train.cu:212:Trainer::step" in line or "train.py:212:training_step" in line for line in lines), lines[:3]
    for plot in [_memory_viz.trace_plot, _memory_viz.segment_plot]:
        assert "snapshot.pickle" in plot(snapshot)
print("ok      PyTorch's tools read what is written for them")
