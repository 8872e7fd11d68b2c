"""A rank of a job: adds numbers that went through the memory of a (fake) GPU, and prints the sum.

    worker.py DRIVER NOTES LEAKING [good|fails|killed|waits]

DRIVER is the file of the CUDA driver. In the folder NOTES each process leaves a file with its pid and host as name and
its rank as content. Rank LEAKING keeps the batch of each step. With `fails` rank 1 exits with code 3, with `killed` it is killed by
SIGKILL, and with `waits` all ranks wait for a signal.
"""

import ctypes
import os
import signal
import sys
import time

SIZE = 1 << 20
STEPS = 30
VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")


class Gpu:
    def __init__(self, driver):
        self.driver = ctypes.CDLL(driver)
        context = ctypes.c_void_p()
        check(self.driver.cuInit(0))
        check(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        check(self.driver.cuCtxSetCurrent(context))

    def load_model(self):
        model = ctypes.c_uint64()
        check(self.driver.cuMemAlloc_v2(ctypes.byref(model), ctypes.c_size_t(8 * SIZE)))

    def keep_batch(self):
        batch = ctypes.c_uint64()
        check(self.driver.cuMemAlloc_v2(ctypes.byref(batch), ctypes.c_size_t(SIZE)))  # the leak

    def through(self, data):
        """The same bytes, after they were in the GPU's memory."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t(len(data))
        back = ctypes.create_string_buffer(len(data))
        check(self.driver.cuMemAlloc_v2(ctypes.byref(address), size))
        check(self.driver.cuMemcpyHtoD_v2(address, data, size))
        check(self.driver.cuMemcpyDtoH_v2(back, address, size))
        check(self.driver.cuMemFree_v2(address))
        return back.raw


def check(code):
    if code:
        raise SystemExit(f"CUDA error {code}")


def train(gpu, rank, leaking):
    gpu.load_model()
    total = 0
    for step in range(STEPS):
        total += sum(gpu.through(bytes((rank + step + n) % 251 for n in range(500))))
        if leaking:
            gpu.keep_batch()
    return total


def note(folder, rank):
    path = os.path.join(folder, f"{os.getpid()}.{os.uname().nodename}")
    with open(path + ".part", "w") as file:
        file.write(f"{rank}\n")
    os.rename(path + ".part", path)


def rank_of_environment():
    return int(next(os.environ[name] for name in VARIABLES if name in os.environ))


def main():
    driver, notes, leaking = sys.argv[1:4]
    ending = sys.argv[4] if len(sys.argv) > 4 else "good"
    rank = rank_of_environment()
    total = train(Gpu(driver), rank, rank == int(leaking))
    note(notes, rank)
    if ending == "waits":
        while True:
            time.sleep(60)
    if rank == 1 and ending == "fails":
        sys.exit(3)
    if rank == 1 and ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    # One write: lines of several ranks do not mix.
    sys.stdout.write(f"rank {rank}: {total}\n")


if __name__ == "__main__":
    main()
