"""Captured graphs over many shapes on PyTorch: 20 captured by the program, each with its own pool, and 20 by torch.compile."""

import gc
import os

from printing import fact, leave, live, needs, result

needs("torch", "triton")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("inductor-cache")
os.environ["TRITON_CACHE_DIR"] = os.path.abspath("triton-cache")
# In this process, where one tiny kernel after the other takes less time than starting others does.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch
import torch._dynamo

from counting import step, wait_for_reader

SHAPES = 20
kept = []


def work(x):
    return (x * 2 + 1).relu()


def capture(number):
    static = torch.ones(number * 1000, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # site: shapes_instantiated
        output = work(static)  # site: shapes_captured
    graph.replay()
    kept.append((static, output, graph))


def run_compiled(compiled, number):
    x = torch.ones(number, 64, device="cuda")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x)  # site: shapes_compiled
    kept.append(x)


def executables():
    return sum(issubclass(type(thing), torch.cuda.CUDAGraph) for thing in gc.get_objects())


def state(name):
    gc.collect()
    torch.cuda.synchronize()
    fact(f"graphs_{name}", executables())
    fact(f"reserved_{name}", torch.cuda.memory_reserved())
    step(name)


def main():
    work(torch.ones(1000, device="cuda"))
    state("start")
    for number in range(1, SHAPES + 1):
        capture(number)
        if number % 10 == 0:
            state(f"captured_{number}")
    torch._dynamo.config.cache_size_limit = 2 * SHAPES
    compiled = torch.compile(work, mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        for number in range(1, SHAPES + 1):
            run_compiled(compiled, number)
            if number % 5 == 0:
                state(f"compiled_{number}")
    for segment in torch.cuda.memory_snapshot():
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
            live("private_pool", "device", segment["address"], segment["total_size"])
    fact("allocated", torch.cuda.memory_allocated())
    fact("reserved", torch.cuda.memory_reserved())
    result("sum", int(kept[0][1].sum().item()))
    wait_for_reader()
    leave()


main()
