"""Shared by the Python victims: prints the lines that the harness reads. None of them depends on culeak."""

import ctypes
import hashlib
import importlib.util
import json
import os
import sys


def say(*words):
    """A line in one write, so that processes that share the output do not mix their lines."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def live(label, kind, address, size):
    say("LIVE", os.getpid(), label, kind, f"{address:#x}", size, size)


def fact(name, value):
    say("FACT", os.getpid(), name, f"{int(value):#x}")


def needs(*packages):
    """Ends the program, and the claim counts as not run, if this machine lacks one of these packages."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            say("UNSUPPORTED", os.getpid(), "the Python package", package)
            sys.exit(0)


def here(frame):
    """Python's own account of a frame and its callers: function, file and line, innermost first."""
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return frames


def in_backward(frame, caller):
    """Of a frame on autograd's thread, followed by those of the thread that waits for it."""
    return here(frame) + here(sys._current_frames()[caller.ident])


def lines(label, address, frames):
    """These frames allocated the memory at this address."""
    say("LINES", os.getpid(), label, f"{address:#x}", json.dumps(frames, separators=(",", ":")).replace(" ", "\\u0020"))


def result(*words):
    say("RESULT", *words)


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
