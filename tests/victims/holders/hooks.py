"""Functions that the interpreter calls by itself, each of which holds a block."""

import codecs
import copyreg
import functools
import gc
import os
import signal
import sys
import threading


class Pickled:
    pass


def closure_over(held):
    def handler(*_):
        return held

    return handler


def start_traced_thread(functions):
    """The thread takes the functions, so that nothing else refers to them."""
    ready = threading.Event()

    def work():
        sys.setprofile(functions.pop())
        sys.settrace(functions.pop())
        ready.set()
        threading.Event().wait()

    threading.Thread(target=work, daemon=True, name="traced").start()
    ready.wait()


def install(new, ignore):
    def holding(*expected, **options):
        return functools.partial(ignore, new(*expected, **options))

    signal.signal(signal.SIGUSR2, holding("signal handler", "signal handler SIGUSR2", ".args"))
    signal.signal(signal.SIGALRM, closure_over(new("signal closure", "signal handler SIGALRM", "closure held")))
    signal.signal(signal.SIGRTMIN + 3, holding("real-time signal", "signal handler 37", ".args"))
    trace = holding("sys.settrace", "traced", "trace function", ".args")
    functions = [trace, holding("sys.setprofile", "traced", "profile function", ".args")]
    del trace
    start_traced_thread(functions)
    sys.addaudithook(holding("sys.addaudithook", "audit hook", ".args"))
    codecs.register(holding("codecs.register", "codecs", ".args"))
    codecs.register_error("zoo", holding("codecs.register_error", "codecs", "['zoo']|[*]", ".args"))
    copyreg.pickle(Pickled, holding("copyreg", "copyreg.dispatch_table", ".args"))
    threading.excepthook = holding("threading.excepthook", "threading.excepthook", ".args")
    sys.unraisablehook = holding("sys.unraisablehook", "sys.unraisablehook", ".args")
    os.register_at_fork(before=holding("os.register_at_fork", "fork hook", ".args"))
    gc.callbacks.append(holding("gc.callbacks", "gc.callbacks", ".args"))
    if sys.version_info >= (3, 12):
        sys.monitoring.use_tool_id(3, "zoo")
        watch = holding("sys.monitoring", "monitoring callback", ".args")
        sys.monitoring.register_callback(3, sys.monitoring.events.PY_START, watch)
