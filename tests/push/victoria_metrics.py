"""A real VictoriaMetrics takes the metrics and returns the figures of the report. Called by run.sh:
victoria_metrics.py CULEAK FOLDER VICTORIA_METRICS."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from peers import FOLDER, LIMIT, culeak, report, run

RECORDINGS = [*(FOLDER / "job").glob("*.culeak"), *(FOLDER / "leaky").glob("*.culeak")]


def get(path):
    with urllib.request.urlopen(f"{URL}{path}", timeout=LIMIT) as answer:
        return answer.read()


def query(expression, at):
    words = urllib.parse.urlencode({"query": expression, "time": at, "nocache": 1})
    return json.loads(get(f"/api/v1/query?{words}"))["data"]["result"]


def its_figures_are_those_of_the_report():
    culeak("export", *RECORDINGS, "--to", f"{URL}/opentelemetry", "--as", "otlp-metrics", "--job", "7", "--top", "3")
    get("/internal/force_flush")
    checked = 0
    for recording in RECORDINGS:
        expected = report(recording)
        at = (expected["process"]["started_unix_ns"] + expected["taken"]["at_ns"]) / 1e9 + 1
        of = f'{{pid="{expected["process"]["pid"]}",rank="{expected["process"]["ranks"]["RANK"]}",job_id="7"}}'
        held = {each["metric"]["place"]: int(each["value"][1]) for each in query(f"culeak_held_bytes{of}", at)}
        assert held == {place: tally["bytes"] for place, tally in expected["totals"]["held"].items()}, held
        sites = {each["metric"]["site"]: int(each["value"][1]) for each in query(f"culeak_call_site_held_bytes{of}", at)}
        assert len(sites) == 4 and sum(sites.values()) == sum(row["bytes"] for row in expected["rows"]), sites
        [total] = query(f"sum(culeak_call_site_held_bytes{of})", at)
        assert int(total["value"][1]) == sum(row["bytes"] for row in expected["rows"])
        for device in expected["devices"]:
            [peak] = query(f'culeak_device_peak_bytes{of[:-1]},device="{device["ordinal"]}"}}', at)
            assert int(peak["value"][1]) == device["peak_bytes"]
        [freed] = query(f"culeak_frees_total{of}", at)
        assert int(freed["value"][1]) == expected["totals"]["freed"]
        [one] = query(f"culeak_leaked_bytes{of}", at)
        assert one["metric"]["service.name"] == "culeak" and one["metric"]["host"] == expected["process"]["host"], one
        checked += 1
    assert checked == 3


with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
URL = f"http://127.0.0.1:{port}"
words = [sys.argv[3], f"-storageDataPath={FOLDER / 'victoria'}", f"-httpListenAddr=127.0.0.1:{port}", "-search.latencyOffset=0s", "-retentionPeriod=100y"]
with open(FOLDER / "victoria.log", "wb") as log:
    server = subprocess.Popen(words, stdout=log, stderr=log)
try:
    until = time.monotonic() + LIMIT
    while True:
        try:
            get("/health")
            break
        except (OSError, urllib.error.URLError):
            assert server.poll() is None and time.monotonic() < until, (FOLDER / "victoria.log").read_text()[-4000:]
            time.sleep(0.05)
    run([its_figures_are_those_of_the_report])
finally:
    server.kill()
    server.wait()
