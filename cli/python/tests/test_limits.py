"""Tests with limits: their results, and the messages when they fail."""

import json

import pytest


def expect_failure(run, source, *lines):
    """The only test of this source fails, and the output has these lines."""
    result = run(source, "--culeak")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(list(lines))


def test_memory_that_outlives_its_test_fails_it_with_the_lines_that_allocated_it(run):
    expect_failure(
        run,
        """
        import pytest
        from gpu import occupy

        cache = []

        def fill(blocks):
            for _ in range(blocks):
                cache.append(occupy(1 << 20))

        @pytest.mark.limit_gpu_leaks("2 MB")
        def test_fills():
            fill(3)
        """,
        "GPU memory left behind: 3 MiB in 3 blocks, allowed 2 MB",
        "3 MiB in 3 blocks (device, GPU 0)",
        "    test_it.py:12: in test_fills",
        "        fill(3)",
        "    test_it.py:8: in fill",
        "        cache.append(occupy(1 << 20))",
    )


def test_every_stack_of_a_line_is_listed(run):
    expect_failure(
        run,
        """
        import pytest
        from gpu import occupy

        @pytest.mark.limit_gpu_leaks("1 MiB")
        def test_two_ways():
            occupy(1 << 20)
            occupy(2 << 20)
        """,
        "3 MiB in 2 blocks (device, GPU 0)",
        "  2 MiB in 1 block of them",
        "        occupy(2 << 20)",
        "  1 MiB in 1 block of them",
        "        occupy(1 << 20)",
    )


def test_exactly_the_limit_passes(run):
    result = run(
        """
        import pytest
        from gpu import occupy

        @pytest.mark.limit_gpu_leaks("1 MiB")
        def test_leaks_a_little():
            occupy(1 << 20)

        @pytest.mark.limit_gpu_leaks(0)
        def test_leaks_more():
            occupy(1)
        """,
        "--culeak",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["GPU memory left behind: 1 B in 1 block, allowed 0 B"])


def test_memory_of_other_tests_and_of_fixtures_does_not_count(run):
    result = run(
        """
        import pytest
        from gpu import Tensor, occupy, free

        kept = []

        @pytest.fixture
        def model():
            return Tensor(1 << 20)

        def test_leaks_without_a_limit():
            kept.append(occupy(4096))

        @pytest.mark.limit_gpu_leaks(0)
        def test_uses(model):
            free(kept.pop())
            Tensor(5000)
        """,
        "--culeak",
    )
    result.assert_outcomes(passed=2)


def test_garbage_cycles_are_no_leak(run):
    result = run(
        """
        import gc
        import pytest
        from gpu import Tensor

        gc.disable()

        @pytest.mark.limit_gpu_leaks(0)
        def test_makes_a_cycle():
            tensor = Tensor(1 << 20)
            tensor.itself = tensor
        """,
        "--culeak",
    )
    result.assert_outcomes(passed=1)


def test_warm_ups_fill_caches_before_the_measurement(run):
    source = """
        import pytest
        from gpu import occupy

        cache = {}
        runs = []

        @pytest.fixture
        def name():
            return "weights"

        @pytest.mark.limit_gpu_leaks(0%s)
        def test_looks_up(name):
            runs.append(name)
            cache.setdefault(name, len(cache) or occupy(1 << 20))

        def test_ran():
            assert len(runs) == %d
        """
    run(source % ("", 1), "--culeak").assert_outcomes(failed=1, passed=1)
    run(source % (", warmups=2", 3), "--culeak").assert_outcomes(passed=2)


def test_the_peak_is_exact_and_counts_the_test_alone(run):
    result = run(
        """
        import pytest
        from gpu import Tensor

        before = Tensor(1 << 30)

        @pytest.mark.limit_gpu_memory("3 MiB")
        def test_as_much_as_allowed():
            a, b = Tensor(1 << 20), Tensor(2 << 20)

        @pytest.mark.limit_gpu_memory("3 MiB")
        def test_a_byte_more():
            a, b = Tensor(1 << 20), Tensor((2 << 20) + 1)

        @pytest.mark.limit_gpu_memory("3 MiB")
        def test_one_after_the_other():
            for _ in range(10):
                Tensor(3 << 20)
        """,
        "--culeak",
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "GPU memory needed: 3 MiB at once, allowed 3 MiB",
            "When it exceeded the limit, it held 3 MiB:",
            "    test_it.py:12: in test_a_byte_more",
        ]
    )


def test_both_devices_count_together(run):
    expect_failure(
        run,
        """
        import pytest
        from gpu import occupy, use

        @pytest.mark.limit_gpu_memory("3000 B")
        def test_two():
            occupy(2000)
            use(1)
            occupy(2000)
        """,
        "GPU memory needed: 3.9 KiB at once, allowed 3000 B",
    )


def test_a_test_that_fails_for_another_reason_reports_that_reason(run):
    result = run(
        """
        import pytest
        from gpu import Tensor

        @pytest.mark.limit_gpu_leaks(0)
        def test_breaks():
            tensor = Tensor(1 << 20)
            assert tensor is None
        """,
        "--culeak",
    )
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*left behind*")


def test_an_expected_leak_is_an_expected_failure(run):
    result = run(
        """
        import pytest
        from gpu import occupy

        @pytest.mark.xfail
        @pytest.mark.limit_gpu_leaks(0)
        def test_leaks():
            occupy(1)
        """,
        "--culeak",
    )
    result.assert_outcomes(xfailed=1)


def test_suppressed_sites_are_no_leak(run, pytester):
    pytester.makefile(".supp", known="leak:known_leak\n")
    result = run(
        """
        import pytest
        from gpu import occupy

        def known_leak():
            occupy(1 << 20)

        @pytest.mark.limit_gpu_leaks(0)
        def test_known():
            known_leak()

        @pytest.mark.limit_gpu_leaks(0)
        def test_both():
            known_leak()
            occupy(1)
        """,
        "--culeak",
        "--culeak-suppressions=known.supp",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["GPU memory left behind: 1 B in 1 block, allowed 0 B", "Another 1 MiB is suppressed."])


def test_every_test_can_be_limited(run):
    source = """
        import unittest
        from gpu import occupy

        class TestCase(unittest.TestCase):
            def test_leaks(self):
                occupy(1 << 20)
        """
    run(source, "--culeak", "--culeak-allow", "1KiB").assert_outcomes(failed=1)
    run(source, "--culeak", "--culeak-allow", "1MiB").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "mark, reason",
    [
        ('limit_gpu_leaks("much")', "leaks: expected a size such as*"),
        ("limit_gpu_leaks()", "leaks: *missing*argument*limit*"),
        ('limit_gpu_leaks("1 MB", warmups=-1)', "leaks: warmups must be a whole number*"),
        ('limit_gpu_memory("1 MB", 2)', "memory: *argument*"),
        ("limit_gpu_objects()", "objects: it names no kind of object*"),
        ("limit_gpu_objects(streams=1)", "objects: no kind of object is called 'streams'; there are *stream, event*"),
        ("limit_gpu_objects(stream=-1)", "objects: stream must be a whole number of objects*"),
        ("limit_gpu_objects(3)", "objects: *argument*"),
    ],
    ids=["no size", "nothing", "negative", "too much", "no kind", "unknown kind", "negative number", "no name"],
)
def test_an_invalid_mark_is_an_error_of_its_test_alone(run, mark, reason):
    source = """
        import pytest

        @pytest.fixture
        def model():
            print("was here")

        @pytest.mark.{}
        def test_nothing(model):
            print("was here")

        def test_other():
            pass
        """.format(mark)
    result = run(source, "--culeak", "-s")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["culeak: error: mark limit_gpu_" + reason + "; correct the mark"])
    result.stdout.no_fnmatch_line("*was here*")
    result.stdout.no_fnmatch_line("*During handling*")


def test_limits_that_are_not_checked_cause_a_warning(run):
    result = run(
        """
        import pytest

        @pytest.mark.limit_gpu_leaks(0)
        def test_one(): pass
        def test_two(): pass
        """
    )
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*limits on GPU memory were not checked for 1 of 2 tests; run pytest with --culeak*"])


@pytest.mark.parametrize("option", ["--culeak-why", "--culeak"])
def test_a_failure_says_what_holds_the_memory_if_the_process_may_be_read(run, option):
    result = run(
        """
        import ctypes
        import pytest
        from gpu import occupy

        # Where only parents may read a process, this permits it.
        assert ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1)) in (0, -1)
        cache = []

        def fill(blocks):
            for _ in range(blocks):
                cache.append(occupy(1 << 20))

        @pytest.mark.limit_gpu_leaks("2 MiB")
        def test_fills():
            fill(3)
        """,
        "--culeak",
        option,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["        cache.append(occupy(1 << 20))", "  held by test_it.cache (list of 3)*"])


OBJECTS = """
import pytest
from gpu import destroy, stream

def connect(count):
    return [stream() for _ in range(count)]

before = connect(5)

@pytest.mark.limit_gpu_objects(stream=2, graph_exec=0)
@pytest.mark.parametrize("count", [2, 3])
def test_connects(count):
    connect(count)
    destroy(stream())
"""


def test_objects_that_outlive_their_test_fail_it_with_the_line_that_created_them(run, pytester):
    result = run(OBJECTS, "--culeak", "--culeak-out=out.jsonl")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_connects[[]3[]]*",
            "CUDA objects left behind: 3 stream objects, allowed 2",
            "",
            "3 stream objects (cuStreamCreate)",
            "    test_it.py:12: in test_connects",
            "        connect(count)",
            "    test_it.py:5: in connect",
            "        return [[]stream() for _ in range(count)[]]",
        ]
    )
    lines = map(json.loads, (pytester.path / "out.jsonl").read_text().splitlines())
    found = [[(row["kind"], row["count"], row["place"], row["to_blame"]) for row in line["objects"]] for line in lines]
    assert found == [[("stream", 2, "gpu.py:27", False)], [("stream", 3, "gpu.py:27", True)]]


def test_every_test_can_have_a_limit_of_objects(run):
    source = """
        import pytest
        from gpu import occupy, stream

        def test_leaves_a_stream():
            stream()

        @pytest.mark.limit_gpu_objects(stream=1)
        def test_with_a_mark():
            stream()

        def test_clean():
            pass
        """
    run(source, "--culeak", "--culeak-allow=stream=0").assert_outcomes(passed=2, failed=1)
    run(source, "--culeak", "--culeak-allow", "1GiB,stream=1,event=0").assert_outcomes(passed=3)
    run(source, "--culeak").assert_outcomes(passed=3)


def test_memory_and_objects_fail_with_both_reasons(run):
    expect_failure(
        run,
        """
        import pytest
        from gpu import occupy, stream

        @pytest.mark.limit_gpu_leaks(0)
        @pytest.mark.limit_gpu_objects(stream=0)
        def test_both():
            occupy(1 << 20)
            stream()
        """,
        "GPU memory left behind: 1 MiB in 1 block, allowed 0 B",
        "CUDA objects left behind: 1 stream object, allowed 0",
    )


def test_warm_ups_and_garbage_leave_no_objects(run):
    result = run(
        """
        import pytest
        from gpu import destroy, stream

        streams = []

        class Stream:
            def __init__(self):
                self.handle, self.itself = stream(), self

            def __del__(self):
                destroy(self.handle)

        @pytest.mark.limit_gpu_objects(stream=0, warmups=1)
        def test_lazily():
            Stream()
            if not streams:
                streams.append(stream())
        """,
        "--culeak",
    )
    result.assert_outcomes(passed=1)


def test_a_limit_of_objects_in_a_run_without_cuda_passes(run):
    source = """
        import pytest

        @pytest.mark.limit_gpu_objects(stream=0)
        def test_nothing():
            pass
        """
    run(source, "--culeak").assert_outcomes(passed=1)


def test_suppressed_objects_are_no_leak(run, pytester):
    pytester.makefile(".supp", known="leak:pool_of_streams\n")
    result = run(
        """
        import pytest
        from gpu import stream

        def pool_of_streams():
            return [stream() for _ in range(4)]

        @pytest.mark.limit_gpu_objects(stream=0)
        def test_known():
            pool_of_streams()

        @pytest.mark.limit_gpu_objects(stream=0)
        def test_both():
            pool_of_streams()
            stream()
        """,
        "--culeak",
        "--culeak-suppressions=known.supp",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["CUDA objects left behind: 1 stream object, allowed 0", "Another 4 suppressed."])


def test_a_test_whose_allocations_could_not_be_recorded_does_not_pass(run):
    result = run(
        """
        import resource
        import pytest
        from gpu import occupy, free

        def allocates_much():
            for address in [occupy(16) for _ in range(70000)]:
                free(address)

        @pytest.mark.limit_gpu_leaks("1 GiB")
        def test_on_a_full_disk():
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
            try:
                allocates_much()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

        @pytest.mark.limit_gpu_leaks("1 GiB")
        def test_that_leaves_memory_later():
            occupy(100)

        def test_without_a_limit():
            occupy(100)
        """,
        "--culeak",
    )
    result.assert_outcomes(failed=2, passed=1)
    message = "No verdict on GPU memory: an allocation could not be recorded, so free disk space for the recording*"
    # Whether the recording has room again in the next test depends on when it last tried to grow.
    later = "No verdict on GPU memory: *allocation* could not be recorded*free disk space for the recording*"
    result.stdout.fnmatch_lines(["*test_on_a_full_disk*", message, "*test_that_leaves_memory_later*", later])


def test_a_test_that_may_use_a_pool_whose_blocks_are_unknown_does_not_pass(run, cupy):
    result = run(
        """
        import pytest
        from gpu import driver

        @pytest.fixture(scope="module")
        def pool():
            import cupy
            cupy.grow(driver, 8 << 20)

        @pytest.mark.limit_gpu_leaks("1 MiB")
        def test_before_there_is_a_pool():
            pass

        @pytest.mark.limit_gpu_leaks("1 MiB")
        def test_that_may_leave_blocks_in_the_pool(pool):
            pass

        @pytest.mark.limit_gpu_memory("1 MiB")
        def test_that_may_need_blocks_of_the_pool(pool):
            pass

        @pytest.mark.limit_gpu_leaks("8 MiB")
        def test_with_a_limit_above_the_pool(pool):
            pass

        def test_without_a_limit(pool):
            pass
        """,
        "--culeak",
    )
    result.assert_outcomes(failed=2, passed=3)
    message = "No verdict on GPU memory: 8 MiB in CuPy's pool: which part is in use is unknown; record with CULEAK_ADAPTERS=cupy*"
    result.stdout.fnmatch_lines(["*test_that_may_leave_blocks*", message, "*test_that_may_need_blocks*", message])
