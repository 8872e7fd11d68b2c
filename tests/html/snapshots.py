"""Synthetic snapshots for the tests of the HTML report: a training program, hostile names, 100,000 stacks."""

import json
import pathlib
import random

SECOND = 1_000_000_000
CALL = ["kind", "domain", "api", "device", "context", "stream", "pool", "thread"]
MIB = 1 << 20

# Names that a page must show as text.
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror=window.hacked=2>",
    "--><svg/onload=window.hacked=3>",
    "]]>&lt;b&gt;&amp;\"'`${window.hacked=4}",
    "user\u202egnp.exe\u202c",
    "line\u2028break\u2029s\r\nand\0null",
    "zero\u200bwidth\u2066isolate\ufeff",
    "__proto__",
    "constructor",
    "javascript:window.hacked=5",
    "a" * 5000,
    "{{policy}}",
]


class Snapshot:
    def __init__(self, state="exited", devices=2):
        self.frames = {}
        self.value = {
            "format": "culeak-snapshot",
            "version": 2,
            "taken": {"by": "0.1.0", "at_unix_ns": 1_800_000_060 * SECOND, "at_ns": 60 * SECOND,
                      "events_during_read": 0, "in_flight": 0},
            "process": {"pid": 4711, "parent_pid": 4700, "executable": "/opt/app",
                        "command_line": ["python", "train.py", "--epochs", "3"], "host": "node7", "ranks": {"RANK": "3"},
                        "started_unix_ns": 1_800_000_000 * SECOND, "state": state, "depth": 128,
                        "recording": "/tmp/app.node7.4711.culeak"},
            "devices": [{"ordinal": n, "uuid": f"GPU-{n:04}", "name": "NVIDIA H200"} for n in range(devices)],
            "contexts": [{"handle": 1 + n, "device": n, "primary": True, "first_seen_ns": SECOND, "destroyed_ns": None}
                         for n in range(devices)],
            "threads": [{"tid": 4711, "name": "python", "first_seen_ns": SECOND}],
            "modules": [], "locations": [], "stacks": [], "allocations": [], "failed": [], "counters": [],
            "device_peaks": [{"device": n, "peak_bytes": 6871947674} for n in range(devices)],
            "losses": dict.fromkeys(["lost_allocations", "lost_stacks", "lost_python", "lost_details", "unknown_frees",
                                      "vanished", "failed_frees", "teardown_frees", "implicit_frees",
                                      "captured_not_launched", "export_tables", "unknown_blocks", "lost_snapshots",
                                      "recorder_ns", "events"], 0) | {"unhooked": []},
        }

    def module(self, path):
        for number, module in enumerate(self.value["modules"]):
            if module["path"] == path:
                return number
        number = len(self.value["modules"])
        start = 0x7F00_0000_0000 + 0x100_0000 * number
        self.value["modules"].append({"path": path, "build_id": "00", "bias": start, "start": start,
                                      "end": start + 0x10_0000, "first_seen_ns": 0, "unloaded_ns": None})
        return number

    def frame(self, function, file, line, module):
        """`module` is None for a line of Python."""
        key = (function, file, line, module)
        if key not in self.frames:
            self.frames[key] = len(self.value["locations"])
            location = {"module": None if module is None else self.module(module), "address": 0x1000 + self.frames[key],
                        "symbols": [{"function": function, "file": file, "line": line, "inlined": False}]}
            if module is None:
                location["language"] = "python"
            self.value["locations"].append(location)
        return self.frames[key]

    def stack(self, frames):
        """Frames innermost first."""
        self.value["stacks"].append({"frames": [self.frame(*frame) for frame in frames], "truncated": False})
        return len(self.value["stacks"]) - 1

    def holds(self, size, count, stack, kind="device", api="cudaMalloc", device=0, domain=None, address=None):
        allocations = self.value["allocations"]
        for nth in range(count):
            place = 0x7F5A_0000_0000 + len(allocations) * 0x4000_0000 if address is None else address + nth * size
            allocations.append({"address": place, "bytes": size,
                                "requested": size, "kind": kind, "api": api, "device": device, "context": device,
                                "stream": None, "pool": None, "thread": 0,
                                "time_ns": (10 + len(allocations) % 50) * SECOND, "stack": stack})
            if domain:
                allocations[-1] |= {"domain": domain, "context": None}

    def finish(self):
        totals = {}
        for allocation in self.value["allocations"]:
            key = (allocation["device"], allocation["kind"])
            size, count = totals.get(key, (0, 0))
            totals[key] = (size + allocation["bytes"], count + 1)
        self.value["counters"] = [
            {"device": device, "kind": kind, "live_bytes": size, "live_count": count, "peak_bytes": size,
             "total_bytes": size, "total_count": count, "freed_count": 0, "failed_count": 0}
            for (device, kind), (size, count) in totals.items()]
        self.value["losses"]["events"] = len(self.value["allocations"])
        return self.value | {"allocations": self.rows()}

    def rows(self):
        """Allocations in the snapshot format: the fields of a call are stored once."""
        calls, rows = {}, []
        for allocation in self.value["allocations"]:
            call = {key: allocation[key] for key in CALL if key in allocation}
            number = calls.setdefault(json.dumps(call, sort_keys=True), (len(calls), call))[0]
            places = [allocation[key] for key in ("address", "bytes", "time_ns", "stack")] + [number]
            rows.append(places if allocation["requested"] == allocation["bytes"] else places + [allocation["requested"]])
        columns = ["address", "bytes", "time_ns", "stack", "call", "requested"]
        return {"calls": [call for _, call in calls.values()], "columns": columns, "rows": rows}

    def write(self, path):
        with open(path, "w", encoding="utf-8") as out:
            json.dump(self.finish(), out)


MAIN = ("main", "/src/main.cu", 12, "/opt/app")
TORCH = "/venv/lib/python3.12/site-packages/torch/"


def training(state="exited", leaked=128):
    """A program with many kinds of memory that leaks `leaked` blocks in its inner loop."""
    made = Snapshot(state)
    top = [("<module>", "/home/me/train.py", 300, None)]
    step = [("cudaError cudaMalloc<float>(float**, unsigned long)", "/cuda/include/cuda_runtime.h", 100, "/opt/libstep.so"),
            ("Trainer::step(int, float*)", "/src/train.cu", 212, "/opt/libstep.so"),
            ("training_step", "/home/me/train.py", 212, None)]
    tensor = [("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int)", None, None, TORCH + "lib/libc10_cuda.so"),
              ("Linear.forward", TORCH + "nn/modules/linear.py", 125, None),
              ("Attention.forward", "/home/me/model.py", 88, None), ("training_step", "/home/me/train.py", 215, None)]
    load = [("load_weights(std::string const&)", "/src/weights.cu", 40, "/opt/libstep.so"), ("load", "/home/me/data.py", 31, None)]
    window = [("cuMemMap", None, None, "/usr/lib/libcuda.so.1"), ("map_window", "/src/vmm.cu", 7, "/opt/libstep.so"), MAIN]
    made.holds(9 * MIB, leaked, made.stack(step + top))
    segment = made.stack([("cudaMalloc", None, None, "/cuda/lib64/libcudart.so.13")] + tensor + top)
    for device in range(2):
        made.holds(400 * MIB, 1, segment, device=device, address=(0x10 + device) << 40)
    made.holds(4 * MIB + 512, 64, made.stack(tensor + top), "tensor", "CUDACachingAllocator", 0, "pytorch", 0x10 << 40)
    mlp = tensor[:2] + [("MLP.forward", "/home/me/model.py", 120, None)] + tensor[3:] + top
    made.holds(1 * MIB, 30, made.stack(mlp), "tensor", "CUDACachingAllocator", 1, "pytorch", 0x11 << 40)
    made.holds(64 * MIB, 1, made.stack(load + top), "pinned", "cudaMallocHost", None)
    made.holds(300 * MIB, 1, made.stack(load + [("resume", "/home/me/train.py", 90, None)] + top), "async", "cudaMallocAsync", 1)
    made.holds(4096, 3, made.stack([("helper", "/src/h.cu", 1, "/opt/plugins/libfancy.so"), MAIN]), "managed", "cudaMallocManaged", 1)
    made.holds(0, 2, made.stack(window), "mapping", "cuMemMap", None)
    made.value["failed"].append({"bytes": 1 << 46, "count": 3, "kind": "device", "api": "cudaMalloc", "device": 0, "error": 2,
                                  "thread": 0, "stack": 0, "first_ns": 20 * SECOND, "last_ns": 20 * SECOND})
    made.value["losses"]["unknown_frees"] = 40
    if state == "running":
        made.value["usage"] = {"source": "NVML 580.65.06", "devices": [
            {"device": 0, "total_bytes": 140 << 30, "used_bytes": 2500 * MIB, "reserved_bytes": 600 * MIB,
             "process_bytes": 2100 * MIB, "others": {"bytes": 300 * MIB, "count": 1}},
            {"device": 1, "total_bytes": 140 << 30, "used_bytes": 1000 * MIB, "reserved_bytes": 600 * MIB,
             "process_bytes": 900 * MIB, "others": {"bytes": 0, "count": 0}}]}
    return made


def course(folder, snapshots=24):
    """A running program, every ten minutes: one call site grows, one fills a cache and stops, one oscillates."""
    folder.mkdir(exist_ok=True)
    for nth in range(snapshots):
        made = training("running", 40 + 3 * nth)
        cache = made.stack([("Cache::fill(int)", "/src/cache.cu", 77, "/opt/libstep.so"), MAIN])
        made.holds(8 * MIB, min(nth * 4, 30), cache)
        breath = made.stack([("breathe<'</script>'>()", "/src/breath.cu", 5, "/opt/libstep.so"), MAIN])
        made.holds(32 * MIB, 1 + nth % 4, breath)
        made.value["taken"]["at_ns"] += 600 * SECOND * nth
        made.value["taken"]["at_unix_ns"] += 600 * SECOND * nth
        made.write(folder / f"{nth:03}.json")


def job(folder, ranks=8):
    """The training program as a job."""
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        made = training()
        made.value["process"] |= {"pid": 100 + rank, "ranks": {"RANK": str(rank)}}
        made.write(folder / f"{rank}.json")


def hostile():
    """Every recorded name is hostile."""
    made = Snapshot()
    for nth, name in enumerate(HOSTILE):
        # Symbol names contain no null character; any other character may occur.
        stack = made.stack([(name, "/src/" + name, nth + 1, "/lib/" + name), ("caller of " + name, name, 7, "/opt/app"), MAIN])
        made.holds((nth + 1) * MIB, 1, stack, api=name)
    process = made.value["process"]
    process["command_line"] = ["app"] + HOSTILE[:4]
    process["executable"] = process["host"] = HOSTILE[0]
    process["ranks"] = {"RANK": HOSTILE[1]}
    made.value["devices"][0]["name"] = HOSTILE[1]
    made.value["threads"][0]["name"] = HOSTILE[2]
    made.value["losses"]["unhooked"] = [HOSTILE[0]]
    made.value["marks"] = [{"time_ns": SECOND, "name": HOSTILE[3], "thread": 0}]
    return made


def deep(frames=20_000):
    """An unrealistically deep stack, and a short one."""
    made = Snapshot()
    stack = [(f"recurse_{n % 50}", "/src/deep.cu", n % 50, "/opt/app") for n in range(frames)]
    made.holds(MIB, 3, made.stack(stack + [MAIN]))
    made.holds(MIB, 1, made.stack([("once", "/src/deep.cu", 99, "/opt/app"), MAIN]))
    return made


def ways(stacks=130):
    """One call site with many callers."""
    made = Snapshot()
    for nth in range(stacks):
        stack = made.stack([("grow(int)", "/src/grow.cu", 5, "/opt/app"), (f"way_{nth}", "/src/ways.cu", nth + 1, "/opt/app"), MAIN])
        made.holds((nth + 1) * 4096, 1, stack)
    return made


def held():
    """The training program with holders: a list of tensors, and a cycle with a name that a page must show as text."""
    made = training("running")
    blocks = [row for row in made.value["allocations"] if row["kind"] == "device" and row["bytes"] == 9 * MIB]
    retainers = [{"name": "trainer.history (list of 128)", "root": "module", "bytes": 9 * MIB * 100, "count": 100},
                 {"name": "trainer.history['best'] (Batch)", "root": "module", "parent": 0, "bytes": 9 * MIB * 2, "count": 2},
                 {"name": HOSTILE[1], "root": "none", "bytes": 9 * MIB * 28, "count": 28}]
    retainers += [{"name": f"trainer.history[{n}] (Batch)", "root": "module", "parent": 0, "bytes": 9 * MIB, "count": 1} for n in range(98)]
    steps = [{"via": "[*]", "holder": "Batch"}, {"via": ".data", "holder": ""}]
    paths = [{"class": "held", "root": "module", "origin": "trainer.history", "origin_type": "list of 128", "steps": steps},
             {"class": "cycle", "root": "none", "origin": "cycle " + HOSTILE[0], "origin_type": "", "steps": steps, "note": "gc is disabled"}]
    made.value["holders"] = {
        "search": {"at_ns": 60 * SECOND, "took_ns": SECOND, "copy_ns": SECOND // 4, "copies": 1, "copied_bytes": MIB, "visited": 5000},
        "paths": paths, "retainers": retainers,
        "blocks": [{"address": row["address"], "time_ns": row["time_ns"], "bytes": row["bytes"], "path": int(nth >= 100),
                    "retainer": 3 + nth if nth < 98 else 1 if nth < 100 else 2}
                   for nth, row in enumerate(blocks)]}
    return made


def large(stacks=100_000, depth=30):
    """Many distinct stacks, as in a program with many callers of its allocator."""
    made = Snapshot()
    chance = random.Random(7)
    modules = [f"/opt/lib/lib{name}.so" for name in ("core", "model", "data", "optim", "comm", "kernels", "runtime", "io")]
    names = [(f"{module[12:-3]}::Component{n % 97}::operation_{n}(Tensor const&, int)", f"/src/{module[12:-3]}/file{n % 40}.cu", n, module)
             for module in modules for n in range(400)]
    trunk = [names[chance.randrange(len(names))] for _ in range(12)]
    seen = set()
    while len(made.value["stacks"]) < stacks:
        # The stacks share outer frames and differ in inner ones.
        frames = trunk[: chance.randrange(4, 12)]
        while len(frames) < depth - chance.randrange(8):
            width = min(len(names), 3 + 2 * len(frames))
            frames.append(names[(hash(frames[-1][2]) * 31 + chance.randrange(width)) % len(names)])
        key = tuple(frames)
        if key in seen:
            continue
        seen.add(key)
        stack = made.stack(frames[::-1] + [MAIN])
        made.holds(512 * chance.randrange(1, 1 << chance.randrange(1, 16)), 1, stack, device=chance.randrange(2))
    return made


if __name__ == "__main__":
    import sys

    folder = sys.argv[1]
    training().write(f"{folder}/training.json")
    training("running", 40).write(f"{folder}/before.json")
    later = training("running", 128)
    later.value["taken"]["at_ns"] += 30 * SECOND
    for allocation in later.value["allocations"][128:150]:
        allocation["bytes"] = 1 * MIB
    later.write(f"{folder}/after.json")
    course(pathlib.Path(folder, "course"))
    job(pathlib.Path(folder, "job"))
    sampled = training()
    sampled.value["sampling"] = {"bytes": MIB // 4}
    sampled.write(f"{folder}/sampled.json")
    hostile().write(f"{folder}/hostile.json")
    deep().write(f"{folder}/deep.json")
    ways().write(f"{folder}/ways.json")
    held().write(f"{folder}/held.json")
    large().write(f"{folder}/large.json")
