"""Checks the recordings of a job of worker.py.

    check.py CULEAK RECORDINGS NOTES RANKS LEAKING [--by-pid]

Each process that left a note has a recording with its rank, and `culeak report RECORDINGS` names the leaking rank and line in its
first ten lines. --by-pid: the launcher sets no rank, so processes are named by pid.
"""

import json
import pathlib
import subprocess
import sys


def fail(text):
    sys.exit(f"check.py: {text}")


def report(culeak, folder, *options):
    command = [culeak, "report", folder, *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if ended.returncode != 0:
        fail(f"{' '.join(command)}: exit code {ended.returncode}")
    return ended.stdout.decode()


def main():
    culeak, folder, notes, count, leaking = sys.argv[1:6]
    by_pid = "--by-pid" in sys.argv
    noted = {}
    for path in pathlib.Path(notes).iterdir():
        pid, host = path.name.split(".", 1)
        noted[int(pid), host] = int(path.read_text())
    if sorted(noted.values()) != list(range(int(count))):
        fail(f"the notes of the ranks: {noted}")
    recordings = list(pathlib.Path(folder).glob("*.culeak"))
    if len(recordings) != int(count):
        fail(f"{count} ranks left {len(recordings)} recordings: {[path.name for path in recordings]}")
    job = json.loads(report(culeak, folder, "--json"))
    recorded = {(process["pid"], process["host"]): process["rank"] for process in job["processes"]}
    expected = {process: None for process in noted} if by_pid else noted
    if recorded != expected:
        fail(f"ranks by pid and host: {recorded}, but the processes are {expected}")
    source = pathlib.Path(__file__).with_name("worker.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(source) if "# the leak" in text)
    pid, host = next(process for process, rank in noted.items() if rank == int(leaking))
    name = f"process {pid}" if by_pid else f"rank {leaking}"
    if len({host for _, host in noted}) > 1:
        name += f" on {host}"
    others = int(count) - 1
    none = "none in the other" if others == 1 else f"none in the {others} others"
    sentence = f"Gpu.keep_batch  worker.py:{line}  only {name}: 30 MiB, {none}"
    text = report(culeak, folder)
    if not any(sentence in line for line in text.splitlines()[:10]):
        fail(f"the first ten lines should contain {sentence!r}:\n{text}")


if __name__ == "__main__":
    main()
