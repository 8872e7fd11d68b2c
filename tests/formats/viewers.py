"""Tests of exported files in the viewers that they are for. Called by run.sh:

    viewers.py CULEAK FOLDER VIEWERS CHROMIUM

VIEWERS has speedscope and the Firefox Profiler's own command line, installed by npm. speedscope is the page of
speedscope.app; the command line is the code behind profiler.firefox.com without its page.
"""

import contextlib
import functools
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import time

from playwright.sync_api import sync_playwright

CULEAK, FOLDER, VIEWERS, CHROMIUM = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4]
SAMPLES = ["leaky", "training", "clean"]
PATIENCE_MS = 300_000
"""How long a browser may take: no measure of it, since the machine may be busy."""


def culeak(*words):
    return subprocess.run([CULEAK, *map(str, words)], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout


def exported(sample, form):
    path = FOLDER / f"{sample}.{form}"
    culeak("export", FOLDER / f"{sample}.json", "--format", form, "-o", path, "--force")
    return path


def report(sample):
    return json.loads(culeak("report", FOLDER / f"{sample}.json", "--json"))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def speedscope_shows_every_function():
    folder = FOLDER / "speedscope-page"
    shutil.copytree(VIEWERS / "node_modules/speedscope/dist/release", folder)
    with served(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(timeout=PATIENCE_MS, executable_path=CHROMIUM, args=["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"])
        for sample in ["leaky", "training"]:
            shutil.copy(exported(sample, "speedscope"), folder / f"{sample}.json")
            profile = json.loads((folder / f"{sample}.json").read_text())
            page = browser.new_page(viewport={"width": 1280, "height": 2000})
            page.set_default_timeout(PATIENCE_MS)
            errors = []
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.on("console", lambda message, errors=errors: errors.append(message.text) if message.type == "error" else None)
            page.goto(f"{address}/index.html#profileURL=/{sample}.json")
            page.get_by_text("Sandwich").click()
            page.get_by_text("Symbol Name").wait_for()
            # The rows appear one frame after the header.
            page.get_by_text("(100%)").first.wait_for()
            shown = page.inner_text("body")
            first = profile["profiles"][0]
            assert first["name"] in shown, shown
            names = {profile["shared"]["frames"][frame]["name"] for stack in first["samples"] for frame in stack}
            assert names and all(name in shown for name in names), (names, shown)
            # Rounded as in the viewer.
            total = sum(first["weights"]) / (1 << 30 if "GB" in shown else 1 << 20)
            assert f"{total:.2f} {'GB' if 'GB' in shown else 'MB'} (100%)" in shown, (total, shown)
            assert errors == [], errors
            page.close()
        browser.close()


def the_firefox_profiler_adds_up_to_the_report():
    node = pathlib.Path(sys.executable).with_name("node")
    script = VIEWERS / "node_modules/.bin/profiler-cli"
    # A separate home folder, because the program keeps sessions of a daemon there.
    sessions = FOLDER / "profiler-sessions"
    home = {"HOME": str(FOLDER), "PATH": "/usr/bin:/bin", "PROFILER_CLI_SESSION_DIR": str(sessions)}

    def profiler(*words):
        return subprocess.run([node, script, *map(str, words)], env=home, check=True, capture_output=True, text=True).stdout

    def load(path, session):
        """Starts the daemon as `profiler-cli load` does, which gives up after half a second: too early on a busy machine."""
        sessions.mkdir(exist_ok=True)
        daemon = subprocess.Popen([node, script, "--daemon", path, "--session", session], env=home, stdout=subprocess.DEVNULL)
        while daemon.poll() is None:
            asked = subprocess.run([node, script, "status", "--session", session], env=home, capture_output=True, text=True)
            if asked.returncode == 0:
                return daemon
            time.sleep(0.1)
        raise AssertionError(f"the profiler ended with {daemon.returncode}: {asked.stderr}")

    for sample in SAMPLES:
        daemon = load(exported(sample, "firefox"), sample)
        try:
            if sample == "clean":
                assert "No samples" in profiler("thread", "samples", "--session", sample)
                continue
            seen = json.loads(profiler("thread", "samples", "--json", "--session", sample))
            rows = report(sample)["rows"]
            assert seen["weightType"] == "bytes" and seen["categoryBreakdown"]["totalSamples"] == sum(row["bytes"] for row in rows)
            functions = json.loads(profiler("thread", "functions", "--json", "--session", sample))["functions"]
            assert sum(function["selfSamples"] for function in functions) == sum(row["bytes"] for row in rows)
            if sample == "leaky":
                largest = max(functions, key=lambda function: function["selfSamples"])
                assert "Trainer::step" in largest["name"] and largest["selfSamples"] == rows[0]["bytes"], largest
            assert "Memory" in profiler("counter", "list", "--session", sample)
        finally:
            profiler("stop", sample)
            daemon.wait()


CLAIMS = [speedscope_shows_every_function, the_firefox_profiler_adds_up_to_the_report]

for claim in CLAIMS:
    claim()
    print(f"ok      {claim.__name__.replace('_', ' ')}", flush=True)
