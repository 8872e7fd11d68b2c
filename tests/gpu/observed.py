"""Claims about programs that are observed from outside, exit codes, and the recorder's own use of the GPU."""

import json
import re
import subprocess
import threading
import time

from harness import Failure, claim, expect, expect_equal, site, tail

# ---- observed from outside ----


class Watched:
    """A program that runs until it gets the command to quit, by default `rt-static watched`; a context manager that ends it."""

    def __init__(self, t, how="run", command=None, env=None):
        self.t, self.folder = t, t.folder("watched-" + how)
        command = [str(word) for word in command or [t.program("rt-static"), "watched"]]
        command, more = t.wrapped(command, how, self.folder / "rec")
        more = {**more, **(env or {})}
        self.err = open(self.folder / "stderr", "wb")
        self.process = subprocess.Popen(
            command, env=t.environment(more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err, text=True, start_new_session=True
        )
        self.alarm = threading.Timer(120, self.process.kill)
        self.lines, self.pid = [], None

    def __enter__(self):
        self.alarm.start()
        self.pid = int(self.until("READY").split()[1])
        return self

    def __exit__(self, *_):
        self.alarm.cancel()
        try:
            self.process.stdin.write("quit\n")
            self.process.stdin.flush()
            self.process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
        self.err.close()

    def until(self, word):
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(word):
                return line
        raise Failure(f"the watched program ended before it printed {word}\n{tail((self.folder / 'stderr').read_text())}")

    def send(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        self.until("DONE " + word)

    def live(self):
        return sorted(int(line.split()[4], 16) for line in self.lines if line.startswith("LIVE"))

    def snapshot(self, name):
        started = time.monotonic()
        snapshot = self.t.snapshot(self.pid, self.folder / f"{name}.json", f"  logs in {self.folder}")
        expect(time.monotonic() - started < 20, f"culeak snapshot took {time.monotonic() - started:.1f} s")
        return snapshot


def addresses(snapshot):
    return sorted(row["address"] for row in snapshot.memory())


@claim(over=["run", "preload"])
def a_running_program_can_be_read_from_outside(t, how):
    with Watched(t, how) as watched:
        snapshot = watched.snapshot("steady")
        expect_equal(snapshot.data["process"]["pid"], watched.pid, "pid")
        expect_equal(snapshot.data["process"]["state"], "running", "state")
        expect_equal(addresses(snapshot), watched.live(), f"addresses live in the quiet program\n{snapshot.where()}")
        expect_equal(snapshot.data["taken"]["events_during_read"], 0, "events_during_read of a quiet program")
        code, out, err = t.cli("snapshot", "--list")
        expect(code == 0 and re.search(rf"\b{watched.pid}\b", out), f"culeak snapshot --list does not show {watched.pid}\n{tail(out + err)}")
        code, out, err = t.cli("report", watched.pid)
        expect(code == 0 and "case_watched" in out, f"culeak report {watched.pid} gave {code}\n{tail(out + err)}")


@claim
def a_snapshot_taken_while_threads_allocate_is_consistent(t):
    with Watched(t) as watched:
        watched.send("churn")
        for i in range(10):
            snapshot = watched.snapshot(f"churn-{i}")
            snapshot.expect_no_duplicates()
            missing = set(watched.live()) - set(addresses(snapshot))
            expect(not missing, f"{len(missing)} steady blocks are missing from snapshot {i}\n{snapshot.where()}")
            churned = len(snapshot.memory()) - len(watched.live())
            expect(0 <= churned <= 4 * 8, f"{churned} blocks of the churning threads, which hold at most 32\n{snapshot.where()}")
        watched.send("calm")
        snapshot = watched.snapshot("calm")
        expect_equal(addresses(snapshot), watched.live(), f"addresses live after the threads stopped\n{snapshot.where()}")
        snapshot.expect_sane()


@claim
def a_diff_of_two_snapshots_shows_exactly_the_growth_by_site(t):
    with Watched(t) as watched:
        before = watched.snapshot("before")
        watched.send("grow")
        after = watched.snapshot("after")
    code, out, err = t.cli("diff", before.path, after.path, "--json")
    expect_equal(code, 0, f"exit code of culeak diff\n{tail(err)}")
    grown = {}
    for row in json.loads(out)["rows"]:
        text = json.dumps(row)
        name = next((name for name in ("grow_a", "grow_b") if name in text), text[:200])
        if row["bytes_delta"] or row["count_delta"]:
            grown[name] = (row["state"], row["bytes_delta"], row["count_delta"])
    expected = {"grow_a": ("grown", 10 * 4096, 10), "grow_b": ("new", 5 * 8192, 5)}
    expect_equal(grown, expected, f"growth by site\n  before: {before.path}\n  after: {after.path}\n{tail(out, 40)}")


# ---- exit codes ----


@claim
def check_exits_0_1_or_2(t):
    recording = t.run(t.program("rt-static"), "cudaMalloc").must(0).recording()
    for arguments, expected in [
        ((recording, "--allow", 0), 1),
        ((recording, "--allow", 999), 1),
        ((recording, "--allow", 1000), 0),
        ((recording, "--allow", 1000, "--allow", "count=0"), 1),
        ((t.out / "no-such-file.culeak",), 2),
        ((recording, "--no-such-option"), 2),
    ]:
        code, out, err = t.cli("check", *arguments)
        expect_equal(code, expected, f"exit code of culeak check {' '.join(map(str, arguments))}\n{tail(out + err)}")


@claim
def the_call_site_that_fails_a_check_is_named(t):
    recording = t.run(t.program("rt-static"), "cudaMalloc").must(0).recording()
    _, out, err = t.cli("check", recording, "--allow", 0)
    file, line = site("cudaMalloc")
    expect(re.search(rf"{re.escape(file)}:{line}\b|case_cudaMalloc", out + err), f"culeak check does not name the call site:\n{tail(out + err, 30)}")


@claim
def programs_without_cuda_leave_no_recording(t):
    done = t.run("/bin/sh", "-c", "ls / | wc -l >/dev/null; exit 3").must(3)
    expect_equal(done.recordings(), [], "recordings")


# ---- alone on the machine ----


@claim(alone=True)
def the_recorder_takes_no_gpu_memory(t):
    command = [t.program("rt-static"), "memory_info"]
    bare, done = t.run(*command, how="bare").must(0), t.run(*command).must(0)
    expect_equal(done.fact("used_by_64_mib"), bare.fact("used_by_64_mib"), "device memory used by 64 MiB, with and without culeak")
    apart = abs(done.fact("free_before") - bare.fact("free_before"))
    expect(apart <= 8 << 20, f"free memory of a fresh context differs by {apart} bytes with and without culeak")
    expect_equal(done.snapshot().bytes_of("device"), bare.fact("used_by_64_mib"), "live bytes, and the decrease of free memory")
