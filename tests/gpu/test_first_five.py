"""Tests of the count of reports whose first five lines name the line to blame, without a GPU."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import first_five
from harness import HERE, site


class FirstFive(unittest.TestCase):
    def test_the_line_to_blame_is_the_marked_one_of_the_programs_function(self):
        answers = HERE / "victims" / "fw_answers.py"
        self.assertEqual(first_five.blamed(answers, "kept_losses"), site("answer_kept_losses"))
        self.assertIsNone(first_five.blamed(answers, "nothing"))
        for command in ("run -- python3 /x/victims/fw_answers.py kept_losses", "run -o rec -- python3 -B /x/victims/fw_answers.py kept_losses more"):
            self.assertEqual(first_five.program(command), (*site("answer_kept_losses"), "fw_answers kept_losses"))
        for command in ("run -- ./rt-shared", "run -- python3 /x/victims/fw_ends.py growing_list repaired", "run -- python3 /x/victims/fw_answers.py"):
            self.assertIsNone(first_five.program(command))

    def test_a_line_counts_in_the_first_five_alone(self):
        report = lambda place, above: "other.py:1\n" * above + f"  2 MiB  in 1 block  f  {place}\n"
        self.assertTrue(first_five.is_named(report("a.py:12", 4), "a.py", 12))
        self.assertFalse(first_five.is_named(report("a.py:12", 5), "a.py", 12))
        self.assertFalse(first_five.is_named(report("a.py:123", 0), "a.py", 12))

    def test_a_program_counts_once_and_without_a_recording_not_at_all(self):
        with tempfile.TemporaryDirectory() as folder:
            out, (file, line) = pathlib.Path(folder), site("answer_kept_losses")
            for nth, (name, recorded) in enumerate([("kept_losses", True), ("kept_losses", True), ("kept_arrays", True), ("kept_model", False)]):
                run = out / "runs" / f"{nth:03d}"
                (run / "rec").mkdir(parents=True)
                (run / "command").write_text(f" culeak run -- python3 /x/victims/fw_answers.py {name}\n")
                if recorded:
                    (run / "rec" / "a.culeak").touch()
            results = first_five.judged(out, lambda recording: f"f {file}:{line}")
            self.assertEqual(results, {"fw_answers kept_losses": True, "fw_answers kept_arrays": False})


if __name__ == "__main__":
    unittest.main()
