"""Tests of the claims about ends and peaks, without a GPU: hand-made snapshots and reports. Run: python3 -m unittest discover tests/gpu"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import ends
import harness
from harness import Failure, site

CALLS = [{"kind": "tensor", "api": "CUDACachingAllocator"}, {"kind": "device", "api": "cudaMalloc"}]
COLUMNS = ["address", "bytes", "time_ns", "stack", "call", "requested"]


def table(*rows):
    """Rows of (bytes, time, call)."""
    return {"calls": CALLS, "columns": COLUMNS, "rows": [[i, size, time, 0, call, size] for i, (size, time, call) in enumerate(rows)]}


def row(label, amount, kind="tensor"):
    file, line = site(label)
    frames = [{"function": "empty", "file": "/torch/empty.py", "line": 1}, {"function": "f", "file": f"/src/{file}", "line": line}]
    return {"label": label, "bytes": amount, "kinds": {kind: {"bytes": amount, "count": 1}}, "stacks": [{"frames": frames, "site": 1}]}


class Ends(unittest.TestCase):
    def test_what_was_live_at_the_end_is_live_then_or_freed_later(self):
        data = {"allocations": table((100, 5, 0), (200, 50, 0), (400, 6, 1)), "freed_after_end": table((1000, 4, 0)), "end": {"of": "script", "time_ns": 10}}
        self.assertEqual((ends.raw_at_end(data, "tensor"), ends.raw_at_end(data, "device")), (1100, 400))
        self.assertEqual(ends.end_of(data), "script")

    def test_without_an_end_the_last_state_counts(self):
        data = {"allocations": table((100, 5, 0), (200, 50, 0))}
        self.assertEqual((ends.raw_at_end(data, "tensor"), ends.end_of(data)), (300, None))


class Holders(unittest.TestCase):
    def test_bytes_are_added_by_call_site_and_kind(self):
        report = {"rows": [row("ends_list", 500), row("ends_hook", 300), row("ends_list", 100), row("ends_hook", 900, "device")]}
        self.assertEqual(dict(ends.by_site(report)), {site("ends_list"): 600, site("ends_hook"): 300})
        self.assertEqual(ends.kind_bytes(report, "device"), 900)
        ends.expect_holder(report, "ends_list", 600)
        for label, amount in (("ends_list", 599), ("ends_hook", 300)):
            with self.assertRaises(Failure):
                ends.expect_holder(report, label, amount)
        with self.assertRaises(Failure):
            ends.expect_holder({"rows": []}, "ends_list", 0)

    def test_a_difference_names_its_lines(self):
        one, two = ({"rows": [row("ends_list", amount), row("ends_hook", 7)]} for amount in (5, 6))
        self.assertEqual(ends.differing(ends.by_site(one), ends.by_site(one)), "")
        text = ends.differing(ends.by_site(one), ends.by_site(two))
        self.assertIn(f"{site('ends_list')[0]}:{site('ends_list')[1]}", text)
        self.assertNotIn(str(site("ends_hook")[1]) + "\n", text + "\n")

    def test_every_program_has_its_line(self):
        for label in filter(None, ends.HOLDERS.values()):
            self.assertTrue(harness.site(label))
        self.assertLessEqual({*ends.FREED_BY_SHUTDOWN, *ends.NEVER_FREED, *ends.LEAKS, *ends.SEVERAL_THREADS}, {*ends.HOLDERS})


class Once(unittest.TestCase):
    def test_a_function_runs_once_for_each_list_of_arguments(self):
        calls = []
        twice = ends.once(lambda *arguments: calls.append(arguments) or len(calls))
        self.assertEqual([twice(1), twice(2), twice(1), twice(1, 2)], [1, 2, 1, 3])


if __name__ == "__main__":
    unittest.main()
