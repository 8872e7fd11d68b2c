"""A backward pass on the CPU whose gradients are kept; started by backward.sh.

    backward.py LIBRARY          runs it with allocator.cpp, built
    backward.py REPORT WORDS     checks the report, and prints WORDS and the number of gradients
"""

import json
import sys

# Lines whose gradients are kept; the innermost function of a gradient's line must be on one of them.
LINES = {}
for number, text in enumerate(open(__file__), 1):
    if "# of: " in text:
        LINES[text.split("# of: ")[1].strip()] = number


def main(library):
    import ctypes

    import torch

    allocator = ctypes.CDLL(library)
    allocator.install(ctypes.c_size_t(0))
    torch.set_num_threads(1)
    value = torch.randn(64, 64, requires_grad=True)
    allocator.begin(1)
    torch.empty(64)  # with the first block, culeak looks for these functions
    kept = []
    for _ in range(2):
        a = value.exp()  # of: exp
        b = a.sin()  # of: sin
        c = b @ b  # of: matmul
        for made in (a, b):
            made.register_hook(kept.append)
        c.sum().backward()  # of: backward
    import os

    os._exit(0)  # what is kept is in the recording


def check(report, words):
    stacks = [stack for row in json.load(open(report))["rows"] for stack in row["stacks"]]
    seen = {}
    for stack in stacks:
        own = [(frame["function"] or "", frame["line"]) for frame in stack["frames"] if (frame["file"] or "").endswith("real_torch/backward.py")]
        if own and own[0][0].startswith("gradient of "):
            assert own[1] == ("main", LINES["backward"]), own
            seen[own[0][1]] = seen.get(own[0][1], 0) + stack["count"]
    # The gradient of `b` is the matrix product's, and that of `a` is made by sin's node; that of `value` by exp's.
    assert {LINES["exp"], LINES["sin"], LINES["matmul"]} <= set(seen), (LINES, seen, stacks)
    print(words, "ok,", sum(seen.values()), "gradients have their operator's line and the line that called backward()")


if len(sys.argv) == 2:
    main(sys.argv[1])
else:
    check(*sys.argv[1:])
