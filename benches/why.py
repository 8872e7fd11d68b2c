"""Measures the search for holders; started by why.sh, which lists the options.

    why.py measure CULEAK [OPTIONS]       prints the table
    why.py objects COUNTER OBJECTS GIB    the plain program: many Python objects, a large heap, a steady load
    why.py torch COUNTER                  a PyTorch process in training

The programs count their steps in the file COUNTER, which is mapped, so that to read it disturbs nothing."""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30


# ---- the programs ----


class Steps:
    """The number of steps so far, in a file."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 8)
        self.done = 0

    def add(self, steps):
        self.done += steps
        self.memory[:8] = struct.pack("<Q", self.done)

    def read(self):
        return struct.unpack("<Q", self.memory[:8])[0]


class Point:
    def __init__(self, number):
        self.number = number
        self.pair = (number,)
        self.items = [number]


def objects(counter, wanted, gib):
    """About `wanted` objects for the collector, `gib` GiB of memory, 1,000 stand-ins for tensors; then allocates and frees."""
    sys.path.insert(0, str(HERE.parent / "tests" / "victims" / "holders"))
    import gc

    import standin

    standin.begin()
    gc.disable()
    root, made, number = {}, 0, 0
    while made < wanted:
        group = [Point(number + place) for place in range(100)]
        root[f"key {number}"] = {"points": group, "words": {place: str(place) for place in range(5)}, "pair": (group, number)}
        made += 100 * 4 + 8
        number += 1000
    # Chunks of all sizes, filled with numbers that are no pointers.
    random.seed(1)
    while resident() < gib * GIB:
        size = random.choice([100, 1000, 10_000, 100_000, 1_000_000])
        for _ in range(max(1, 20_000_000 // size)):
            ctypes.memset(standin.libc.malloc(size), 7, size)
    groups = list(root.values())
    for _ in range(1000):
        random.choice(groups)["points"][random.randrange(100)].items.append(standin.tensor())
    gc.enable()
    gc.freeze()
    steps, churn, turn = Steps(counter), {}, 0
    print("READY", made, flush=True)
    while True:
        for _ in range(2000):
            churn[turn % 100_000] = Point(turn) if turn & 1 else {"x": [turn], "y": (turn, [turn])}
            turn += 1
        steps.add(2000)


def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def torch(counter):
    """A small transformer in training, with what a session collects: logs, caches, an exception."""
    import torch

    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(256, 8, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(16, 64, 256, device="cuda")
    steps, history, started = Steps(counter), [], False
    while True:
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        steps.add(1)
        if len(history) < 30:
            history.append(loss)
        elif not started:
            started = True
            print("READY", sum(1 for _ in model.parameters()), flush=True)


# ---- the measurement ----


class Program:
    """A program under culeak, or started without it, on the first core."""

    def __init__(self, culeak, folder, words, is_recorded):
        self.culeak, self.counter = culeak, folder / "counter"
        self.counter.write_bytes(bytes(8))
        driver = {} if words[0] == "torch" else {"LD_LIBRARY_PATH": asked(culeak, "shim-path", "--fake-driver")}
        recorder = {"LD_PRELOAD": asked(culeak, "shim-path"), "CULEAK_OUTPUT": f"{folder}/", "CULEAK_QUIET": "1"} if is_recorded else {}
        environment = {**os.environ, **driver, **recorder}
        command = [sys.executable, "-B", __file__, words[0], str(self.counter), *words[1:]]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores()[:1]))
        if not (ready := self.process.stdout.readline()).startswith("READY"):
            sys.exit(f"the program ended: {' '.join(command)}")
        self.objects = int(ready.split()[1])
        self.steps = Steps(self.counter)

    def pace(self, seconds, meanwhile=None):
        """Steps a second, while `meanwhile` is called again and again."""
        before, began = self.steps.read(), time.monotonic()
        while time.monotonic() < began + seconds:
            meanwhile() if meanwhile else time.sleep(0.05)
        return (self.steps.read() - before) / (time.monotonic() - began)

    def search(self):
        """Searches once: the CLI's own figures, its peak memory in bytes, and the wall time of the command."""
        began = time.monotonic()
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen([self.culeak, "why", str(self.process.pid), "--json"], stdout=out, preexec_fn=lambda: os.sched_setaffinity(0, cores()[1:] or cores()))
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                sys.exit(f"culeak why ended with {child.returncode}")
            out.seek(0)
            answer = json.load(out)
        return answer["search"], usage.ru_maxrss * 1024, time.monotonic() - began


def cores():
    return sorted(os.sched_getaffinity(os.getppid()))


def asked(culeak, *words):
    return subprocess.run([culeak, *words], capture_output=True, text=True, check=True).stdout.strip()


def spread(values, digits=2):
    """The median, with the range in brackets."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def measure(arguments):
    parser = argparse.ArgumentParser(prog="why.sh")
    parser.add_argument("culeak")
    parser.add_argument("--objects", type=float, default=1e7)
    parser.add_argument("--heap", type=float, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--unrecorded", action="store_true")
    options = parser.parse_args(arguments)
    if options.unrecorded and not options.torch:
        parser.error("--unrecorded: the blocks of the plain program are known from a recording only; add --torch")
    words = ["torch"] if options.torch else ["objects", str(options.objects), str(options.heap)]
    with tempfile.TemporaryDirectory() as folder:
        program = Program(options.culeak, pathlib.Path(folder), words, not options.unrecorded)
        try:
            found, undisturbed, searched = [], [], []
            for _ in range(options.pairs):
                undisturbed.append(program.pace(options.seconds))
                searched.append(program.pace(options.seconds, lambda: found.append(program.search())))
        finally:
            program.process.kill()
    copied = [search["copied_bytes"] for search, _, _ in found]
    print(f"{os.cpu_count()} cores, {len(found)} searches; the program has {program.objects} {'parameters' if options.torch else 'objects'}")
    print("| copied, GiB | copy, s | search, s | command, s | CLI memory / copied | copies | visited | paused, s | pace while searched |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    columns = [
        spread([size / GIB for size in copied]),
        spread([search["copy_ns"] / 1e9 for search, _, _ in found]),
        spread([search["took_ns"] / 1e9 for search, _, _ in found]),
        spread([wall for _, _, wall in found]),
        spread([memory / size for (_, memory, _), size in zip(found, copied)]),
        spread([search["copies"] for search, _, _ in found], 0),
        spread([search["visited"] for search, _, _ in found], 0),
        spread([search.get("paused_ns", 0) / 1e9 for search, _, _ in found]),
        spread([with_it / without for with_it, without in zip(searched, undisturbed)]),
    ]
    print("| " + " | ".join(columns) + " |")


if __name__ == "__main__":
    action, *words = sys.argv[1:]
    if action == "measure":
        measure(words)
    elif action == "objects":
        objects(words[0], float(words[1]), float(words[2]))
    else:
        torch(*words)
