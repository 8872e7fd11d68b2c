"""worker.py with torch.distributed: the ranks add up their sums with gloo.

    torch_job.py DRIVER NOTES LEAKING ENDING
"""

import os
import signal
import sys

import torch
import torch.distributed
import worker


def main():
    driver, notes, leaking, ending = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    total = torch.tensor(worker.train(worker.Gpu(driver), rank, rank == int(leaking)))
    torch.distributed.all_reduce(total)
    worker.note(notes, rank)
    if rank == 1 and ending == "fails":
        # With the threads of a group that exists, the C++ library may abort while the process ends.
        torch.distributed.destroy_process_group()
        sys.exit(3)
    if rank == 1 and ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending in ("fails", "killed"):
        # The launcher ends this rank. If it failed by itself, too, the launcher might report its exit code.
        signal.alarm(300)
        signal.pause()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.write(f"rank {rank}: {total.item()}\n")


if __name__ == "__main__":
    main()
