"""The base of the acceptance suite: runs a program under culeak, reads its snapshot, and compares it with the program's own output.

A claim is a function of one argument `t` (a `Machine`) that raises if it does not hold. Programs are run once per command line
and shared between claims. Nothing here depends on CUDA; it reads the JSON that `culeak snapshot` writes.
"""

import collections
import contextlib
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import Future

HERE = pathlib.Path(__file__).resolve().parent
NOWHERE = {"pool", "reserved", "mapping", "imported", "ipc", "pool-import", "external", "external-mapping", "multicast"}
HOST = {"pinned", "registered", "host-physical"}
# The place of culeak's library in a list of preloads.
CULEAK = "culeak"
# How functions of the forward pass are named whose gradient, or whose neighbour's, a stack computes.
GRADIENTS = ("gradient of ", "gradient near ")


class Failure(Exception):
    """The claim does not hold."""


class Missing(Exception):
    """This machine lacks something that the claim needs."""


# ---- claims ----

Claim = collections.namedtuple("Claim", "name function alone slow")
claims = []


def claim(function=None, *, over=None, alone=False, slow=False):
    """Registers a claim; with `over`, one for each value. `alone` ones run after all others, one at a time; `slow` ones start first."""

    def register(function):
        if over is None:
            claims.append(Claim(function.__name__, function, alone, slow))
        for value in over or []:
            label = value if isinstance(value, str) else ":".join(value)
            claims.append(Claim(f"{function.__name__}[{label}]", lambda t, value=value: function(t, value), alone, slow))
        return function

    return register(function) if function else register


def expect(condition, message):
    if not condition:
        raise Failure(message)


def expect_equal(got, expected, what):
    if got != expected:
        raise Failure(f"{what}\n  expected: {expected}\n  got:      {got}")


# ---- the output of programs ----

Live = collections.namedtuple("Live", "pid label kind address bytes requested")


def tail(text, lines=15):
    shown = text.rstrip().splitlines()[-lines:]
    return "\n".join("    | " + line for line in shown) or "    | (nothing)"


def site(label):
    """(file name, line number) of the source line marked `// site: label` or `# site: label`."""
    found = _sites().get(label)
    expect(found, f"no source line is marked 'site: {label}'")
    return found


@functools.cache  # Claims run in threads: none may see a part of it.
def _sites():
    found = {}
    for path in sorted(HERE.rglob("*")):
        if path.suffix in (".cu", ".c", ".cpp", ".rs", ".py") and "target" not in path.relative_to(HERE).parts and path.parent != HERE:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if mark := re.search(r"(?://|#) site: (\w+)", line):
                    found[mark.group(1)] = (path.name, number)
    return found


class Finished:
    """A program that ended: its output, its exit code, and its recordings."""

    def __init__(self, machine, command, folder, code, seconds):
        self.machine, self.command, self.folder, self.code, self.seconds = machine, command, folder, code, seconds
        self.out = (folder / "stdout").read_text(errors="replace")
        self.err = (folder / "stderr").read_text(errors="replace")
        self._snapshots = {}
        self._lock = threading.Lock()

    def _lines(self, word):
        return [line.split()[1:] for line in self.out.splitlines() if line.split()[:1] == [word]]

    def live(self, pid=None):
        rows = [Live(int(p), label, kind, int(a, 16), int(b), int(r)) for p, label, kind, a, b, r in self._lines("LIVE")]
        return [row for row in rows if pid in (None, row.pid)]

    def fact(self, name):
        found = [value for _, key, value in self._lines("FACT") if key == name]
        expect(found, f"the program did not print FACT {name}\n{self.story()}")
        return int(found[-1], 16)

    def lines(self):
        """(label, address, [[function, file, line], …]) of the frames that Python reported."""
        return [(label, int(address, 16), json.loads(frames)) for _, label, address, frames in self._lines("LINES")]

    def pid_of(self, name):
        """The process that printed a fact or a live row of that name."""
        for pid, key, *_ in self._lines("FACT") + self._lines("LIVE"):
            if key == name:
                return int(pid)
        raise Failure(f"no process printed {name}\n{self.story()}")

    def pid(self):
        """The only process that printed lines."""
        pids = {int(words[0]) for words in self._lines("FACT") + self._lines("LIVE") + self._lines("LINES")}
        expect(len(pids) == 1, f"expected lines from one process, got {pids}\n{self.story()}")
        return pids.pop()

    def results(self):
        return [" ".join(words) for words in self._lines("RESULT")]

    def story(self):
        return f"  command: {' '.join(map(str, self.command))}\n  exit {self.code} after {self.seconds:.1f} s; logs in {self.folder}\n  stderr:\n{tail(self.err)}"

    def must(self, *codes):
        for line in self.out.splitlines():
            if line.startswith("UNSUPPORTED"):
                raise Missing(line.split(None, 2)[2])
        expect(self.code in (codes or (0,)), f"expected exit code {' or '.join(map(str, codes or (0,)))}\n{self.story()}")
        return self

    def recordings(self):
        return sorted((self.folder / "rec").glob("*.culeak"))

    def recording(self, pid=None):
        found = [r for r in self.recordings() if pid is None or re.search(rf"\.{pid}(\.\d+)?\.culeak$", r.name)]
        whose = f"process {pid}" if pid else "the program"
        names = [r.name for r in self.recordings()]
        expect(len(found) == 1, f"expected one recording of {whose}, found {[r.name for r in found]} among {names}\n{self.story()}")
        return found[0]

    def snapshot(self, pid=None):
        return self.snapshot_of(self.recording(pid))

    def snapshot_of(self, recording):
        with self._lock:
            if recording not in self._snapshots:
                self._snapshots[recording] = self.machine.snapshot(recording, self.folder / (recording.name + ".json"), self.story())
        return self._snapshots[recording]


# ---- snapshots ----


def allocations(data):
    """The live allocations of a snapshot's JSON, each merged with the row of its call."""
    table, rows = data["allocations"], []
    for places in table["rows"]:
        row = dict(zip(table["columns"], places))
        row.setdefault("requested", row["bytes"])
        rows.append({**table["calls"][row.pop("call")], **row})
    return rows


class Snapshot:
    def __init__(self, data, path, story=""):
        self.data, self.path, self.story = data, path, story
        self.rows = allocations(data)
        self.losses = data["losses"]

    def of_kind(self, *kinds):
        return [row for row in self.rows if row["kind"] in kinds]

    def memory(self):
        return [row for row in self.rows if row["bytes"] > 0]

    def bytes_of(self, *kinds):
        return sum(row["bytes"] for row in self.of_kind(*kinds))

    def frames(self, row):
        """(function, file, line, module) of a row's stack, innermost first, inlined calls included."""
        if row.get("stack") is None:
            return []
        frames = []
        for index in self.data["stacks"][row["stack"]]["frames"]:
            location = self.data["locations"][index]
            module = location.get("module")
            path = self.data["modules"][module]["path"] if module is not None else ""
            symbols = location.get("symbols") or [{"function": "", "file": None, "line": None}]
            frames += [(s["function"], s.get("file"), s.get("line"), path) for s in symbols]
        return frames

    def python_frames(self, row):
        """[function, file, line] of the Python frames in a row's stack, innermost first."""
        frames = self.data["stacks"][row["stack"]]["frames"] if row.get("stack") is not None else []
        locations = [self.data["locations"][index] for index in frames]
        symbols = [location["symbols"][0] for location in locations if location.get("language") == "python"]
        return [[symbol["function"], symbol["file"], symbol["line"]] for symbol in symbols if not symbol["function"].startswith(GRADIENTS)]

    def forward_lines(self, row):
        """(function, file name, line) of the lines that computed what the row is a gradient of, or that are near, innermost first."""
        frames = self.data["stacks"][row["stack"]]["frames"] if row.get("stack") is not None else []
        symbols = [symbol for index in frames for symbol in self.data["locations"][index].get("symbols") or []]
        return [(s["function"].split(" ", 2)[2], os.path.basename(s["file"]), s["line"]) for s in symbols if s["function"].startswith(GRADIENTS)]

    def expect_lines(self, label, address, frames, inside=False):
        """These Python frames allocated the memory at this address; `inside`: through other frames."""
        rows = [row for row in self.rows if row["address"] == address and row["bytes"]]
        # The first block of a segment has its address.
        rows = [row for row in rows if row["kind"] == "tensor"] or rows
        expect(len(rows) == 1, f"expected one row at {address:#x} ({label}), found {len(rows)}\n{self.where()}")
        got = self.python_frames(rows[0])
        if inside:
            got = got[len(got) - len(frames) :] if len(got) >= len(frames) else got
        expect_equal(got, frames, f"Python frames ({label}) of\n    {self.show(rows[0])}\n{self.where()}")

    def addresses(self, row):
        """(module file name, address in that file) of each frame, innermost first."""
        frames = self.data["stacks"][row["stack"]]["frames"] if row.get("stack") is not None else []
        locations = [self.data["locations"][index] for index in frames]
        return [(os.path.basename(self.data["modules"][l["module"]]["path"]) if l.get("module") is not None else "", l["address"]) for l in locations]

    def show(self, row, stack=True):
        text = f"{row['kind']} {row['address']:#x} bytes={row['bytes']} requested={row['requested']} api={row['api']} stream={row.get('stream')} pool={row.get('pool')}"
        if stack:
            for function, file, line, module in self.frames(row)[:12]:
                text += f"\n        {function or '?'}  {file or ''}:{line or ''}  [{os.path.basename(module)}]"
        return text

    def where(self):
        return f"  snapshot: {self.path}\n{self.story}"

    # What must hold for every row.

    def find(self, live):
        found = [row for row in self.rows if row["address"] == live.address and row["kind"] == live.kind]
        if len(found) != 1:
            same = [row for row in self.rows if row["kind"] == live.kind or row["address"] == live.address]
            listed = "".join(f"\n    {self.show(row, stack=False)}" for row in same[:20]) or " none"
            raise Failure(f"expected one row for {live}\n  found {len(found)}; rows of that kind or address:{listed}\n{self.where()}")
        row = found[0]
        expect_equal((row["bytes"], row["requested"]), (live.bytes, live.requested), f"bytes and requested bytes of {self.show(row)}\n{self.where()}")
        return row

    def expect_exactly(self, lives):
        """The rows with memory are those that the program printed, no more and no fewer, and the counters agree with them."""
        wanted = [self.find(live) for live in lives]
        names = {id(row) for row in wanted}
        extra = [row for row in self.memory() if id(row) not in names]
        shown = "".join(f"\n    {self.show(row)}" for row in extra[:10])
        expect(not extra, f"{len(extra)} rows hold memory that the program freed or never allocated:{shown}\n{self.where()}")
        self.expect_sane()

    def expect_sane(self):
        for field in ("lost_allocations", "lost_stacks", "vanished"):
            expect_equal(self.losses[field], 0, f"losses.{field}\n{self.where()}")
        rows, counters = collections.Counter(), collections.Counter()
        for row in self.rows:
            if row["kind"] not in NOWHERE:
                rows[row["kind"]] += row["bytes"]
        for counter in self.data["counters"]:
            if counter["kind"] not in NOWHERE:
                counters[counter["kind"]] += counter["live_bytes"]
            expect(counter["peak_bytes"] >= counter["live_bytes"], f"a peak below the live bytes: {counter}\n{self.where()}")
        expect_equal(+counters, +rows, f"live bytes by kind: the counters (got) and the rows (expected)\n{self.where()}")

    def expect_no_duplicates(self):
        seen = collections.Counter((row["address"], row["kind"], row.get("context")) for row in self.memory())
        twice = [key for key, count in seen.items() if count > 1]
        expect(not twice, f"the same memory twice: {twice[:5]}\n{self.where()}")

    def expect_site(self, row, label):
        file, line = site(label)
        here = [(os.path.basename(f or ""), n) for _, f, n, _ in self.frames(row)]
        expect((file, line) in here, f"expected {file}:{line} (site {label}) in the stack of\n    {self.show(row)}\n{self.where()}")

    def expect_function(self, row, name):
        expect(any(name in f for f, _, _, _ in self.frames(row)), f"expected function {name} in the stack of\n    {self.show(row)}\n{self.where()}")


def plain_api(name):
    """cuMemAlloc for cuMemAlloc_v2, cudaMallocAsync for cudaMallocAsync_ptsz."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)


# ---- the machine ----


class Machine:
    def __init__(self, out, programs, culeak, shim, python="python3"):
        self.out, self.programs, self.culeak, self.shim, self.python = out, programs, culeak, shim, python
        self._runs, self._lock = {}, threading.Lock()
        self._count = len(list((out / "runs").glob("*")))  # an earlier run may have used this folder

    def program(self, name):
        path = self.programs / name
        if not path.exists():
            log = self.programs / f"{name}.log"
            raise Failure(f"{name} was not built; see {log}\n{tail(log.read_text() if log.exists() else '')}")
        return path

    def rust_program(self):
        """Built elsewhere and delivered beside culeak, or built by run.sh."""
        carried = self.culeak.parent / "victim-cudarc"
        return carried if carried.exists() else self.program("victim-cudarc")

    def environment(self, extra):
        clean = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("CULEAK_")}
        return {**clean, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})}

    def folder(self, name):
        with self._lock:
            self._count += 1
            folder = self.out / "runs" / f"{self._count:03d}-{re.sub('[^A-Za-z0-9_.-]+', '_', name)[:70]}"
        (folder / "rec").mkdir(parents=True)
        return folder

    def run(self, *command, env=None, how="run", timeout=90, fresh=False, cwd=None, preload=(), options=()):
        """Runs a program under culeak (`how`: 'run' the CLI, 'preload' the bare shim, 'bare' neither), once per command line.

        It runs in a new folder, unless `cwd` names one. `preload`: libraries in their order, CULEAK among them unless `how` is
        'bare'. `options`: those of `culeak run`."""
        command = [str(word) for word in command]
        key = (how, tuple(command), tuple(sorted((env or {}).items())), cwd, tuple(map(str, preload)), tuple(options))
        with self._lock:
            future = None if fresh else self._runs.get(key)
            mine = future is None
            if mine:
                future = Future()
                if not fresh:
                    self._runs[key] = future
        if mine:
            try:
                future.set_result(self._run(command, env, how, timeout, cwd, preload, options))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def wrapped(self, command, how, recordings, preload=(), options=()):
        """The command line and the extra environment that run `command` under the recorder, with other preloads beside it."""
        if (CULEAK in preload) != (how == "preload" and bool(preload)):
            raise ValueError(f"{how!r} with the preloads {preload}")
        if how == "bare":
            return command, {"LD_PRELOAD": ":".join(map(str, preload))} if preload else {}
        if how == "preload":
            if not self.shim or not self.shim.exists():
                raise Missing("libculeak.so (CULEAK_SHIM)")
            libraries = [str(self.shim if library == CULEAK else library) for library in preload or (CULEAK,)]
            return command, {"LD_PRELOAD": ":".join(libraries), "CULEAK_OUTPUT": f"{recordings}/%e.%h.%p.culeak"}
        return [str(self.culeak), "run", "-o", str(recordings), "--no-report", *options, "--", *command], {}

    def _run(self, command, env, how, timeout, cwd, preload=(), options=()):
        words = [os.path.basename(word) for word in command if not word.startswith("-")]
        folder = self.folder("-".join(words[-2:] + [how]))
        full, more = self.wrapped(command, how, folder / "rec", preload, options)
        (folder / "command").write_text(" ".join(f"{k}={v}" for k, v in {**(env or {}), **more}.items()) + " " + " ".join(full) + "\n")
        started = time.monotonic()
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            process = subprocess.Popen(
                full, env=self.environment({**(env or {}), **more}), cwd=cwd or folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
            # A timer, since `wait` with a time limit polls, which rounds wall times to multiples of 50 ms.
            late = threading.Event()

            def end():
                late.set()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

            alarm = threading.Timer(timeout, end)
            alarm.start()
            code = process.wait()
            seconds = time.monotonic() - started
            alarm.cancel()
        return Finished(self, full, folder, "none: it hung" if late.is_set() else code, seconds)

    def cli(self, *arguments, timeout=180):
        """Runs a culeak command other than `run`; returns (exit code, stdout, stderr)."""
        try:
            done = subprocess.run([str(self.culeak), *map(str, arguments)], env=self.environment(None), capture_output=True, text=True, errors="replace", timeout=timeout)
        except subprocess.TimeoutExpired as late:
            raise Failure(f"culeak {' '.join(map(str, arguments))} hung for {timeout} s") from late
        return done.returncode, done.stdout, done.stderr

    def snapshot(self, what, path, story=""):
        code, out, err = self.cli("snapshot", what, "--force", "-o", path)
        expect(code == 0 and path.exists(), f"culeak snapshot {what} gave exit code {code}\n{tail(out + err)}\n{story}")
        data = json.loads(path.read_text())
        expect_equal((data.get("format"), data.get("version")), ("culeak-snapshot", 2), "format and version of the snapshot")
        return Snapshot(data, path, story)

    def losses(self, recording):
        """The losses of a recording, without symbolizing it."""
        path = recording.with_suffix(".json")
        code, out, err = self.cli("snapshot", recording, "--no-symbols", "--force", "-o", path)
        expect(code == 0, f"{recording}: cannot be read\n{tail(out + err)}")
        return json.loads(path.read_text())["losses"]
