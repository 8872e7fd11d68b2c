"""The variable CULEAK_ADAPTERS, in interpreters that `culeak run` starts and in their children."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import culeak
from culeak.command import find_command

#: Whether this process waits for the import of a framework, and its variable.
WAITS = """
import os, sys
print(any(type(finder).__module__ == "culeak.adapters.imports" for finder in sys.meta_path), os.environ.get("CULEAK_ADAPTERS"))
"""


@pytest.fixture
def run(tmp_path):
    """run(script, variable): the output of a recorded program."""
    command = find_command()
    fake = subprocess.run([command, "shim-path", "--fake-driver"], stdout=subprocess.PIPE, check=True, universal_newlines=True)
    environment = dict(os.environ, LD_LIBRARY_PATH=fake.stdout.strip())
    environment.pop("CULEAK_ADAPTERS", None)

    def run(script, variable=None, recorded=True):
        program = tmp_path / "program.py"
        program.write_text(script)
        line = [sys.executable, str(program)]
        if recorded:
            line = [command, "run", "--no-report", "-o", str(tmp_path / "recordings"), "--"] + line
        changed = dict(environment, CULEAK_ADAPTERS=variable) if variable else environment
        done = subprocess.run(line, env=changed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return run


def installed():
    """The wheel brings a file that interpreters read when they start; the source tree is not read."""
    return (Path(culeak.__file__).parent.parent / "culeak_adapters.pth").exists()


def test_the_variable_switches_adapters_on_before_the_program_starts(run):
    assert installed(), "this test is of the installed wheel"
    assert run(WAITS, "vllm, cupy")[0] == "True vllm, cupy\n"
    assert run(WAITS)[0] == "False None\n"
    assert run(WAITS, "0")[0] == "False 0\n"


def test_an_unknown_name_in_the_variable_is_said_and_nothing_else_happens(run):
    output, errors = run(WAITS, "vlm")
    assert output == "False vlm\n"
    assert "culeak: CULEAK_ADAPTERS: no adapter is called 'vlm'; there are cupy, onnxruntime, rmm, sglang, tensorflow, torch, vllm\n" in errors


def test_without_the_preload_library_nothing_is_switched_on(run):
    assert run(WAITS, "1", recorded=False)[0] == "False 1\n"


def test_children_of_a_program_that_enables_an_adapter_have_it_too(run):
    script = "import subprocess, sys, culeak.adapters\nculeak.adapters.vllm.enable()\nculeak.adapters.enable('cupy')\n"
    output, _ = run(script + "subprocess.run([sys.executable, '-c', {!r}], check=True)\n".format(WAITS))
    assert output == "True vllm,cupy\n"


def test_an_adapter_that_is_not_there_is_an_error():
    import culeak.adapters

    with pytest.raises(ValueError, match="no adapter 'vlm'; there are cupy"):
        culeak.adapters.enable("vlm")


BLOCKS = """
from culeak.adapters.blocks import Domain
pages = Domain("my pool")
free = Domain("other")
for call in {calls}:
    try:
        eval(call)
        print("accepted")
    except (ValueError, TypeError) as error:
        print(error)
print(len(pages._live), len(free._live))
"""


def test_sizes_and_addresses_that_no_block_has_are_refused(run):
    refused = {
        "pages.alloc(0x1000, -1)": "my pool: a block of -1 bytes at 0x1000; expected 0 to 2**56 - 1",
        "pages.alloc_pages([0x1000, 0x2000], 1 << 55)": "my pool: 2 blocks of 36,028,797,018,963,968 bytes at 0x1000; expected 0 to 2**56 - 1",
        "free.alloc(0x1000, 1 << 56)": "other: a block of 72,057,594,037,927,936 bytes at 0x1000; expected 0 to 2**56 - 1",
        "free.alloc(1 << 57, 1)": "other: a block at 0x200000000000000; expected an address of 0 to 2**57 - 1",
        "free.alloc(-8, 1)": "other: a block at -0x8; expected an address of 0 to 2**57 - 1",
        "free.alloc_pages([0x1000, -1], 1)": "other: 2 blocks at -0x1; expected an address of 0 to 2**57 - 1",
        "free.alloc_pages([0x1000], -1)": "other: a block of -1 bytes at 0x1000; expected 0 to 2**56 - 1",
        "free.alloc(0x1000, 1.5)": "'float' object cannot be interpreted as an integer",
    }
    accepted = ["free.alloc(0x1000, (1 << 56) - 1)", "pages.alloc_pages([0x1000, 0x2000], 1 << 19)"]
    output, _ = run(BLOCKS.format(calls=list(refused) + accepted))
    assert output.splitlines() == list(refused.values()) + ["accepted"] * 2 + ["2 1"]
