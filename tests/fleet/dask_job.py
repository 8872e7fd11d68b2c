"""The ranks of worker.py as workers of Dask, one process each.

    dask_job.py RANKS DRIVER NOTES LEAKING ENDING
"""

import os
import sys

from dask.distributed import Client, LocalCluster


def train(here, rank, driver, notes, leaking):
    sys.path.insert(0, here)
    import worker

    total = worker.train(worker.Gpu(driver), rank, rank == leaking)
    worker.note(notes, rank)
    return total


def main():
    count, driver, notes, leaking, ending = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    with LocalCluster(n_workers=int(count), threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        client.wait_for_workers(int(count))
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        tasks = [
            client.submit(train, here, rank, driver, notes, int(leaking), workers=[worker], pure=False)
            for rank, worker in enumerate(workers)
        ]
        for rank, total in enumerate(client.gather(tasks)):
            print(f"rank {rank}: {total}")
    if ending == "fails":
        sys.exit(3)


if __name__ == "__main__":
    main()
