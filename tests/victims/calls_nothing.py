"""A thread that holds no GIL allocates and frees, as PyTorch's backward does, and ends the process with SIGSYS at the first system call
that neither Python nor the driver needs. `unannounced`: the interpreter cannot announce its end, so its frames are read by a call."""

import atexit
import ctypes
import struct
import sys
import threading

if "unannounced" in sys.argv:
    atexit.register = lambda function: function
driver, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
driver.cuInit(0)
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0

NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
LOAD, EQUALS, RETURN, ALLOW, KILL = 0x20, 0x15, 0x06, 0x7FFF0000, 0x80000000
# x86-64: mmap, mprotect, munmap, brk, sched_yield, mremap, madvise, futex, clock_gettime, exit_group, getcpu; the fake driver's getpid
PERMITTED = 9, 10, 11, 12, 24, 25, 28, 202, 228, 231, 309, 39


def permit_little():
    code = [(LOAD, 0, 0, 0)]
    for number in PERMITTED:
        code += [(EQUALS, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    words = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code + [(RETURN, 0, 0, KILL)]))
    program = struct.pack("HxxxxxxP", len(code) + 1, ctypes.addressof(words))
    assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and libc.prctl(SECCOMP, FILTER, program) == 0


def pairs(count):
    for _ in range(count):
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(256)) == 0
        assert driver.cuMemFree_v2(address) == 0


warm, announced, done = threading.Event(), threading.Event(), threading.Event()


def work():
    driver.cuCtxSetCurrent(context)
    for part in range(3):
        if part == 1:
            warm.set()
            announced.wait()
        if part == 2:
            permit_little()
        pairs(300)  # from one line: a new stack makes other calls
    done.set()
    threading.Event().wait()  # a thread that ends makes other calls


threading.Thread(target=work, daemon=True).start()
warm.wait()
for _ in range(1000):  # the interpreter calls what is pending
    pass
announced.set()
done.wait()
