"""Claims about the end of a program's own work and about its peak, on real frameworks: the bytes are those that the framework reports.

Each program runs once, with a timeline, for all claims about it. Its last act is to print the framework's own figures
(victims/fw_ends*.py). What it held then is read from the recording in three ways: rows of the report at that point, the raw rows of
the snapshot, and the replay of the timeline.
"""

import collections
import functools
import glob
import importlib.util
import json
import os
import sysconfig
import threading

from harness import HERE, Missing, allocations, claim, expect, expect_equal, site, tail

# Which source line holds most of a program's memory.
HOLDERS = {
    "growing_list": "ends_list",
    "hook_cache": "ends_hook",
    "cycle": "ends_cycle",
    "thread": "ends_thread",
    "graph_pool": "ends_graph",
    "generator": "ends_generator",
    "oom_survivor": "ends_oom",
    "waiting_thread": "ends_waiting",
    "model_only": "ends_model",
    "training": None,
    "transformer": "ends_kv_cache",
    "lightning": "ends_lightning",
}
# Programs of which the interpreter's shutdown may free nothing; then the end that the library sees is the return of main.
NEVER_FREED = ["waiting_thread"]
# What the interpreter's shutdown frees to the last tensor, so that nothing is left at exit. PyTorch keeps some tensors that a graph
# needs: their Python objects outlive the interpreter.
FREED_BY_SHUTDOWN = ["cycle", "thread", "graph_pool", "generator", "oom_survivor", "model_only"]
# Real leaks of a script, and the limit that a check of them exceeds.
LEAKS = ["growing_list", "hook_cache", "cycle"]
# Backward allocates on another thread, while the first one waits: the rows at the peak may differ by the events of one instant.
SEVERAL_THREADS = ["training", "lightning"]
TIMELINE = ("--timeline",)


# ---- a program, and the points of its recording ----


def once(function, results={}, locks=collections.defaultdict(threading.Lock), guard=threading.Lock()):
    """Calls the function once for each list of arguments: several claims ask for the same."""

    @functools.wraps(function)
    def call(*arguments):
        key = (function, arguments)
        with guard:
            lock = locks[key]
        with lock:
            if key not in results:
                results[key] = function(*arguments)
            return results[key]

    return call


def program(t, name, *how, codes=(0,), options=TIMELINE, of="fw_ends"):
    return t.run(t.python, HERE / "victims" / f"{of}.py", name, *how, timeout=200, options=options).must(*codes)


def fact(done, name, pid=None):
    """The last value that this process printed."""
    found = [int(value, 16) for whose, key, value in done._lines("FACT") if key == name and pid in (None, int(whose))]
    expect(found, f"process {pid or ''} did not print FACT {name}\n{done.story()}")
    return found[-1]


def pids(done, name):
    """The processes that printed this fact."""
    return sorted({int(pid) for pid, key, _ in done._lines("FACT") if key == name})


def recording(done, name="end_bytes"):
    """That of the process that printed this fact; programs start others."""
    [pid] = pids(done, name) or [None]
    return done.recording(pid)


@once
def report(t, recording, *options):
    """The document of `culeak report --json`."""
    return json.loads(ran(t, "report", recording, "--json", *options))


def ran(t, *words, code=0, timeout=180):
    """The output of a culeak command."""
    got, out, err = t.cli(*words, timeout=timeout)
    expect_equal(got, code, f"exit code of culeak {' '.join(map(str, words))}\n{tail(out + err, 30)}")
    return out


def kind_bytes(report, kind):
    return sum(row["kinds"].get(kind, {"bytes": 0})["bytes"] for row in report["rows"])


def by_site(report, kind="tensor"):
    """Bytes of a kind by call site, as file name and line."""
    sums = collections.Counter()
    for row in report["rows"]:
        sums[call_site(row)] += row["kinds"].get(kind, {"bytes": 0})["bytes"]
    return +sums


def call_site(row):
    stack = row["stacks"][0]
    frame = stack["frames"][stack["site"]] if stack["site"] is not None else {"file": None, "line": row["label"]}
    return (os.path.basename(frame["file"] or ""), frame["line"])


def listed(sums):
    return "".join(f"\n    {amount:>12}  {file}:{line}" for (file, line), amount in sums.most_common(8)) or " nothing"


def differing(one, two):
    """The call sites of which the bytes differ."""
    return "".join(f"\n    {one[place]:>12} {two[place]:>12}  {place[0]}:{place[1]}" for place in sorted({*one, *two}, key=str) if one[place] != two[place])


def raw_at_end(data, kind):
    """Bytes of a kind at the end, from the rows of a snapshot."""
    end = data.get("end")
    rows = allocations(data)
    if end:
        rows = [row for row in rows if row["time_ns"] <= end["time_ns"]]
        if "freed_after_end" in data:
            rows += allocations({"allocations": data["freed_after_end"]})
    return sum(row["bytes"] for row in rows if row["kind"] == kind)


@once
def raw(t, done, path):
    """The snapshot of a recording, without names."""
    written = done.folder / f"{path.name}.raw.json"
    ran(t, "snapshot", path, "--no-symbols", "--force", "-o", written)
    return json.loads(written.read_text())


def end_of(data):
    """Which end a process had: "script", "main", or None."""
    return (data.get("end") or {"of": None})["of"]


def expect_held(t, done, path, expected, kind="tensor", ends=("script",)):
    """The bytes of this kind at the end, in the report and in the rows; returns the report and the snapshot."""
    data = raw(t, done, path)
    expect(end_of(data) in ends, f"the end of {path} is {end_of(data)}, expected {ends}\n{done.story()}")
    for field in ("lost_allocations", "lost_stacks", "lost_python", "lost_events"):
        expect_equal(data["losses"][field], 0, f"losses.{field} of {path}")
    expect_equal(raw_at_end(data, kind), expected, f"bytes of kind {kind} at the end in the rows of {path} (got) and by the framework\n{done.story()}")
    at_end = report(t, path, "--at", "end")
    expect_equal(kind_bytes(at_end, kind), expected, f"bytes of kind {kind} in `culeak report {path} --at end` (got) and by the framework{listed(by_site(at_end, kind))}")
    return at_end, data


def expect_holder(report, label, expected, kind="tensor"):
    """The line that holds most of this kind, by name and bytes."""
    sums = by_site(report, kind)
    expect(sums, f"no rows of kind {kind}")
    [(place, amount)] = sums.most_common(1)
    expect_equal((place, amount), (site(label), expected), f"the line that holds most at the end, and its bytes; all lines:{listed(sums)}")


# ---- the end ----


@claim(over=sorted(HOLDERS), slow=True)
def what_a_script_holds_at_its_end_is_what_pytorch_reports(t, name):
    done = program(t, name)
    path = recording(done)
    at_end, data = expect_held(t, done, path, fact(done, "end_bytes"), ends=("script", "main") if name in NEVER_FREED else ("script",))
    if label := HOLDERS[name]:
        expect_holder(at_end, label, fact(done, f"held_{label}"))
    usual = report(t, path)
    expect_equal(by_site(usual), by_site(at_end), f"the rows of `culeak report {path}` are those of the script's end")
    expect_equal(usual["points"]["end"]["time_ns"], data["end"]["time_ns"], f"the time of the end in `culeak report {path}`")


@claim(over=sorted(HOLDERS), slow=True)
def the_interpreters_shutdown_frees_what_only_globals_held(t, name):
    done = program(t, name)
    path = recording(done)
    left = by_site(report(t, path, "--at", "exit"))
    if name in FREED_BY_SHUTDOWN:
        expect(not left, f"tensors at exit in {path}:{listed(left)}")
    at_end = by_site(report(t, path, "--at", "end"))
    more = left - at_end
    expect(not more, f"held at exit, but not at the end of the script:{listed(more)}")
    data = raw(t, done, path)
    freed = [row for row in allocations({"allocations": data["freed_after_end"]}) if row["kind"] == "tensor"] if "freed_after_end" in data else []
    expect_equal(sum(row["bytes"] for row in freed), sum(at_end.values()) - sum(left.values()), "bytes freed after the end (got), and held at the end less held at exit")


@claim(over=["underscore_exit", "sigkill"], slow=True)
def a_script_that_ends_abruptly_has_its_last_state_as_its_end(t, how):
    done = program(t, "growing_list", how, codes=(0,) if how == "underscore_exit" else (-9, 137))
    path = recording(done)
    at_end, _ = expect_held(t, done, path, fact(done, "end_bytes"), ends=(None,))
    expect_holder(at_end, "ends_list", fact(done, "held_ends_list"))
    expect_equal(by_site(report(t, path, "--at", "exit")), by_site(at_end), f"tensors at exit and at the end in {path}")


@claim(slow=True)
def without_a_timeline_the_end_is_the_same(t):
    done = program(t, "growing_list", options=())
    at_end, _ = expect_held(t, done, recording(done), fact(done, "end_bytes"))
    expect_holder(at_end, "ends_list", fact(done, "held_ends_list"))


@claim(slow=True)
def what_a_cupy_script_holds_at_its_end_is_what_its_pools_report(t):
    done = program(t, "cupy", of="fw_ends_arrays")
    path = recording(done)
    # A pool frees none of its memory if it is not destroyed.
    at_end, _ = expect_held(t, done, path, fact(done, "end_bytes"), "device", ends=("script", "main"))
    expect_holder(at_end, "ends_cupy", fact(done, "held_ends_cupy"), "device")
    expect_holder(at_end, "ends_cupy_pinned", fact(done, "held_ends_cupy_pinned"), "pinned")


@claim(slow=True)
def what_a_numba_script_holds_at_its_end_is_the_sum_of_its_arrays(t):
    done = program(t, "numba", of="fw_ends_arrays")
    # Up to ten arrays wait in numba's list of arrays to free, and are never freed.
    at_end, _ = expect_held(t, done, recording(done), fact(done, "end_bytes"), "device", ends=("script", "main"))
    expect_holder(at_end, "ends_numba", fact(done, "held_ends_numba"), "device")


@claim(slow=True)
def what_a_jax_script_holds_at_its_end_is_its_live_arrays(t):
    env = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".05"}
    command = [t.python, HERE / "victims" / "fw_ends_arrays.py", "jax"]
    done = t.run(*command, env=env, timeout=200, options=("--record", "jax", *TIMELINE)).must(0)
    at_end, _ = expect_held(t, done, recording(done), fact(done, "end_bytes"), "buffer", ends=("script", "main"))
    expect_holder(at_end, "ends_jax", fact(done, "held_ends_jax"), "buffer")


# ---- processes of one program ----


def expect_each_process(t, done, expected, ends):
    """Each process that printed its figure held this at its end; `ends`: which ends the processes may have."""
    found = pids(done, "end_bytes")
    expect_equal(len(found), expected, f"processes that printed what they hold\n{done.story()}")
    for pid in found:
        path = done.recording(pid)
        at_end, _ = expect_held(t, done, path, fact(done, "end_bytes", pid), ends=ends)
        expect_equal({*by_site(at_end)}, {site("ends_worker")}, f"lines that hold tensors in {path}:{listed(by_site(at_end))}")


@claim(over=["fork", "spawn", "forkserver"], slow=True)
def workers_of_multiprocessing_hold_at_their_end_what_pytorch_reports(t, method):
    done = program(t, method, of="fw_ends_processes", options=())
    expect_equal(fact(done, "failed"), 0, f"workers that failed\n{done.story()}")
    # Forked workers leave by os._exit.
    expect_each_process(t, done, 2, ("script",) if method == "spawn" else ("script", None))


@claim(slow=True)
def workers_of_a_data_loader_hold_at_their_end_what_pytorch_reports(t):
    done = program(t, "loader", of="fw_ends_processes", options=())
    expect_equal(fact(done, "batches"), 6, f"batches\n{done.story()}")
    expect_each_process(t, done, 2, ("script", None))


@claim(slow=True)
def a_worker_of_torchrun_holds_at_its_end_what_pytorch_reports(t):
    command = [t.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", HERE / "victims" / "fw_ends.py", "growing_list"]
    done = t.run(*command, timeout=200).must(0)
    path = recording(done)
    at_end, _ = expect_held(t, done, path, fact(done, "end_bytes"))
    expect_holder(at_end, "ends_list", fact(done, "held_ends_list"))


@claim(slow=True)
def a_session_of_pytest_holds_at_its_end_what_pytorch_reports(t):
    for package in ("torch", "pytest"):
        if importlib.util.find_spec(package) is None:
            raise Missing(f"the Python package {package}")
    command = [t.python, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", HERE / "victims" / "fw_ends_pytest.py"]
    done = t.run(*command, timeout=200).must(0)
    at_end, _ = expect_held(t, done, recording(done), fact(done, "end_bytes"))
    expect_holder(at_end, "ends_pytest", fact(done, "end_bytes"))


@claim(slow=True)
def a_jupyter_kernel_holds_at_its_end_what_pytorch_reports(t):
    done = t.run(t.python, HERE / "victims" / "fw_ends_notebook.py", timeout=200).must(0)
    # A kernel that takes too long to leave is killed.
    at_end, _ = expect_held(t, done, recording(done), fact(done, "end_bytes"), ends=("script", None))
    expect_holder(at_end, "ends_list", fact(done, "held_ends_list"))


def libpython():
    """The shared library of this interpreter or of another on this machine."""
    folders = [sysconfig.get_config_var("LIBDIR"), "/usr/lib/x86_64-linux-gnu", "/usr/local/lib"]
    found = [path for folder in folders if folder for path in sorted(glob.glob(f"{folder}/libpython3.[0-9]*.so*"))]
    if not found:
        raise Missing("a shared libpython")
    return found[0]


@claim
def the_end_of_a_host_that_embedded_python_is_the_return_of_main(t):
    done = t.run(t.program("embeds"), libpython()).must(0)
    path = done.recording(done.pid())
    wanted = sorted((live.address, live.bytes) for live in done.live())
    data = raw(t, done, path)
    expect_equal(end_of(data), "main", f"the end of {path}\n{done.story()}")
    rows = [row for row in allocations(data) if row["time_ns"] <= data["end"]["time_ns"]]
    rows += allocations({"allocations": data.get("freed_after_end") or {"calls": [], "columns": [], "rows": []}})
    expect_equal(sorted((row["address"], row["bytes"]) for row in rows), wanted, f"live when main returned, in {path} (got) and by the program\n{done.story()}")
    for options in (("--at", "end"), ()):
        held = kind_bytes(report(t, path, *options), "device")
        expect_equal(held, sum(size for _, size in wanted), f"bytes of `culeak report {path} {' '.join(options)}` (got) and by the program")


# ---- the peak ----


def peaks(data, kind):
    """(bytes, time) of the peak of a kind on its only device."""
    [counter] = [counter for counter in data["counters"] if counter["kind"] == kind]
    return counter["peak_bytes"], counter["peak_ns"]


@claim(over=sorted(HOLDERS), slow=True)
def the_peak_is_the_maximum_that_pytorch_reports(t, name):
    done = program(t, name)
    path, expected = recording(done), fact(done, "peak_bytes")
    data = raw(t, done, path)
    expect_equal(peaks(data, "tensor")[0], expected, f"the peak of tensors in {path} (got) and torch.cuda.max_memory_allocated()")
    at_peak = sum(row["bytes"] for row in data["at_peaks"] if row["kind"] == "tensor")
    at = report(t, path, "--at", "peak")
    expect_equal(kind_bytes(at, "tensor"), at_peak, f"bytes of tensors in `culeak report {path} --at peak` (got) and in `at_peaks`")
    [section] = [peak for peak in report(t, path)["points"]["peak"] if peak["level"] == "tensor"]
    expect_equal((section["bytes"], section["difference"]), (expected, at_peak - expected), f"the peak and its rows' difference in the section of `culeak report {path}`")
    if at_peak != expected and name in SEVERAL_THREADS:
        print(f"    {name}: the rows at the peak differ from it by {at_peak - expected} bytes; two threads allocate", flush=True)
        bound = max((row["bytes"] for row in data["at_peaks"] if row["kind"] == "tensor"), default=0)
        expect(abs(at_peak - expected) <= bound, f"the rows at the peak ({at_peak}) and the peak ({expected}) differ by more than one row")
    else:
        expect_equal(at_peak, expected, f"bytes of the rows of tensors at the peak (got), and torch.cuda.max_memory_allocated(){listed(by_site(at))}")


@claim(over=sorted(HOLDERS), slow=True)
def the_rows_at_the_peak_are_those_of_the_replay(t, name):
    done = program(t, name)
    path = recording(done)
    peak, peak_ns = peaks(raw(t, done, path), "tensor")
    # Times of events are exact to 8 ns: the middle of that unit, so that no rounding of the option leaves it.
    middle = (peak_ns | 7) - 3
    replayed = by_site(report(t, path, "--at", f"{middle // 10**9}.{middle % 10**9:09}s"))
    expect_equal(sum(replayed.values()), peak, f"bytes of tensors by the replay at the peak's time, {middle} ns, in {path} (got), and the peak")
    saved = by_site(report(t, path, "--at", "peak"))
    apart = differing(saved, replayed)
    if apart and name in SEVERAL_THREADS:
        print(f"    {name}: rows at the peak, saved and replayed; two threads allocate:{apart}", flush=True)
    else:
        expect(not apart, f"rows at the peak in {path}, saved and replayed:{apart}")


@claim(over=sorted(HOLDERS), slow=True)
def the_replay_at_the_end_is_the_end(t, name):
    done = program(t, name)
    path = recording(done)
    end = raw(t, done, path)["end"]["time_ns"]
    replayed = by_site(report(t, path, "--at", f"{end // 10**9}.{end % 10**9:09}s"))
    apart = differing(by_site(report(t, path, "--at", "end")), replayed)
    expect(not apart, f"rows at the end of the script in {path}, recorded and replayed:{apart}")


# ---- check ----


@claim(over=LEAKS, slow=True)
def a_check_with_a_limit_fails_on_what_a_script_leaked(t, name):
    path = recording(program(t, name))
    label = site(HOLDERS[name])
    out = ran(t, "check", path, "--allow", 10_000, code=1)
    expect(f"{label[0]}:{label[1]}" in out, f"{label[0]}:{label[1]} is not in the output of the check\n{tail(out, 30)}")
    ran(t, "check", path, "--allow", "1GiB")


@claim(over=LEAKS, slow=True)
def a_check_with_a_baseline_fails_on_what_a_script_leaked(t, name):
    repaired, leaking = recording(program(t, name, "repaired", options=())), recording(program(t, name))
    baseline = leaking.with_suffix(".baseline.json")
    ran(t, "check", repaired, "--baseline", baseline, "--update-baseline")
    ran(t, "check", repaired, "--baseline", baseline)
    ran(t, "check", leaking, "--baseline", baseline, code=1)


@claim(slow=True)
def a_check_fails_on_a_model_that_a_global_refers_to_only_if_asked(t):
    path = recording(program(t, "model_only"))
    ran(t, "check", path)
    ran(t, "check", path, "--at", "end", code=1)


# ---- the event log ----

THREADS = 16
PAIRS = 3_125_000


@claim(slow=True)
def a_hundred_million_events_on_sixteen_threads_are_all_logged(t):
    done = t.run(t.program("events"), THREADS, PAIRS, timeout=200, options=("--timeline=3GiB",)).must(0)
    path = done.recording(done.pid())
    data = raw(t, done, path)
    expect_equal(data["losses"]["lost_events"], 0, f"losses.lost_events of {path}")
    total = {field: sum(counter[field] for counter in data["counters"]) for field in ("total_count", "freed_count", "live_bytes")}
    expected = {"total_count": fact(done, "allocations"), "freed_count": fact(done, "frees"), "live_bytes": fact(done, "kept_bytes")}
    expect_equal(total, expected, f"allocations, frees and live bytes counted in {path}")
    stats = json.loads(ran(t, "report", "--view", "churn", path, "--json", timeout=300))
    expect_equal((stats["lost_events"], stats["since_ns"]), (0, 0), f"lost events, and the time since which the log of {path} is complete")
    # Each block of a pair is freed before its thread allocates again.
    sums = {name: stats["blocks"][name]["count"] for name in ("allocated", "freed", "temporary")}
    expect_equal(sums, {"allocated": expected["total_count"], "freed": expected["freed_count"], "temporary": expected["freed_count"]}, f"events of blocks in `culeak report {path} --view churn`")
    path.unlink()  # 2.4 GB


@claim(over=sorted(HOLDERS), slow=True)
def the_event_log_has_every_event_of_a_pytorch_program(t, name):
    done = program(t, name)
    path = recording(done)
    [counter] = [counter for counter in raw(t, done, path)["counters"] if counter["kind"] == "tensor"]
    stats = json.loads(ran(t, "report", "--view", "churn", path, "--json", "--kind", "tensor"))
    got = (stats["lost_events"], stats["blocks"]["allocated"]["count"], stats["blocks"]["freed"]["count"])
    expect_equal(got, (0, counter["total_count"], counter["freed_count"]), f"lost events, allocations and frees of tensors in `culeak report {path} --view churn` (got) and counted")
