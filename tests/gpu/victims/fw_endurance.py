"""A mixed load for as long as it is asked for, all of it in each round: training, CUDA graphs, streams, threads that come and go, forked, started and
spawned children, the driver and the runtime through ctypes. One list grows.

    fw_endurance.py           with PyTorch
    fw_endurance.py driver    the driver alone
    fw_endurance.py child     a child, which frees what it allocates

It ends a round when standard input has a line, then prints figures and READY, and waits for the next line:
    quiet     everything stands still: no thread, no child, no work on the device
    finish    the same, after everything but the list was freed
    go        the next rounds
    quit
"""

import ctypes
import gc
import multiprocessing
import os
import queue
import re
import statistics
import subprocess
import sys
import threading
import time

from printing import fact, leave, live, needs, say

MODE = sys.argv[1] if len(sys.argv) > 1 else "torch"
if MODE == "torch":
    needs("torch")
    import torch

MIB = 1 << 20
THREADS, STEPS, CALLS = 6, 100, 400
SIZES = [512, 4096, 100_000, MIB, 3 * MIB + 7]
planted = []
here = ctypes.CDLL(None)


class Driver:
    """Blocks of the driver and the runtime. Each round replaces all of them by others of the same sizes."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        # The one that PyTorch has loaded, if it is no part of a library of PyTorch's.
        found = re.search(r"/\S*libcudart\.so\S*", open("/proc/self/maps").read())
        self.runtime = ctypes.CDLL(found.group()) if found else None
        self.call("cuInit", 0)
        self.context = self.handle("cuDevicePrimaryCtxRetain", 0)
        self.call("cuCtxSetCurrent", self.context)
        self.held = []

    def call(self, name, *arguments):
        result = getattr(self.cuda if name.startswith("cu") and not name.startswith("cuda") else self.runtime, name)(*arguments)
        if result != 0:
            sys.exit(f"{name} returned {result}")

    def handle(self, name, *arguments):
        out = ctypes.c_void_p()
        self.call(name, ctypes.byref(out), *arguments)
        return out

    def allocate(self, how, size):
        return how, size, self.handle(how, ctypes.c_size_t(size), *([0] if how == "cuMemHostAlloc" else []))

    def free(self, block):
        how, _, address = block
        self.call({"cuMemAlloc_v2": "cuMemFree_v2", "cuMemHostAlloc": "cuMemFreeHost", "cudaMalloc": "cudaFree"}[how], address)

    def clear(self):
        for block in self.held:
            self.free(block)
        self.held = []

    def replace(self):
        self.clear()
        functions = ["cuMemAlloc_v2", "cuMemHostAlloc"] + (["cudaMalloc"] if self.runtime else [])
        self.held = [self.allocate(how, size) for how in functions for size in SIZES]

    def churn(self, calls):
        """Called by threads, too."""
        self.call("cuCtxSetCurrent", self.context)
        stream, event = self.handle("cuStreamCreate", 1), self.handle("cuEventCreate", 0)
        blocks = []
        for number in range(calls):
            blocks.append(self.allocate("cuMemAlloc_v2", 1 + number % 7 * 5000))
            later = self.handle("cuMemAllocAsync", ctypes.c_size_t(1 + number % 5 * 3000), stream)
            self.call("cuMemFreeAsync", later, stream)
            if len(blocks) > 8:
                self.free(blocks.pop(number % 8))
        for block in blocks:
            self.free(block)
        self.call("cuEventRecord", event, stream)
        self.call("cuStreamSynchronize", stream)
        self.call("cuEventDestroy_v2", event)
        self.call("cuStreamDestroy_v2", stream)

    def plant(self):
        block = ctypes.c_void_p()
        self.cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(65536))  # site: endurance_planted_driver
        planted.append(block)

    def show(self):
        kinds = {"cuMemAlloc_v2": "device", "cudaMalloc": "device", "cuMemHostAlloc": "pinned"}
        for how, size, address in self.held:
            live("driver", kinds[how], address.value, size)
        fact("planted", len(planted) * 65536)


class Load:
    """The driver alone."""

    def __init__(self):
        self.driver = Driver()

    def steps(self):
        """The time of each step in ns."""
        times = []
        for _ in range(STEPS):
            began = time.perf_counter_ns()
            self.driver.replace()
            times.append(time.perf_counter_ns() - began)
        return times

    def thread(self):
        self.driver.churn(CALLS)

    def before_threads(self):
        """What no other thread may do at the same time."""

    def plant(self):
        self.driver.plant()

    def spawned(self):
        return None

    def synchronize(self):
        self.driver.call("cuCtxSynchronize")

    def release(self):
        self.driver.clear()

    def show(self):
        self.driver.show()


class TorchLoad(Load):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.data = torch.randn(512, 1024, device="cuda")
        self.static = torch.ones(100_000, device="cuda")
        self.work(self.static)
        self.graph = self.capture(self.static)
        super().__init__()

    @staticmethod
    def work(x):
        return (x * 2 + 1).relu()

    def capture(self, static):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.work(static)
        return graph, output

    def steps(self):
        times = []
        for _ in range(STEPS):
            began = time.perf_counter_ns()
            self.optimizer.zero_grad()
            (self.model(self.data) - self.data).square().mean().backward()
            self.optimizer.step()
            torch.cuda.current_stream().synchronize()
            times.append(time.perf_counter_ns() - began)
        self.driver.replace()
        return times

    def thread(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            held = []
            for number in range(CALLS):
                held.append(self.work(torch.ones(1000 + number % 9 * 30_000, device="cuda")))
                del held[:-5]
            del held
            torch.cuda.current_stream().synchronize()
        self.driver.churn(CALLS // 20)

    def before_threads(self):
        graph, output = self.capture(torch.ones(200_000, device="cuda"))
        for _ in range(20):
            graph.replay()
            self.graph[0].replay()
        torch.cuda.synchronize()
        graph.reset()
        del output

    def plant(self):
        planted.append(torch.ones(16_384, device="cuda"))  # site: endurance_planted

    def spawned(self):
        child = multiprocessing.get_context("spawn").Process(target=spawned)
        child.start()
        return child

    def synchronize(self):
        torch.cuda.synchronize()

    def release(self):
        super().release()
        self.graph[0].reset()
        del self.graph, self.model, self.optimizer, self.data, self.static
        gc.collect()
        torch.cuda.synchronize()
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        torch.cuda.empty_cache()

    def show(self):
        from counting import counted

        super().show()
        fact("allocated", torch.cuda.memory_allocated())
        fact("reserved", torch.cuda.memory_reserved())
        fact("nvml", counted())


def spawned():
    held = [torch.ones(30_000, device="cuda") for _ in range(5)]
    torch.cuda.synchronize()
    del held


def child():
    """Another program, started with fork and exec."""
    driver = Driver()
    driver.churn(50)
    driver.replace()
    driver.clear()


def round_of(load, number):
    load.before_threads()
    forked = os.fork()
    if forked == 0:
        os._exit(0)
    os.waitpid(forked, 0)
    started = subprocess.Popen([sys.executable, "-B", __file__, "child"], stdin=subprocess.DEVNULL) if number % 4 == 1 else None
    other = load.spawned() if number % 8 == 3 else None
    threads = [threading.Thread(target=load.thread) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The children run meanwhile, if there are any; the threads would share the interpreter with the steps.
    times = load.steps()
    load.plant()
    for ended in ([started.wait()] if started else []) + ([other.join() or other.exitcode] if other else []):
        if ended != 0:
            sys.exit(f"a child ended with {ended}")
    if hasattr(here, "culeak_mark"):
        here.culeak_mark(b"round %d" % number)
    say("ROUND", number, int(statistics.median(times)))


def main():
    if MODE == "child":
        return child()
    load = TorchLoad() if MODE == "torch" else Load()
    lines = queue.SimpleQueue()
    threading.Thread(target=lambda: [lines.put(line.strip()) for line in sys.stdin] + [lines.put("quit")], daemon=True).start()
    say("START", os.getpid())
    number, word = 0, "go"
    while word != "quit":
        while word == "go" and lines.empty():
            round_of(load, number)
            number += 1
        word = lines.get()
        if word == "finish":
            load.release()
        if word in ("quiet", "finish"):
            gc.collect()
            load.synchronize()
            load.show()
            say("READY", number)
    leave()


if __name__ == "__main__":
    main()
