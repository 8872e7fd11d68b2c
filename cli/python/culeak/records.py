"""Collects the records of all tests from all workers: one line of JSON per test, and a summary at the end."""

import json
from typing import Any, Dict, List, Optional, TextIO

import pytest

from culeak.sizes import show_blocks, show_size


class Records:
    """The hooks of the process that reports."""

    def __init__(self, config: Any) -> None:
        self.top = config.option.culeak_top
        self.records: List[Dict[str, Any]] = []
        self.file = _create(config.option.culeak_out, config.option.culeak_force)

    def pytest_runtest_logreport(self, report: Any) -> None:
        record = getattr(report, "culeak", None)
        if record is None:
            return
        record = dict(record, outcome=report.outcome)
        self.records.append(record)
        if self.file is not None:
            # Flushed line by line, so that a run that is killed leaves the records of the finished tests.
            self.file.write(json.dumps(record, sort_keys=True) + "\n")
            self.file.flush()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        shown = [record for record in self.records if record["peak_bytes"] or record["left_bytes"]]
        shown.sort(key=lambda record: (-record["left_bytes"], -record["peak_bytes"], record["test"]))
        terminalreporter.write_sep("=", "GPU memory (culeak)")
        if not shown:
            terminalreporter.write_line("no test allocated GPU memory")
            return
        terminalreporter.write_line("{:>10} {:>10}  test".format("left", "needed"))
        for record in shown[: self.top or None]:
            sizes = [show_size(record[name]) for name in ("left_bytes", "peak_bytes")]
            terminalreporter.write_line("{:>10} {:>10}  {}".format(*(sizes + [record["test"]])))
            for site in record["sites"]:
                words = [show_size(site["bytes"]), "in", show_blocks(site["blocks"]), " " + site["label"]]
                place = " " + site["place"] if site["place"] else ""
                terminalreporter.write_line("{:21}    {}".format("", " ".join(words + [place]).rstrip()))
        hidden = len(shown) - len(shown[: self.top or None])
        left = sum(record["left_bytes"] for record in shown)
        most = max(shown, key=lambda record: record["peak_bytes"])
        terminalreporter.write_line(
            "{}{} of {} tests left {}; the most at once was {}, in {}".format(
                "{} more not shown; ".format(hidden) if hidden else "",
                sum(record["left_bytes"] > 0 for record in shown),
                len(self.records),
                show_size(left),
                show_size(most["peak_bytes"]),
                most["test"],
            )
        )

    def pytest_unconfigure(self) -> None:
        if self.file is not None:
            self.file.close()


def _create(path: Optional[str], force: bool) -> Optional[TextIO]:
    if path is None:
        return None
    try:
        return open(path, "w" if force else "x", encoding="utf-8")
    except FileExistsError:
        raise pytest.UsageError("--culeak-out: {} exists; name another file, or add --culeak-force".format(path))
    except OSError as error:
        raise pytest.UsageError("--culeak-out: {}: cannot be written: {}".format(path, error.strerror))
