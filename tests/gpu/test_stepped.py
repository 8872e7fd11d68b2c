"""Tests of the claims about steps, without a GPU: hand-made runs and snapshots, right and wrong."""

import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import stepped
from harness import Failure, Finished, Missing, site
from segments import UNKNOWN

FILE, LINE = site("request_graph")
LOSSES = {"lost_segments": 0}


def snapshot(*segments, losses=None):
    """Of segments as (device, bytes)."""
    calls = [{"kind": "segment", "device": device} for device, _ in segments]
    rows = [[call, size] for call, (_, size) in enumerate(segments)]
    devices = [{"ordinal": 1}, {"ordinal": 0}]
    return {"devices": devices, "losses": losses or LOSSES, "segments": {"calls": calls, "columns": ["call", "bytes"], "rows": rows}}


class Steps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_with(self, facts, taken):
        (self.folder / "stdout").write_text("".join(f"FACT 7 {name} {value:#x}\n" for name, value in facts.items()))
        (self.folder / "stderr").write_text("")
        done = Finished(types.SimpleNamespace(), ["program"], self.folder, 0, 1.0)
        stepped._kept["taken", self.folder] = {(7, name): (None, data) for name, data in taken.items()}
        return done

    def test_a_sum_that_is_nvmls_passes(self):
        done = self.run_with({"at_one": 300}, {"at_one": snapshot((0, 100), (1, 200))})
        stepped.expect_figures(None, done)

    def test_a_sum_that_differs_fails_and_shows_the_difference(self):
        done = self.run_with({"at_one": 300, "at_two": 301}, {"at_one": snapshot((0, 300)), "at_two": snapshot((0, 300))})
        with self.assertRaisesRegex(Failure, "(?s)steps of 2 that differ.*at_two.*difference +-1\n"):
            stepped.expect_figures(None, done)

    def test_only_the_device_of_a_process_counts(self):
        done = self.run_with({"at_one": 100}, {"at_one": snapshot((0, 100), (1, 200))})
        stepped.expect_figures(None, done, {7: 1}.get)
        with self.assertRaises(Failure):
            stepped.expect_figures(None, done, {7: 0}.get)

    def test_an_unknown_figure_is_missing(self):
        done = self.run_with({"at_zero": 300, "at_one": UNKNOWN}, {"at_zero": snapshot((0, 300)), "at_one": snapshot((0, 300))})
        with self.assertRaises(Missing):
            stepped.expect_figures(None, done)

    def test_a_device_that_counts_nothing_proves_nothing(self):
        with self.assertRaisesRegex(Failure, "counts nothing"):
            stepped.expect_figures(None, self.run_with({"at_one": 0}, {"at_one": snapshot()}))

    def test_a_step_without_a_snapshot_fails(self):
        with self.assertRaisesRegex(Failure, "no snapshot of step at_one"):
            stepped.expect_figures(None, self.run_with({"at_one": 300}, {}))

    def test_lost_segments_fail(self):
        done = self.run_with({"at_one": 300}, {"at_one": snapshot((0, 300), losses={"lost_segments": 1})})
        with self.assertRaisesRegex(Failure, "not recorded"):
            stepped.expect_figures(None, done)


class Words(unittest.TestCase):
    def test_a_place_is_compared_by_file_name_and_line(self):
        self.assertTrue(stepped.has_line(f"/src/{FILE}:{LINE}", "request_graph"))
        self.assertTrue(stepped.has_line(f"{FILE}:{LINE}", "request_graph"))
        for other in (f"{FILE}:{LINE}0", f"x{FILE}:{LINE}", FILE, None):
            self.assertFalse(stepped.has_line(other, "request_graph"))

    def test_objects_are_counted_by_kind(self):
        data = {"objects": {"calls": [{"kind": "stream"}, {"kind": "event"}], "columns": ["call"], "rows": [[0], [1], [1]]}}
        self.assertEqual(stepped.objects_in(data), "event=2 stream=1")
        self.assertEqual((stepped.count_of(data, "event"), stepped.count_of({}, "event")), (2, 0))

    def test_a_program_without_its_library_is_missing(self):
        def program(said):
            def fails(name):
                raise Failure(f"{name} was not built: {said}")

            return types.SimpleNamespace(program=fails)

        with self.assertRaises(Missing):
            stepped.program(program("ld: cannot find -lcufft"), "library-cufft")
        with self.assertRaises(Failure):
            stepped.program(program("undefined reference"), "library-cufft")


if __name__ == "__main__":
    unittest.main()
