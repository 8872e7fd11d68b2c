"""The parts of the package, without running pytest."""

import subprocess
import sys

import pytest

import culeak
from culeak.command import CommandMissing, find_command
from culeak.limits import KINDS, parse_allow
from culeak.preload import _is_only_pytest, changed
from culeak.recorder import mark_name
from culeak.sizes import parse_size, show_size


@pytest.mark.parametrize(
    "text, size",
    [("0", 0), ("1 MB", 10**6), ("1 MiB", 1 << 20), ("2G", 2 << 30), ("1.5 GiB", 3 << 29), (" 7 b ", 7), (4096, 4096)],
)
def test_sizes_are_read_as_the_command_reads_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1 XB", "1e3", "١", None, -1, True, 1.5])
def test_invalid_sizes_are_rejected(text):
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    "size, text", [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), ((1 << 30) - 1, "1 GiB"), (1 << 62, "4 EiB")]
)
def test_sizes_are_shown_as_the_command_shows_them(size, text):
    assert show_size(size) == text


def test_the_library_is_preloaded_first_and_others_stay(tmp_path):
    environment = changed({"LD_PRELOAD": "/a.so /lib/culeak.so:/b.so", "CULEAK_DISABLE": "1"}, "/lib/culeak.so", str(tmp_path / "100%"))
    assert environment["LD_PRELOAD"] == "/lib/culeak.so:/a.so:/b.so"
    assert environment["CULEAK_OUTPUT"] == "{}/100%%/%e.%h.%p.culeak".format(tmp_path)
    assert "CULEAK_DISABLE" not in environment
    outer = {"LD_PRELOAD": "/lib/culeak.so", "CULEAK_OUTPUT": "/somewhere/"}
    assert changed(outer, "/lib/culeak.so", None)["CULEAK_OUTPUT"] == "/somewhere/"


@pytest.mark.parametrize(
    "line, only",
    [
        ("python -m pytest -x", True),
        ("python -mpytest", True),
        ("python -Bm pytest", True),
        ("python --check-hash-based-pycs=never -B -W error -m coverage run -m pytest", True),
        ("python /venv/bin/pytest tests", True),
        ("python /lib/pytest/__main__.py", True),
        ("python run_tests.py pytest", False),
        ("python -c import_pytest", False),
        ("python -m unittest", False),
        ("python", False),
    ],
)
def test_only_a_process_that_runs_pytest_alone_is_restarted(line, only):
    assert _is_only_pytest(line.split()) == only


def test_names_of_marks_are_limited_to_what_a_recording_can_hold():
    assert mark_name("test_a[\0\udcff]") == "test_a[\\0\\udcff]"
    assert len(mark_name("x" * 5000)) == 1000


def test_without_the_library_marks_do_nothing():
    assert not culeak.is_recorded()
    culeak.mark("epoch 3")
    culeak.snapshot("after warm-up")


def test_the_package_runs_the_command():
    versions = [
        subprocess.run(words + ["--version"], stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
        for words in ([find_command()], [sys.executable, "-m", "culeak"])
    ]
    assert versions[0] == versions[1] and versions[0].startswith("culeak ")


def test_an_invalid_path_of_the_command_is_named(monkeypatch):
    monkeypatch.setenv("CULEAK", "/nowhere/culeak")
    with pytest.raises(CommandMissing, match="CULEAK=/nowhere/culeak: not an executable file"):
        find_command()


def test_the_kinds_of_objects_are_those_of_the_command():
    words = [find_command(), "check", "none.json", "--allow", "none=1"]
    refused = subprocess.run(words, stderr=subprocess.PIPE, universal_newlines=True)
    listed = refused.stderr.split("objects: ")[1].split("\n\n")[0]
    assert sorted(listed.replace("\n", " ").replace(",", " ").split()) == sorted(KINDS)


@pytest.mark.parametrize("text", ["stream", "stream=", "stream=-1", "stream=1MiB", "tape=1", "=1", "", "1,2", "stream=1,stream=2"])
def test_invalid_limits_are_rejected(text):
    with pytest.raises(ValueError):
        parse_allow(text)


def test_limits_of_objects_are_read_with_either_dash():
    assert parse_allow("graph-exec=4") == parse_allow("graph_exec=4") == (None, (("graph-exec", 4),))
    with pytest.raises(ValueError, match="two limits of one thing"):
        parse_allow("graph-exec=4,graph_exec=5")
