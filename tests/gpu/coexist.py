"""Claims about culeak beside other tools in one process: each tool works as it does without culeak, and culeak's bytes are exact.

Optional tools are named by environment variables (listed in run.sh); without them the claims are reported as missing.
"""

import glob
import json
import os
import pathlib

from harness import CULEAK, HERE, Missing, claim, expect, expect_equal, tail
from objects import at, objects_of
from pairs import sanitizer

ORDERS = {"before": lambda other: (other, CULEAK), "behind": lambda other: (CULEAK, other)}


def named(variable, what, pattern):
    """The file that matches the pattern in the folder that the variable names."""
    folder = os.environ.get(variable)
    found = sorted(glob.glob(os.path.join(folder, "**", pattern), recursive=True)) if folder else []
    if not found:
        raise Missing(f"{what}: {variable} is not set to a folder that contains {pattern}")
    return pathlib.Path(found[0])


def pytorch(t, *expressions):
    """The values of these expressions in a Python with PyTorch."""
    code = "import torch, importlib.util, pathlib; " + "; ".join(f"print({e})" for e in expressions)
    result = t.run(t.python, "-c", code, how="bare", timeout=200)
    if result.code != 0:
        raise Missing(f"PyTorch\n{tail(result.err)}")
    return result.out.split()


# ---- a preload that releases memory for a while ----


def saver_of(t, kind):
    """The preload, and the environment that it and the program need."""
    if kind == "stand_in":
        return t.program("saver.so"), {}
    cuda = pytorch(t, "torch.version.cuda.split('.')[0]")[0]
    library = named("TORCH_MEMORY_SAVER", "torch_memory_saver", f"torch_memory_saver_hook_mode_preload_cu{cuda}.abi3.so")
    # It is linked with PyTorch's own runtime, which is not in the loader's search path.
    found = pytorch(t, "*sorted(str(p.parent) for p in pathlib.Path(torch.__file__).parent.parent.glob('nvidia/*/lib/libcudart.so*'))")
    folders = ":".join([*dict.fromkeys(found), os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")
    return library, {"PYTHONPATH": str(library.parent), **({"LD_LIBRARY_PATH": folders} if folders else {})}


def asleep_or_awake(t, kind, place, phase):
    """Runs the program with the saver alone and with culeak before or after it; both must print the same results."""
    saver, env = saver_of(t, kind)
    command = [t.python, HERE / "victims" / "fw_saver.py", kind, phase]
    bare = t.run(*command, env=env, how="bare", preload=(saver,), timeout=200)
    if bare.code != 0:
        raise Missing(f"a working {kind} (the program fails without culeak too)\n{tail(bare.err)}")
    done = t.run(*command, env=env, how="preload", preload=ORDERS[place](saver), timeout=200).must(0)
    expect_equal(done.results(), bare.results(), f"results with and without culeak\n{done.story()}")
    return done


def ledger_of(report):
    """Bytes of the only device's lines, by `what` and owner."""
    return {(line["what"], line["of"]): line["bytes"] for line in report["ledger"]["devices"][0]["lines"] if line["bytes"]}


def pytorchs(ledger):
    return sum(ledger.get((what, "PyTorch"), 0) for what in ("blocks", "cached", "pool"))


@claim(over=[(kind, place, phase) for kind in ("stand_in", "package") for place in ORDERS for phase in ("awake", "asleep", "awake_again")], alone=True)
def released_memory_is_no_longer_in_the_ledger(t, case):
    kind, place, phase = case
    done = asleep_or_awake(t, kind, place, phase)
    snapshot = done.snapshot(done.pid())
    snapshot.expect_sane()
    region = done.fact("region")
    expect_equal(snapshot.bytes_of("physical"), 0 if phase == "asleep" else region, f"physical memory, {phase}\n{snapshot.where()}")
    code, out, err = t.cli("report", done.recording(done.pid()), "--json")
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    report = json.loads(out)
    ledger, handles = ledger_of(report), report["handles"]
    made = handles["mapped"]["count"] + handles["freed"]
    expect_equal(handles["created"], made, f"handles created (got), mapped and freed: {handles}")
    expect_equal((handles["mapped"]["bytes"], handles["freed"] > 0), (0 if phase == "asleep" else region, phase != "awake"), f"handles, {phase}: {handles}")
    odd = [handles[state]["count"] for state in ("released", "unmapped", "retained")]
    expect_equal((odd, handles["failed_releases"]), ([0, 0, 0], 0), f"handles in other states, {phase}: {handles}")
    held = done.fact("reserved") - (region if phase == "asleep" else 0)
    expect_equal(pytorchs(ledger), held, f"bytes that PyTorch holds, {phase}, in {ledger}\n{snapshot.where()}")
    if phase != "awake":
        freed = next(line for line in done.results() if line.startswith("freed_mib"))
        expect_equal(freed, f"freed_mib {region >> 20}", "bytes that pause() released to the driver")
    if phase == "asleep":
        # What stays on the device has a line.
        executables = [row for row in objects_of(snapshot) if row["kind"] == "graph-exec"]
        expect([at(snapshot, row, "saver_graph") for row in executables] == [True], f"executable graphs: {executables}\n{snapshot.where()}")
        pooled = [row for row in snapshot.rows if row["kind"] == "tensor" and at(snapshot, row, "saver_pool")]
        expect(pooled, f"no tensor of the graph's pool\n{snapshot.where()}")
        expect(ledger.get(("context", None), 0) > 0, f"no context in {ledger}")


# ---- profilers and checkers ----


@claim(slow=True)
def memray_with_native_stacks_changes_nothing(t):
    folder = str(named("MEMRAY", "memray", "memray/__init__.py").parent.parent)
    at = t.folder("memray-output")
    command = [t.python, "-m", "memray", "run", "--native", "--force", "-o", at / "memray.bin", HERE / "victims" / "fw_torch.py", "uncached"]
    env = {"PYTHONPATH": os.pathsep.join([folder, str(HERE / "victims")]), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    bare = t.run(*command, env=env, how="bare", timeout=300)
    if bare.code != 0:
        raise Missing(f"a working memray (the program fails without culeak too)\n{tail(bare.err)}")
    done = t.run(*command, env=env, timeout=300).must(0)
    expect(bare.results(), f"the program printed no result\n{bare.story()}")
    expect_equal(done.results(), bare.results(), f"results with and without culeak\n{done.story()}")
    snapshot = done.snapshot(done.pid())
    snapshot.find(done.live()[0])
    snapshot.expect_sane()


@claim(slow=True)
def compute_sanitizer_finds_the_same_beside_culeak(t):
    command = [*sanitizer(), t.program("rt-shared"), "cudaMalloc"]
    bare = t.run(*command, how="bare", timeout=300)
    if bare.code != 0:
        raise Missing(f"a working compute-sanitizer (it fails without culeak too)\n{tail(bare.out + bare.err)}")
    done = t.run(*command, timeout=300).must(0)

    def findings(run):
        lines = [line for line in run.out.splitlines() if "Leaked" in line or "SUMMARY" in line]
        return sorted(line.split(" at 0x")[0] for line in lines)

    expect(findings(bare), f"compute-sanitizer printed no findings\n{tail(bare.out)}")
    expect_equal(findings(done), findings(bare), f"findings of compute-sanitizer with and without culeak\n{done.story()}")
    done.snapshot(done.pid()).expect_exactly(done.live())


# ---- an interposer with its own dlsym ----


@claim(over=[(place, build) for place in ORDERS for build in ("shared", "static")])
def beside_hami_core_every_row_is_exact(t, place_and_build):
    place, build = place_and_build
    hami = named("HAMI_CORE", "HAMi-core", "libvgpu.so")
    command = [t.program("rt-" + build), "kinds"]
    # A limit makes it intercept calls; it is far above what the program needs. Its shared region is a file.
    shared = t.folder("hami-" + "-".join(place_and_build)) / "region.cache"
    env = {"CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(shared), "LIBCUDA_LOG_LEVEL": "0"}
    bare = t.run(*command, env=env, how="bare", preload=(hami,))
    if bare.code != 0:
        raise Missing(f"a working HAMi-core (the program fails without culeak too)\n{tail(bare.err)}")
    done = t.run(*command, env=env, how="preload", preload=ORDERS[place](hami)).must(0)

    def held(run):
        return sorted((live.label, live.kind, live.bytes) for live in run.live())

    expect_equal(held(done), held(bare), f"live memory of the program with and without culeak\n{done.story()}")
    done.snapshot().expect_exactly(done.live())


