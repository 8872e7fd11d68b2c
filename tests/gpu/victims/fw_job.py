"""A rank of a job on several GPUs: data parallel (`ddp`), sharded (`fsdp`) or tensor parallel (`tp`). One rank keeps a tensor of each step.

The arguments: which of the three, the backend, the rank that keeps tensors, and `leave` to end while the buffers of the group exist.
"""

import os
import sys

from printing import fact, leave, needs, result

needs("torch")

import torch
import torch.distributed as dist
from torch import nn

STEPS = 20
WIDTH = 256


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model


def split(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    # The weights are equal on all ranks already. Scattering them needs more buffers on the ranks that receive.
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}, src_data_rank=None)


def kept_here(kept):
    kept.append(torch.empty(3 << 18, device="cuda"))  # site: job_kept


def train(way, rank, leaking):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()
    wrap = {"ddp": nn.parallel.DistributedDataParallel, "fsdp": sharded, "tp": split}
    model = wrap[way](model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # The ranks of a tensor-parallel group see the same data.
    data = torch.Generator(device="cuda").manual_seed(0 if way == "tp" else rank)
    kept = []
    for _ in range(STEPS):
        loss = model(torch.randn(32, WIDTH, device="cuda", generator=data)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == leaking:
            kept_here(kept)
    result(way, "rank", rank, "loss", loss.item().hex())
    return model, optimizer, kept


if __name__ == "__main__":
    way, backend, leaking = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    devices = torch.cuda.device_count()
    if backend == "nccl" and devices < world:
        print(f"UNSUPPORTED {os.getpid()} {world} GPUs", flush=True)
        sys.exit(0)
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(rank % devices)
    dist.init_process_group(backend)
    held = train(way, rank, leaking)
    fact("rank", rank)
    dist.barrier()
    if sys.argv[4:] == ["leave"]:
        torch.cuda.synchronize()
        leave()
    dist.destroy_process_group()
