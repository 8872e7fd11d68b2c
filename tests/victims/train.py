"""A training script that calls the driver itself, and never frees. For every allocation it writes one line of JSON: what was
done, the address, and Python's own account of its frames at that call."""

import ctypes
import json
import os
import sys
import threading

driver = ctypes.CDLL("libcuda.so.1")
for function in ("cuMemAlloc_v2", "cuMemFree_v2"):
    getattr(driver, function).restype = ctypes.c_int
driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]


def begin():
    driver.cuInit(0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    use(context)
    return context


def use(context):
    assert driver.cuCtxSetCurrent(context) == 0


def here(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append([code.co_filename, getattr(code, "co_qualname", code.co_name), frame.f_lineno])
        frame = frame.f_back
    return frames


def obtain(case, size=1024):
    address = ctypes.c_uint64()
    # On one line, so that this frame's own line is the same for both.
    frames, result = here(sys._getframe()), driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    assert result == 0
    print(json.dumps([case, address.value, frames]), flush=True)
    return address.value


class Trainer:
    def step(self, case="step"):
        return obtain(case)

    def epoch(self):
        self.step()
        for _ in range(100):
            self.step("step again")

    def mapped(self):
        return list(map(lambda case: self.step(case), ["mapped"]))

    def batches(self):
        yield obtain("generator")


def recursive(n, case):
    return recursive(n - 1, case) if n else obtain(case)


def called_back(n):
    """Through C and back, n times."""
    if n == 0:
        return obtain("called back") & 1
    return ctypes.CFUNCTYPE(ctypes.c_int)(lambda: called_back(n - 1))()


def generated():
    """Functions created and dropped: their code objects follow each other at the same addresses."""
    for number in range(300):
        source = "def made_{0}():\n  return obtain('made')\nmade_{0}()".format(number)
        exec(compile(source, "made_{}.py".format(number), "exec"), {"obtain": obtain})


def main():
    trainer = Trainer()
    if len(sys.argv) > 1 and sys.argv[1] == "forks":
        child = os.fork()
        if child == 0:
            begin()
            trainer.step("child")
            return
        assert os.waitpid(child, 0)[1] == 0
    context = begin()
    trainer.epoch()
    trainer.mapped()
    list(trainer.batches())
    recursive(30, "recursion")
    recursive(200, "deep recursion")
    called_back(4)
    generated()

    def worker():
        use(context)
        recursive(2, "thread")

    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
    obtain("main")


main()
