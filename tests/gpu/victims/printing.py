"""Shared by the Python victims: prints the lines that the harness reads. None of them depends on culeak."""

import ctypes
import hashlib
import importlib.util
import json
import os
import sys


def live(label, kind, address, size):
    print(f"LIVE {os.getpid()} {label} {kind} {address:#x} {size} {size}", flush=True)


def fact(name, value):
    print(f"FACT {os.getpid()} {name} {int(value):#x}", flush=True)


def needs(*packages):
    """Ends the program, and the claim counts as not run, if this machine lacks one of these packages."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            print(f"UNSUPPORTED {os.getpid()} the Python package {package}", flush=True)
            sys.exit(0)


def here(frame):
    """Python's own account of a frame and its callers: function, file and line, innermost first."""
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return frames


def lines(label, address, frames):
    """These frames allocated the memory at this address."""
    print(f"LINES {os.getpid()} {label} {address:#x}", json.dumps(frames, separators=(",", ":")).replace(" ", "\\u0020"), flush=True)


def result(*words):
    print("RESULT", *words, flush=True)


def digest(array):
    """Of a numpy array, bit for bit."""
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def leak(thing):
    """One reference too many: the interpreter never frees it, not even at exit."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def leave():
    """Ends without teardown, so that the recording shows what the framework holds."""
    sys.stdout.flush()
    os._exit(0)
