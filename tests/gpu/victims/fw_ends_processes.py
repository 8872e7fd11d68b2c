"""Processes of a PyTorch program, each of which holds tensors when it ends and prints what its allocator holds; the first argument
selects how they are started."""

import multiprocessing
import sys

from printing import fact, needs

needs("torch")
import torch

held = []


def work(count):
    held.extend(torch.ones(30_000, device="cuda") for _ in range(count))  # site: ends_worker
    torch.cuda.synchronize()
    fact("end_bytes", torch.cuda.memory_allocated())


class Numbers(torch.utils.data.Dataset):
    """Each worker keeps a tensor for each of its items."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        work(1)
        return torch.full((4,), float(index))


def loader():
    """A DataLoader with two spawned workers that use the GPU."""
    data = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="spawn")
    fact("batches", sum(1 for _ in data))


def processes(method):
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=work, args=(count,)) for count in (3, 5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    fact("failed", sum(worker.exitcode != 0 for worker in workers))


if __name__ == "__main__":
    if sys.argv[1] == "loader":
        loader()
    else:
        processes(sys.argv[1])
