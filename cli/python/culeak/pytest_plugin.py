"""The pytest plugin as far as every run of pytest loads it: options, marks, and the restart under the preload library.

`session` does the measuring and is loaded only with ``--culeak``. Without the option tests run unchanged, and a warning
counts the tests whose limits were not checked.
"""

import os
import shutil
import warnings
from typing import Any, Iterator, List

import pytest

from culeak.limits import MARKS, has_limits, parse_allow


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("culeak", "GPU memory of every test, recorded by culeak")
    group.addoption("--culeak", action="store_true", help="record the GPU memory of every test, and check the limits in their marks")
    group.addoption(
        "--culeak-allow",
        metavar="LIST",
        type=_allow,
        default=(None, ()),
        help="the limits for every test without a mark: fail it if it leaves more than this behind, e.g. 1MiB,stream=0",
    )
    group.addoption(
        "--culeak-suppressions", metavar="FILE", action="append", default=[], help="ignore allocations that match a rule in this file (leak:PATTERN); repeatable"
    )
    group.addoption("--culeak-out", metavar="FILE", help="write one line of JSON per test to this file")
    group.addoption("--culeak-force", action="store_true", help="let --culeak-out overwrite an existing file")
    group.addoption("--culeak-recordings", metavar="DIR", help="keep the recordings, one per process, in this folder")
    group.addoption(
        "--culeak-sites", metavar="N", type=int, default=3, help="list N call sites for every test that leaves memory behind; 0: only for failures [default: 3]"
    )
    group.addoption("--culeak-top", metavar="N", type=int, default=10, help="show N tests in the summary; 0: all [default: 10]")
    group.addoption(
        "--culeak-why", action="store_true", help="say in failures what holds the memory where the kernel forbids to look; lets processes of the same user read the memory of this one"
    )
    parser.addini("culeak", "record every run, as --culeak does", type="bool", default=False)


def _allow(text: str) -> Any:
    import argparse

    try:
        return parse_allow(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error))


def is_wanted(config: Any) -> bool:
    return bool(config.known_args_namespace.culeak or config.getini("culeak"))


# Outermost, output capture included: the restarted process needs the real stdout.
@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> Iterator[None]:
    if is_wanted(early_config):
        _be_recorded(early_config.known_args_namespace)
    yield


def _be_recorded(options: Any) -> None:
    """Returns only in a process that is recorded."""
    from culeak import command, preload

    if preload.is_ready():
        return
    if "PYTEST_XDIST_WORKER" in os.environ:
        raise pytest.UsageError("--culeak: this worker was started without its parent's environment, so it cannot be recorded; let the workers inherit the environment")
    try:
        preload.restart(command.find_command(), options.culeak_recordings, options.culeak_why)
    except (preload.CannotPreload, command.CommandMissing, OSError) as error:
        pytest_unconfigure()
        raise pytest.UsageError("--culeak: {}".format(error))


def pytest_configure(config: Any) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    if is_wanted(config):
        from culeak.session import begin

        begin(config)


def pytest_collection_modifyitems(config: Any, items: List[Any]) -> None:
    limited = [item for item in items if has_limits(item)]
    if limited and not is_wanted(config):
        message = "limits on GPU memory were not checked for {} of {} tests; run pytest with --culeak"
        warnings.warn(pytest.PytestWarning(message.format(len(limited), len(items))))


def pytest_unconfigure() -> None:
    from culeak import preload

    # Only in the process that created it, not in its workers.
    if os.environ.get(preload.STARTED) == str(os.getpid()) and os.environ.get(preload.TEMPORARY):
        shutil.rmtree(os.environ[preload.TEMPORARY], ignore_errors=True)
