"""A pytest plugin of ours for other people's tests: writes the outcome of every phase of a test to $PEERS_RESULTS as it happens,
so that a crash loses nothing, and keeps to the tests that $PEERS_ONLY names, should it name any.
"""

import os
import re


def name(test):
    """Addresses in the names of parameters differ between runs."""
    return re.sub(r"0x[0-9a-fA-F]+", "ADDRESS", test)


def pytest_collection_modifyitems(config, items):
    only = os.environ["PEERS_ONLY"]
    if only:
        items[:] = [item for item in items if name(item.nodeid) in only.split("\n")]


def pytest_runtest_logreport(report):
    with open(os.environ["PEERS_RESULTS"], "a") as out:
        out.write(f"{report.outcome}\t{name(report.nodeid)}\n")
