"""Measures every performance target of culeak, one row each; started by run.sh, which lists the options.

A row is measured, or gives the reason why not: a figure that was not measured is never printed. One process can be up to 1.7 times
slower than its neighbours, bare or recorded, so events, calls of the driver and steps of PyTorch are measured bare and under culeak by
turns in one process; medians of such processes count, with the range beside them. Only what happens once in a process (a start, an
import) and other tools are compared across processes, in alternating runs. `targets.md` contains the table, and `events.md`, `threads.md`,
`calls.md`, `steps.md` and `timeline.md` the figures behind it.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

from frameworks import UNCACHED
from harness import CULEAK, Failure, Missing, tail
from pairs import Ratio, alternating, exclusion, sanitizer, table
from suite import find_machine

HERE = pathlib.Path(__file__).resolve().parent
Row = collections.namedtuple("Row", "what must measured reached")
groups = []


def group(name, *rows):
    """Registers a function that measures the named rows and yields (measured, reached) for each, in this order."""

    def register(function):
        groups.append((name, rows, function))
        return function

    return register


def median(values):
    return statistics.median(values)


# ---- the walker ----


# In the order in which they are shown; see shim/walker/benches/ways.
WAYS = ("walker", "read sets", "framehop", "backtrace", "libgcc", "frame pointers")


@group("walker", ("walker, warm, at 20 frames", "<= 8 ns a frame"), ("walker against libgcc, same run", ">= 15x"))
def walker(t):
    walk = t.binaries / "walk"
    if not walk.exists():
        raise Missing(f"{walk}: missing; benches/collect.sh puts it there")
    if not shutil.which("g++"):
        raise Missing("no g++, which compiles the code that is walked")
    times = collections.defaultdict(list)
    for turn in range(t.times(3)):
        home = t.machine.out / "criterion" / str(turn)
        t.must([walk, "--bench", "--noplot", f"same/({'|'.join(WAYS)})/20"], env={"CRITERION_HOME": str(home)})
        for way in WAYS:
            estimates = home / "same" / way / "20" / "new" / "estimates.json"
            times[way].append(json.loads(estimates.read_text())["median"]["point_estimate"])
    a_frame = median(times["walker"]) / 20
    others = ", ".join(f"{way} {median(times[way]) / 20:.1f}" for way in WAYS if way != "walker")
    yield f"{a_frame:.1f} ns a frame (beside it: {others})", a_frame <= 8
    ratio = Ratio(times["walker"], times["libgcc"])
    yield f"{ratio}x", ratio.median >= 15


# ---- a whole event, on a driver that does nothing ----


TIMELINE = {"CULEAK_TIMELINE": str(1 << 30)}
Event = collections.namedtuple("Event", "allocation free rate alone cpu")
# 15 times 20,000 blocks allocated and then freed, and twice as many alternately: benches/event.c with -DMALLOC.
PAIRS_OF_MALLOC = 3 * 15 * 20_000


def event(t, program, frames=20, threads=1, under=(), env=None):
    """One run of benches/event.c: what each of its ways takes; `all` is the CPU time of all processes, as nanoseconds of a pair.

    `under` is a command in front of it; `env` are variables of culeak, which is preloaded if they are given."""
    path = t.machine.out / "bin" / program
    if not path.exists():
        raise Missing(f"{program} was not built; see {t.machine.out / 'bin' / 'event.log'}")
    command, libraries = [*under, path, frames, threads], str(path.parent / "driver")
    if under:
        libraries += f":{t.binaries / 'heaptrack' / 'lib'}"
    before = cpu_seconds()
    output = t.must(command, env={**({} if env is None else t.preloaded() | env), "LD_LIBRARY_PATH": libraries}).stdout
    spent = cpu_seconds() - before
    ways = {name: Event(*map(float, figures.split())) for name, figures in re.findall(r"^WAY (\w+) ([\d. ]+)$", output, re.M)}
    if not ways:
        raise Failure(f"{' '.join(map(str, command))} printed no figures\n{tail(output)}")
    return ways | {"all": 1e9 * spent / (threads * PAIRS_OF_MALLOC)}


def cpu_seconds():
    """CPU time of all processes that have ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def heaptrack(t):
    tool = shutil.which("heaptrack") or (t.binaries / "heaptrack" / "bin" / "heaptrack")
    if not pathlib.Path(tool).exists():
        raise Missing("no heaptrack, neither installed nor collected")
    return (tool, "-o", t.machine.out / "heap")


@group(
    "event",
    ("allocation, whole event, warm, 20 frames", "<= 250 ns"),
    ("free, whole event", "<= 80 ns"),
    ("allocation and free against heaptrack's, 20 frames", ">= 3x cheaper"),
)
def events(t):
    seen = collections.defaultdict(list)
    try:
        beside, why = heaptrack(t), None
    except Missing as missing:
        beside, why = None, missing
    for frames in (20, 10, 40):
        for _ in range(t.times(5 if frames == 20 else 2)):
            run = event(t, "event", frames, env={})
            for way in ("bare", "recorded", "control"):
                seen[way, frames].append(run[way])
            for name, under in (("malloc", ()), ("malloc, heaptrack", beside)):
                if under is not None:
                    run = event(t, "malloc", frames, under=under)
                    # heaptrack works in other processes too.
                    seen[name, frames].append(run["bare"]._replace(cpu=run["all"]))
    rows = [[name, frames, *(f"{median([getattr(run, part) for run in runs]):.0f}" for part in ("allocation", "free", "cpu")), len(runs)] for (name, frames), runs in seen.items()]
    table(t.machine.out / "events.md", "A whole event on a driver that does nothing, one thread: bare, recorded and the control (ten locked additions) by turns in one process, malloc in others; medians of processes, each the median of its chunks of 250 calls. CPU time is a mean; for malloc that of all processes, which do other pairs too.", ["way", "frames", "allocation, ns", "free, ns", "CPU time, ns a pair", "processes"], rows)
    recorded = seen["recorded", 20]
    for part, limit in (("allocation", 250), ("free", 80)):
        figures = [getattr(run, part) for run in recorded]
        yield f"{median(figures):.0f} ns ({min(figures):.0f} to {max(figures):.0f})", median(figures) <= limit
    if not beside:
        raise why
    pair = lambda name: [run.allocation + run.free for run in seen[name, 20]]
    ratio = Ratio(pair("recorded"), pair("malloc, heaptrack"))
    more = median([a - b for a, b in zip(pair("recorded"), pair("bare"))]), median(pair("malloc, heaptrack")) - median(pair("malloc"))
    cpu = [f"{median([run.cpu for run in seen[name, 20]]):.0f}" for name in ("recorded", "malloc, heaptrack")]
    yield f"{ratio}x; added to the calls themselves: {more[0]:.0f} ns, heaptrack {more[1]:.0f}; CPU time of all processes: {cpu[0]} ns, heaptrack {cpu[1]}", ratio.median >= 3


@group("threads", ("two threads against one", ">= 1.8x the pairs a second, or the control's"), ("16 threads against one", ">= 13x the pairs a second, or the control's"))
def threads(t):
    cores = len(os.sched_getaffinity(0))
    counts = [count for count in (2, 4, 8, 16) if count <= cores]
    if t.trial:
        counts = counts[:1]
    runs = {count: [event(t, "event", 20, count, env={}) for _ in range(t.times(3))] for count in counts}
    against_one = lambda way, count: Ratio([run[way].alone for run in runs[count]], [run[way].rate for run in runs[count]])
    ways = ("control", "bare", "recorded")
    rows = [[count, *(f"{median([run[way].rate for run in runs[count]]) / 1e6:.2f}" for way in ways), str(against_one("control", count)), str(against_one("recorded", count))] for count in counts]
    title = f"Pairs a second of all threads, 64 live blocks in each, 20 frames; medians of {t.times(3)} processes, in each of which one thread also works while the others wait. The control calls ten locked additions to words that no other thread touches: the scaling of the machine itself."
    heads = ["threads", "control, million", "bare, million", "culeak, million", "control against one thread", "culeak against one thread"]
    table(t.machine.out / "threads.md", title, heads, rows)
    for count, wanted in ((2, 1.8), (16, 13)):
        if count not in counts:
            yield f"not measured: {count} threads need as many cores, here are {cores}", None
        else:
            ratio = against_one("recorded", count)
            control = against_one("control", count)
            yield f"{ratio}x (the machine's own: {control}x)", ratio.median >= min(wanted, control.median)


@group("new_stacks", ("100,000 new stacks of 22 frames, whole process", "<= 0.6 s of CPU time"))
def new_stacks(t):
    program = t.machine.out / "bin" / "stacks"
    if not program.exists():
        raise Missing(f"stacks was not built; see {t.machine.out / 'bin' / 'event.log'}")
    spent = []
    for _ in range(t.times(3)):
        before = cpu_seconds()
        t.must([program, 1000 if t.trial else 100_000, 22], env={**t.preloaded(), "LD_LIBRARY_PATH": str(program.parent / "driver")})
        spent.append(cpu_seconds() - before)
    yield f"{median(spent):.2f} s ({min(spent):.2f} to {max(spent):.2f})", median(spent) <= 0.6


# ---- calls of the real driver ----


def nanoseconds(run):
    return float(re.search(r"NANOSECONDS ([\d.]+)", run.out)[1])


class Switched:
    """Runs of a program that works bare and under culeak by turns in one process (switch.c): two processes can differ by more
    than the targets allow."""

    def __init__(self, t, processes, command, env=None):
        library = t.machine.out / "bin" / "switch.so"
        if not library.exists():
            raise Missing("switch.so was not built")
        env = {**t.quiet, **(env or {})}
        self.runs = [
            t.machine.run(*command, env=env, how="preload", preload=(library, CULEAK), fresh=True, timeout=t.left(90)).must()
            for _ in range(t.times(processes))
        ]
        self.seen = collections.defaultdict(list)
        for run in self.runs:
            for what, way, figure, ratio in re.findall(r"^WAY (?:([A-Z]+) )?(\w+) ([\d.]+) ([\d.]+)$", run.out, re.M):
                self.seen[what, way].append((float(figure), float(ratio)))
        if not self.seen:
            raise Failure(f"{' '.join(map(str, command))} printed no figures\n{tail(self.runs[0].out + self.runs[0].err)}")

    def figure(self, way, what=""):
        """The median over the processes, in the unit of the program."""
        return median([figure for figure, _ in self.seen[what, way]])

    def ratio(self, way="culeak", what=""):
        """The median over the processes of their median ratios to bare."""
        return median([ratio for _, ratio in self.seen[what, way]])

    def words(self, way="culeak", what=""):
        ratios = [ratio for _, ratio in self.seen[what, way]]
        return f"{self.ratio(way, what):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"

    def own_estimate(self, t):
        """Nanoseconds of an event by the recorder's own clock."""
        own = t.machine.losses(self.runs[-1].recording())
        return own["recorder_ns"] / max(own["events"], 1)


SAMPLED = {"CULEAK_SAMPLE": "512KiB"}
# All of an event but the walk.
ONE_FRAME = {"CULEAK_DEPTH": "1"}


def program_of_calls(t):
    program = t.machine.out / "bin" / "cost"
    if not program.exists():
        log = program.with_suffix(".log").read_text().strip().splitlines()
        raise Missing(f"cost.cu was not built: {log[-1] if log else 'no nvcc'}")
    tried = t.machine.run(program, "plain_pair", how="bare", fresh=True)
    if tried.code != 0:
        raise Missing(f"no working GPU: {tried.err.strip().splitlines()[-1] if tried.err.strip() else f'exit {tried.code}'}")
    return program


@group(
    "calls",
    ("cudaMallocAsync + cudaFreeAsync", "<= 1.25x bare"),
    ("sampled, 512 KiB: cudaMallocAsync + cudaFreeAsync", "<= 1.12x bare"),
    ("20,000 live cudaMalloc of 512 B", "<= 1.15x bare"),
    ("sampled, 512 KiB: 20,000 live cudaMalloc of 512 B", "no target"),
)
def calls(t):
    program = program_of_calls(t)
    rows, answers = [], []
    for name, case, wanted, wanted_sampled in (
        ("cudaMallocAsync + cudaFreeAsync", "ordered_pair", 1.25, 1.12),
        ("20,000 live cudaMalloc of 512 B", "many_live", 1.15, None),
        ("cudaMalloc + cudaFree", "plain_pair", None, None),
    ):
        full, sampled, one_frame = (Switched(t, 5, [program, case], env) for env in (None, SAMPLED, ONE_FRAME))
        bare = full.figure("bare")
        beside = []
        for label, options in (("compute-sanitizer", lambda: []), ("its kernels excluded", lambda: exclusion([program, "plain_pair"]))):
            try:
                chosen = options()
                if label != "compute-sanitizer" and not chosen:
                    raise Missing("no spelling of the option was accepted")
                run = t.machine.run(*sanitizer(*chosen), program, case, how="bare", fresh=True, timeout=t.left(60)).must()
                beside.append((label, f"{nanoseconds(run) / bare:.1f}x"))
            except (Missing, Failure) as problem:
                beside.append((label, f"not measured: {str(problem).splitlines()[0]}"))
        floors = [full.words(way) for way in ("empty_hook", "clock_only")]
        rows.append([name, f"{bare:.0f}", *floors, one_frame.words(), sampled.words(), full.words(), f"{full.own_estimate(t):.0f}", *(figure for _, figure in beside)])
        for runs, limit, words in ((full, wanted, beside), (sampled, wanted_sampled, [])):
            more = f"{(runs.ratio() - 1) * runs.figure('bare'):.0f} ns more than {runs.figure('bare'):.0f}"
            figure = ", ".join([more, *(" ".join(pair) for pair in words)])
            answers.append((f"{runs.words()}x ({figure}; clock only {runs.words('clock_only')}x)", limit and runs.ratio() <= limit))
    heads = ["operation", "bare, ns", "an empty hook", "the clock only", "culeak, stacks of one frame", "culeak, sampled", "culeak", "culeak's own estimate, ns an event", "compute-sanitizer --leak-check full", "kernels excluded"]
    title = f"Time of a call against bare ones of the same process; medians of {t.times(5)} processes (range), compute-sanitizer one process against bare."
    table(t.machine.out / "calls.md", title, heads, rows)
    yield from answers[:4]


# ---- PyTorch ----


def torch_of(t):
    """The device that PyTorch can use here."""
    result = subprocess.run([t.machine.python, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"], capture_output=True, text=True)
    if result.returncode != 0:
        raise Missing(f"no PyTorch: {result.stderr.strip().splitlines()[-1]}")
    version, usable = result.stdout.split()
    if usable == "True":
        return "cuda"
    if t.trial:
        return "cpu"
    raise Missing(f"PyTorch {version} finds no GPU")


def step(t, device, mode="plain"):
    run = t.machine.run(t.machine.python, HERE / "step.py", mode, device, t.times(60), how="bare", fresh=True, timeout=t.left(90)).must()
    return {word: (float(value), int(count)) for word, value, count in re.findall(r"^(STEP|RECORDED|PAIR|RECORDED_PAIR) ([\d.]+) (\d+)$", run.out, re.M)}, run


# Name, variables of culeak and of PyTorch, processes, and the limits for a step and a pair.
WAYS_OF_STEPS = (
    ("every tensor recorded", {}, 3, 1.05, 1.10),
    ("caching off: every tensor a call of the driver", UNCACHED, 2, 1.03, None),
    ("--sample 512KiB", SAMPLED, 3, 1.01, 1.03),
    ("--record python-frames", {"CULEAK_STACKS": "python"}, 2, 1.04, 1.10),
    ("--record native-frames", {"CULEAK_STACKS": "native"}, 2, None, None),
)


@group(
    "steps",
    *(
        (f"{what}: {name}", f"<= {limit:.2f}x bare" if limit else "no target")
        for name, _, _, *limits in WAYS_OF_STEPS
        for what, limit in zip(("transformer step", "torch.empty + del"), limits)
    ),
)
def steps(t):
    device = torch_of(t)
    _, first = step(t, device)  # warms up the file caches
    blocks = int(re.search(r"^STEP [\d.]+ (\d+)$", first.out, re.M)[1])
    rows = []
    try:
        for name, env, processes, *limits in WAYS_OF_STEPS:
            runs = Switched(t, processes, [t.machine.python, HERE / "step.py", "switched", device, t.times(60)], env)
            for what, unit, limit in zip(("STEP", "PAIR"), ("ms", "ns"), limits):
                figures = [f"{runs.figure(way, what):.{2 if unit == 'ms' else 0}f}" for way in ("bare", "culeak")]
                ways = (runs.words(way, what) for way in ("empty_hook", "clock_only", "culeak"))
                rows.append([name, {"STEP": "step", "PAIR": "torch.empty + del"}[what], unit, *figures, *ways, len(runs.runs)])
                yield f"{runs.words('culeak', what)}x of {figures[0]} {unit} (an empty hook {runs.words('empty_hook', what)}x, clock only {runs.words('clock_only', what)}x)", limit and runs.ratio("culeak", what) <= limit
    finally:
        recorder = "not measured: no GPU"
        if device == "cuda":
            try:
                times = [step(t, device, "recorder")[0] for _ in range(t.times(2))]
                recorder = ", ".join(str(Ratio([timed[a][0] for timed in times], [timed[b][0] for timed in times])) for a, b in (("STEP", "RECORDED"), ("PAIR", "RECORDED_PAIR")))
            except (Failure, Missing) as problem:
                recorder = f"not measured: {str(problem).splitlines()[0]}"
        heads = ["recording", "work", "unit", "bare", "culeak", "an empty hook, ratio", "the clock only, ratio", "culeak, ratio", "processes"]
        title = f"A transformer training step on {device} ({blocks} blocks of PyTorch's allocator) and a tensor that is allocated and freed, against bare ones of the same process; medians of processes (range). PyTorch's own recorder, switched on and off in one process: {recorder} (step, pair)."
        table(t.machine.out / "steps.md", title, heads, rows)


def offset_of_peek(t):
    """Where culeak's library keeps the function that counts PyTorch's nodes: without it, no forward line is noted."""
    if not shutil.which("nm"):
        raise Missing("no nm, which finds the switch of the forward lines")
    found = re.search(r"^([0-9a-f]+) d .*7forward4PEEK", t.must(["nm", t.machine.shim], env={}).stdout, re.M)
    if not found:
        raise Missing(f"{t.machine.shim} has no symbols")
    return found[1]


@group(
    "lines",
    ("lines of backward and forward, of a transformer step", "<= 1.01x without them"),
    ("the same with --sample 512KiB", "no target"),
)
def lines(t):
    device, peek = torch_of(t), offset_of_peek(t)
    if device == "cpu":
        raise Missing("no GPU: PyTorch reports no blocks of the CPU")
    for env, limit in (({}, 1.01), (SAMPLED, None)):
        runs = Switched(t, 3, [t.machine.python, HERE / "step.py", "lines", device, t.times(60), peek], env)
        figures = ", ".join(f"{name} {runs.figure(way, 'STEP'):.2f} ms" for name, way in (("bare", "bare"), ("without lines", "without_lines"), ("with", "culeak")))
        yield f"{runs.words('culeak', 'STEP')}x by turns (medians: {figures})", limit and runs.ratio("culeak", "STEP") <= limit


# ---- with an event log ----


@group(
    "timeline",
    ("an event in the log, allocation and free", "<= 20 ns more than without it"),
    ("transformer step with --timeline, caching on", "<= 1.10x bare"),
)
def timeline(t):
    rows, more = [], {}
    envs = {"culeak": {}, "timeline": TIMELINE}
    seen = {way: [] for way in envs}
    for _ in range(t.times(5)):
        for way, env in envs.items():
            seen[way].append(event(t, "event", env=env))
    for part in ("allocation", "free"):
        added = {way: [getattr(run["recorded"], part) - getattr(run["bare"], part) for run in runs] for way, runs in seen.items()}
        more[part] = median(added["timeline"]) - median(added["culeak"])
        rows.append([f"{part} on a driver that does nothing, 20 frames", *(f"{median(added[way]):.0f} ns ({min(added[way]):.0f} to {max(added[way]):.0f}) more than bare" for way in envs)])
    try:
        yield f"{more['allocation']:+.0f} and {more['free']:+.0f} ns", max(more.values()) <= 20
        program = t.machine.out / "bin" / "cost"
        if program.exists():
            for name, case in (("cudaMallocAsync + cudaFreeAsync", "ordered_pair"), ("cudaMalloc + cudaFree", "plain_pair")):
                rows.append([name, *(f"{Switched(t, 3, [program, case], env).words()}x bare" for env in envs.values())])
        device = torch_of(t)
        runs = {way: Switched(t, 2, [t.machine.python, HERE / "step.py", "switched", device, t.times(60)], env) for way, env in envs.items()}
        for name, what in ((f"transformer step on {device}", "STEP"), ("torch.empty + del", "PAIR")):
            rows.append([name, *(f"{runs[way].words('culeak', what)}x bare" for way in envs)])
        yield f"{runs['timeline'].words('culeak', 'STEP')}x", runs["timeline"].ratio("culeak", "STEP") <= 1.10
    finally:
        title = "Cost of an event log (--timeline, 1 GiB). Each process works bare and recorded by turns; medians of processes with and without a log (range)."
        table(t.machine.out / "timeline.md", title, ["program", "culeak", "with --timeline"], rows)


@group("import", ("`import torch` and a first tensor", "<= 1.02x bare"))
def first_tensor(t):
    device = torch_of(t)
    program = [t.machine.python, "-c", f"import torch; torch.ones(1, device='{device}').sum().item()"]
    bare, watched = alternating(t.machine, program, env=t.quiet, pairs=t.times(6), how="preload")
    ratio = Ratio([run.seconds for run in bare], [run.seconds for run in watched])
    yield f"{ratio}x of {median([run.seconds for run in bare]):.2f} s", ratio.median <= 1.02


# ---- a program that does not use CUDA ----


@group("without_cuda", ("/bin/true under the preload", "<= 0.2 ms more"), ("its files", "none"), ("its threads", "no additional ones"))
def without_cuda(t):
    folder = t.machine.folder("true")
    bare = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    watched = {**bare, **t.preloaded(folder)}

    def once(env):
        started = time.perf_counter()
        _, status = os.waitpid(os.posix_spawn("/bin/true", ["true"], env), 0)
        if status != 0:
            raise Failure(f"/bin/true ended with status {status}")
        return 1e3 * (time.perf_counter() - started)

    pairs = [(once(bare), once(watched)) for _ in range(t.times(400))]
    more = median([b - a for a, b in pairs])
    yield f"{more:+.3f} ms of {median([a for a, _ in pairs]):.2f} (median of {len(pairs)} pairs)", more <= 0.2
    threads = subprocess.run(["/bin/ls", "/proc/self/task"], env=watched, capture_output=True, text=True).stdout.split()
    files = sorted(path.name for path in folder.rglob("*") if path.is_file())
    yield ", ".join(files) or "none", not files
    yield f"{len(threads)} in all", len(threads) == 1


# ---- all of it ----


class Trial:
    """The machine, and the limits of the measurement."""

    def __init__(self, machine, options):
        self.machine, self.trial, self.deadline = machine, options.trial, time.monotonic() + options.limit
        self.binaries = machine.culeak.parent
        self.quiet = {"CULEAK_QUIET": "1"}

    def times(self, wanted):
        return 1 if self.trial else wanted

    def left(self, wanted):
        left = self.deadline - time.monotonic()
        if left < 10:
            raise Missing("no time is left within --limit")
        return min(wanted, left)

    def preloaded(self, folder=None):
        if not self.machine.shim:
            raise Missing("no preload library")
        return {**self.quiet, "LD_PRELOAD": str(self.machine.shim), "CULEAK_OUTPUT": f"{folder or self.machine.out}/"}

    def must(self, command, env):
        """Runs a command to its end and returns its output."""
        command = [str(word) for word in command]
        clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("CULEAK_")}
        try:
            done = subprocess.run(command, env={**clean, **env}, capture_output=True, text=True, errors="replace", timeout=self.left(120))
        except subprocess.TimeoutExpired as late:
            raise Failure(f"{' '.join(command)}: not done after {late.timeout:.0f} s") from late
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)}: exit {done.returncode}\n{tail(done.stdout + done.stderr, 8)}")
        return done


def measure(t, name, rows, function):
    """Rows with the values that `function` yields; rows without a value give the reason."""
    measured = []
    try:
        t.left(20)
        for figure, reached in function(t):
            verdict = "-" if reached is None else "trial" if t.trial else "yes" if reached else "no"
            measured.append(Row(*rows[len(measured)], figure, verdict))
    except (Missing, Failure) as problem:
        print(f"{name}: {problem}", file=sys.stderr, flush=True)
        why = str(problem).splitlines()[0]
        measured += [Row(*row, f"not measured: {why}", "-") for row in rows[len(measured) :]]
    return measured


def machine_words():
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True) if shutil.which("nvidia-smi") else None
    names = gpu.stdout.strip().splitlines() if gpu and gpu.returncode == 0 else []
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{names[0] if names else 'no GPU'}; {len(os.sched_getaffinity(0))} cores of {model[1] if model else platform.machine()}; load {os.getloadavg()[0]:.1f} at the start; {time.strftime('%Y-%m-%d')}"


def main():
    parser = argparse.ArgumentParser(prog="benches/compare/run.sh")
    parser.add_argument("--only", metavar="REGEX", default="", help=f"groups: {', '.join(name for name, _, _ in groups)}")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--limit", type=float, default=330)
    parser.add_argument("--trial", action="store_true")
    options = parser.parse_args()
    trial = Trial(find_machine(options), options)
    words, rows = machine_words(), []
    for name, wanted, function in groups:
        if re.search(options.only, name):
            rows += measure(trial, name, wanted, function)
    title = f"{words}." if not options.trial else f"TRIAL, figures mean nothing. {words}."
    table(options.out / "targets.md", title, ["what", "must reach", "measured", "reached"], rows)
    counts = collections.Counter(row.reached for row in rows)
    print(f"{counts['yes']} reached, {counts['no']} not reached, {counts['-']} not measured; tables in {options.out}", flush=True)
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
