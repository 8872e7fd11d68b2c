"""Shared by the Python victims that compare the recording with NVML: each step prints what NVML counts for the process, and
requests a snapshot of that name from culeak, if that is loaded."""

import ctypes
import os
import sys

from printing import fact

UNKNOWN = (1 << 64) - 1
# Device figures by CUDA's ordinal.
handles = {}
here = ctypes.CDLL(None)


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


def ok(result, what):
    if result != 0:
        sys.exit(f"{what} returned {result}")


def nvml():
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        print(f"UNSUPPORTED {os.getpid()} libnvidia-ml.so.1, which has the kernel driver's figures", flush=True)
        sys.exit(0)


def handle_of(ordinal):
    if ordinal not in handles:
        cuda, library = ctypes.CDLL("libcuda.so.1"), nvml()
        device, uuid, found = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
        ok(cuda.cuInit(0), "cuInit")
        ok(cuda.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
        ok(cuda.cuDeviceGetUuid(uuid, device), "cuDeviceGetUuid")
        text = bytes(uuid).hex()
        name = "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        ok(library.nvmlInit_v2(), "nvmlInit_v2")
        ok(library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(found)), f"nvmlDeviceGetHandleByUUID of {name}")
        handles[ordinal] = found
    return handles[ordinal]


def counted(ordinal=0):
    """Bytes of this process on a device, or UNKNOWN if NVML lists it by another process id.

    With ALONE in the environment, the only process that NVML lists is this one."""
    found, count = (Process * 256)(), ctypes.c_uint(256)
    device = handle_of(ordinal)
    ok(nvml().nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found), "nvmlDeviceGetComputeRunningProcesses_v3")
    listed = {process.pid: process.bytes for process in found[: count.value]}
    if os.getpid() in listed:
        return listed[os.getpid()]
    if not listed:
        return 0
    return next(iter(listed.values())) if len(listed) == 1 and "ALONE" in os.environ else UNKNOWN


def step(name, ordinal=0):
    """The caller has waited for the device."""
    fact(f"at_{name}", counted(ordinal))
    if hasattr(here, "culeak_snapshot"):
        here.culeak_snapshot(f"at_{name}".encode())


def wait_for_reader():
    """With WAIT in the environment, the process stays as it is until its standard input ends or has a line."""
    if "WAIT" in os.environ:
        print("READY", os.getpid(), flush=True)
        sys.stdin.readline()
