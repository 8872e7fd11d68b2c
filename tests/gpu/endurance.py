"""Endurance: a mixed load under culeak, with a log, metrics, snapshots and the search for holders at the same time.

    CULEAK_BIN=FOLDER python3 -B tests/gpu/endurance.py [--minutes N] [--out DIR]     on a GPU, with PyTorch
    CULEAK_BIN=FOLDER python3 -B tests/gpu/endurance.py --fake [--minutes N]          on the fake driver, without PyTorch

The program is victims/fw_endurance.py. `culeak run` logs its events and takes a snapshot every 10 s; `culeak watch` serves its metrics, which
are read every 5 s; `culeak snapshot` reads it every 10 s, and `culeak why` searches it every minute. Each minute it stands still, and
culeak's sums are compared with PyTorch's, NVML's, and the blocks that the program names; more often if it runs for less than eight
minutes. The last lines are a table with the figure of each check; the exit code is 1 if one failed or never ran. No other program may use the GPU, whose NVML may not know our process ids.
"""

import argparse
import json
import os
import pathlib
import queue
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

import segments
from harness import HERE, Failure, Live, Machine, Snapshot, expect, expect_equal, site, tail
from ledgers import lines, report_of
from suite import find_shim
from tensors import expect_matching_totals

MIB = 1 << 20
PROGRAM = HERE / "victims" / "fw_endurance.py"
# Fields of the losses that are figures, or of what the driver does by itself; as in Snapshot::is_complete.
NO_LOSS = {"teardown_frees", "implicit_frees", "captured_not_launched", "export_tables", "recorder_ns", "events"}
# Without PyTorch, everything is seconds instead of tens of them, and the log is so small that it is reused.
PACE = {"fake": {"still": 3, "snapshot": 1, "why": 2, "metrics": 0.5, "log": 8 * MIB}, "gpu": {"still": 60, "snapshot": 10, "why": 60, "metrics": 5, "log": 64 * MIB}}

# Every check, and those that only a GPU has; each must run.
CHECKS = (
    "culeak snapshot reads the running program, without loss",
    "culeak why searches the running program",
    "metrics are served, and count no loss",
    "snapshots and reports of the program at rest",
    "at rest: nothing is lost, no call is under way",
    "at rest: each block that the program names is a row",
    "at rest: the list that grows has its line",
    "at rest: metrics and report are equal",
    "the program ends as it does without culeak",
    "what is left at the end is the list, by its line",
    "anonymous memory of the program does not grow",
    "the recording in memory stays within its limit",
    "the recording on disk stays within its limit",
    "the largest automatic snapshot does not grow",
    "a child's recording is not larger than another's",
    "objects without an address do not grow",
    "diff: only the list that grows has grown",
    "trend of the automatic snapshots: only that line grows",
    "step time, last third to first",
    "growth between moments at rest",
    "culeak watch ends without a complaint",
)
CHECKS_OF_GPU = (
    "at rest: PyTorch's figures, to the byte",
    "at rest: NVML's figure, to the byte",
)


def expect_no_loss(losses, where):
    lost = {name: value for name, value in losses.items() if value and name not in NO_LOSS}
    expect(not lost, f"{where}: losses {lost}")


def thirds(values):
    """Medians of the first and the last third."""
    part = max(1, len(values) // 3)
    return statistics.median(values[:part]), statistics.median(values[-part:])


class Table:
    """What is checked, each with its figure and the number of failures."""

    def __init__(self, checks):
        self.rows, self.lock = {what: {"times": 0, "failed": 0, "figure": None} for what in checks}, threading.Lock()

    def check(self, what, function, *arguments):
        """Calls a check, which returns its figure, and returns None if it failed."""
        figure, problem = None, None
        try:
            figure = function(*arguments)
        except Failure as failure:
            problem = str(failure)
        except Exception:
            problem = traceback.format_exc()
        with self.lock:
            row = self.rows[what]
            row["times"] += 1
            row["failed"] += problem is not None
            row["figure"] = figure if problem is None else row["figure"]
        if problem:
            print(f"FAILED  {what}\n{problem}", flush=True)
        return figure

    def show(self):
        """Returns whether all checks ran and held."""
        print(f"\n{'check':64}{'times':>6}{'failed':>7}  figure of the last")
        for what, row in self.rows.items():
            print(f"{what:64}{row['times']:>6}{row['failed']:>7}  {'' if row['figure'] is None else row['figure']}")
        never = [what for what, row in self.rows.items() if not row["times"]]
        for what in never:
            print(f"FAILED  {what}: it never ran", flush=True)
        return not never and not any(row["failed"] for row in self.rows.values())


class Program:
    """The program under `culeak run`."""

    def __init__(self, t, folder, options, pace):
        self.folder, self.lines, self.rounds, self.ready = folder, [], [], queue.SimpleQueue()
        env = dict(segments.ALONE)
        if options.fake:
            _, driver, _ = t.cli("shim-path", "--fake-driver")
            env["LD_LIBRARY_PATH"] = driver.strip()
        command = [t.culeak, "run", "-o", folder / "rec", "--no-report", f"--timeline={pace['log'] // MIB}MiB", "--snapshot", f"every:{pace['snapshot']}s", "--"]
        command += [sys.executable, "-B", PROGRAM] + (["driver"] if options.fake else [])
        self.err = open(folder / "stderr", "wb")
        self.process = subprocess.Popen(list(map(str, command)), env=t.environment(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err, text=True, cwd=folder)
        threading.Thread(target=self.read, daemon=True).start()
        self.pid = int(self.until("START")[1])

    def read(self):
        with open(self.folder / "stdout", "w") as out:
            for line in self.process.stdout:
                out.write(line)
                out.flush()
                words = line.split()
                if words and words[0] == "ROUND":
                    self.rounds.append(int(words[2]))
                elif words and words[0] in ("START", "READY", "UNSUPPORTED"):
                    self.ready.put(words)
                else:
                    self.lines.append(words)
        self.ready.put(["ENDED"])

    def until(self, word, seconds=300):
        try:
            words = self.ready.get(timeout=seconds)
        except queue.Empty:
            words = [f"nothing for {seconds} s"]
        expect(words[0] == word, f"the program said {' '.join(words)} instead of {word}\n{tail((self.folder / 'stderr').read_text())}")
        return words

    def send(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def still(self, word):
        """What the program prints when it stands still: the live blocks that it names, and its figures."""
        self.lines.clear()
        self.send(word)
        self.until("READY")
        blocks = [Live(int(p), label, kind, int(a, 16), int(b), int(r)) for _, p, label, kind, a, b, r in (words for words in self.lines if words[:1] == ["LIVE"])]
        return blocks, {words[2]: int(words[3], 16) for words in self.lines if words[:1] == ["FACT"]}

    def recording(self):
        [found] = self.folder.glob(f"rec/*.{self.pid}.culeak")
        return found

    def memory(self):
        """Anonymous memory, and that of the recording's mappings, in bytes."""
        anonymous = re.search(r"RssAnon:\s+(\d+) kB", pathlib.Path(f"/proc/{self.pid}/status").read_text())
        mapped, is_recording = 0, False
        for line in pathlib.Path(f"/proc/{self.pid}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                is_recording = line.endswith(".culeak")
            elif is_recording and line.startswith("Rss:"):
                mapped += int(line.split()[1])
        return int(anonymous.group(1)) << 10, mapped << 10

    def disk(self):
        """Bytes on disk: of the recording; of its snapshots, the largest; of the recordings and snapshots of children, by process."""
        own, snapshots, children = 0, [0], {}
        for path in (self.folder / "rec").iterdir():
            number = re.search(r"\.(\d+)(\.[a-z-]+-\d+)?\.culeak(-snapshot)?$", path.name)
            if number is None:
                continue
            bytes = path.stat().st_blocks * 512
            if int(number.group(1)) != self.pid:
                children[number.group(1)] = children.get(number.group(1), 0) + bytes
            elif path.suffix == ".culeak":
                own += bytes
            else:
                snapshots.append(bytes)
        return own, max(snapshots), children


class Observer:
    """What reads the program while it runs."""

    def __init__(self, t, table, program, pace, port):
        self.t, self.table, self.program, self.port = t, table, program, port
        self.stopped, self.threads, self.lock = threading.Event(), [], threading.Lock()
        self.every(pace["snapshot"], "culeak snapshot reads the running program, without loss", self.snapshot)
        self.every(pace["why"], "culeak why searches the running program", self.why)
        self.every(pace["metrics"], "metrics are served, and count no loss", self.metrics)

    def every(self, seconds, what, function):
        def repeat():
            while not self.stopped.wait(seconds):
                self.table.check(what, function)

        self.threads.append(threading.Thread(target=repeat))
        self.threads[-1].start()

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def snapshot(self):
        path = self.program.folder / "running.json"
        code, out, err = self.t.cli("snapshot", self.program.pid, "--no-symbols", "--force", "-o", path)
        expect(code == 0, f"exit code {code}\n{tail(out + err)}")
        losses = json.loads(path.read_text())["losses"]
        expect_no_loss(losses, "the running program")
        return f"{losses['events']} events"

    def why(self):
        answer = why_of(self.t, self.program.pid)
        return f"{answer['total']['count']} blocks in {answer['search']['took_ns'] / 1e6:.0f} ms"

    def metrics(self):
        served = self.scrape()
        lost = {key: value for key, value in served.items() if key.startswith("culeak_losses_total") and value}
        expect(not lost, f"losses: {lost}")
        return f"{len(served)} series"

    def scrape(self):
        """The values of the program's series, by name and labels, and of the agent's."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30).read().decode()
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in rows if f'pid="{self.program.pid}"' in name or "pid=" not in name}

    def expect_metrics(self, held):
        """The agent has read the program as it is now, which it does every second; the program stands still."""
        for _ in range(60):
            served = self.scrape()
            got = {place: value for name, value in served.items() for place in re.findall(r'^culeak_held_bytes\{.*place="(\w+)"', name)}
            if got == held:
                return f"{sum(held.values()) / MIB:.1f} MiB"
            time.sleep(0.5)
        raise Failure(f"metrics {got}, report {held}")


def why_of(t, pid):
    code, out, err = t.cli("why", pid, "--json")
    expect(code == 0, f"exit code {code}\n{tail(out + err)}")
    answer = json.loads(out)
    expect("planted" in out, f"the list that grows is no holder\n{tail(json.dumps(answer['origins'], indent=1), 40)}")
    expect_no_loss(answer["losses"], "the program that is searched")
    return answer


class Still:
    """The program at a moment when it stands still, and what it said of itself."""

    def __init__(self, t, program, number, blocks, facts):
        self.blocks, self.facts = blocks, facts
        self.snapshot = t.snapshot(program.pid, program.folder / f"still-{number:03d}.json")
        self.report = report_of(t, program.pid)
        self.anonymous, self.mapped = program.memory()
        self.own, self.largest, self.children = program.disk()

    def lossless(self):
        taken = self.snapshot.data["taken"]
        expect_no_loss(self.snapshot.losses, "the program at rest")
        expect_equal((taken["in_flight"], taken["events_during_read"]), (0, 0), "calls under way")
        return f"{self.snapshot.losses['events']} events"

    def named(self):
        for block in self.blocks:
            self.snapshot.find(block)
        self.snapshot.expect_no_duplicates()
        return f"{len(self.blocks)} blocks"

    def planted(self):
        rows = [row for row in self.snapshot.memory() if any(is_planted(file, line) for _, file, line, _ in self.snapshot.frames(row))]
        expect_equal(sum(row["bytes"] for row in rows), self.facts["planted"], "bytes of the list that grows")
        return f"{self.facts['planted'] / MIB:.2f} MiB"

    def pytorch(self, t):
        tensors = sum(row["bytes"] for row in self.snapshot.of_kind("tensor"))
        expect_equal(tensors, self.facts["allocated"], "tensors, against memory_allocated()")
        expect_matching_totals(t, self.snapshot.data, "the program at rest")
        device = next(device for device in self.report["ledger"]["devices"] if device["lines"])
        sums = lines(device)
        expect_equal(sums.get("blocks PyTorch", 0) + sums.get("cached PyTorch", 0), self.facts["reserved"], f"tensors and cache, against memory_reserved(): {sums}")
        return f"{self.facts['allocated'] / MIB:.1f} of {self.facts['reserved'] / MIB:.1f} MiB"

    def nvml(self):
        expect(self.facts["nvml"] != segments.UNKNOWN, "NVML lists several processes and does not know this one's number: the GPU is in use by others")
        data = self.snapshot.data
        expect((data["losses"].get("segments_ended"), data["losses"].get("lost_segments", 0)) == (None, 0), f"segments: {data['losses']}")
        expect_equal(segments.total(data), self.facts["nvml"], "segments, against NVML's figure")
        return f"{self.facts['nvml'] / MIB:.1f} MiB"


def is_planted(file, line):
    return (os.path.basename(file or ""), line) in (site("endurance_planted"), site("endurance_planted_driver"))


def stand_still(t, table, program, observer, number, options, word="quiet"):
    blocks, facts = program.still(word)
    still = table.check("snapshots and reports of the program at rest", Still, t, program, number, blocks, facts)
    if still is None:
        return None
    table.rows["snapshots and reports of the program at rest"]["figure"] = f"{len(still.snapshot.rows)} rows"
    table.check("at rest: nothing is lost, no call is under way", still.lossless)
    if blocks:
        table.check("at rest: each block that the program names is a row", still.named)
    table.check("at rest: the list that grows has its line", still.planted)
    held = {place: float(tally["bytes"]) for place, tally in still.report["totals"]["held"].items()}
    table.check("at rest: metrics and report are equal", observer.expect_metrics, held)
    if not options.fake:
        table.check("at rest: PyTorch's figures, to the byte", still.pytorch, t)
        table.check("at rest: NVML's figure, to the byte", still.nvml)
    print(f"{number:4} at rest after {len(program.rounds)} rounds: " + ", ".join(f"{name} {value / MIB:.2f} MiB" for name, value in facts.items()), flush=True)
    return still


def bounded(what, values, room):
    """The last third is no larger than the first one and this room."""
    first, last = thirds(values)
    expect(last <= first + room, f"{what}: median {first / MIB:.2f} MiB in the first third, {last / MIB:.2f} MiB in the last; room {room / MIB:.2f} MiB")
    return f"{first / MIB:.2f} to {last / MIB:.2f} MiB"


def within(what, values, limit):
    expect(max(values) <= limit, f"{what}: {max(values) / MIB:.2f} MiB, limit {limit / MIB:.2f} MiB")
    return f"{values[0] / MIB:.2f} to {values[-1] / MIB:.2f}, limit {limit / MIB:.2f} MiB"


def check_growth(t, table, program, stills, log):
    """What the moments at rest say together; the first is left out, before which the program warmed up."""
    stills = stills[1:]
    expect(len(stills) >= 4, f"only {len(stills)} moments at rest after the first")
    list_grew = stills[-1].facts["planted"] - stills[0].facts["planted"]
    # 96 bytes of a recording for each row, and Python's objects.
    rows = list_grew // 65536 * 2048
    table.check("anonymous memory of the program does not grow", bounded, "RssAnon", [still.anonymous for still in stills], 32 * MIB + rows)
    # Sections grow by doubling, and the log is one of them.
    limit = 2 * log + 16 * MIB + rows
    table.check("the recording in memory stays within its limit", within, "recording in memory", [still.mapped for still in stills], limit)
    table.check("the recording on disk stays within its limit", within, "recording on disk", [still.own for still in stills], limit)
    table.check("the largest automatic snapshot does not grow", bounded, "snapshot", [still.largest for still in stills], 2 * MIB + rows)
    table.check("a child's recording is not larger than another's", children_alike, program)
    table.check("objects without an address do not grow", objects_bounded, stills)
    table.check("diff: only the list that grows has grown", only_planted_grew, t, program, stills, list_grew)
    table.check("trend of the automatic snapshots: only that line grows", only_planted_is_growing, t, program)
    table.check("step time, last third to first", steps_stable, program.rounds)


def children_alike(program):
    sizes = sorted(program.disk()[2].values())
    expect(sizes, "no child was recorded")
    expect(sizes[-1] <= 2 * sizes[len(sizes) // 2] + 4 * MIB, f"bytes on disk: median {sizes[len(sizes) // 2]}, largest {sizes[-1]}")
    return f"{len(sizes)} children, {sum(sizes) / MIB:.1f} MiB in all"


def objects_bounded(stills):
    counts = [sum(kind["live"] for kind in still.report["objects"]["kinds"]) for still in stills]
    first, last = thirds(counts)
    expect(last <= first * 1.05 + 8, f"objects without an address: {counts}")
    return f"{first:.0f} to {last:.0f}"


def only_planted_grew(t, program, stills, list_grew):
    code, out, err = t.cli("diff", stills[0].snapshot.path, stills[-1].snapshot.path, "--by", "site", "--json", "--top", "1000")
    expect(code == 0, f"exit code {code}\n{tail(out + err)}")
    rows = [row for row in json.loads(out)["rows"] if not row["pool"]]
    listed = [row for row in rows if any(is_planted(frame["file"], frame["line"]) for frame in row["stack"]["frames"])]
    planted = sum(row["bytes_delta"] for row in listed)
    others = [(row["label"], row["bytes_delta"]) for row in rows if row["bytes_delta"] > 0 and row not in listed]
    expect_equal((planted, others), (list_grew, []), "growth of the list, and of others")
    return f"{list_grew / MIB:.2f} MiB"


def only_planted_is_growing(t, program):
    found = sorted(program.folder.glob(f"rec/*.{program.pid}.every-*.culeak-snapshot"), key=lambda path: path.stat().st_mtime)
    expect(len(found) >= 8, f"{len(found)} automatic snapshots")
    code, out, err = t.cli("trend", *found, "--against", "marks", "--json")
    expect(code == 0, f"exit code {code}\n{tail(out + err)}")
    growing = [(os.path.basename(row["site"]["file"] or ""), row["site"]["line"]) for row in json.loads(out)["rows"] if row["class"] == "growing"]
    expect(len(growing) == 1 and is_planted(*growing[0]), f"growing call sites: {growing}")
    return f"{len(found)} snapshots, {growing[0][0]}:{growing[0][1]}"


def steps_stable(rounds):
    first, last = thirds(rounds)
    expect(last <= first * 1.10, f"median step of {first / 1000:.0f} us in the first third of {len(rounds)} rounds, {last / 1000:.0f} us in the last")
    return f"{last / first:.3f} ({first / 1000:.0f} us, {last / 1000:.0f} us, {len(rounds)} rounds)"


def only_planted_is_left(t, program, final):
    """After the end: the program freed everything but the list, and a check fails and names its line."""
    code, out, err = t.cli("check", program.recording(), "--at", "exit", "--allow", "0", "--format", "json")
    expect(code == 1, f"exit code {code}\n{tail(out + err)}")
    verdict = json.loads(out)
    rows = [row for row in (verdict[0] if isinstance(verdict, list) else verdict)["rows"] if not row["pool"]]
    frames = [row["stacks"][0]["frames"] for row in rows]
    listed = [row for row, stack in zip(rows, frames) if any(is_planted(frame["file"], frame["line"]) for frame in stack)]
    others = [row for row in rows if row not in listed]
    planted = final.facts["planted"]
    expect_equal(sum(row["bytes"] for row in listed), planted, f"bytes of the list; all rows: {[(row['label'], row['bytes']) for row in rows]}")
    # PyTorch may keep tensors of its own; it says how many bytes.
    tensors = sum(row["kinds"].get("tensor", {"bytes": 0})["bytes"] for row in others)
    expect_equal(tensors, final.facts.get("allocated", planted) - planted, f"bytes of other tensors: {[(row['label'], row['bytes']) for row in others]}")
    driver = [row["label"] for row, stack in zip(rows, frames) if row in others and any("Driver." in (frame["function"] or "") for frame in stack)]
    expect_equal(driver, [], "blocks of the driver that the program freed")
    expect_no_loss(t.losses(program.recording()), "the recording after the end")
    return f"{planted / MIB:.2f} MiB at {listed[0]['label']}; {len(others)} other rows"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def watch(t, folder, port):
    """The agent that serves the metrics of all recordings."""
    command = [t.culeak, "watch", folder / "rec", "--listen", f"127.0.0.1:{port}", "--every", "1s"]
    agent = subprocess.Popen(list(map(str, command)), env=t.environment(None), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    expect("http://" in agent.stderr.readline(), "culeak watch does not listen")
    # Until it has read the recordings for the first time, it says so.
    for _ in range(120):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).close()
            return agent
        except urllib.error.HTTPError as early:
            expect(early.code == 503, f"culeak watch answers with {early.code}")
            time.sleep(0.5)
    raise Failure("culeak watch has no figures after a minute")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long the load runs (default 30; with --fake a third of one)")
    parser.add_argument("--out", type=pathlib.Path, help="folder for logs, recordings and snapshots; default: a temporary one")
    parser.add_argument("--fake", action="store_true", help="on the fake driver, without PyTorch, at a faster pace")
    options = parser.parse_args()
    options.minutes = options.minutes or (1 / 3 if options.fake else 30)
    return options


def main():
    options = parse()
    out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="culeak-endurance."))).resolve()
    binaries = pathlib.Path(os.environ.get("CULEAK_BIN") or HERE.parent.parent / "target" / "release").resolve()
    t = Machine(out, out / "bin", binaries / "culeak", find_shim(binaries, binaries / "culeak"))
    folder, table = t.folder("endurance"), Table(CHECKS if options.fake else CHECKS + CHECKS_OF_GPU)
    # Growth is judged over at least four moments at rest after the first.
    pace = {name: value if name == "log" else min(value, options.minutes * 60 / 8) for name, value in PACE["fake" if options.fake else "gpu"].items()}
    print(f"logs, recordings and snapshots in {folder}", flush=True)
    port, began = free_port(), time.monotonic()
    program = Program(t, folder, options, pace)
    agent = watch(t, folder, port)
    observer, stills = Observer(t, table, program, pace, port), []
    try:
        while time.monotonic() - began < options.minutes * 60 or len(stills) < 5:
            time.sleep(pace["still"])
            stills.append(stand_still(t, table, program, observer, len(stills), options))
            program.send("go")
        final = stand_still(t, table, program, observer, len(stills), options, "finish")
        observer.stop()
        program.send("quit")
        table.check("the program ends as it does without culeak", lambda: expect_equal(program.process.wait(120), 0, "exit code"))
        table.check("what is left at the end is the list, by its line", only_planted_is_left, t, program, final)
        table.check("growth between moments at rest", check_growth, t, table, program, [still for still in stills if still], pace["log"])
    finally:
        observer.stop()
        program.process.kill()
        agent.send_signal(signal.SIGTERM)
        table.check("culeak watch ends without a complaint", lambda: expect_equal((agent.wait(60), agent.stderr.read()), (0, "culeak: SIGTERM: stopped\n"), "exit code and messages"))
    disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    is_passed = table.show()
    print(f"\n{time.monotonic() - began:.0f} s, {len(program.rounds)} rounds, {disk / MIB:.0f} MiB in {folder}: {'passed' if is_passed else 'FAILED'}")
    return 0 if is_passed else 1


if __name__ == "__main__":
    sys.exit(main())
