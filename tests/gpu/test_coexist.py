"""Checks of the claims about other tools, on synthetic programs and files: no GPU."""

import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import coexist
import harness
from harness import CULEAK, Machine, Missing

OTHER = "/lib/other.so"


class Preloads(unittest.TestCase):
    def setUp(self):
        self.out = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.shim = self.out / "libculeak.so"
        self.shim.touch()
        self.machine = Machine(self.out, self.out, "culeak", self.shim, sys.executable)

    def preloaded(self, how, preload):
        return self.machine.wrapped(["program"], how, "rec", preload)[1].get("LD_PRELOAD")

    def test_both_orders_are_as_requested(self):
        self.assertEqual(self.preloaded("preload", coexist.ORDERS["before"](OTHER)), f"{OTHER}:{self.shim}")
        self.assertEqual(self.preloaded("preload", coexist.ORDERS["behind"](OTHER)), f"{self.shim}:{OTHER}")
        self.assertEqual(self.preloaded("bare", (OTHER,)), OTHER)
        self.assertEqual(self.preloaded("preload", ()), str(self.shim))
        self.assertIsNone(self.preloaded("bare", ()))

    def test_culeak_is_preloaded_in_recorded_runs_and_not_in_bare_ones(self):
        for how, preload in (("bare", (OTHER, CULEAK)), ("preload", (OTHER,)), ("run", (OTHER, CULEAK))):
            with self.assertRaises(ValueError):
                self.preloaded(how, preload)

    def test_runs_with_different_preloads_are_not_shared(self):
        # An empty file is not a library: the loader prints a message and continues.
        other = self.out / "other.so"
        other.touch()
        command = [sys.executable, "-c", "import os; print(os.environ.get('LD_PRELOAD', ''))"]
        alone = self.machine.run(*command, how="bare")
        beside = self.machine.run(*command, how="bare", preload=(other,))
        self.assertEqual((alone.out.strip(), beside.out.strip()), ("", str(other)))
        self.assertIs(self.machine.run(*command, how="bare", preload=(other,)), beside)


class Inputs(unittest.TestCase):
    def test_an_input_that_is_not_given_is_reported_as_missing(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("HAMI_CORE", None)
            with self.assertRaises(Missing) as missing:
                coexist.named("HAMI_CORE", "HAMi-core", "libvgpu.so")
        self.assertIn("HAMI_CORE is not set to a folder that contains libvgpu.so", str(missing.exception))

    def test_an_input_is_found_anywhere_in_its_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder, "build", "libvgpu.so")
            library.parent.mkdir()
            library.touch()
            with mock.patch.dict(os.environ, {"HAMI_CORE": folder}):
                self.assertEqual(coexist.named("HAMI_CORE", "HAMi-core", "libvgpu.so"), library)


class Ledgers(unittest.TestCase):
    def test_pytorchs_bytes_are_its_blocks_its_cache_and_its_pool(self):
        lines = [("blocks", "PyTorch", 5), ("cached", "PyTorch", 3), ("blocks", "CuPy", 70), ("program", None, 100), ("cached", "CuPy", 0)]
        report = {"ledger": {"devices": [{"lines": [{"what": w, "of": o, "bytes": b} for w, o, b in lines]}]}}
        ledger = coexist.ledger_of(report)
        self.assertEqual(len(ledger), 4)
        self.assertEqual(coexist.pytorchs(ledger), 8)

    def test_every_claim_names_both_orders(self):
        names = [c.name for c in harness.claims if c.function.__module__ == "harness" or c.name.startswith(("released_memory_is", "beside_hami"))]
        for place in coexist.ORDERS:
            self.assertTrue(any(f"beside_hami_core_every_row_is_exact[{place}:" in name for name in names), place)
            self.assertTrue(any(f"[stand_in:{place}:asleep]" in name for name in names), place)


if __name__ == "__main__":
    unittest.main()
