"""Programs that print NVML's figure at each step and request a snapshot there: their runs, snapshots and ledgers, for claims.

NVML may number processes as another namespace does. Then a figure is known only of a program that runs alone: claims about figures
are `alone`, and run such a program again; claims about counts and lines share one run among others.
"""

import collections
import json
import os
import threading

from harness import HERE, Failure, Missing, expect, expect_equal, site, tail
from ledgers import report_of
from objects import at, objects_of
from segments import ALONE, UNKNOWN, segments, total
from tensors import snapshots

MIB = 1 << 20
_kept, _lock = {}, threading.Lock()


def once(key, make):
    """The value for this key, made by the first caller."""
    with _lock:
        lock = _kept.setdefault(("lock", key), threading.Lock())
    with lock:
        if key not in _kept:
            _kept[key] = make()
        return _kept[key]


# ---- runs ----


def program(t, name):
    """Built by run.sh; a library that the toolkit lacks is not a failure of culeak."""
    try:
        return t.program(name)
    except Failure as failure:
        said = str(failure)
        if any(words in said for words in ("No such file", "cannot find -l", "could not open source file")):
            raise Missing(f"what {name} is built with\n{said}") from failure
        raise


def python(t, name, *arguments):
    return [t.python, HERE / "victims" / f"fw_{name}.py", *arguments]


def run(t, command, env=None, timeout=300):
    return t.run(*command, env=env, timeout=timeout).must(0)


def run_with_figures(t, command, env=None, timeout=300):
    """For `alone` claims: each step has NVML's figure."""
    done = run(t, command, env, timeout)
    if UNKNOWN in (value for _, _, value in figures(done)):
        done = run(t, command, {**(env or {}), **ALONE}, timeout)
    return done


def figures(done):
    """(process id, step, NVML's figure), in order."""
    found = [(int(pid), name, int(value, 16)) for pid, name, value in done._lines("FACT") if name.startswith("at_")]
    expect(found, f"the program printed no step\n{done.story()}")
    return found


# ---- snapshots ----


def taken(t, done):
    """(process id, step): path and snapshot without symbols."""

    def read():
        named = {}
        for path, data in snapshots(t, done):
            if data["taken"]["automatic"]["name"]:
                named[data["process"]["pid"], data["taken"]["automatic"]["name"]] = (path, data)
        return named

    return once(("taken", done.folder), read)


def step_of(t, done, suffix, pid=None):
    """Path and snapshot of the step whose name ends so."""
    found = [one for (of, name), one in taken(t, done).items() if name.endswith("_" + suffix) and pid in (None, of)]
    expect(len(found) == 1, f"{len(found)} snapshots of a step {suffix} among {sorted(taken(t, done))}\n{done.story()}")
    return found[0]


def symbols(t, done, suffix, pid=None):
    path, _ = step_of(t, done, suffix, pid)
    return once(("symbols", path), lambda: t.snapshot(path, path.with_suffix(".symbols.json"), done.story()))


def report(t, done, suffix, pid=None):
    path, _ = step_of(t, done, suffix, pid)
    return once(("report", path), lambda: report_of(t, path))


def ledger(t, done, suffix, ordinal=0, pid=None):
    """A device's ledger: the process's side, since a snapshot of the process itself has no figures of the driver."""
    devices = report(t, done, suffix, pid)["ledger"]["devices"]
    found = [device for device in devices if device["ordinal"] == ordinal]
    expect(len(found) == 1 and found[0]["process"], f"no ledger of device {ordinal} with segments: {json.dumps(devices, indent=1)}\n{done.story()}")
    return found[0]


def line(device, what):
    """Bytes and all; zeros if the ledger has no such line."""
    found = [line for line in device["lines"] if line["what"] == what]
    return found[0] if found else {"what": what, "bytes": 0, "count": 0, "parts": []}


def parts(device, what):
    """Bytes by part: the binary, or file and line of the call site."""
    sums = {}
    for part in line(device, what).get("parts", []):
        key = part["place"] or part["name"]
        sums[key] = sums.get(key, 0) + part["bytes"]
    return sums


def shown(device):
    return json.dumps({"process": device["process"], "lines": device["lines"]}, indent=1)


def at_line(snapshot, kind, label):
    """Objects of a kind with this source line on their stack."""
    return [row for row in objects_of(snapshot) if row["kind"] == kind and at(snapshot, row, label)]


def place(label):
    return "{}:{}".format(*site(label))


def has_line(part, label):
    file, number = site(label)
    return os.path.basename((part or "").rsplit(":", 1)[0]) == file and (part or "").endswith(f":{number}")


# ---- figures ----


def expect_figures(t, done, ordinal_of=lambda pid: None):
    """At each step the sum of the segments is NVML's figure, to the byte; all differences are written beside the logs.

    `ordinal_of`: the device that a process's figures are of; None: its only one."""
    rows, wrong = [], 0
    steps = figures(done)
    expect(any(counted for _, _, counted in steps), f"NVML counts nothing at any step\n{done.story()}")
    for pid, name, counted in steps:
        if counted == UNKNOWN:
            raise Missing("NVML's figure of this process: it does not know our process ids, and lists several processes")
        expect((pid, name) in taken(t, done), f"no snapshot of step {name} of process {pid} among {sorted(taken(t, done))}\n{done.story()}")
        _, data = taken(t, done)[pid, name]
        expect_complete(done, name, data)
        recorded = total(data) if ordinal_of(pid) is None else on_device(data, ordinal_of(pid))
        wrong += recorded != counted
        rows.append(f"{pid:>8} {name:32} NVML {counted:>14} recorded {recorded:>14} difference {recorded - counted:>12} {objects_in(data)}")
    (done.folder / "steps.txt").write_text("\n".join(rows) + "\n")
    expect_equal(wrong, 0, f"steps of {len(steps)} that differ\n" + tail("\n".join(rows), len(rows)) + f"\n{done.story()}")


def expect_complete(done, name, data):
    losses = data["losses"]
    expect(losses.get("segments_ended") is None, f"{name}: {losses.get('segments_ended')}\n{done.story()}")
    expect_equal(losses.get("lost_segments", 0), 0, f"{name}: segments that were not recorded\n{done.story()}")


def on_device(data, ordinal):
    """Bytes of the segments of one device."""
    numbers = [number for number, device in enumerate(data["devices"]) if device["ordinal"] == ordinal]
    return sum(row["bytes"] for row in segments(data) if row["kind"] == "segment" and row.get("device") in numbers)


def kinds_of(data):
    """The number of live objects of each kind, without symbols."""
    table = data.get("objects", {"calls": [], "columns": ["call"], "rows": []})
    call = table["columns"].index("call")
    return collections.Counter(table["calls"][row[call]]["kind"] for row in table["rows"])


def count_of(data, kind):
    return kinds_of(data)[kind]


def objects_in(data):
    """Live objects by kind, in words."""
    return " ".join(f"{kind}={count}" for kind, count in sorted(kinds_of(data).items()))
