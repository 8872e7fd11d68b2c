"""Daemon threads that walk their frames without the GIL while the interpreter is finalized. The second argument: by plain loads, until
the end of the script is announced."""

import ctypes
import sys
import threading
import time

library = ctypes.CDLL(sys.argv[1])
if len(sys.argv) > 2:
    library.announce_end()
walk = library.walk_times
walk.argtypes = [ctypes.c_uint64]
walk.restype = ctypes.c_uint64


def deep(n, times):
    return deep(n - 1, times) if n else walk(times)


frames = deep(8, 100)
for _ in range(3):
    threading.Thread(target=deep, args=(8, 1 << 60), daemon=True).start()
time.sleep(0.05)
print(frames, flush=True)
