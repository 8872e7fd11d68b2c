"""16 threads that exist at the same time, each with one matrix product of PyTorch; then the threads end."""

import threading

from printing import fact, leave, needs, result

needs("torch")

import torch

from counting import step, wait_for_reader

THREADS, WIDTH = 16, 512


def work(everyone, sums):
    a = torch.full((WIDTH, WIDTH), 0.5, device="cuda")
    product = torch.mm(a, a)  # site: handle_mm
    sums.append(int(product[0, 0].item()))
    everyone.wait()


def main():
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    step("context")
    everyone, sums = threading.Barrier(THREADS), []
    threads = [threading.Thread(target=work, args=(everyone, sums)) for _ in range(THREADS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    torch.cuda.synchronize()
    step("threads_ended")
    result("sums", *sums)
    fact("handles", THREADS)
    fact("allocated", torch.cuda.memory_allocated())
    fact("reserved", torch.cuda.memory_reserved())
    wait_for_reader()
    leave()


main()
