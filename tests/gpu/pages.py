"""Claims about the pages that users follow: the quickstart's programs give the quickstart's reports on the real driver."""

import os
import subprocess
import sys

from harness import HERE, Failure, Missing, claim, expect, expect_equal, tail

sys.path.append(str(HERE.parent))
import quickstart


def follow(t, file, change=lambda command: command):
    """Runs the commands of an example of the page in a folder of its own; its report must have the page's lines."""
    folder = t.folder("quickstart-" + file)
    (folder / "bin").mkdir()
    (folder / "bin/culeak").symlink_to(t.culeak)
    chosen = [(commands, expected) for name, commands, expected in quickstart.examples(folder) if name == file]
    expect_equal(len(chosen), 1, f"examples called {file} on the page")
    [(commands, expected)] = chosen
    environment = t.environment({"PATH": f"{folder}/bin:{os.environ['PATH']}", "NO_COLOR": "1"})
    printed = ""
    for command in map(change, commands):
        try:
            done = subprocess.run(
                command, shell=True, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90
            )
        except subprocess.TimeoutExpired as late:
            raise Failure(f"{command}: hung for 90 s, in {folder}") from late
        printed = done.stdout
        expect_equal(done.returncode, 0, f"exit code of {command}, in {folder}\n{tail(printed)}")
    expect_equal(quickstart.missing(expected, printed), [], f"lines of the page that are not in the report, in {folder}\n{tail(printed, 40)}")


@claim(over=["leak.cpp", "leak.py"])
def the_quickstart_gives_its_reports_on_a_gpu(t, file):
    follow(t, file)


@claim
def the_quickstart_compiled_with_nvcc_gives_the_same_report(t):
    nvcc, driver = os.environ.get("NVCC"), os.environ.get("DRIVER")
    if not nvcc or not driver:
        raise Missing("nvcc, or a libcuda to link with")

    def compile_with_nvcc(command):
        if not command.startswith("g++ "):
            return command
        words = [f"'{driver}'" if word == "-l:libcuda.so.1" else word for word in command.split()]
        return " ".join([f"'{nvcc}'", "-lineinfo", *words[1:]])

    follow(t, "leak.cpp", compile_with_nvcc)
