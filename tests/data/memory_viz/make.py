"""Writes snapshots as PyTorch's allocators for CUDA (2.15), Intel XPU, Ascend and Neuron write them, by their sources and documentation.

    python3 tests/data/memory_viz/make.py
"""

import pathlib
import pickle

MIB = 1 << 20
START = 1_800_000_000_000_000


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


STEP = [frame("step", "/home/me/train.py", 12), frame("<module>", "/home/me/train.py", 30)]
NATIVE = frame("at::empty_cuda(long)", "??", 0)


def block(address, size, frames, state="active_allocated"):
    requested = 0 if state == "inactive" else size - 100
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


def segment(address, blocks, pool=(0, 0), stream=0, **more):
    size = sum(block["size"] for block in blocks)
    used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {"device": 0, "address": address, "total_size": size, "allocated_size": used, "active_size": used, "requested_size": used,
            "stream": stream, "segment_type": "large", "segment_pool_id": pool, "is_expandable": False, "frames": [], "blocks": blocks} | more


def event(action, addr, size, time, frames=STEP, **more):
    where = "device_free" if action == "oom" else "addr"
    return {"action": action, where: addr, "size": size, "stream": 0, "time_us": START + time, "compile_context": "N/A",
            "user_metadata": "", "frames": frames} | more


def without(record, *names):
    return {name: value for name, value in record.items() if name not in names}


A, POOL = 0x7F0000000000, 0x7F1000000000
OLD = block(A, 4 * MIB, [])
ROOM = block(A + 8 * MIB, 12 * MIB, [], "inactive")
NEW = block(A + 4 * MIB, 4 * MIB, [NATIVE, *STEP])
GRAPH = segment(POOL, [block(POOL, 2 * MIB, STEP), block(POOL + 2 * MIB, 6 * MIB, [], "inactive")], (0, 7), 0x5555)
ANNOTATIONS = [
    {"stage": "START", "name": "epoch 2", "device": 0, "time_us": START + 100},
    {"stage": "END", "name": "epoch 2", "device": 0, "time_us": START + 900},
]

cuda = {
    "segments": [segment(A, [OLD, NEW, ROOM]), GRAPH],
    "device_traces": [[
        event("segment_alloc", A, 20 * MIB, 0, pool_id=(0, 0)),
        event("alloc", A + 4 * MIB, 4 * MIB, 200, pool_id=(0, 0), user_metadata="freed", internal_metadata="mallocWithAddress"),
        event("annotate", A + 4 * MIB, 4 * MIB, 250, pool_id=(0, 0), user_metadata="of the freed"),
        event("free_requested", A + 4 * MIB, 4 * MIB, 300, pool_id=(0, 0)),
        event("free_completed", A + 4 * MIB, 4 * MIB, 300, pool_id=(0, 0)),
        event("alloc", A + 4 * MIB, 4 * MIB, 400, pool_id=(0, 0), user_metadata="layer 3", compile_context="Torch-Compiled Region: 0/1"),
        event("segment_alloc", POOL, 8 * MIB, 500, pool_id=(0, 7), stream=0x5555),
        event("alloc", POOL, 2 * MIB, 500, pool_id=(0, 7), stream=0x5555),
        event("annotate", A + 4 * MIB, 4 * MIB, 600, pool_id=(0, 0), user_metadata="saved for backward"),
        event("annotate", A, 4 * MIB, 600, pool_id=(0, 0), user_metadata="weights"),
        event("snapshot", 0, 0, 700, frames=[]),
    ]],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": 64 * MIB, "expandable_segments": False,
                           "roundup_power2_divisions": {"1": 0}},
    "external_annotations": ANNOTATIONS,
    "host_segments": [],
    "host_traces": [],
}

xpu = {
    "segments": [segment(A, [OLD, block(A + 4 * MIB, 4 * MIB, [frame("c10::xpu::XPUCachingAllocator::malloc(unsigned long)", "??", 0), *STEP]), ROOM])],
    "device_traces": [[event("alloc", A + 4 * MIB, 4 * MIB, 400), event("oom", 5 * MIB, 900 * MIB, 800)]],
    "allocator_settings": {"PYTORCH_ALLOC_CONF": "expandable_segments:False", "max_split_size": -1, "expandable_segments": False},
    "external_annotations": ANNOTATIONS,
}

# The Python binding of torch_npu writes no times, no settings and no annotations, and segments of its workspace allocator too.
LAUNCH = [frame("_npu_init", "/usr/lib/python3/dist-packages/torch_npu/npu/utils.py", 9)]
old = ["time_us", "compile_context", "user_metadata"]
npu = {
    "segments": [segment(A, [block(A, 4 * MIB, STEP), block(A + 4 * MIB, 4 * MIB, LAUNCH), ROOM]), segment(POOL, [block(POOL, 2 * MIB, STEP)])],
    "device_traces": [[without(entry, *old) for entry in [
        event("workspace_snapshot", 0, 0, 0, frames=[]), event("alloc", A, 4 * MIB, 0), event("oom", 5 * MIB, 900 * MIB, 0)]]],
}

neuron = {
    "segments": [without(segment(A, [block(A, 4 * MIB, [frame("empty", "/opt/venv/site-packages/torch_neuronx/ops.py", 7), *STEP]), ROOM]), "segment_pool_id", "is_expandable")],
    "device_traces": [[without(event("alloc", A, 4 * MIB, 100), "compile_context", "user_metadata")]],
}

for name, snapshot in {"cuda": cuda, "xpu": xpu, "npu": npu, "neuron": neuron}.items():
    path = pathlib.Path(__file__).with_name(f"{name}.pickle")
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
