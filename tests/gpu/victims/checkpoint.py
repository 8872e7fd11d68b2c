"""Moves the device memory of a process to the host, or back: `checkpoint.py PID checkpoint|restore`. Prints UNSUPPORTED if the driver cannot,
else the state that the driver says the process is in afterwards."""

import ctypes
import sys

from printing import fact

cuda = ctypes.CDLL("libcuda.so.1")
arguments = (ctypes.c_uint64 * 16)()
steps = {"checkpoint": ["Lock", "Checkpoint"], "restore": ["Restore", "Unlock"]}[sys.argv[2]]
if cuda.cuInit(0) or not hasattr(cuda, "cuCheckpointProcessLock"):
    print("UNSUPPORTED")
    sys.exit()
for step in steps:
    error = getattr(cuda, f"cuCheckpointProcess{step}")(int(sys.argv[1]), ctypes.byref(arguments))
    if error == 801:
        print("UNSUPPORTED")
        sys.exit()
    if error:
        sys.exit(f"cuCheckpointProcess{step}: CUresult {error}")
state = ctypes.c_int(-1)
error = cuda.cuCheckpointProcessGetState(int(sys.argv[1]), ctypes.byref(state))
if error:
    sys.exit(f"cuCheckpointProcessGetState: CUresult {error}")
fact("state", state.value)
