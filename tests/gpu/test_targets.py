"""Tests of how costs are compared, without a GPU: bare and recorded by turns in one process, and what the README quotes of it."""

import pathlib
import re
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "benches" / "compare")]

import targets
from harness import Failure

NUMBER = r"([\d.]+)"
# By the row of the targets in docs/measurements.md that the README's table quotes: where it does so.
QUOTED = {
    "cudaMallocAsync + cudaFreeAsync": rf"`cudaFreeAsync` \| {NUMBER} times bare",
    "`--sample 512KiB`: cudaMallocAsync + cudaFreeAsync": rf"`cudaFreeAsync` \| .* with `--sample 512KiB` {NUMBER} times",
    "transformer step, caching on: every tensor recorded": rf"every tensor recorded \| {NUMBER} times bare",
    "`--sample 512KiB`: transformer step, caching on": rf"every tensor recorded \| .* with `--sample 512KiB` {NUMBER} times",
    "`import torch` and a first tensor": rf"a first tensor \| {NUMBER} times bare",
    "/bin/true under the preload": rf"does not use CUDA \| {NUMBER} ms",
}


def trial(folder, outputs):
    """What `Switched` needs of the bench: a machine on which the programs print these texts, one after the other."""
    (folder / "bin").mkdir()
    (folder / "bin" / "switch.so").touch()
    texts = iter(outputs)

    def run(*command, **options):
        done = types.SimpleNamespace(out=next(texts), err="")
        done.must = lambda: done
        return done

    machine = types.SimpleNamespace(out=folder, run=run)
    return types.SimpleNamespace(machine=machine, quiet={}, left=lambda seconds: seconds, times=lambda wanted: wanted)


class Turns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_process_that_is_slower_than_its_neighbours_changes_no_ratio(self):
        slower = [1, 1.7, 1.7, 1, 1.7]
        outputs = [f"WAY bare {600 * by:.1f} 1.000\nWAY culeak {792 * by:.1f} 1.320\n" for by in slower]
        seen = targets.Switched(trial(self.folder, outputs), len(slower), ["cost", "ordered_pair"])
        self.assertEqual(seen.words(), "1.320 (1.320 to 1.320)")
        self.assertEqual((seen.figure("bare"), seen.figure("culeak")), (600 * 1.7, round(792 * 1.7, 1)))

    def test_a_program_without_turns_has_no_ratio(self):
        with self.assertRaises(Failure):
            targets.Switched(trial(self.folder, ["NANOSECONDS 760\n"]), 1, ["cost", "ordered_pair"])


class Readme(unittest.TestCase):
    def test_its_costs_are_those_of_the_targets(self):
        readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/measurements.md"))
        rows = dict(re.findall(r"^\| (.+?) \| <= [^|]* \| ([^|]*) \|", page, re.M))
        for row, words in QUOTED.items():
            quoted = re.search(words, readme)
            self.assertIsNotNone(quoted, words)
            measured = re.search(r"\d+\.\d+", rows[row])
            self.assertAlmostEqual(float(quoted[1]), float(measured[0]), delta=0.0051, msg=row)


if __name__ == "__main__":
    unittest.main()
