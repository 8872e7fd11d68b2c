"""Tests of the comparison of other projects' programs, without a GPU."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import peers

CMAKE = """
add_executable(vectorAddDrv vectorAddDrv.cpp ../../../Common/helper.cpp)
target_link_libraries(vectorAddDrv PUBLIC
    CUDA::cuda_driver
    CUDA::cudart
)
set(CUDA_FATBIN_FILE "${CMAKE_CURRENT_BINARY_DIR}/vectorAdd_kernel64.fatbin")
set(CUDA_KERNEL_SOURCE "${CMAKE_CURRENT_SOURCE_DIR}/vectorAdd_kernel.cu")
"""


class Recipes(unittest.TestCase):
    def test_a_sample_is_built_as_its_cmake_file_describes(self):
        recipe = peers.recipe_of(CMAKE)
        self.assertEqual(recipe.name, "vectorAddDrv")
        self.assertEqual(recipe.sources, ["vectorAddDrv.cpp", "../../../Common/helper.cpp"])
        self.assertEqual(recipe.kernels, [("fatbin", "vectorAdd_kernel.cu", "vectorAdd_kernel64.fatbin")])
        self.assertEqual(recipe.libraries, ["cuda_driver"])


class Outputs(unittest.TestCase):
    def differences(self, bare, again, *watched):
        return peers.unlike(*([peers.lines(text) for text in runs] for runs in ((bare, again), watched)))

    def test_times_addresses_and_the_order_of_threads_are_ignored(self):
        self.assertEqual(self.differences("took 1.5 ms\nat 0x7f12\na\nb", "took 2.5 ms\nat 0x7f13\nb\na", "took 9.25 ms\nat 0x1\nb\na"), [])
        self.assertEqual(self.differences("chose 3\nPASSED", "chose 4\nPASSED", "chose 5\nPASSED"), [])

    def test_a_missing_added_or_changed_line_is_a_difference(self):
        self.assertEqual(len(self.differences("PASSED\nx", "PASSED\nx", "x")), 1)
        self.assertEqual(len(self.differences("PASSED", "PASSED", "PASSED\nwarning")), 1)
        self.assertEqual(len(self.differences("errors: 0", "errors: 0", "errors: 7")), 2)


    def test_a_line_of_one_of_two_runs_under_culeak_is_not_missing(self):
        self.assertEqual(self.differences("task 1 on device", "task 1 on device", "task 1 on host", "task 1 on device"), [])


class Outcomes(unittest.TestCase):
    def test_the_worst_phase_of_a_test_counts(self):
        outcomes = peers.outcomes("passed\ta\npassed\ta\npassed\ta\npassed\tb\nfailed\tb\npassed\tb\nskipped\tc\npassed\tc\npassed\td\npassed\td\nfailed\td\n")
        self.assertEqual(outcomes, {"a": "passed", "b": "failed", "c": "skipped", "d": "failed"})

    def test_a_test_that_never_ended_has_crashed(self):
        self.assertEqual(peers.outcomes("passed\ta\n"), {"a": "crashed"})


class Arguments(unittest.TestCase):
    def test_a_missing_folder_is_rejected(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-B", peers.HERE / "peers.py", folder + "/none"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("not a folder", done.stderr)


if __name__ == "__main__":
    unittest.main()
