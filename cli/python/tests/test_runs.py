"""How a run starts, and what it leaves: records, summary, recordings."""

import json
import os
import subprocess
import sys

import pytest

LEAKY = """
import pytest
from gpu import Tensor, occupy

def test_clean():
    Tensor(1 << 20)

@pytest.mark.parametrize("blocks", [1, 2])
def test_leaks(blocks):
    for _ in range(blocks):
        occupy(1 << 20)

def test_no_gpu_at_all():
    pass
"""


def records(pytester, name="out.jsonl"):
    lines = (pytester.path / name).read_text().splitlines()
    return {record["test"].split("::")[-1]: record for record in map(json.loads, lines)}


def test_every_test_has_a_record(run, pytester):
    result = run(LEAKY, "--culeak", "--culeak-out=out.jsonl", "--junitxml=out.xml")
    result.assert_outcomes(passed=4)
    found = records(pytester)
    sums = {name: (record["left_bytes"], record["peak_bytes"]) for name, record in found.items()}
    assert sums == {
        "test_clean": (0, 1 << 20),
        "test_leaks[1]": (1 << 20, 1 << 20),
        "test_leaks[2]": (2 << 20, 2 << 20),
        "test_no_gpu_at_all": (0, 0),
    }
    second = found["test_leaks[2]"]
    assert (second["before_bytes"], second["after_bytes"], second["left_count"]) == (1 << 20, 3 << 20, 2)
    assert [device["device"] for device in second["devices"]] == [0]
    assert second["outcome"] == "passed" and second["leaked_bytes"] == 2 << 20
    (site,) = second["sites"]
    assert (site["bytes"], site["blocks"], site["label"], site["place"]) == (2 << 20, 2, "occupy", "gpu.py:17")
    assert [(frame["function"], frame["line"]) for frame in site["stacks"][0]["frames"]] == [("test_leaks", 10), ("occupy", 17)]
    text = (pytester.path / "out.xml").read_text()
    assert '<property name="culeak_left_bytes" value="2097152" />' in text
    assert "2 MiB in 2 blocks  occupy  gpu.py:17" in text


def test_the_summary_names_the_tests_that_left_most(run):
    result = run(LEAKY, "--culeak", "--culeak-top=2")
    result.stdout.fnmatch_lines(
        [
            "*= GPU memory (culeak) =*",
            "      left     needed  test",
            "     2 MiB      2 MiB  test_it.py::test_leaks[[]2[]]",
            "                         2 MiB in 2 blocks  occupy  gpu.py:17",
            "     1 MiB      1 MiB  test_it.py::test_leaks[[]1[]]",
            "1 more not shown; 2 of 4 tests left 3 MiB; the most at once was 2 MiB, in test_it.py::test_leaks[[]2[]]",
        ]
    )


def test_a_run_without_cuda_reports_no_allocation(run):
    result = run("def test_nothing(): pass", "--culeak")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["no test allocated GPU memory"])


def test_workers_measure_their_own_tests(run, pytester):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    source = """
        import pytest
        from gpu import occupy

        @pytest.mark.limit_gpu_leaks("1 MiB")
        @pytest.mark.parametrize("blocks", [1, 2, 1, 2, 1, 2])
        def test_leaks(blocks, worker_id):
            for _ in range(blocks):
                occupy(1 << 20)
        """
    result = run(source, "--culeak", "-n2", "--culeak-out=out.jsonl", "--culeak-recordings=kept")
    result.assert_outcomes(passed=3, failed=3)
    lines = [json.loads(line) for line in (pytester.path / "out.jsonl").read_text().splitlines()]
    assert sorted(line["left_bytes"] for line in lines) == [1 << 20] * 3 + [2 << 20] * 3
    assert {line["worker"] for line in lines} == {"gw0", "gw1"}
    pids = {str(line["pid"]) for line in lines}
    assert len(pids) == 2 and {path.name.split(".")[-2] for path in (pytester.path / "kept").glob("*.culeak")} == pids
    result.stdout.fnmatch_lines(["*GPU memory left behind: 2 MiB in 2 blocks, allowed 1 MiB"])


def test_recordings_are_kept_only_in_the_requested_folder(run, pytester, monkeypatch):
    temporary = pytester.path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    run(LEAKY, "--culeak")
    assert not [path for path in temporary.iterdir() if path.name.startswith("culeak")]
    run(LEAKY, "--culeak", "--culeak-recordings=100% kept")
    (recording,) = (pytester.path / "100% kept").glob("*.culeak")
    report = subprocess.run([os.environ["CULEAK"], "report", str(recording)], stdout=subprocess.PIPE, universal_newlines=True)
    assert report.returncode == 0 and "3 MiB" in report.stdout, report.stdout


def test_a_run_within_culeak_run_uses_its_output_folder(run, pytester, plugin):
    run(LEAKY)
    words = [os.environ["CULEAK"], "check", "-o", "outer", "--", sys.executable, "-m", "pytest"]
    words += plugin + ["--culeak", "--culeak-allow=1MiB", "test_it.py"]
    outcome = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    assert outcome.returncode == pytest.ExitCode.TESTS_FAILED, outcome.stdout
    assert "GPU memory left behind: 2 MiB in 2 blocks, allowed 1MiB" in outcome.stdout
    assert "3 MiB" in outcome.stderr, outcome.stderr
    assert len(list((pytester.path / "outer").glob("*.culeak"))) == 1


def test_records_overwrite_a_file_only_with_force(run, pytester):
    pytester.makefile(".jsonl", out="precious")
    result = run(LEAKY, "--culeak", "--culeak-out=out.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*out.jsonl exists; name another file, or add --culeak-force"])
    assert (pytester.path / "out.jsonl").read_text().strip() == "precious"
    run(LEAKY, "--culeak", "--culeak-out=out.jsonl", "--culeak-force").assert_outcomes(passed=4)
    assert len(records(pytester)) == 4


def test_the_command_line_survives_the_restart(run):
    source = """
        import os

        def test_arguments(request):
            assert request.config.option.keyword == "arguments and not others"
            assert os.environ["CULEAK_PYTEST"] == str(os.getpid())
            print("out of", "capture")
        """
    result = run(source, "--culeak", "-k", "arguments and not others", "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["out of capture"])


def test_an_ini_file_can_enable_recording(run, pytester):
    pytester.makeini("[pytest]\nculeak = true\n")
    run(LEAKY).stdout.fnmatch_lines(["*= GPU memory (culeak) =*"])


def test_a_program_around_pytest_is_not_restarted(run, pytester, plugin):
    run(LEAKY)
    pytester.makepyfile(program="import pytest, sys; print('once'); sys.exit(pytest.main(sys.argv[1:]))")
    words = [sys.executable, "program.py"] + plugin + ["--culeak", "test_it.py"]
    outcome = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert outcome.returncode == pytest.ExitCode.USAGE_ERROR
    assert outcome.stdout.count("once") == 1
    assert "LD_PRELOAD=$(culeak shim-path) CULEAK_INTERVALS=1" in outcome.stdout


def test_an_interpreter_that_ignores_the_preload_is_reported_after_one_restart(run, pytester, monkeypatch):
    # The library exists, but is not the recorder.
    import _ctypes

    monkeypatch.setenv("CULEAK_SHIM", _ctypes.__file__)
    result = run(LEAKY, "--culeak")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*does not load the preload library*"])
