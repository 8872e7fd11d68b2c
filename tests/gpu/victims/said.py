"""What the Python victims share: the lines a checker reads. None of them knows of culeak."""

import ctypes
import hashlib
import os
import sys


def live(label, kind, address, size):
    print(f"LIVE {os.getpid()} {label} {kind} {address:#x} {size} {size}", flush=True)


def fact(name, value):
    print(f"FACT {os.getpid()} {name} {int(value):#x}", flush=True)


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
