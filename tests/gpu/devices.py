"""Claims about several devices and several processes: each byte is booked on its device, and in the process that NVML charges.

MIG and MPS are absent: they would need other settings of the machine.
"""

import json

from harness import Missing, claim, expect, expect_equal, site, tail
from ledgers import lines
from segments import ALONE, UNKNOWN, segments, total
from stepped import MIB, expect_complete, figures, ledger, objects_in, on_device, program, report, run, shown, symbols, taken

# The device of the segments of a line.
BOOKED = {"devices_context_1": 1, "devices_context_0": 0, "devices_block_0": 0, "devices_block_1": 1, "devices_physical": 1}


def amounts(t):
    return run(t, [program(t, "devices"), "amounts"])


def on_each(done):
    """(step, device, NVML's figure)."""
    found = [(name[4:], int(name[2]), int(value, 16)) for _, name, value in done._lines("FACT") if name[:2] == "on" and name[3:7] == "_at_"]
    expect(any(counted for _, _, counted in found), f"NVML counts nothing at any step\n{done.story()}")
    return found


@claim(alone=True)
def each_of_two_devices_has_at_each_step_what_nvml_counts_there(t):
    done = amounts(t)
    if UNKNOWN in (counted for _, _, counted in on_each(done)):
        done = run(t, [program(t, "devices"), "amounts"], ALONE)
    pid, rows, wrong = done.pid(), [], 0
    for step, ordinal, counted in on_each(done):
        if counted == UNKNOWN:
            raise Missing("NVML's figure of this process: it does not know our process ids, and lists several processes")
        expect((pid, step) in taken(t, done), f"no snapshot of step {step}\n{done.story()}")
        _, data = taken(t, done)[pid, step]
        expect_complete(done, step, data)
        recorded = on_device(data, ordinal)
        wrong += recorded != counted
        rows.append(f"{step:28} device {ordinal} NVML {counted:>14} recorded {recorded:>14} difference {recorded - counted:>12} of all {total(data):>14} {objects_in(data)}")
    (done.folder / "steps.txt").write_text("\n".join(rows) + "\n")
    expect_equal(wrong, 0, f"figures of {len(rows)} that differ; peers: {done.fact('peers')}\n" + tail("\n".join(rows), len(rows)) + f"\n{done.story()}")


@claim
def a_segment_is_booked_on_the_device_of_its_line(t):
    done = amounts(t)
    snapshot = symbols(t, done, "freed_1")
    devices = [device["ordinal"] for device in snapshot.data["devices"]]
    expect_equal(sorted(devices), [0, 1], f"devices of the snapshot: {snapshot.data['devices']}")
    rows = [row for row in segments(snapshot.data) if row["kind"] == "segment"]
    nowhere = [snapshot.show(row) for row in rows if row.get("device") is None]
    expect(not nowhere, f"{len(nowhere)} segments without a device, the first:\n    {nowhere[:1]}\n{snapshot.where()}")
    for label, ordinal in BOOKED.items():
        found = [row for row in rows if site(label) in [((file or "").rsplit("/", 1)[-1], number) for _, file, number, _ in snapshot.frames(row)]]
        expect(found, f"no segment of {site(label)}\n{snapshot.where()}")
        wrong = [snapshot.show(row) for row in found if devices[row["device"]] != ordinal]
        expect(not wrong, f"{len(wrong)} of {len(found)} segments of {site(label)} are booked on the wrong device, the first:\n    {wrong[:1]}\n{snapshot.where()}")


@claim
def the_ledgers_of_two_devices_have_the_blocks_of_each(t):
    done = amounts(t)
    # 10, 14 and 16 MiB are left on the first device, and 30, 34, 42, 46, 50 and 54 on the second one.
    for ordinal, blocks in ((0, 10 + 14 + 16), (1, 30 + 34 + 42 + 46 + 50 + 54)):
        pooled, physical = (ordinal + 1) * 40 * MIB, ordinal * 64 * MIB
        device = ledger(t, done, "freed_1", ordinal)
        expect_equal(lines(device)["program"], blocks * MIB + pooled + physical, f"blocks on device {ordinal}\n{shown(device)}")
        expect("unrecorded" not in lines(device), f"memory without a recorded block\n{shown(device)}")


# ---- memory that two processes share ----


@claim(alone=True)
def a_shared_block_is_its_exporters_until_that_frees_it(t):
    """NVML charges the importer for what the exporter has freed. The recording never does: the ledger lists it as imported."""
    done = run(t, [program(t, "devices"), "shared"])
    importer, shared = done.fact("importer"), done.fact("shared_bytes")
    rows, wrong, recorded = [], 0, {}
    for pid, name, counted in figures(done):
        _, data = taken(t, done)[pid, name]
        expect_complete(done, name, data)
        recorded[pid] = total(data)
        step = name.split("_", 2)[2]
        difference = counted - total(data) if counted != UNKNOWN else "unknown"
        of_both = done.fact(f"all_{step}") - sum(recorded.values())
        wrong += difference not in ("unknown", shared if step == "importer_alone" else 0)
        # Each process has a context from here on, and the other one waits meanwhile.
        if step not in ("exporter_context", "importer_context"):
            wrong += of_both != (shared if step in ("exporter_freed", "importer_alone") else 0)
        rows.append(f"{pid:>8} {step:20} NVML minus recorded: {difference!s:>12}, of both processes {of_both:>12}")
    (done.folder / "steps.txt").write_text("\n".join(rows) + "\n")
    expect_equal(wrong, 0, f"figures at {len(rows)} steps that differ\n" + tail("\n".join(rows), len(rows)) + f"\n{done.story()}")
    device = ledger(t, done, "importer_alone", pid=importer)
    imported = device["process"]["imported"]
    expect(imported["count"] >= 1, f"no memory of another process\n{shown(device)}")
    expect_equal(imported["bytes"], shared, f"memory of another process\n{json.dumps(report(t, done, 'importer_alone', importer)['ledger'], indent=1)}")
    closed = ledger(t, done, "importer_closed", pid=importer)
    expect_equal(closed["process"]["imported"]["count"], 0, f"memory of another process after it was closed\n{shown(closed)}")
