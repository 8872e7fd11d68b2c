"""Tests of exported files with the readers that they are for. Called by run.sh: claims.py CULEAK FOLDER.

speedscope-schema.json is the file of that name that speedscope 1.25.0 publishes (MIT licence, Jamie Wong).
"""

import collections
import json
import pathlib
import pickle
import re
import subprocess
import sys
import xml.etree.ElementTree

import duckdb
import jsonschema
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

CULEAK, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
SAMPLES = ["leaky", "training", "clean"]
MIB = 1 << 20


def culeak(*words):
    return subprocess.run([CULEAK, *map(str, words)], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout


def exported(sample, form, *words):
    path = FOLDER / f"{sample}.{form}"
    culeak("export", FOLDER / f"{sample}.json", "--format", form, "-o", path, "--force", *words)
    return path


def reported(sample):
    """Bytes and count of what the report lists."""
    rows = json.loads(culeak("report", FOLDER / f"{sample}.json", "--json"))["rows"]
    return sum(row["bytes"] for row in rows), sum(row["count"] for row in rows)


def pprof(*words):
    command = ["go", "tool", "pprof", *map(str, words)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.stdout


def pprof_total(path, value):
    """The total that pprof computes, in bytes or objects."""
    raw = pprof("-raw", path)
    columns = raw.splitlines()[raw.splitlines().index("Samples:") + 1].split()
    column = [name.split("/")[0] for name in columns].index(value)
    body = raw.split("Samples:\n", 1)[1].split("Locations", 1)[0]
    numbers = [line.split(":")[0].split() for line in body.splitlines()[1:] if re.match(r"^\s*-?\d+.*: ", line)]
    return sum(int(line[column]) for line in numbers)


def pprof_opens_it_and_has_the_same_totals():
    for sample in SAMPLES:
        path = exported(sample, "pprof")
        assert path.read_bytes()[:2] == b"\x1f\x8b", "gzip"
        if sample == "clean":
            continue
        assert (pprof_total(path, "inuse_space"), pprof_total(path, "inuse_objects")) == reported(sample), sample
    top = pprof("-top", FOLDER / "leaky.pprof")
    assert re.search(r"1152MB .* Trainer::step", top), top
    assert "Build ID: 0123456789abcdef" in top, top
    tags = pprof("-tags", FOLDER / "training.pprof")
    for tag in ["GPU 0", "pinned", "cuBLAS", "PyTorch", "4MB"]:
        assert tag in tags, f"{tag}: {tags}"
    assert "(module)" in pprof("-top", FOLDER / "training.pprof")


def pprof_compares_two_of_them():
    before, after = exported("training", "pprof"), exported("leaky", "pprof")
    top = pprof("-top", "-diff_base", before, after)
    assert re.search(r"1152MB .* Trainer::step", top), top
    assert re.search(r"-40MB .* Linear.forward", top), top
    lines = pprof("-list", "Trainer::step", "-source_path", FOLDER, after)
    assert "Trainer::step in /src/train.cu" in lines, lines


def pprof_counts_freed_memory_too():
    culeak("demo", "--fake", "-o", FOLDER / "demo")
    [recording] = (FOLDER / "demo").glob("*.culeak")
    path = FOLDER / "demo.pprof"
    culeak("export", recording, "--format", "pprof", "-o", path)
    live, made = pprof_total(path, "inuse_space"), pprof_total(path, "alloc_space")
    snapshot = json.loads(culeak("snapshot", recording, "--no-symbols", "-o", "-"))
    assert made == sum(total["bytes"] for total in snapshot["totals"]), made
    assert live == sum(counter["live_bytes"] for counter in snapshot["counters"]), live
    assert pprof_total(path, "alloc_objects") == sum(counter["total_count"] for counter in snapshot["counters"])
    assert made > live > 0


def speedscopes_schema_accepts_it():
    schema = json.loads(pathlib.Path(__file__).with_name("speedscope-schema.json").read_text())
    for sample in SAMPLES:
        profile = json.loads(exported(sample, "speedscope").read_text())
        jsonschema.validate(profile, schema)
        weights = collections.Counter()
        for each in profile["profiles"]:
            weights[each["unit"]] += sum(each["weights"])
        assert (weights["bytes"], weights["none"]) == reported(sample), sample


def folded_lines_are_what_flamegraph_scripts_split():
    for sample in SAMPLES:
        lines = exported(sample, "folded").read_text().splitlines()
        assert all(re.fullmatch(r"[^;\s][^;]*(;[^;]+)* [0-9]+", line) for line in lines), lines
        assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == reported(sample)[0]


def flame_graphs_are_valid_svg():
    snapshots = [("report", FOLDER / f"{sample}.json") for sample in SAMPLES]
    snapshots.append(("diff", FOLDER / "training.json", FOLDER / "leaky.json", "--force"))
    for words in snapshots:
        root = xml.etree.ElementTree.fromstring(culeak(*words, "-o", ".svg"))
        assert root.tag.endswith("}svg"), words
        texts = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        assert texts, words


def perfettos_classes_know_every_field():
    for samples in [["training"], ["leaky"], ["clean"], ["training", "leaky"]]:
        path = FOLDER / "trace"
        inputs = [FOLDER / f"{sample}.json" for sample in samples]
        culeak("export", *inputs, "--format", "perfetto", "-o", path, "--force")
        trace = perfetto_trace_pb2.Trace()
        trace.ParseFromString(path.read_bytes())
        known = perfetto_trace_pb2.Trace()
        known.CopyFrom(trace)
        known.DiscardUnknownFields()
        assert known.SerializeToString() == trace.SerializeToString(), "a field that Perfetto does not know"
        tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
        last = {}
        for packet in trace.packet:
            if packet.HasField("track_event"):
                event = packet.track_event
                assert packet.trusted_packet_sequence_id and event.track_uuid in tracks
                if event.type == event.TYPE_COUNTER:
                    track = tracks[event.track_uuid]
                    assert track.counter.unit == track.counter.UNIT_SIZE_BYTES
                    assert tracks[track.parent_uuid].process.pid == 4711
                    last[track.name] = event.counter_value
        if samples == ["training"]:
            wanted = {"GPU 0 device": 34, "GPU 0 physical": 20, "GPU 0 tensor": 8, "pinned": 1}
            assert last == {f"{name}, still live": size * MIB for name, size in wanted.items()}, last


def firefoxes_tables_refer_to_each_other():
    for sample in SAMPLES:
        profile = json.loads(exported(sample, "firefox").read_text())
        assert profile["meta"]["processType"] == 0 and profile["meta"]["preprocessedProfileVersion"] >= 48
        [thread] = profile["threads"]
        stacks, frames = thread["stackTable"], thread["frameTable"]
        strings = thread["stringArray"]
        assert all(frame < frames["length"] for frame in stacks["frame"])
        assert all(prefix is None or prefix < nth for nth, prefix in enumerate(stacks["prefix"]))
        assert all(function < thread["funcTable"]["length"] for function in frames["func"])
        assert all(name < len(strings) for name in thread["funcTable"]["name"])
        allocations = thread.get("nativeAllocations")
        if sample == "clean":
            continue
        assert (sum(allocations["weight"]), allocations["length"]) == reported(sample)
        assert allocations["weightType"] == "bytes" and len(allocations["memoryAddress"]) == allocations["length"]
        times = allocations["time"]
        assert times == sorted(times)


def duckdb_reads_equal_tables():
    for sample in SAMPLES:
        parquet, csv = exported(sample, "parquet"), exported(sample, "csv")
        listed = "select coalesce(sum(bytes), 0), count(*) from {} where level <> 'behind'"
        from_parquet = f"read_parquet('{parquet}')"
        from_csv = f"read_csv('{csv}', header = true, all_varchar = true)"
        assert duckdb.sql(listed.format(from_parquet)).fetchall()[0] == reported(sample)
        assert duckdb.sql(listed.format(from_csv).replace("sum(bytes)", "sum(bytes::ubigint)")).fetchall()[0] == reported(sample)
        types = dict(duckdb.sql(f"select column_name, column_type from (describe from {from_parquet})").fetchall())
        assert (types["bytes"], types["address"], types["stack"]) == ("UBIGINT", "UBIGINT", "VARCHAR"), types
        wide = duckdb.sql(f"select coalesce(columns(*)::varchar, '') from {from_parquet}").fetchall()
        plain = duckdb.sql(f"select coalesce(columns(*), '') from {from_csv}").fetchall()
        assert wide == plain, sample
    by_kind = duckdb.sql(f"select kind, sum(bytes) from read_parquet('{FOLDER}/training.parquet') group by kind").fetchall()
    assert dict(by_kind)["tensor"] == 8 * MIB, by_kind


def pythons_unpickler_reads_memory_viz():
    for sample in SAMPLES:
        with open(exported(sample, "memory_viz"), "rb") as file:
            snapshot = pickle.load(file)
        active = 0
        for segment in snapshot["segments"]:
            assert segment["address"] == segment["blocks"][0]["address"]
            assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
            assert segment["device"] < len(snapshot["device_traces"])
            live = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
            assert all({"filename", "line", "name"} == set(frame) for block in live for frame in block["frames"])
            active += sum(block["size"] for block in live)
        if sample == "training":
            assert active == 42 * MIB, active
            assert snapshot["segments"][0]["segment_pool_id"] == (0, 0)


def pickles_as_pytorch_writes_them_are_reported():
    frames = [
        {"name": "torch::unwind::unwind()", "filename": "??", "line": 0},
        {"name": "forward", "filename": "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", "line": 134},
        {"name": "training_step", "filename": "/home/me/train.py", "line": 212},
    ]
    address = 0x7F1200000000
    block = {"address": address, "size": 4 * MIB, "requested_size": 4 * MIB - 8, "state": "active_allocated", "frames": frames}
    free = {"address": address + 4 * MIB, "size": 16 * MIB, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {
        "device": 0, "address": address, "total_size": 20 * MIB, "allocated_size": 4 * MIB, "active_size": 4 * MIB,
        "requested_size": 4 * MIB - 8, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": frames, "blocks": [block, free],
    }
    event = {
        "action": "alloc", "addr": address, "size": 4 * MIB, "stream": 0, "time_us": 1_800_000_000_000_123,
        "compile_context": "N/A", "user_metadata": "", "frames": frames,
    }
    whole = {
        "segments": [segment], "device_traces": [[event]], "external_annotations": [],
        "allocator_settings": {"garbage_collection_threshold": 0.0, "max_split_size": -1, "expandable_segments": False},
    }
    for protocol in [2, 3, 4, 5]:
        for snapshot in [whole, [segment]]:
            path = FOLDER / "torch.pickle"
            path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
            report = json.loads(culeak("report", path, "--json"))
            [row] = report["rows"]
            assert (row["bytes"], row["count"]) == (4 * MIB, 1), row
            assert row["label"] == "training_step", row
            assert report["totals"]["pool"]["bytes"] == 20 * MIB
            culeak("diff", path, path)
            culeak("export", path, "--format", "pprof", "-o", "/dev/null")


def pickles_that_run_code_are_refused():
    class Evil:
        def __reduce__(self):
            return print, ("it ran",)

    for protocol in [2, 3, 4, 5]:
        path = FOLDER / "evil.pickle"
        path.write_bytes(pickle.dumps({"segments": [Evil()]}, protocol=protocol))
        done = subprocess.run([CULEAK, "report", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2 and "nothing was run" in done.stderr, done
        assert not done.stdout


CLAIMS = [
    pprof_opens_it_and_has_the_same_totals,
    pprof_compares_two_of_them,
    pprof_counts_freed_memory_too,
    speedscopes_schema_accepts_it,
    folded_lines_are_what_flamegraph_scripts_split,
    flame_graphs_are_valid_svg,
    perfettos_classes_know_every_field,
    firefoxes_tables_refer_to_each_other,
    duckdb_reads_equal_tables,
    pythons_unpickler_reads_memory_viz,
    pickles_as_pytorch_writes_them_are_reported,
    pickles_that_run_code_are_refused,
]

for claim in CLAIMS:
    claim()
    print(f"ok      {claim.__name__.replace('_', ' ')}", flush=True)
