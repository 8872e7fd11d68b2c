"""Claims about `culeak export --to` and `culeak watch --to`. Called by run.sh: claims.py CULEAK FOLDER."""

import collections
import concurrent.futures
import json
import os
import re
import socket
import subprocess
import threading
import time
import uuid

import trustme
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.rpc import status_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

from peers import CULEAK, FOLDER, LIMIT, Server, context, culeak, end_of, environment, raw, report, run, start

SECRET = "hunter2-very-secret"
# Few attempts. What ends an attempt is the peer, so its limit is one that no machine reaches.
QUICK = ["--timeout", "1h", "--retry-for", "500ms"]


def record():
    """A recording of rank 3."""
    culeak("demo", "--fake", "-o", FOLDER / "leaky", env=environment(RANK="3"))
    [recording] = (FOLDER / "leaky").glob("*.culeak")
    return recording


def like(recording, rank, path):
    """A snapshot of it that differs in rank, pid and sizes. Recordings take longer."""
    path.parent.mkdir(exist_ok=True)
    command = [CULEAK, "snapshot", recording, "-o", "-"]
    snapshot = json.loads(subprocess.run(command, check=True, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    snapshot["process"]["ranks"]["RANK"] = str(rank)
    snapshot["process"]["pid"] += rank + 1
    rows = snapshot["allocations"]
    rows["rows"][0][rows["columns"].index("bytes")] += rank + 1
    path.write_text(json.dumps(snapshot))
    return path


LEAKY = record()
JOB = FOLDER / "job"
OTHER = like(LEAKY, 0, JOB / "0.culeak")
like(LEAKY, 1, JOB / "1.culeak")


def pyroscopes_message():
    """`push.v1.PushRequest` with the field numbers that Pyroscope publishes in api/push/v1 and api/types/v1."""
    file = descriptor_pb2.FileDescriptorProto(name="push.proto", package="push.v1", syntax="proto3")
    kinds = {"string": 9, "bytes": 12}
    for message, fields in {
        "LabelPair": [("name", 1, "string"), ("value", 2, "string")],
        "RawSample": [("raw_profile", 1, "bytes"), ("ID", 2, "string")],
        "RawProfileSeries": [("labels", 1, "LabelPair"), ("samples", 2, "RawSample")],
        "PushRequest": [("series", 1, "RawProfileSeries")],
    }.items():
        of = file.message_type.add(name=message)
        for name, number, kind in fields:
            if kind in kinds:
                of.field.add(name=name, number=number, type=kinds[kind], label=1)
            else:
                of.field.add(name=name, number=number, type=11, type_name=f".push.v1.{kind}", label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("push.v1.PushRequest"))


PushRequest = pyroscopes_message()


def decoded(kind, body):
    """The message, of which every field is known to the published definition."""
    message = kind.FromString(body)

    def check(part, path):
        assert len(unknown_fields.UnknownFieldSet(part)) == 0, f"{path}: unknown fields"
        for field, value in part.ListFields():
            if field.type != field.TYPE_MESSAGE:
                continue
            values = value if hasattr(value, "__len__") and not hasattr(value, "DESCRIPTOR") else [value]
            for each in values:
                check(each, f"{path}.{field.name}")

    check(message, kind.DESCRIPTOR.name)
    return message


def time_of(document):
    """When the process ended."""
    return document["process"]["started_unix_ns"] + document["taken"]["at_ns"]


def sums(recording):
    rows = report(recording)["rows"]
    return sum(row["bytes"] for row in rows), sum(row["count"] for row in rows)


def push(*words, **more):
    return culeak("export", *words, **more)


def profile_is_one_that_pyroscope_stores():
    (FOLDER / "tenant").write_text("X-Scope-OrgID: a team\n")
    with Server() as server:
        output = push(LEAKY, "--to", server.url + "/base/", "--label", "team=vision", "--job", "7", "--header-file", FOLDER / "tenant")
    [request] = server.requests
    assert request.path == "/base/push.v1.PusherService/Push", request.path
    assert request.headers["content-type"] == "application/proto"
    assert request.headers["connect-protocol-version"] == "1"
    assert request.headers["content-encoding"] is None and request.headers["authorization"] is None
    assert request.headers["x-scope-orgid"] == "a team"
    assert request.headers["user-agent"].startswith("culeak/")
    [series] = decoded(PushRequest, request.body).series
    labels = [(label.name, label.value) for label in series.labels]
    process = report(LEAKY)["process"]
    assert dict(labels) == {
        "__name__": "cuda_memory", "service_name": "culeak", "host": process["host"], "pid": str(process["pid"]),
        "rank": "3", "team": "vision", "job_id": "7",
    }, labels
    assert len(labels) == len(dict(labels))
    [sample] = series.samples
    assert uuid.UUID(sample.ID).version == 4
    # pprof itself reads the profile.
    path = FOLDER / "received.pb.gz"
    path.write_bytes(sample.raw_profile)
    text = subprocess.run(["go", "tool", "pprof", "-raw", path], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
    lines = text.splitlines()
    assert "PeriodType: space bytes" in lines, lines[:4]
    head = lines.index("Samples:")
    assert [name.split("/")[0].split("[")[0] for name in lines[head + 1].split()] == ["inuse_space", "inuse_objects"], lines[head + 1]
    numbers = [line.split(":")[0].split() for line in lines[head + 2 : lines.index("Locations")] if re.match(r"^ *\d+ +\d+: ", line)]
    assert (sum(int(line[0]) for line in numbers), sum(int(line[1]) for line in numbers)) == sums(LEAKY)
    keys = {key for line in lines[head + 2 : lines.index("Locations")] for key in re.findall(r"(\w+):\[", line)}
    assert {"kind", "device"} <= keys <= {"kind", "device", "category", "library", "cached"}, keys
    assert "1 request sent" in output, output


def attributes(list_of):
    found = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in list_of}
    assert len(found) == len(list_of), "a key twice"
    return found


def profile_is_one_that_otlp_defines():
    with Server() as server:
        push(LEAKY, "--to", server.url, "--as", "otlp-profiles", "--service", "trainer", "--label", "team=vision")
    [request] = server.requests
    assert request.path == "/v1development/profiles"
    assert (request.headers["content-type"], request.headers["content-encoding"]) == ("application/x-protobuf", "gzip")
    message = decoded(profiles_service_pb2.ExportProfilesServiceRequest, request.plain)
    [of_process] = message.resource_profiles
    process = report(LEAKY)
    host, pid = process["process"]["host"], process["process"]["pid"]
    assert attributes(of_process.resource.attributes) == {
        "service.name": "trainer", "service.instance.id": f"{host}:{pid}", "host.name": host, "process.pid": pid,
        "host": host, "pid": str(pid), "rank": "3", "team": "vision",
    }
    [scope] = of_process.scope_profiles
    assert scope.scope.name == "culeak" and scope.scope.version
    tables = message.dictionary
    for table, empty in {
        "mapping_table": {}, "location_table": {}, "function_table": {}, "attribute_table": {}, "stack_table": {},
        "link_table": {"trace_id": bytes(16), "span_id": bytes(8)},
    }.items():
        first = getattr(tables, table)[0]
        assert first == type(first)(**empty), table
    assert tables.string_table[0] == "" and len(set(tables.string_table)) == len(tables.string_table)
    text = tables.string_table
    for profile, (name, unit), total in zip(scope.profiles, [("inuse_space", "bytes"), ("inuse_objects", "count")], sums(LEAKY), strict=True):
        assert (text[profile.sample_type.type_strindex], text[profile.sample_type.unit_strindex]) == (name, unit)
        assert (text[profile.period_type.type_strindex], text[profile.period_type.unit_strindex]) == ("cuda_memory", "bytes")
        assert profile.period == 1 and len(profile.profile_id) == 16 and profile.time_unix_nano == time_of(process)
        assert all(len(sample.values) == 1 for sample in profile.samples)
        assert sum(sample.values[0] for sample in profile.samples) == total
        identities = [(sample.stack_index, tuple(sample.attribute_indices)) for sample in profile.samples]
        assert len(set(identities)) == len(identities)
        for sample in profile.samples:
            keys = [text[tables.attribute_table[nth].key_strindex] for nth in sample.attribute_indices]
            assert "kind" in keys and len(set(keys)) == len(keys), keys
            frames = [tables.location_table[nth] for nth in tables.stack_table[sample.stack_index].location_indices]
            assert frames and all(line.function_index > 0 for frame in frames for line in frame.lines)
            assert all(0 <= frame.mapping_index < len(tables.mapping_table) for frame in frames)
    functions = {text[function.name_strindex] for function in tables.function_table}
    assert any(process["rows"][0]["label"].split("(")[0] in function for function in functions), functions
    build_ids = [text[tables.attribute_table[nth].key_strindex] for mapping in tables.mapping_table for nth in mapping.attribute_indices]
    assert build_ids and set(build_ids) == {"process.executable.build_id.gnu"}, build_ids


def metrics_are_those_that_otlp_defines():
    with Server() as server:
        push(JOB, LEAKY, "--to", server.url, "--as", "otlp-metrics", "--top", "2", "--label", "team=vision")
    assert all(request.path == "/v1/metrics" for request in server.requests)
    messages = [decoded(metrics_service_pb2.ExportMetricsServiceRequest, request.plain) for request in server.requests]
    of_processes = [process for message in messages for process in message.resource_metrics]
    assert len(of_processes) == 3, len(of_processes)
    ranks = set()
    for of_process in of_processes:
        resource = attributes(of_process.resource.attributes)
        [recording] = [path for path in [*JOB.glob("*.culeak"), LEAKY] if report(path)["process"]["pid"] == resource["process.pid"]]
        expected = report(recording)
        assert resource["service.name"] == "culeak" and resource["host.name"] == expected["process"]["host"]
        [scope] = of_process.scope_metrics
        points = collections.defaultdict(int)
        for metric in scope.metrics:
            kind = metric.WhichOneof("data")
            data = getattr(metric, kind)
            assert metric.description and metric.unit
            assert (kind == "sum") == metric.name.endswith("_total"), metric.name
            if kind == "sum":
                assert data.is_monotonic and data.aggregation_temporality == 2
            seen = set()
            for point in data.data_points:
                labels = attributes(point.attributes)
                assert labels.pop("team") == "vision" and labels.pop("pid") == str(resource["process.pid"])
                ranks.add(labels.pop("rank"))
                assert labels.pop("host") == resource["host.name"]
                assert point.time_unix_nano == time_of(expected)
                assert point.start_time_unix_nano == expected["process"]["started_unix_ns"]
                assert point.WhichOneof("value") == "as_int" or "_seconds" in metric.name
                key = tuple(sorted(labels.items()))
                assert key not in seen, (metric.name, key)
                seen.add(key)
                points[metric.name, *key] = getattr(point, point.WhichOneof("value"))
        totals = expected["totals"]
        for place in ["blocks", "device", "managed", "host"]:
            assert points["culeak_held_bytes", ("place", place)] == totals["held"][place]["bytes"]
            assert points["culeak_held_allocations", ("place", place)] == totals["held"][place]["count"]
        for device in expected["devices"]:
            label = ("device", str(device["ordinal"]))
            assert points["culeak_device_allocated_bytes", label] == device["live"]["bytes"]
            assert points["culeak_device_peak_bytes", label] == device["peak_bytes"] > 0
        assert points["culeak_allocations_total",] == totals["allocated"] > 0
        assert points["culeak_frees_total",] == totals["freed"]
        assert points["culeak_failed_requests_total",] == totals["failed"]["count"]
        assert points["culeak_cached_bytes",] == totals["pool"]["bytes"]
        assert points["culeak_leaked_bytes",] == sum(place["bytes"] for place in totals["held"].values()) > 0
        for kind in expected["objects"]["kinds"]:
            assert points["culeak_objects", ("kind", kind["kind"])] == kind["live"]
        assert points["culeak_losses_total", ("loss", "unknown_frees")] == expected["losses"]["unknown_frees"]
        sites = {key: value for key, value in points.items() if key[0] == "culeak_call_site_held_bytes"}
        assert len(sites) == 3 and sum(sites.values()) == sums(recording)[0], sites
        owned = [value for key, value in points.items() if key[0] == "culeak_owned_bytes"]
        lines = [line for device in expected["ledger"]["devices"] for line in device["lines"]]
        others = ["other_processes", "driver_contexts", "driver_device", "page_tables"]
        assert sum(owned) == sum(line["bytes"] for line in lines if line["what"] not in others)
        assert points["culeak_process_running",] == 0
    assert ranks == {"0", "1", "3"}


def secrets_come_from_files_or_variables_and_are_never_printed():
    (FOLDER / "headers").write_text(f"X-Key: {SECRET}\nX-Scope-OrgID: a team\n")

    def echo(handler):
        text = " ".join(f"{name}: {value}" for name, value in handler.headers.items()).encode()
        handler.send_response(400)
        handler.send_header("content-length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    env = environment(MY_HEADER=f"Authorization: Bearer {SECRET}")
    for words, header in [
        (["--header-env", "MY_HEADER"], ("authorization", f"Bearer {SECRET}")),
        (["--header-file", FOLDER / "headers"], ("x-key", SECRET)),
    ]:
        with Server(echo) as server:
            output = push(LEAKY, "--to", server.url, *words, env=env, code=2)
        assert server.requests[0].headers[header[0]] == header[1], words
        assert "400" in output and "***" in output, output
        assert SECRET not in output, output
    with Server(echo) as server:
        output = push(LEAKY, "--to", f"{server.url}?key={SECRET}", code=2)
    assert SECRET not in output, output
    # What is sent to this machine goes through no proxy.
    with Server() as server:
        push(LEAKY, "--to", server.url, env=environment(HTTP_PROXY="http://127.0.0.1:1", http_proxy="http://127.0.0.1:1", ALL_PROXY="http://127.0.0.1:1"))
    assert len(server.requests) == 1
    # Neither an option nor a URL takes a secret, and plain HTTP to another machine does not carry one.
    for words in [
        ["--to", f"http://me:{SECRET}@localhost:9"],
        ["--to", "http://culeak-test.invalid", "--header-env", "MY_HEADER"],
        ["--to", "http://localhost:9", "--header-env", "NOT_SET"],
    ]:
        output = push(LEAKY, *words, env=env, code=2)
        assert SECRET not in output, output
    options = re.findall(r"--[a-z-]+", push("--help"))
    assert not {"--token", "--password", "--header", "--secret", "--api-key"} & set(options), options


def tls_trusts_only_the_named_authority():
    authority, stranger = trustme.CA(), trustme.CA()
    mine, theirs = FOLDER / "mine.pem", FOLDER / "theirs.pem"
    authority.cert_pem.write_to_path(mine)
    stranger.cert_pem.write_to_path(theirs)
    with Server(tls=context(authority, "localhost")) as server:
        for words in [["--ca-file", theirs], []]:
            output = push(LEAKY, "--to", server.url, *words, env=environment(SSL_CERT_FILE=str(theirs)), code=2)
            assert "not trusted" in output and "--ca-file" in output, output
        assert not server.requests
        push(LEAKY, "--to", server.url, "--ca-file", mine)
        assert len(server.requests) == 1
        # The roots of the system are those that SSL_CERT_FILE names.
        push(LEAKY, "--to", server.url, env=environment(SSL_CERT_FILE=str(mine)))
        assert len(server.requests) == 2
    with Server(tls=context(authority, "other.example")) as server:
        output = push(LEAKY, "--to", server.url, "--ca-file", mine, code=2)
        assert "not trusted" in output and not server.requests, output
    with raw(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 100)) as (port, _):
        push(LEAKY, "--to", f"https://localhost:{port}", "--ca-file", mine, *QUICK, code=2)


def busy_servers_are_tried_again():
    refused = (503, {"retry-after": "1"}, b"later")
    with Server(refused, 429, (502, {"retry-after": "nonsense"}, b"")) as server:
        push(LEAKY, "--to", server.url, "--retry-for", "10m")
    assert len(server.requests) == 4
    assert len({request.body for request in server.requests}) == 1, "the same request"
    # A server may ask for a wait that is longer than the patience: one attempt.
    with Server((503, {"retry-after": "99999999999"}, b"")) as server:
        output = push(LEAKY, "--to", server.url, code=2)
    assert len(server.requests) == 1 and "503" in output, output


def a_server_that_comes_up_later_gets_it():
    # Bound and not listening: the port refuses connections, and is nobody else's.
    with socket.socket() as down:
        down.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        down.bind(("127.0.0.1", 0))
        port = down.getsockname()[1]
        pushing = start("export", LEAKY, "--to", f"http://localhost:{port}", "--retry-for", "10m")
        # The client polls, so whichever comes first is right.
        time.sleep(0.3)
        with Server(port=port) as server:
            end_of(pushing)
            assert len(server.requests) == 1


def refused_requests_are_dropped_and_said():
    status = status_pb2.Status(message="bad \x1b[31mdata").SerializeToString()
    partial = metrics_service_pb2.ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points, partial.partial_success.error_message = 3, "too old"
    protobuf = {"content-type": "application/x-protobuf"}
    for answer, words in [
        ((400, protobuf, status), "bad  [31mdata"),
        ((500, {}, b"crash"), "crash"),
        ((200, protobuf, partial.SerializeToString()), "3 items rejected: too old"),
    ]:
        with Server(answer) as server:
            output = push(LEAKY, "--to", server.url, "--as", "otlp-metrics", code=2)
        assert len(server.requests) == 1 and words in output and "1 refused" in output, output


def what_the_user_must_mend_ends_the_round():
    page = (200, {"content-type": "text/html"}, b"<html>Log in</html>")
    for answer in [401, 403, 404, page]:
        with Server(answer) as server:
            output = push(JOB, "--to", server.url, code=2)
        assert len(server.requests) == 1 and "2 processes not sent" in output, output


def redirects_are_not_followed():
    (FOLDER / "token").write_text(f"Authorization: Bearer {SECRET}")
    with Server() as other:
        for status in [301, 302, 303, 307, 308]:
            redirect = (status, {"location": f"{other.url}/x?token={SECRET}"}, b"")
            with Server(redirect) as server:
                output = push(LEAKY, "--to", server.url, "--header-file", FOLDER / "token", code=2)
            assert f"to {other.url}/x;" in output and SECRET not in output, output
        assert not other.requests


def bad_peers_end_in_an_error_and_nothing_hangs():
    def trickle(connection):
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    def trickle_body(connection):
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 503 Busy\r\ncontent-length: 1000000\r\n\r\n")
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    def endless(head):
        def talk(connection):
            connection.recv(1 << 16)
            connection.sendall(head)
            while True:
                connection.sendall(b"x" * (1 << 16))

        return talk

    def once(text):
        def talk(connection):
            connection.recv(1 << 16)
            connection.sendall(text)
            connection.close()

        return talk

    def ends(name, talk):
        with raw(talk) as (port, connections):
            # The limit ends these alone. A slow machine may reach a short one before it has connected, which says nothing.
            for limit in ["1s", "10s", "100s"] if name in limited else ["1h"]:
                words = f"--to http://localhost:{port} --as otlp-metrics --timeout {limit} --retry-for 500ms"
                command = f"ulimit -v 2000000; exec {CULEAK} export {LEAKY} {words}"
                done = subprocess.run(["sh", "-c", command], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
                assert done.returncode == 2, (name, done)
                assert len(done.stdout) < 4_000, (name, done.stdout[:4_000])
                if connections:
                    break
        assert connections, (name, done)

    silent = threading.Event()
    limited = {"silent", "trickle", "trickle_body"}
    peers = {
        "silent": lambda connection: silent.wait(LIMIT),
        "trickle": trickle,
        "trickle_body": trickle_body,
        "garbage": once(os.urandom(4096)),
        "closed": once(b""),
        "half": once(b"HTTP/1.1 200"),
        "endless_header": endless(b"HTTP/1.1 200 OK\r\nx: "),
        "endless_headers": lambda connection: [connection.sendall(b"HTTP/1.1 200 OK\r\n"), *(connection.sendall(b"a: b\r\n") for _ in range(1 << 20))],
        "endless_body": endless(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"),
        "endless_error": endless(b"HTTP/1.1 400 Bad\r\n\r\n"),
        "lying_length": once(b"HTTP/1.1 503 Busy\r\ncontent-length: 10\r\n\r\nxy"),
        "negative_length": once(b"HTTP/1.1 503 Busy\r\ncontent-length: -1\r\n\r\nxy"),
        "many_100": lambda connection: [connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n") for _ in range(1 << 20)],
    }
    with concurrent.futures.ThreadPoolExecutor(len(peers)) as pool:
        list(pool.map(ends, peers.keys(), peers.values()))
    silent.set()


def a_folder_is_pushed_again_and_again():
    runs = FOLDER / "runs"
    runs.mkdir()
    (runs / "a.culeak").write_bytes(LEAKY.read_bytes())
    with Server() as server:
        pushing = start("watch", runs, "--to", server.url, "--every", "100ms")
        try:
            server.wait_for(1)
            (runs / "new").write_bytes(OTHER.read_bytes())
            (runs / "new").rename(runs / "b.culeak")
            server.wait_for(2)
        finally:
            pushing.kill()
            pushing.communicate()
        assert len(server.requests) == 2, "what has ended is sent once"
        # What could not be sent is sent in a later round. Named processes that have ended are the end.
        server.answers = [401]
        end_of(start("watch", LEAKY, "--to", server.url, "--every", "100ms"))
        assert len(server.requests) == 4


def wrong_options_are_explained():
    for words, expected in [
        ([LEAKY], "--output"),
        ([LEAKY, "--to", "pyroscope:4040"], "http"),
        ([LEAKY, "--to", "http://localhost:9", "--label", "a-b=c"], "letters"),
        ([LEAKY, "--to", "http://localhost:9", "--header-file", FOLDER / "missing"], "missing"),
        ([LEAKY, "--to", "https://localhost:9", "--ca-file", LEAKY], "PEM"),
        ([FOLDER / "no-such-file", "--to", "http://localhost:9"], "no-such-file"),
        # The C library refuses this name itself: no name server is asked, which may be slow.
        ([LEAKY, "--to", "http://-culeak-test.invalid", *QUICK], "not known"),
        (["--to", "http://localhost:9"], "RECORDING"),
    ]:
        output = push(*words, code=2)
        assert expected in output and "panicked" not in output, (words, output)


run([
    profile_is_one_that_pyroscope_stores,
    profile_is_one_that_otlp_defines,
    metrics_are_those_that_otlp_defines,
    secrets_come_from_files_or_variables_and_are_never_printed,
    tls_trusts_only_the_named_authority,
    busy_servers_are_tried_again,
    a_server_that_comes_up_later_gets_it,
    refused_requests_are_dropped_and_said,
    what_the_user_must_mend_ends_the_round,
    redirects_are_not_followed,
    bad_peers_end_in_an_error_and_nothing_hangs,
    a_folder_is_pushed_again_and_again,
    wrong_options_are_explained,
])
