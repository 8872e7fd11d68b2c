"""Process groups of NCCL, made and destroyed 20 times; with `ranks`, by one process on each of two devices."""

import gc
import os
import sys

from printing import fact, leave, needs

needs("torch")

import torch
import torch.distributed as dist

from counting import step

GROUPS = 20
SHOWN = (1, 2, 5, 10, 15, 20)


def run(rank, world):
    torch.cuda.set_device(rank)
    data = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    step("groups_0", rank)
    for number in range(1, GROUPS + 1):
        store = os.path.abspath(f"store-{world}-{number}")
        dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world)  # site: group_made
        dist.all_reduce(data)  # site: group_used
        torch.cuda.synchronize()
        if number == 1:
            step("group_exists", rank)
        dist.destroy_process_group()  # site: group_destroyed
        gc.collect()
        torch.cuda.synchronize()
        if number in SHOWN:
            step(f"groups_{number}", rank)
    fact("groups", GROUPS)
    fact(f"sum_{rank}", int(data[0].item()))
    leave()


if __name__ == "__main__":
    if not dist.is_available() or not dist.is_nccl_available():
        print(f"UNSUPPORTED {os.getpid()} NCCL in PyTorch", flush=True)
        sys.exit(0)
    if sys.argv[1] == "one":
        run(0, 1)
    if torch.cuda.device_count() < 2:
        print(f"UNSUPPORTED {os.getpid()} a second GPU", flush=True)
        sys.exit(0)
    import torch.multiprocessing

    torch.multiprocessing.spawn(run, args=(2,), nprocs=2)
