"""Tests of the harness itself, without a GPU: a hand-made snapshot, right and wrong. Run: python3 -m unittest discover tests/gpu"""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import claims
import frameworks
import harness
from harness import Failure, Finished, Live, Missing, Snapshot

FILE, LINE = harness.site("cudaMalloc")


def row(**changes):
    return {
        "address": 0x7F00, "bytes": 1000, "requested": 1000, "kind": "device", "api": "cuMemAlloc_v2", "device": 0, "context": 0,
        "stream": None, "pool": None, "thread": 0, "time_ns": 5, "stack": 0, **changes,
    }  # fmt: skip


COLUMNS = ["address", "bytes", "time_ns", "stack", "call", "requested"]


def table(rows):
    calls = [{name: row[name] for name in row if name not in COLUMNS} for row in rows]
    own = [{**row, "call": call} for call, row in enumerate(rows)]
    return {"calls": calls, "columns": COLUMNS, "rows": [[row[name] for name in COLUMNS] for row in own]}


def snapshot(*rows, live_bytes=1000, **losses):
    symbols = [
        {"function": "helper", "file": "/src/util.h", "line": 3, "inlined": True},
        {"function": "case_cudaMalloc", "file": "/src/" + FILE, "line": LINE, "inlined": False},
    ]
    counters = [{"device": 0, "kind": "device", "live_bytes": live_bytes, "peak_bytes": 4000, "live_count": 1, "total_count": 2, "freed_count": 1}]
    return Snapshot({
        "allocations": table(rows), "counters": counters, "failed": [],
        "stacks": [{"frames": [0, 1], "truncated": False}],
        "locations": [{"module": 0, "address": 16, "symbols": symbols}, {"module": None, "address": 32, "symbols": []}],
        "modules": [{"path": "/bin/rt-static"}],
        "losses": {"lost_allocations": 0, "lost_stacks": 0, "vanished": 0, **losses},
    }, "hand-made")  # fmt: skip


TRUTH = Live(1, "cudaMalloc", "device", 0x7F00, 1000, 1000)


class Rows(unittest.TestCase):
    def test_a_correct_snapshot_passes(self):
        good = snapshot(row(), row(kind="reserved", bytes=0, address=1))
        good.expect_exactly([TRUTH])
        good.expect_site(good.find(TRUTH), "cudaMalloc")
        good.expect_function(good.find(TRUTH), "case_cudaMalloc")
        good.expect_no_duplicates()

    def test_each_kind_of_error_is_a_failure(self):
        for wrong, truth in [
            (snapshot(), [TRUTH]),
            (snapshot(row(), row()), [TRUTH]),
            (snapshot(row(), row(address=2), live_bytes=2000), [TRUTH]),
            (snapshot(row(bytes=1024)), [TRUTH]),
            (snapshot(row(requested=999)), [TRUTH]),
            (snapshot(row(kind="async")), [TRUTH]),
            (snapshot(row(), live_bytes=1001), [TRUTH]),
            (snapshot(row(), live_bytes=5000), [TRUTH]),
            (snapshot(row(), lost_stacks=1), [TRUTH]),
        ]:
            with self.assertRaises(Failure):
                wrong.expect_exactly(truth)

    def test_a_wrong_line_or_function_is_a_failure(self):
        good = snapshot(row())
        with self.assertRaises(Failure):
            good.expect_site(good.rows[0], "cudaHostAlloc")
        with self.assertRaises(Failure):
            good.expect_function(good.rows[0], "case_cudaHostAlloc")

    def test_modules_are_found_in_stacks(self):
        self.assertEqual(frameworks.bytes_by_module(snapshot(row()), ["device"], "rt-"), (1000, 1))
        self.assertEqual(frameworks.bytes_by_module(snapshot(row()), ["device"], "libc10"), (0, 0))


    def test_python_frames_are_compared_in_order(self):
        outer = [["step", "/src/train.py", 7], ["<module>", "/src/train.py", 9]]
        good = snapshot(row())
        frames = [["inner", "/lib/empty.py", 1], *outer]
        good.data["locations"] = [{"module": 0, "address": 16, "symbols": []}]
        for function, file, line in frames:
            symbols = [{"function": function, "file": file, "line": line, "inlined": False}]
            good.data["locations"].append({"module": None, "address": 4, "symbols": symbols, "language": "python"})
        good.data["stacks"] = [{"frames": [0, 1, 0, 2, 3, 0], "truncated": False}]
        good.expect_lines("all", 0x7F00, frames)
        good.expect_lines("inside", 0x7F00, outer, inside=True)
        for wrong in [outer, frames[:2], frames[::-1], [["step", "/src/train.py", 8], outer[1]]]:
            with self.assertRaises(Failure):
                good.expect_lines("wrong", 0x7F00, wrong)
        with self.assertRaises(Failure):
            good.expect_lines("nowhere", 0x7F01, frames)


class Programs(unittest.TestCase):
    def finished(self, out, code=0):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "rec").mkdir()
        (folder / "stdout").write_text(out)
        (folder / "stderr").write_text("")
        return Finished(None, ["program"], folder, code, 0.1)

    def test_lines_are_read(self):
        done = self.finished("LIVE 7 a device 0x10 5 4\nFACT 8 pool 0xff\nRESULT x 1\nLIVE 9 b async 0x20 5 5\n")
        self.assertEqual(done.live(), [Live(7, "a", "device", 16, 5, 4), Live(9, "b", "async", 32, 5, 5)])
        self.assertEqual((done.live(9)[0].label, done.fact("pool"), done.pid_of("pool"), done.pid_of("a")), ("b", 255, 8, 7))
        self.assertEqual(done.results(), ["x 1"])

    def test_exit_codes_and_missing_features(self):
        with self.assertRaises(Failure):
            self.finished("", code=3).must(0)
        with self.assertRaises(Missing):
            self.finished("UNSUPPORTED 7 some feature\n").must(0)

    def test_recordings_are_found_by_pid(self):
        done = self.finished("")
        for name in ("rt.host.12.culeak", "rt.host.112.culeak"):
            (done.folder / "rec" / name).touch()
        self.assertEqual(done.recording(12).name, "rt.host.12.culeak")
        with self.assertRaises(Failure):
            done.recording()


class Names(unittest.TestCase):
    def test_api_versions_are_dropped(self):
        for name in ("cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocAsync_v2", "cuMemAllocAsync_v2_ptsz"):
            self.assertEqual(harness.plain_api(name), "cuMemAllocAsync")
        self.assertEqual(harness.plain_api("cuArray3DCreate_v2"), "cuArray3DCreate")

    def test_every_call_site_named_in_a_claim_is_marked(self):
        for label in [*claims.RUNTIME_CALLS, *claims.DRIVER_CALLS, "vmm", "threads", "many", "cudarc", "plugin"]:
            self.assertTrue(harness.site(label))


if __name__ == "__main__":
    unittest.main()
