"""Tests of culeak export -f openmetrics and culeak watch with Prometheus and node_exporter. Called by run.sh: claims.py CULEAK TOOLS WORK.

Nothing waits for a fixed time: each step polls until what it expects is there, and fails after five minutes. Prometheus drops a scrape that
takes a second, which a slow machine does now and then, so its answers are polled too.
"""

import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

CULEAK, TOOLS, WORK = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
PACKAGING = pathlib.Path("packaging")
# Against hangs alone.
PATIENCE_S = 300
MIB = 1 << 20
passed = 0
started = []


def ok(claim):
    global passed
    passed += 1
    print(f"ok      {claim}", flush=True)


def until(what, check):
    """The first true answer of `check`; its last error or answer is shown if there is none."""
    end, last = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < end:
        try:
            last = check()
            if last:
                return last
        except Exception as error:  # noqa: BLE001, the server may not be up yet
            last = error
        time.sleep(0.1)
    raise AssertionError(f"{what}: last answer {last!r}")


def start(*words, **more):
    process = subprocess.Popen([str(word) for word in words], **more)
    started.append(process)
    return process


def culeak(*words, code=0, **more):
    done = subprocess.run([CULEAK, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    return done.stdout


def tool(name, *words, stdin=None):
    done = subprocess.run([TOOLS / name, *map(str, words)], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, (name, words, done.stdout)
    return done.stdout


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_S) as answer:
        return answer.read().decode()


class Victim:
    """A program on the fake driver that allocates on command."""

    def __init__(self, folder, rank, name="victim", suffix=""):
        folder.mkdir(exist_ok=True)
        self.program = WORK / name
        if not self.program.exists():
            shutil.copy(WORK / "victim", self.program)
        self.fifo = WORK / f"fifo{len(started)}{suffix}"
        os.mkfifo(self.fifo)
        environment = os.environ | {
            "LD_PRELOAD": subprocess.check_output([CULEAK, "shim-path"], text=True).strip(),
            "CULEAK_OUTPUT": f"{folder}/",
            "CULEAK_QUIET": "1",
            "RANK": str(rank),
        }
        self.process = start(self.program, self.fifo, env=environment, stdout=subprocess.DEVNULL)
        # Opened for reading too, so that this does not wait for a program that has ended.
        self.commands = os.fdopen(os.open(self.fifo, os.O_RDWR), "w", buffering=1)
        self.folder = folder

    def send(self, line):
        self.commands.write(line + "\n")

    def recording(self):
        found = until("a recording", lambda: list(self.folder.glob(f"*.{self.process.pid}.culeak")))
        return found[0]

    def end(self):
        self.send("exit 0")
        self.process.wait(PATIENCE_S)


def parsed(text):
    """Samples by name and labels. Label values are taken apart, so an unescaped one would fail."""
    samples = {}
    pattern = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = pattern.fullmatch(line)
        assert match, f"not a sample: {line!r}"
        labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
        key = (match[1], tuple(sorted(labels.items())))
        assert key not in samples, f"twice: {line!r}"
        samples[key] = float(match[3])
    return samples


def held_by(victim):
    report = json.loads(culeak("report", victim.recording(), "--json"))
    return sum(tally["bytes"] for tally in report["totals"]["held"].values())


def total(samples, name, **labels):
    found = [value for (of, have), value in samples.items() if of == name and labels.items() <= dict(have).items()]
    return sum(found) if found else None


class Prometheus:
    def __init__(self, targets, rules, name="prometheus"):
        self.port = free_port()
        folder = WORK / name
        folder.mkdir()
        jobs = "".join(
            f"  - job_name: {name}\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n" for name, port in targets.items()
        )
        config = folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{rules}']\nscrape_configs:\n{jobs}"
        )
        self.log = open(folder / "log", "w")
        start(
            TOOLS / "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            stdout=self.log,
            stderr=self.log,
        )

    def api(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        return json.loads(get(url))["data"]

    def query(self, expression):
        return self.api("query", query=expression)["result"]


def dashboard_queries():
    dashboard = json.loads((PACKAGING / "grafana/culeak.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m")
            yield panel["title"], re.sub(r'"\$\w+"', '".*"', expression)


def rules_are_right():
    rules = PACKAGING / "prometheus/alerts.yml"
    tool("promtool", "check", "rules", rules)
    ok("promtool check rules")
    tests = WORK / "alerts_test.yml"
    tests.write_text(pathlib.Path("tests/metrics/alerts_test.yml").read_text().replace("ALERTS", str(rules.resolve())))
    tool("promtool", "test", "rules", tests)
    ok("promtool test rules: each alert fires when it should")


def unit_is_right():
    unit = WORK / "culeak-watch.service"
    text = (PACKAGING / "culeak-watch.service").read_text()
    # The program must exist for the check.
    unit.write_text(text.replace("/usr/bin/culeak", CULEAK).replace("Documentation=man:culeak-watch(1)\n", "").replace("User=culeak\n", ""))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ours = [line for line in done.stdout.splitlines() if "culeak-watch" in line]
    assert not ours, ours
    ok("systemd-analyze verify")
    # The options of the unit are options of the command.
    words = re.search(r"^ExecStart=(.*)$", text, re.M)[1].split()[1:]
    assert words[0] == "watch" and all(word in culeak("watch", "--help") for word in words if word.startswith("--")), words
    ok("the unit's command line is one")


def printed_figures_are_those_of_the_report():
    folder = WORK / "ended"
    victim = Victim(folder, 3)
    for line in ("batch 5", "staging", "free 2", "stream"):
        victim.send(line)
    recording = victim.recording()
    victim.end()
    report = json.loads(culeak("report", recording, "--json"))
    samples = parsed(culeak("export", folder, "-f", "openmetrics", "--job", "job 7"))
    for place, tally in report["totals"]["held"].items():
        assert total(samples, "culeak_held_bytes", place=place) == tally["bytes"], place
        assert total(samples, "culeak_held_allocations", place=place) == tally["count"], place
    held = sum(tally["bytes"] for tally in report["totals"]["held"].values())
    assert held == 6 * MIB + 32 * MIB
    assert total(samples, "culeak_leaked_bytes", job_id="job 7", rank="3", pid=str(victim.process.pid)) == held
    assert total(samples, "culeak_call_site_held_bytes") == sum(row["bytes"] for row in report["rows"])
    assert total(samples, "culeak_allocations_total") == report["totals"]["allocated"] == 6
    assert total(samples, "culeak_frees_total") == report["totals"]["freed"] == 2
    for device in report["devices"]:
        assert total(samples, "culeak_device_peak_bytes", device=str(device["ordinal"])) == device["peak_bytes"]
        assert total(samples, "culeak_device_allocated_bytes", device=str(device["ordinal"])) == device["live"]["bytes"]
    for device in report["ledger"]["devices"]:
        lines = sum(line["bytes"] for line in device["lines"])
        assert total(samples, "culeak_owned_bytes", device=str(device["ordinal"])) == lines, device["lines"]
    for loss in [dict(key[1])["loss"] for key in samples if key[0] == "culeak_losses_total"]:
        expected = report["losses"].get(loss, 0)
        assert total(samples, "culeak_losses_total", loss=loss) == (len(expected) if isinstance(expected, list) else expected), loss
    assert "stream" in [kind["kind"] for kind in report["objects"]["kinds"]]
    for kind in report["objects"]["kinds"]:
        assert total(samples, "culeak_objects", kind=kind["kind"]) == kind["live"]
    ok("printed figures are those of culeak report --json")
    textfile = WORK / "once.prom"
    culeak("export", recording, "-o", textfile)
    tool("promtool", "check", "metrics", stdin=textfile.read_text())
    ok("promtool check metrics")
    culeak("export", recording, "-o", textfile)
    foreign = WORK / "notes.prom"
    foreign.write_text("my own figures 1\n")
    culeak("export", recording, "-o", foreign, code=2)
    assert foreign.read_text() == "my own figures 1\n"
    ok("its own textfile is replaced, another file is not")
    damaged = folder / "damaged.culeak"
    damaged.write_bytes(recording.read_bytes()[:5000])
    samples = parsed(culeak("export", folder, "-f", "openmetrics", code=2))
    assert total(samples, "culeak_recordings", state="unreadable") == 1 and total(samples, "culeak_leaked_bytes") == held
    damaged.unlink()
    ok("a damaged recording is counted, and the others are exported")


def hostile_names_are_escaped():
    folder = WORK / "hostile"
    name = 'evil"} 1\nculeak_held_bytes{x="\\\u202e'
    # An argument that is not UTF-8.
    victim = Victim(folder, "3\n4", name=name, suffix=b"\xff\xfe\"\n".decode("utf-8", "surrogateescape"))
    victim.send("batch 1")
    victim.recording()
    victim.end()
    textfile = WORK / "hostile.prom"
    culeak("export", folder, "-o", textfile, "--job", 'a"b\\c\nd' + "x" * 100_000)
    text = textfile.read_text()
    samples = parsed(text)
    assert total(samples, "culeak_held_bytes") == 2 * MIB and len(text) < 1 << 18, len(text)
    tool("promtool", "check", "metrics", stdin=text)
    ok("hostile names are escaped and cut")


def silent_peers(port):
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):
                peer.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert get(f"http://127.0.0.1:{port}/healthz") == "ok\n"
    ok("200 silent peers keep nobody out")


def everything_together():
    folder, textfiles = WORK / "runs", WORK / "textfiles"
    textfiles.mkdir()
    began = time.time()
    leaking, leaver = Victim(folder, 0), Victim(folder, 1)
    leaver.send("batch 40")
    leaver.send("stream")
    held = 80 * MIB
    # Before anything is watched, or a slow machine would show it as growth.
    until("all of what it holds", lambda: held_by(leaver) == held)
    port, node_port = free_port(), free_port()
    environment = os.environ | {"LD_LIBRARY_PATH": str(WORK / "nvml"), "NVML_USED": str(79 << 30)}
    options = ["--every", "100ms", "--job", "job 7"]
    textfile = textfiles / "culeak.prom"

    def watch():
        messages = open(WORK / "watch.log", "a")
        outlets = ["--listen", f"127.0.0.1:{port}", "--textfile", textfile]
        return start(CULEAK, "watch", folder, *options, *outlets, env=environment, stderr=messages)

    agent = watch()
    start(
        TOOLS / "prometheus-node-exporter",
        f"--web.listen-address=127.0.0.1:{node_port}",
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={textfiles}",
        stderr=subprocess.DEVNULL,
    )
    rules = WORK / "alerts.yml"
    # As packaged, but without waiting.
    rules.write_text(re.sub(r"^( *for:) .*$", r"\1 0s", (PACKAGING / "prometheus/alerts.yml").read_text(), flags=re.M))
    prometheus = Prometheus({"culeak": port, "node": node_port}, rules)

    def grows():
        leaking.send("batch 1")
        alerts = prometheus.api("alerts")["alerts"]
        firing = {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
        missing = {"CuleakMemoryGrows", "CuleakDeviceFullSoon", "CuleakGpuFullSoon"} - firing
        assert not missing, missing
        return alerts

    # The labels of these alerts, since a later query would be about another moment.
    alerts = until("alerts for a process that grows", grows)
    grown = {alert["labels"]["rank"] for alert in alerts if alert["labels"]["alertname"] == "CuleakMemoryGrows"}
    assert grown == {"0"}, alerts
    ok("a process that grows on a full GPU fires three alerts, and another process none")

    leaver.end()

    def leaked():
        alerts = [one for one in prometheus.api("alerts")["alerts"] if one["labels"]["alertname"] == "CuleakLeakOverLimit"]
        return [one for one in alerts if one["state"] == "firing" and float(one["value"]) == held and one["labels"]["rank"] == "1"]

    until("an alert for a leak", leaked)
    ok("a leak over the limit fires when the process ends")

    for job in ("culeak", "node"):
        query = f'sum(culeak_held_bytes{{job="{job}", rank="1"}})'
        until(f"{job}'s figures", lambda: prometheus.query(query)[0]["value"][1] == str(held))

    def scraped():
        targets = {one["labels"]["job"]: one for one in prometheus.api("targets")["activeTargets"]}
        assert targets.keys() == {"culeak", "node"}, targets
        assert all(one["health"] == "up" and not one["lastError"] for one in targets.values()), targets
        return True

    until("both are up", scraped)
    until("node_exporter reads the textfile", lambda: prometheus.query("node_textfile_scrape_error == 0"))
    ok("Prometheus scrapes the endpoint, and node_exporter's textfile")

    kinds = prometheus.api("targets/metadata", match_target='{job="culeak"}')
    kinds = {one["metric"]: one["type"] for one in kinds}
    assert kinds["culeak_held_bytes"] == "gauge" and kinds["culeak_recorder_seconds_total"] == "counter", kinds
    ok("it knows types")

    leaking.send("batch 1")

    def same_as_report():
        return total(parsed(get(f"http://127.0.0.1:{port}/metrics")), "culeak_held_bytes", rank="0") == held_by(leaking)

    until("the running process's figures are those of its report", same_as_report)
    ok("figures of a running process are those of culeak report")

    names = set(prometheus.api("label/__name__/values"))
    for title, expression in dashboard_queries():
        missing = set(re.findall(r"culeak_\w+", expression)) - names
        assert not missing, (title, missing)

        def answer():
            return prometheus.api("query_range", query=expression, start=began, end=time.time(), step=1)["result"]

        # rate() needs two scrapes, and the last step of a range may be before the last of them.
        if "> 0" not in expression:
            until(f"an answer for {title}: {expression}", answer)
        else:
            answer()
    ok("every query of the dashboard has an answer")
    rules = (PACKAGING / "prometheus/alerts.yml").read_text()
    used = set(re.findall(r"\bculeak_[a-z_]+\b", " ".join(re.findall(r"expr:(.*?)(?=\n +(?:for|labels):)", rules, re.S))))
    assert used and used <= names, used - names
    ok("every metric of the alerts exists")

    silent_peers(port)
    for _ in range(300):
        text = textfile.read_text()
        assert text.endswith("\n") and "culeak_build_info{" in text, text[-200:]
    ok("the textfile is complete at any time")

    agent.send_signal(signal.SIGTERM)
    assert agent.wait(PATIENCE_S) == 0
    ok("SIGTERM ends the agent with code 0")
    agent = watch()
    until("the endpoint again", lambda: total(parsed(get(f"http://127.0.0.1:{port}/metrics")), "culeak_growth_points", rank="0"))
    agent.send_signal(signal.SIGINT)
    assert agent.wait(PATIENCE_S) == 0
    ok("after a restart growth is judged anew")
    leaking.end()


def alerts_of_growth_end_with_the_process():
    folder, port = WORK / "ending", free_port()
    growing, staying = Victim(folder, 0), Victim(folder, 1)
    staying.send("batch 1")
    environment = os.environ | {"LD_LIBRARY_PATH": str(WORK / "nvml"), "NVML_USED": str(79 << 30)}
    agent = start(CULEAK, "watch", folder, "--every", "100ms", "--listen", f"127.0.0.1:{port}", env=environment, stderr=subprocess.DEVNULL)
    rules = WORK / "short-alerts.yml"
    # Shorter than the agent exports an ended process.
    rules.write_text(re.sub(r"^( *for:) .*$", r"\1 3s", (PACKAGING / "prometheus/alerts.yml").read_text(), flags=re.M))
    prometheus = Prometheus({"culeak": port}, rules, "prometheus-ending")
    of_growth = {"CuleakMemoryGrows", "CuleakDeviceFullSoon", "CuleakGpuFullSoon"}

    def active():
        return {alert["labels"]["alertname"] for alert in prometheus.api("alerts")["alerts"]} & of_growth

    def grows():
        growing.send("batch 1")
        return active() == of_growth

    until("alerts for a process that grows", grows)
    growing.end()
    until("its end", lambda: prometheus.query('culeak_process_running{rank="0"} == 0'))
    until("no alert of growth, firing or pending", lambda: not active())

    evaluations, again = set(), set()

    def none_comes_back():
        [group] = prometheus.api("rules")["groups"]
        evaluations.add(group["lastEvaluation"])
        again.update(active())
        # One a second: longer than any of these rules waits.
        return again or len(evaluations) > 6

    until("evaluations of the rules", none_comes_back)
    assert not again, again
    until("the ended process is exported", lambda: prometheus.query('culeak_leaked_bytes{rank="0"} > 0'))
    ok("alerts of growth end with the process")
    staying.end()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(PATIENCE_S) == 0


try:
    rules_are_right()
    unit_is_right()
    printed_figures_are_those_of_the_report()
    hostile_names_are_escaped()
    everything_together()
    alerts_of_growth_end_with_the_process()
    print(f"{passed} passed")
finally:
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
