"""Checks of the table of the endurance run: no GPU."""

import contextlib
import io
import pathlib
import re
import unittest

import endurance
from harness import Failure


def fails():
    raise Failure("it does not hold")


class Table(unittest.TestCase):
    def shown(self, *ran):
        table, out = endurance.Table(("first", "second")), io.StringIO()
        with contextlib.redirect_stdout(out):
            for what, function in ran:
                table.check(what, function)
            return table.show(), out.getvalue()

    def test_all_checks_must_run_and_hold(self):
        self.assertTrue(self.shown(("first", str), ("second", str))[0])
        is_passed, out = self.shown(("first", str), ("second", fails), ("second", str))
        self.assertFalse(is_passed, out)
        is_passed, out = self.shown(("first", str))
        self.assertFalse(is_passed)
        self.assertIn("FAILED  second: it never ran", out)

    def test_the_list_has_the_checks_of_the_script(self):
        script = pathlib.Path(endurance.__file__).read_text()
        called = re.findall(r'(?:table\.check|self\.every)\((?:pace\["\w+"\], )?"([^"]+)"', script)
        self.assertEqual(sorted(called), sorted(endurance.CHECKS + endurance.CHECKS_OF_GPU))


if __name__ == "__main__":
    unittest.main()
