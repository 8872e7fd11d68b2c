"""A pytest plugin for other projects' tests: writes the outcome of every phase of a test to $PEERS_RESULTS as it happens, so
that a crash loses nothing, and runs only the tests listed in $PEERS_ONLY, if that is set.
"""

import os
import re


def name(test):
    """Without the addresses in parameters, which differ between runs."""
    return re.sub(r"0x[0-9a-fA-F]+", "ADDRESS", test)


def pytest_collection_modifyitems(config, items):
    only = os.environ["PEERS_ONLY"]
    if only:
        items[:] = [item for item in items if name(item.nodeid) in only.split("\n")]


def pytest_runtest_logreport(report):
    with open(os.environ["PEERS_RESULTS"], "a") as out:
        out.write(f"{report.outcome}\t{name(report.nodeid)}\n")
