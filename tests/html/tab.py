"""A page in the browser, and culeak, which writes it. Used by claims.py and over_time.py."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 300
"""How long a page may take to do as it should: no measure of it, since the machine may be busy."""
CULEAK, FOLDER, CHROMIUM = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


def culeak(*words):
    return subprocess.run([CULEAK, *words], cwd=FOLDER, check=True, capture_output=True, text=True).stdout


def write(name, *words):
    culeak(*words, "-o", f"{name}.html", "--force")
    return FOLDER / f"{name}.html"


# The pages that the claims open, by name, and the command that writes each.
PAGES = {
    "training": ("report", "training.json"),
    "sampled": ("report", "sampled.json"),
    "ways": ("report", "ways.json"),
    "hostile": ("report", "hostile.json"),
    "deep": ("report", "deep.json"),
    "held": ("report", "held.json"),
    "large": ("report", "large.json", "--by", "stack"),
    "several": ("report", "training.json", "before.json", "--by", "kind"),
    "job": ("report", "job"),
    "timeline": ("report", "timeline.culeak"),
    "large-timeline": ("report", "large-timeline.culeak"),
    "diff": ("diff", "before.json", "after.json"),
    "sampled-diff": ("diff", "before.json", "sampled.json"),
    "hostile-diff": ("diff", "training.json", "hostile.json"),
    "trend": ("trend", "course"),
    "why": ("why", "held.json"),
}


def written(name):
    path = FOLDER / f"{name}.html"
    return path if path.exists() else write(name, *PAGES[name])


class Tab:
    """A page that must log no message or error and send no request except for itself."""

    def __init__(self, page):
        self.page = page
        page.set_default_timeout(PATIENCE_S * 1000)
        self.complaints = []
        page.on("console", lambda message: self.complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self.complaints.append(f"request: {request.url}") if request.url != self.url else None)

    def open(self, path):
        self.url = path.as_uri()
        self.page.goto(self.url)
        self.page.wait_for_selector("html[data-ready]", state="attached")
        return self.page

    def until(self, condition):
        """Waits for a condition from outside, because the page's policy forbids evaluating strings."""
        for _ in range(PATIENCE_S * 20):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {condition}")

    def frame(self, text):
        return self.page.locator(".frame", has_text=text).first

    def names(self):
        return self.page.locator(".frame").all_inner_texts()

    def rows(self):
        return self.page.locator("table.rows").first.locator(":scope > tbody > tr[data-row]")


@contextmanager
def tab(browser, path, silent=True, **options):
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    opened = Tab(context.new_page())
    opened.open(path)
    yield opened
    if silent:
        assert opened.complaints == [], opened.complaints
    context.close()


def size_of(size):
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1023.95:
            return f"{size:.1f} {unit}".replace(".0 ", " ")


REFERENCE = """() => {
    let text = ""
    for (let round = 0; round < 20; round++) {
        text = JSON.stringify(Array.from({ length: 50000 }, (_, n) => ({ name: "frame " + (n * 7919) % 50021, bytes: n })))
        JSON.parse(text).sort((a, b) => a.name < b.name ? -1 : 1)
    }
    return text.length
}"""
"""Work like that of a page: texts, objects, sorting."""
REFERENCE_SECONDS = 0.75
"""What it takes on the machine that the limits are for. A machine that is busy or slow gets as much more time."""


def timed(browser, path):
    """Opens a page. Returns its context, the tab, and the seconds of CPU time that it took, as on the machine that the limits are for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = Tab(context.new_page())
    session = context.new_cdp_session(opened.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    computed = lambda: {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}["TaskDuration"]
    opened.open(path)
    clock = opened.page.evaluate("performance.now()") / 1000
    spent = computed()
    opened.page.evaluate(REFERENCE)
    reference = computed() - spent
    print(f"        {path.stat().st_size / 1e6:.1f} MB; ready after {spent:.2f} s of computing, {clock:.2f} s by the clock; the reference takes {reference:.2f} s")
    return context, opened, spent * REFERENCE_SECONDS / reference
