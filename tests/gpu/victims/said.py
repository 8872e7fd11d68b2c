"""What the Python victims share: the lines a checker reads. None of them knows of culeak."""

import ctypes
import hashlib
import json
import os
import sys


def live(label, kind, address, size):
    print(f"LIVE {os.getpid()} {label} {kind} {address:#x} {size} {size}", flush=True)


def fact(name, value):
    print(f"FACT {os.getpid()} {name} {int(value):#x}", flush=True)


def here(frame):
    """What Python says of a frame and its callers: function, file and line, innermost first."""
    told = []
    while frame is not None:
        code = frame.f_code
        told.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return told


def lines(label, address, frames):
    """These frames asked for the memory at this address."""
    print(f"LINES {os.getpid()} {label} {address:#x}", json.dumps(frames, separators=(",", ":")).replace(" ", "\\u0020"), flush=True)


def result(*words):
    print("RESULT", *words, flush=True)


def digest(array):
    """Of a numpy array, to the bit."""
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def leak(thing):
    """One reference too many: the interpreter never frees it, not even at exit."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def leave():
    """Ends without teardown, so that what the framework holds is what the recording shows."""
    sys.stdout.flush()
    os._exit(0)
