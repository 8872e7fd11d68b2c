"""Runs other projects' programs with and without culeak and compares the results; started by peers.sh, which lists the options.

A CUDA sample is compared by its exit code and its lines, a test suite by the outcome of every test. Samples run twice without
culeak: differences between those two runs (times, addresses, the order of threads) are ignored. A test whose outcome differs
runs again, both ways, and counts only if it differs again. No file of those projects is stored here: samples are built as
their CMakeLists.txt describes, but only for the present GPU.
"""

import argparse
import collections
import functools
import operator
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from harness import Failure, Missing, tail
from suite import find_machine

HERE = pathlib.Path(__file__).resolve().parent
HUNG = "none: it hung"  # harness.py's exit code for a program that it had to end
WAIVED = 2  # the exit code of a CUDA sample that cannot run on this machine

# Folder of the sample, and the part of the memory API that it uses.
SAMPLES = {
    "0_Introduction/vectorAdd": "cudaMalloc",
    "0_Introduction/asyncAPI": "cudaMallocHost",
    "0_Introduction/simpleStreams": "registered or mapped host memory",
    "0_Introduction/simpleMultiCopy": "cudaHostAlloc beside device memory",
    "0_Introduction/simpleCallback": "host functions and threads",
    "0_Introduction/simpleMultiGPU": "one set of allocations per device",
    "0_Introduction/simpleZeroCopy": "mapped host memory",
    "0_Introduction/simpleTexture": "arrays",
    "0_Introduction/simpleTextureDrv": "arrays of the driver API",
    "0_Introduction/simplePitchLinearTexture": "cudaMallocPitch",
    "0_Introduction/simpleLayeredTexture": "3D arrays",
    "0_Introduction/simpleCubemapTexture": "cubemap arrays",
    "0_Introduction/simpleSurfaceWrite": "arrays written by surfaces",
    "0_Introduction/vectorAddDrv": "cuMemAlloc, linked with libcuda",
    "0_Introduction/matrixMulDrv": "driver API with modules",
    "0_Introduction/simpleDrvRuntime": "both APIs in one program",
    "0_Introduction/vectorAddMMAP": "virtual memory management",
    "0_Introduction/simpleIPC": "IPC between processes",
    "0_Introduction/UnifiedMemoryStreams": "managed memory from threads",
    "0_Introduction/systemWideAtomics": "managed memory",
    "2_Concepts_and_Techniques/streamOrderedAllocation": "stream-ordered memory",
    "2_Concepts_and_Techniques/streamOrderedAllocationIPC": "pools shared between processes",
    "2_Concepts_and_Techniques/streamOrderedAllocationP2P": "pools and peers",
    "2_Concepts_and_Techniques/threadMigration": "contexts that move between threads",
    "2_Concepts_and_Techniques/radixSortThrust": "thrust's vectors",
    "3_CUDA_Features/StreamPriorities": "streams with priorities",
    "3_CUDA_Features/cudaCompressibleMemory": "compressible VMM memory",
    "3_CUDA_Features/graphMemoryNodes": "graph memory",
    "3_CUDA_Features/graphMemoryFootprint": "graph memory, trimmed",
    "3_CUDA_Features/simpleCudaGraphs": "graphs, built and captured",
    "3_CUDA_Features/jacobiCudaGraphs": "graphs, updated",
    "3_CUDA_Features/memMapIPCDrv": "VMM handles between processes",
    "3_CUDA_Features/newdelete": "the device heap",
    "3_CUDA_Features/ptxjit": "a linked module",
    "4_CUDA_Libraries/simpleCUBLAS": "cuBLAS's own memory",
    "4_CUDA_Libraries/simpleCUFFT": "cuFFT's own memory",
    "4_CUDA_Libraries/conjugateGradient": "cuBLAS and cuSPARSE",
}
# Samples that use memory and are left out on purpose.
LEFT_OUT = {
    "0_Introduction/simpleTexture3D": "needs OpenGL",
    "3_CUDA_Features/bindlessTexture": "needs OpenGL",
    "4_CUDA_Libraries/conjugateGradientUM": "little but managed memory, which others cover",
    "5_Domain_Specific/simpleVulkanMMAP": "needs Vulkan",
    "6_Performance/UnifiedMemoryPerf": "a benchmark of managed memory: takes minutes, and its results are times",
}

Suite = collections.namedtuple("Suite", "name checkout folder files options")
SUITES = [
    Suite("cupy: memory", "cupy", "tests", [f"cupy_tests/cuda_tests/test_{n}.py" for n in ("memory", "pinned_memory", "memory_hook")], ["-m", "not slow"]),
    Suite("cupy: hooks, textures, streams, graphs, devices", "cupy", "tests",
          ["cupy_tests/cuda_tests/memory_hooks_tests"] + [f"cupy_tests/cuda_tests/test_{n}.py" for n in ("texture", "stream", "graph", "device", "runtime", "driver")],
          ["-m", "not slow"]),
    Suite("pytorch: primary context", "pytorch", "test", ["test_cuda_primary_ctx.py"], []),
    Suite("pytorch: traced calls", "pytorch", "test", ["test_cuda_trace.py"], []),
    Suite("pytorch: allocator, pinned memory, graphs, snapshots", "pytorch", "test", ["test_cuda.py"],
          ["-k", "(memory or alloc or pinned or oom or cudart_register or graph or stream or Absorption or snapshot or cycles) "
                 "and not large and not optim and not scaling and not fuzz and not rng and not TestCudaOptims"]),
    Suite("pytorch: tensors between processes", "pytorch", "test", ["test_multiprocessing.py"],
          ["-k", "(cuda or event) and not send_many and not deadlock"]),
    Suite("pytorch: loaders that pin", "pytorch", "test", ["test_dataloader.py"], ["-k", "pin"]),
]  # fmt: skip


class Peers:
    def __init__(self, machine, options):
        self.machine, self.folder, self.limit = machine, options.folder.resolve(), time.monotonic() + options.limit
        self.architecture = architecture()
        self.environment = {"CULEAK_QUIET": "1", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
        self.environment["PYTHONPATH"] = ":".join(filter(None, [str(HERE), self.wheels(), os.environ.get("PYTHONPATH")]))
        self.counts = collections.Counter()

    def wheels(self):
        wheels = sorted((self.folder / "wheels").glob("*.whl"))
        if not wheels:
            return None
        site = self.machine.out / "site"
        done = subprocess.run(
            [self.machine.python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--target", site, *wheels], capture_output=True, text=True
        )
        if done.returncode != 0:
            print(f"could not install {', '.join(w.name for w in wheels)}:\n{tail(done.stderr)}", file=sys.stderr)
        return str(site)

    def say(self, verdict, name, words):
        self.counts[verdict] += 1
        print(f"{verdict:9} {name:62} {words}", flush=True)

    def left(self, wanted, needed=15):
        """Seconds a run may take: the requested time, or the rest of the time limit."""
        left = self.limit - time.monotonic()
        if left < needed:
            raise Missing("no time is left within --limit")
        return min(wanted, left)

    def run(self, command, how, cwd, seconds, **environment):
        return self.machine.run(*command, env={**self.environment, **environment}, how=how, fresh=True, timeout=self.left(seconds), cwd=cwd)

    # ---- what culeak recorded ----

    def recorded(self, run):
        """A short description of a run's recordings; a Failure if one lost something, or if there is none: then culeak was not loaded."""
        files = sorted(run.recordings(), key=lambda file: -file.stat().st_size)
        if not files:
            raise Failure(f"the results are the same, but nothing was recorded: was culeak loaded?\nlogs in {run.folder}")
        read = files[:6]
        with ThreadPoolExecutor(4) as pool:
            losses = list(pool.map(self.machine.losses, read))
        lost = [f"{file.name}: {name} {value}" for file, row in zip(read, losses) for name, value in row.items() if name.startswith("lost_") and value]
        if lost:
            raise Failure("records were lost: " + "; ".join(lost))
        unread = f", the largest {len(read)} read" if len(files) > len(read) else ""
        return f"{len(files)} recording{'s' * (len(files) != 1)}{unread}, {sum(row['events'] for row in losses):,} events, 0 lost"

    # ---- CUDA samples ----

    def build_all(self, names):
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return dict(zip(names, pool.map(self.build, names)))

    def build(self, name):
        """Builds a sample as its CMakeLists.txt describes; returns its folder and program, or the reason why it cannot."""
        source = self.folder / "cuda-samples" / "Samples" / name
        if not (source / "CMakeLists.txt").exists():
            return f"{source}: not in the checkout"
        recipe = recipe_of((source / "CMakeLists.txt").read_text())
        built = self.machine.out / "samples" / name
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir(parents=True)
        if (source / "data").exists():
            shutil.copytree(source / "data", built / "data")
        nvcc = [os.environ["NVCC"], f"-arch={self.architecture}", "-O2", "-std=c++17", "--extended-lambda", "-I", self.folder / "cuda-samples" / "Common"]
        libraries = [os.environ["PEERS_DRIVER"] if library == "cuda_driver" else f"-l{library}" for library in recipe.libraries]
        steps = [[*nvcc, f"-{kind}", source / kernel, "-o", built / output] for kind, kernel, output in recipe.kernels]
        steps += [[*nvcc, *(source / file for file in recipe.sources), *shlex.split(os.environ["PEERS_LIBRARIES"]), *libraries, "-lpthread", "-lrt", "-o", built / recipe.name]]
        for step in steps:
            done = subprocess.run(list(map(str, step)), cwd=built, capture_output=True, text=True, errors="replace")
            (built / "build.log").write_text(shlex.join(map(str, step)) + "\n" + done.stdout + done.stderr)
            if done.returncode != 0:
                errors = [line for line in (done.stdout + done.stderr).splitlines() if re.search("error|cannot find|undefined", line)]
                return f"does not build: {(errors or ['see ' + str(built / 'build.log')])[0].strip()[:160]}"
        return built, built / recipe.name

    def sample(self, name, built):
        if isinstance(built, str):
            raise Missing(built)
        folder, program = built
        go = lambda how: self.run([program], how, folder, 60)
        bare, watched = [go("bare"), go("bare")], [go("preload")]
        first = bare[0]
        if first.code != bare[1].code:
            raise Missing(f"without culeak it gave exit {first.code}, then {bare[1].code}")
        if first.code == watched[0].code != 0:
            why = "it cannot run on this machine" if first.code == WAIVED else f"exit {first.code} without culeak too"
            raise Missing(f"{why}; its output: " + " / ".join((first.out + first.err).strip().splitlines()[-2:]))
        if watched[0].code != first.code:
            raise Failure(f"exit {first.code} without, {watched[0].code} with\n{tail(watched[0].out + watched[0].err, 8)}\nlogs in {watched[0].folder}")
        differences = lambda: unlike(*([lines(run.out + run.err) for run in runs] for runs in (bare, watched)))
        if differences():
            # The order of threads may differ by chance: once more, both ways.
            bare.append(go("bare"))
            watched.append(go("preload"))
        if differences():
            raise Failure("\n".join(differences()) + f"\nlogs in {watched[-1].folder}")
        return f"exit {first.code}, {len(lines(first.out + first.err))} lines; {self.recorded(watched[0])}"

    # ---- test suites ----

    def suite(self, suite):
        folder = self.folder / suite.checkout / suite.folder
        files = [file for file in suite.files if (folder / file).exists()]
        if not files:
            raise Missing(f"{folder}: holds none of {', '.join(suite.files)}")
        bare, without = self.tests(suite, folder, [*files, *suite.options], "bare")
        if not without or bare.code == HUNG:
            raise Missing(f"{len(without)} tests ran: pytest gave exit {bare.code} without culeak\n{tail(bare.out + bare.err)}")
        # A run that --limit cuts short would seem to differ.
        self.left(0, needed=2 * bare.seconds + 20)
        watched, within = self.tests(suite, folder, [*files, *suite.options], "preload")
        differing = [test for test in {**without, **within} if without.get(test) != within.get(test)]
        unstable = []
        if differing and watched.code != HUNG:
            # Outcomes that change by themselves are separated from those that culeak changes.
            once_more, twice_more = (self.tests(suite, folder, [*files, *suite.options], how, differing)[1] for how in ("bare", "preload"))
            unstable = [test for test in differing if test in once_more and once_more.get(test) == twice_more.get(test)]
            differing = [test for test in differing if test not in unstable]
        tally = collections.Counter(without.values())
        words = ", ".join(f"{tally[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped", "crashed") if tally[outcome])
        if differing:
            rows = "\n".join(f"  {test}: {without.get(test, 'not run')} without, {within.get(test, 'not run')} with" for test in differing[:12])
            raise Failure(f"{len(differing)} of {len(without)} outcomes differ ({words} without)\n{rows}\n{tail(watched.out + watched.err, 12)}\nlogs in {watched.folder}")
        if watched.code != bare.code and not unstable:
            raise Failure(f"pytest gave exit {bare.code} without and {watched.code} with\n{tail(watched.out + watched.err)}")
        if tally["passed"] == 0:
            raise Missing(f"no test passes without culeak: {words}\n{tail(bare.out + bare.err, 6)}")
        noted = f"; {len(unstable)} changed once and agreed when run again" if unstable else ""
        return f"{words}{noted}; {bare.seconds:.0f} s and {watched.seconds:.0f} s; {self.recorded(watched)}"

    def tests(self, suite, folder, arguments, how, only=()):
        """Runs pytest on all tests or on those given; returns the finished run and {test: outcome}."""
        with tempfile.NamedTemporaryFile(dir=self.machine.out, suffix=".results") as results:
            command = [self.machine.python, "-m", "pytest", "-q", "-p", "peers_plugin", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
            run = self.run(command, how, folder, 200, PEERS_RESULTS=results.name, PEERS_ONLY="\n".join(only))
            return run, outcomes(pathlib.Path(results.name).read_text())


# ---- comparing ----

Recipe = collections.namedtuple("Recipe", "name sources kernels libraries")


def recipe_of(cmake):
    """What a sample's CMakeLists.txt builds: the program, and the kernels it loads at run time."""
    name, sources = re.search(r"add_executable\((\S+)\s+([^)]+)\)", cmake).groups()
    kernels = [("fatbin" if kind == "FATBIN" else "ptx", output) for kind, output in re.findall(r'set\(CUDA_(FATBIN|PTX)_FILE "\$\{CMAKE_CURRENT_BINARY_DIR\}/([^"]+)"', cmake)]
    kernel_sources = re.findall(r'set\(CUDA_KERNEL_SOURCE "\$\{CMAKE_CURRENT_SOURCE_DIR\}/([^"]+)"', cmake)
    libraries = [library for library in dict.fromkeys(re.findall(r"CUDA::(\w+)", cmake)) if library != "cudart"]
    return Recipe(name, sources.split(), [(kind, source, output) for (kind, output), source in zip(kernels, kernel_sources)], libraries)


def lines(text):
    """The lines of an output without what differs between any two runs: addresses, times and rates, ids of processes and threads."""
    text = re.sub(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,16}\b", "ADDRESS", text)
    text = re.sub(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?", "NUMBER", text)
    text = re.sub(r"(?i)\b(pid|process|thread id|tid)(\W{0,3})\d+", r"\1\2N", text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def unlike(bare, watched):
    """Lines that every run under culeak lacks or adds. Lines in which the bare runs differ are noise, and as many may differ here."""
    bare, watched = ([collections.Counter(lines) for lines in runs] for runs in (bare, watched))
    every, some = (functools.reduce(operation, bare) for operation in (operator.and_, operator.or_))
    noise = sum((some - every).values())
    lacking = every - functools.reduce(operator.or_, watched)
    added = functools.reduce(operator.and_, watched) - some
    found = [f"a line is missing: {line}" for line in lacking]
    if sum(added.values()) > noise:
        found += [f"a line is added: {line}" for line in added]
    return found[:12]


def outcomes(text):
    """{test: outcome} from the plugin's lines, one for each of a test's three phases; a test that never ended has crashed."""
    found, phases = {}, collections.Counter()
    for outcome, test in (line.split("\t", 1) for line in text.splitlines() if "\t" in line):
        phases[test] += 1
        first = phases[test] == 1
        worst = {"failed": 2, "skipped": 1, "passed": 0}
        if first or worst[outcome] > worst.get(found[test], 0):
            found[test] = outcome
    return {test: "crashed" if outcome == "passed" and phases[test] < 3 else outcome for test, outcome in found.items()}


def architecture():
    queried = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True) if shutil.which("nvidia-smi") else None
    found = re.match(r"(\d+)\.(\d+)", queried.stdout) if queried else None
    return f"sm_{found[1]}{found[2]}" if found else "sm_90"


# ---- all of it ----


def main():
    options = parse()
    wanted = lambda name: not options.only or re.search(options.only, name)
    samples = [name for name in SAMPLES if wanted(name)]
    suites = [suite for suite in SUITES if wanted(suite.name)]
    if options.list:
        print(*(f"{name:62} {why}" for name, why in SAMPLES.items()), *(s.name for s in SUITES), *(f"{n:62} left out: {why}" for n, why in LEFT_OUT.items()), sep="\n")
        return 0
    options.out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="culeak-peers."))).resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    peers = Peers(find_machine(options), options)
    built = peers.build_all(samples) if (peers.folder / "cuda-samples").exists() else {}
    if not built and samples:
        peers.say("not run", "CUDA samples", f"{peers.folder / 'cuda-samples'}: not there")
    for name, why in LEFT_OUT.items():
        if built and wanted(name):
            print(f"{'left out':9} {name:62} {why}")
    for name in built:
        judge(peers, name, lambda: peers.sample(name, built[name]))
    for suite in suites:
        judge(peers, suite.name, lambda: peers.suite(suite))
    print(f"\nlogs and recordings in {options.out}")
    print(f"{peers.counts['same']} the same, {peers.counts['DIFFERS']} differ, {peers.counts['not run']} not run", flush=True)
    return 0 if peers.counts["same"] and not peers.counts["DIFFERS"] else 1


def judge(peers, name, compare):
    try:
        peers.say("same", name, compare())
    except Missing as missing:
        peers.say("not run", name, str(missing).replace("\n", "\n    "))
    except Failure as failure:
        peers.say("DIFFERS", name, str(failure).replace("\n", "\n    "))


def parse():
    parser = argparse.ArgumentParser(prog="peers.sh")
    parser.add_argument("folder", type=pathlib.Path, nargs="?", help="folder of checkouts: cuda-samples, cupy, pytorch")
    parser.add_argument("--only", metavar="REGEX", help="the samples and suites whose name matches")
    parser.add_argument("--out", type=pathlib.Path, help="folder for logs and recordings")
    parser.add_argument("--limit", type=float, default=540, help="seconds for everything together")
    parser.add_argument("--list", action="store_true", help="print what would be run and stop")
    options = parser.parse_args()
    if not options.list and not (options.folder and options.folder.is_dir()):
        parser.error(f"{options.folder or 'FOLDER'}: not a folder; name one that holds checkouts of cuda-samples, cupy or pytorch")
    return options


if __name__ == "__main__":
    sys.exit(main())
