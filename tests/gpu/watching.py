"""Claims about observation over time: growth as opposed to a cache that fills, and the live view of a running PyTorch."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from frameworks import EXPANDABLE, UNCACHED
from harness import HERE, Failure, claim, expect, expect_equal, site, tail
from ledgers import facts
from observed import Watched

MIB = 1 << 20
PROGRAM = HERE / "victims" / "fw_growth.py"
MODES = {"caching": {}, "expandable": EXPANDABLE, "uncached": UNCACHED}


def classes(trend):
    """The rows of a trend by call site."""
    return {(os.path.basename(row["site"]["file"] or ""), row["site"]["line"]): row for row in trend["rows"]}


def expect_leak_and_cache_classified(trend, story):
    rows = classes(trend)
    named = {place: row["class"] for place, row in rows.items()}
    expect(site("growth_leak") in rows, f"no row for the leak\n  rows: {named}\n{story}")
    leak = rows[site("growth_leak")]
    expect_equal(leak["class"], "growing", f"class of the leak; rows: {named}\n{story}")
    grown = [place for place, name in named.items() if name == "growing" and place != site("growth_leak")]
    expect(not grown, f"classified as growing, but bounded: {grown}\n{story}")
    return leak, named


@claim(over=sorted(MODES), slow=True)
def growth_between_marks_is_distinguished_from_a_cache_that_fills(t, mode):
    done = t.run(t.python, PROGRAM, env={**MODES[mode], "CULEAK_SNAPSHOT_AT_MARK": "1"}).must(0)
    code, out, err = t.cli("trend", done.folder / "rec", "--against", "marks", "--json")
    expect_equal(code, 0, f"exit code of culeak trend\n{tail(err)}\n{done.story()}")
    leak, named = expect_leak_and_cache_classified(json.loads(out), done.story())
    expect(abs(leak["bytes"]["pace"] - 4 * MIB) < 1024, f"pace of a leak of 4 MiB an epoch: {leak['bytes']}\n{done.story()}")
    expect_equal(named.get(site("growth_cache")), "grew_then_bounded", f"class of the cache; rows: {named}\n{done.story()}")
    code, out, err = t.cli("trend", done.folder / "rec", "--against", "marks", "--fail-on", "growing")
    expect_equal(code, 1, f"exit code with --fail-on growing\n{tail(out + err)}")


@claim(slow=True)
def a_running_program_that_grows_is_seen_from_outside(t):
    with Watched(t, command=[t.python, PROGRAM, "watched", "and-grow"]) as watched:
        code, out, err = t.cli("trend", "--pid", watched.pid, "--every", "400ms", "--for", "8s", "--json")
    expect_equal(code, 0, f"exit code of culeak trend --pid\n{tail(err)}")
    expect_leak_and_cache_classified(json.loads(out), f"  logs in {watched.folder}\n{tail(err)}")


class Screen:
    """`culeak live` in a terminal of 120 x 40 that understands the sequences which the view uses."""

    def __init__(self, t, *words, size=(40, 120)):
        self.size, self.cells, self.at, self.rest = size, {}, (0, 0), ""
        self.near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        command = [str(word) for word in (t.culeak, "live", *words)]
        self.process = subprocess.Popen(
            command, env={**t.environment(None), "TERM": "xterm-256color"}, stdin=far, stdout=far, stderr=far, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(far)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.near)

    def keys(self, text):
        os.write(self.near, text.encode())

    def take(self, text):
        """Applies the program's output to the cells: text, and the sequences that move the cursor and clear."""
        text = self.rest + text
        cut = re.search(r"\x1b(\[[0-9;?]*)?$", text)
        self.rest = text[cut.start() :] if cut else ""
        for word in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b.|[^\x1b]", text[: cut.start()] if cut else text):
            row, column = self.at
            if word.startswith("\x1b["):
                numbers = [int(n) if n else 1 for n in word[2:-1].lstrip("?").split(";")]
                if word[-1] == "H":
                    self.at = (numbers[0] - 1, (numbers + [1])[1] - 1)
                elif word[-1] == "J":
                    self.cells.clear()
            elif word == "\r":
                self.at = (row, 0)
            elif word == "\n":
                self.at = (row + 1, column)
            elif not word.startswith("\x1b"):
                self.cells[row, column] = word
                self.at = (row, column + 1)

    def text(self):
        rows, columns = self.size
        return "\n".join("".join(self.cells.get((r, c), " ") for c in range(columns)).rstrip() for r in range(rows))

    def until(self, *patterns, seconds=60):
        """Reads until the screen shows all of these patterns."""
        late = time.monotonic() + seconds
        while time.monotonic() < late:
            if all(re.search(pattern, self.text()) for pattern in patterns):
                return self.text()
            if select.select([self.near], [], [], 0.2)[0]:
                try:
                    self.take(os.read(self.near, 1 << 16).decode(errors="replace"))
                except OSError:
                    break
        missing = [pattern for pattern in patterns if not re.search(pattern, self.text())]
        raise Failure(f"the screen of culeak live does not show {missing}\n{tail(self.text(), 40)}")


@claim(slow=True)
def the_live_view_shows_what_a_running_pytorch_holds(t):
    with Watched(t, command=[t.python, PROGRAM, "watched"]) as watched:
        stated = facts(watched)
        with Screen(t, watched.pid) as screen:
            (file, leak), (_, cache) = site("growth_leak"), site("growth_cache")
            # 12 epochs leaked 4 MiB each, the cache holds 6 of 8 MiB, the weights are 1 MiB.
            expect_equal(stated["allocated"], (12 * 4 + 6 * 8 + 1) * MIB, "memory_allocated()")
            screen.until(r"48 MiB +12 .*" + re.escape(f"{file}:{leak}"), r"48 MiB +6 .*" + re.escape(f"{file}:{cache}"))
            screen.until(r"GPU 0 .* peak +[\d.]+ GiB of [\d.]+ GiB used")
            screen.keys("q")
            screen.until("")
            expect_equal(screen.process.wait(20), 0, f"exit code of culeak live\n{tail(screen.text(), 40)}")


@claim(slow=True)
def the_live_view_follows_a_running_pytorch(t):
    with Watched(t, command=[t.python, PROGRAM, "watched", "and-grow"]) as watched:
        with Screen(t, watched.pid) as screen:
            file, leak = site("growth_leak")
            screen.until(re.escape(f"{file}:{leak}"))
            screen.keys("m")
            screen.keys("d")
            screen.until("changes since the mark", r"\+\d+ MiB.*" + re.escape(f"{file}:{leak}"))
