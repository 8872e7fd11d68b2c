"""Shared by the programs whose holders are searched for: prints what a reader expects to be named, then answers on standard input.

    HOLDS pid label class address ["text", …]       the path to this block contains these texts in this order; `a|b`: one of them
    drop NAME                                       deletes a global of the main module: FACT freed; refused unless it is the only
                                                    reference to its value
    collect                                         gc.collect(): FACT freed
"""

import gc
import json
import os
import sys

from printing import fact, leave

main = sys.modules["__main__"]


def holds(label, address, *texts, of="held"):
    print(f"HOLDS {os.getpid()} {label} {of} {address:#x}", json.dumps(texts, separators=(",", ":")).replace(" ", "\\u0020"), flush=True)


def keep(name, value):
    """Makes it a global of the program."""
    setattr(main, name, value)


def drop(name):
    space = vars(main)
    # One reference of the module, and at most one of the call.
    if name not in space or sys.getrefcount(space[name]) > 2:
        return False
    del space[name]
    gc.collect()
    return True


def questions(held_bytes, reserved_bytes=lambda: 0):
    """Answers until the other side closes standard input or says `quit`. `held_bytes`: what the framework holds now; `reserved_bytes`: what
    it has from the driver; of JAX, what its allocator counts as in use."""
    gc.disable()
    fact("held", held_bytes())
    fact("reserved", reserved_bytes())
    print("READY", os.getpid(), flush=True)
    for line in sys.stdin:
        action, *words = line.split()
        if action == "quit":
            break
        before = held_bytes()
        if action == "collect":
            gc.collect()
        elif action == "drop":
            fact("dropped", drop(words[0]))
        fact("freed", before - held_bytes())
        print("DONE", line.strip(), flush=True)
    leave()
