"""The ranks of worker.py as actors of Ray.

    ray_job.py RANKS HOW DRIVER NOTES LEAKING ENDING

HOW is `inherit`: the cluster at RAY_ADDRESS was started with the variables that the actors need; or `runtime_env`: this
program gives LD_PRELOAD and CULEAK_OUTPUT, as set in FLEET_*, to the actors of its own cluster.
"""

import os
import signal
import sys

import ray


@ray.remote(num_cpus=0, max_restarts=0)
class Rank:
    def __init__(self, rank):
        # As Ray Train does. The recording begins with the first CUDA call.
        os.environ["RANK"] = str(rank)
        self.rank = rank

    def train(self, here, driver, notes, leaking, ending):
        sys.path.insert(0, here)
        import worker

        total = worker.train(worker.Gpu(driver), self.rank, self.rank == leaking)
        worker.note(notes, self.rank)
        if self.rank == 1 and ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return total


def main():
    count, how, driver, notes, leaking, ending = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    variables = {}
    if how == "runtime_env":
        names = {"FLEET_PRELOAD": "LD_PRELOAD", "FLEET_OUTPUT": "CULEAK_OUTPUT"}
        variables = {name: os.environ[ours] for ours, name in names.items() if ours in os.environ}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=os.environ["FLEET_TMP"])
    else:
        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    ranks = [Rank.options(runtime_env={"env_vars": variables}).remote(rank) for rank in range(int(count))]
    sums = ray.get([rank.train.remote(here, driver, notes, int(leaking), ending) for rank in ranks])
    for rank, total in enumerate(sums):
        print(f"rank {rank}: {total}")


if __name__ == "__main__":
    main()
