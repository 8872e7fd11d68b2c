"""Memory that is held (1000 bytes), in a cycle (2000) or lost (3000) when the script ends, when memory runs out, or when the
process leaves."""

import atexit
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import types
import weakref

driver = ctypes.CDLL("libcuda.so.1")
allocate, free = driver.cuMemAlloc_v2, driver.cuMemFree_v2
for function in (allocate, free):
    function.restype = ctypes.c_int
free.argtypes = [ctypes.c_uint64]


class Block:
    """Memory that is freed with the object, which contains a pointer to it."""

    def __init__(self, size, free=free):
        self.pointer = ctypes.c_uint64()
        assert allocate(ctypes.byref(self.pointer), ctypes.c_size_t(size)) == 0
        self.free = free

    def __del__(self):
        self.free(self.pointer)


def begin():
    driver.cuInit(0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


keep = []


def hold():
    keep.append(Block(1000))


def cycle():
    gc.disable()
    block = Block(2000)
    block.itself = block


def lose():
    pointer = ctypes.c_uint64()
    assert allocate(ctypes.byref(pointer), ctypes.c_size_t(3000)) == 0
    pointer.value = 0


def all_of_them():
    hold()
    cycle()
    lose()


def request_too_much():
    pointer = ctypes.c_uint64()
    assert allocate(ctypes.byref(pointer), ctypes.c_size_t(1 << 60)) == 2


def run_out_of_memory():
    all_of_them()
    request_too_much()
    keep.clear()
    gc.collect()


def at_depth(depth):
    """Each depth is another stack."""
    return at_depth(depth - 1) if depth else request_too_much()


def retries():
    all_of_them()
    for _ in range(1000):
        request_too_much()
    for depth in range(10):
        at_depth(depth)


def run_out_of_memory_beside_threads():
    """Two threads change the memory while the main thread waits."""
    is_over = threading.Event()

    def change():
        driver.cuCtxSetCurrent(context)
        while not is_over.is_set():
            Block(500)

    context = ctypes.c_void_p()
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    threads = [threading.Thread(target=change) for _ in range(2)]
    for thread in threads:
        thread.start()
    run_out_of_memory()
    is_over.set()
    for thread in threads:
        thread.join()


def forks(work):
    """Two children that wait at the same time."""
    children = [os.fork(), 0]
    if children[0]:
        children[1] = os.fork()
    if not all(children):
        begin()
        work()
        sys.exit(0)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0


def work_elsewhere():
    begin()
    all_of_them()


def hold_in_daemon():
    """A local variable of a thread that runs until the process ends."""
    holds = threading.Event()
    context = ctypes.c_void_p()
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0

    def wait():
        driver.cuCtxSetCurrent(context)
        block = Block(1000)
        holds.set()
        threading.Event().wait()
        del block

    threading.Thread(target=wait, daemon=True).start()
    holds.wait()
    cycle()
    lose()


def call_callbacks():
    """The script goes on after that, and frees a part."""
    all_of_them()
    atexit._run_exitfuncs()
    keep.clear()
    hold_after = Block(4000)
    globals()["after"] = hold_after


def clear_callbacks():
    hold()
    atexit._clear()
    cycle()
    lose()


def raise_error():
    all_of_them()
    raise ValueError("the traceback is kept")


def end_other_interpreter():
    """Its callbacks run while the script goes on."""
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    other = interpreters.create()
    hold()
    interpreters.run_string(other, "import atexit; atexit.register(print, 'other')")
    interpreters.destroy(other)
    cycle()
    lose()


calls = []


def count_calls():
    """A test counts its own calls. `append` is a function of the interpreter, but not of that module."""
    return types.SimpleNamespace(register=calls.append)


def replace_register(at_the_end=False):
    """By a function, by another module, and for good."""
    atexit.register, real = calls.append, atexit.register
    hold()
    run_pending_calls()
    sys.modules["atexit"] = count_calls()
    cycle()
    run_pending_calls()
    sys.modules["atexit"] = atexit
    if not at_the_end:
        atexit.register = real
    lose()
    run_pending_calls()
    assert not calls, calls


def run_pending_calls():
    """Between two of these instructions."""
    for _ in range(10000):
        pass


class Module:
    """As torch.nn.Module has it."""

    def __init__(self, **modules):
        self._parameters, self._buffers, self._modules = {}, {}, modules


def hold_model():
    """Three layers of 4000 bytes each; another block is outside of it."""
    hold()
    layers = [Module(linear=Module()) for _ in range(3)]
    for layer in layers:
        layer._modules["linear"]._parameters["weight"] = Block(4000)
    keep.append(Module(layers=Module(**{str(nth): layer for nth, layer in enumerate(layers)})))


class Session:
    pass


sessions = []


def free_in_callbacks(how):
    """Registered last, so that the interpreter calls them first."""
    all_of_them()
    atexit.register(keep.clear)
    sessions.append(Session())
    weakref.finalize(sessions[0], list.clear, [Block(4000)])
    if how == "thread":
        context = ctypes.c_void_p()
        assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0

        def outlive():
            """The interpreter waits for this thread, whose memory the script holds at its end too."""
            threading.main_thread().join()
            driver.cuCtxSetCurrent(context)
            keep.append(Block(5000))

        threading.Thread(target=outlive).start()
    if how == "daemon":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise ValueError("the traceback is kept")


CASES = {
    "replaces_register": replace_register,
    "keeps_register_replaced": lambda: replace_register(at_the_end=True),
    "out_of_memory": run_out_of_memory,
    "out_of_memory_beside_threads": run_out_of_memory_beside_threads,
    "retries": retries,
    "only_held": hold,
    "model": hold_model,
    "daemon_local": hold_in_daemon,
    "calls_callbacks": call_callbacks,
    "clears_callbacks": clear_callbacks,
    "raises": raise_error,
    "other_interpreter": end_other_interpreter,
}


def main(case):
    if case == "forks":
        return forks(all_of_them)
    if case == "forks_out_of_memory":
        return forks(run_out_of_memory)
    if case == "first_in_callback":
        return atexit.register(work_elsewhere)
    if case in ("worker", "worker_process"):
        kind = threading.Thread if case == "worker" else multiprocessing.get_context("fork").Process
        worker = kind(target=work_elsewhere)
        worker.start()
        return worker.join()
    if case == "earlier":
        # Registered before anything of culeak.
        atexit.register(keep.clear)
    begin()
    if case == "callbacks":
        return free_in_callbacks(sys.argv[2])
    CASES.get(case, all_of_them)()
    if case == "early":
        # The script's own clean-up.
        atexit.register(keep.clear)
    if case == "leave_at_once":
        os._exit(3)
    if case == "without_handlers":
        # The interpreter restores no handler then.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if case == "thread":
        # Runs until the process ends.
        threading.Thread(target=threading.Event().wait, daemon=True).start()


main(sys.argv[1])
