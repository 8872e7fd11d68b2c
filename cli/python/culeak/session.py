"""Measures every test of a run, checks its limits, and makes a record of it.

::

    setup │ warm-ups │ interval begins ─ the test ─ interval read ─ garbage collected, read again │ teardown
                                                              │     only if anything is left
                                                              ├─ more than the limits allow: it fails
                                                              └─ record: report, JUnit, JSON, summary

The preload library measures exactly and cheaply what a test left. Only if that is not nothing, the command is run, which
knows call sites and suppressions. A process measures one test at a time, so the workers of pytest-xdist measure their own
tests, and the records travel in the reports.
"""

import gc
import inspect
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set

import pluggy
import pytest

from culeak import failures, repeat
from culeak.command import find_command
from culeak.limits import Limits, limits_of
from culeak.recorder import ALL_DEVICES, HOST, MOST_DEVICES, Reading, Recorder, mark_name
from culeak.records import Records
from culeak.sizes import Size
from culeak.verdict import CannotJudge, Judge, Verdict, may_have_pools


def begin(config: Any) -> None:
    """Registers the measuring in the processes that run tests, and the collecting in the one that reports."""
    recorder = Recorder.here()
    assert recorder is not None, "the restart under the preload library ensures this"
    if not hasattr(getattr(pluggy, "Result", None), "force_exception"):
        raise pytest.UsageError("--culeak: pluggy {} is too old; install 1.3 or newer".format(pluggy.__version__))
    is_worker = hasattr(config, "workerinput")
    judge = Judge(find_command(), config.option.culeak_suppressions)
    repeat.suppressions[:] = config.option.culeak_suppressions
    config.pluginmanager.register(Session(config, recorder, judge), "culeak-session")
    if not is_worker:
        config.pluginmanager.register(Records(config), "culeak-records")


class Measured:
    """A running test: the interval's number, and the bytes that each device held when it began."""

    def __init__(self, recorder: Recorder, item: Any, limits: Limits) -> None:
        self.recorder = recorder
        self.name = mark_name(item.nodeid)
        self.older_snapshots = snapshots(os.getpid()) if limits.memory is not None else set()
        # The recorder reads 0 as "no limit"; 1 makes it write the snapshot, and the comparison below uses the real limit.
        self.number = recorder.begin(item.nodeid, max(limits.memory or 0, 1) if limits.memory is not None else 0)
        self.before = self._held()

    def _held(self) -> Dict[int, int]:
        return {device: reading.held for device, reading in self.readings().items()}

    def readings(self) -> Dict[int, Reading]:
        """By device, including the host and the total of all devices."""
        read = {device: self.recorder.read(self.number, device) for device in range(HOST, MOST_DEVICES)}
        return {device: reading for device, reading in read.items() if reading is not None}


class Session:
    """The hooks around each test."""

    def __init__(self, config: Any, recorder: Recorder, judge: Judge) -> None:
        self.config = config
        self.recorder = recorder
        self.judge = judge
        self.limits = Limits(None, None)
        self.measured: Optional[Measured] = None
        self.record: Optional[Dict[str, Any]] = None

    # Before fixtures run for a test whose mark is invalid.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: Any) -> None:
        error = None
        try:
            limits_of(item, None)
        except ValueError as wrong:
            error = str(wrong)
        # Not within the handler: pytest would print both exceptions.
        if error is not None:
            pytest.fail("culeak: error: {}; correct the mark".format(error), pytrace=False)

    # Innermost: allocations by other plugins around a test do not count.
    @pytest.hookimpl(hookwrapper=True, trylast=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        self.limits = limits_of(item, *self.config.option.culeak_allow)
        self.measured = Measured(self.recorder, item, self.limits)
        outcome: Any = yield
        # A failed test's traceback holds its frames, which hold its memory: that is no leak.
        failed = outcome.excinfo is not None
        message = None
        readings = self.measured.readings()
        # Collecting garbage is useful only if memory is left. Memory from before the test does not count, even if this frees it.
        if not failed and ALL_DEVICES in readings and (readings[ALL_DEVICES].left_count or self.limits.objects):
            gc.collect()
            readings = self.measured.readings()
        if ALL_DEVICES in readings:
            try:
                message = self._look(item, readings, failed)
            except CannotJudge as error:
                message = str(error)
        elif not failed and self.limits != Limits(None, None):
            message = (
                "No verdict on GPU memory: an allocation could not be recorded, so free disk space for the recording; or the test, or another "
                "plugin, began its own interval, so remove that use of culeak_interval_begin."
            )
        if message is not None and not failed:
            outcome.force_exception(pytest.fail.Exception(message, pytrace=False))

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> Iterator[None]:
        if self.limits.warmups:
            if inspect.iscoroutinefunction(pyfuncitem.obj):
                pytest.fail("limit_gpu_leaks: a coroutine cannot be warmed up", pytrace=False)
            arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            for _ in range(self.limits.warmups):
                pyfuncitem.obj(**arguments)
            self.measured = Measured(self.recorder, pyfuncitem, self.limits)
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, call: Any) -> Iterator[None]:
        outcome: Any = yield
        if call.when == "call" and self.record is not None:
            # Attributes of a report travel from a worker to the process that reports.
            outcome.get_result().culeak = self.record
            self.record = None

    def _look(self, item: Any, readings: Dict[int, Reading], failed: bool) -> Optional[str]:
        """Makes the record of the test, and returns the message of its failure, if any."""
        assert self.measured is not None
        everywhere = readings[ALL_DEVICES]
        limit = None if failed else self.limits.leaks
        verdict = None
        # Blocks of the program's own allocators lie in memory that is counted already, so they are counted but add no bytes.
        could_be_over = limit is not None and (everywhere.left > limit or everywhere.left_count > 0)
        wanted = everywhere.left_count and (could_be_over or self.config.option.culeak_sites > 0)
        # Objects are in no interval, so the command is asked for them in any case.
        if (wanted or self.limits.objects) and not failed:
            verdict = self.judge.judge(os.getpid(), self.measured.name, limit, self.limits.objects)
        self._keep(item, readings, verdict)
        test = _test(item)
        peak = self.limits.memory
        if peak is not None and not failed and everywhere.peak > peak:
            return failures.needed(test, everywhere.peak, peak, self._when_exceeded())
        messages = []
        unseen = verdict.unseen if verdict is not None and (limit is not None or self.limits.objects) else []
        if not failed and not unseen:
            unseen = self._in_pools(everywhere)
        if unseen:
            messages.append(failures.unseen(unseen))
        if limit is not None and verdict is not None and not verdict.passed:
            messages.append(self._leaked(test, verdict, limit))
        if verdict is not None and verdict.over:
            messages.append(failures.objects(test, verdict))
        return "\n\n".join(messages) or None

    def _in_pools(self, everywhere: Reading) -> List[str]:
        """What is unknown because the test may have used a pool that had grown before it: then it allocates nothing itself."""
        assert self.measured is not None
        most = [limit for limit in (self.limits.leaks, self.limits.memory) if limit is not None]
        if not most or not everywhere.held or not may_have_pools():
            return []
        return self.judge.judge(os.getpid(), self.measured.name, min(most)).unseen

    def _leaked(self, test: failures.Test, verdict: Verdict, limit: Size) -> str:
        assert self.measured is not None
        asked = self.config.option.culeak_why
        try:
            return failures.leaked(test, verdict, limit, self.judge.holders(os.getpid(), self.measured.name, "1m" if asked else "10s"))
        except CannotJudge as error:
            message = failures.leaked(test, verdict, limit)
            # Without the option, the kernel may forbid the look.
            return "{}\n\nWhat holds it is not known: {}".format(message, error) if asked else message

    def _when_exceeded(self) -> Optional[Verdict]:
        """A verdict on the snapshot that was written when the interval's limit was exceeded."""
        assert self.measured is not None
        for snapshot in snapshots(os.getpid()) - self.measured.older_snapshots:
            return self.judge.judge(snapshot, self.measured.name)
        return None

    def _keep(self, item: Any, readings: Dict[int, Reading], verdict: Optional[Verdict]) -> None:
        assert self.measured is not None
        before, everywhere = self.measured.before, readings[ALL_DEVICES]
        sites = [] if verdict is None else verdict.sites[: self.config.option.culeak_sites]
        sites = [failures.below(_test(item), site) for site in sites]
        worker = getattr(self.config, "workerinput", {}).get("workerid")

        def numbers(device: int, reading: Reading) -> Dict[str, int]:
            return {
                "before_bytes": before.get(device, 0),
                "after_bytes": reading.held,
                "left_bytes": reading.left,
                "peak_bytes": reading.peak,
            }

        self.record = dict(
            numbers(ALL_DEVICES, everywhere),
            format="culeak-pytest",
            version=1,
            test=item.nodeid,
            worker=worker,
            pid=os.getpid(),
            left_count=everywhere.left_count,
            devices=[dict(numbers(device, readings[device]), device=device) for device in sorted(readings) if device >= 0],
            pinned=numbers(HOST, readings[HOST]) if HOST in readings else None,
            leaked_bytes=None if verdict is None else verdict.bytes,
            suppressed_bytes=None if verdict is None else verdict.suppressed_bytes,
            sites=[site.as_json() for site in sites],
            objects=None if verdict is None or not self.limits.objects else [row.as_json() for row in verdict.objects],
        )
        item.user_properties += [
            ("culeak_{}".format(name), self.record[name])
            for name in ("before_bytes", "after_bytes", "left_bytes", "peak_bytes")
        ]
        item.user_properties += [("culeak_site", failures.one_line(site)) for site in sites]


def snapshots(pid: int) -> Set[Path]:
    """The automatic snapshots that this process wrote because a limit was exceeded: one per test that did so."""
    output = os.environ.get("CULEAK_OUTPUT", "").replace("%%", "%")
    folder = Path(output) if output.endswith("/") or os.path.isdir(output) else Path(output).parent
    return set(folder.glob("*.{}.exceeded-*.culeak-snapshot".format(pid)))


def _test(item: Any) -> failures.Test:
    file = str(getattr(item, "path", None) or item.fspath)
    function = getattr(item, "originalname", None) or item.name
    return failures.Test(file, function, str(item.config.rootdir))
