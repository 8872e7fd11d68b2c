"""Records the tour of the README: runs the programs of docs/quickstart.md in a pseudo-terminal, on the fake driver, and draws
what the terminal shows as an animated SVG.

    tour.py CULEAK            writes tour.svg beside this file
    tour.py CULEAK --check    fails if tour.svg would be another file

What differs from run to run is replaced (process ids, times, names of files and hosts), and the times of the animation are
chosen, so the file is the same each time. Needs g++ and python3. Deliberately absent: programs that move the cursor.
"""

import html
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from fcntl import ioctl
from pathlib import Path

import screen

HERE = Path(__file__).resolve().parent
COLUMNS, ROWS = 124, 25
COMMANDS = [
    ("culeak run -o runs -- ./leak", 5),
    ("culeak run -o runs -- python3 leak.py", 5),
    ("culeak check runs --allow 64MiB", 6),
]
"""Commands, and the seconds for which each answer is read."""
TYPED, THINKING = 0.05, 0.4
"""Seconds for a key, and until a command answers."""
PROMPT = "\x1b[32m$\x1b[0m "

REPLACED = [
    (r"\x1b\[[\d;?]*[A-HJKSThl]", ""),
    (r"(leak|python3)[\d.]*\.[a-z0-9]{4}\.[\w-]+\.\d+\.culeak", r"\1.k3f9.gpu1.4711.culeak"),
    (r"thread \d+", "thread 4711"),
    (r"\d+ (\./leak|python3 leak\.py), on", r"4711 \1, on"),
    (r", on [\w.-]+, exited", ", on gpu1, exited"),
    (r"\b\d+(\.\d+)? (us|ms|s)\b", "12 ms"),
    ("12 ms to 12 ms old", "12 ms old"),
]
"""What differs from run to run, outside of the folder, whose path has a fixed length."""


def programs(folder):
    """Writes the programs of the quickstart, and compiles one."""
    page = (HERE.parent / "quickstart.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"Save this as `([^`]+)`.*?```\w+\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    compile = ["g++", "-g", "leak.cpp", "-o", "leak", "-l:libcuda.so.1"]
    subprocess.run(compile, cwd=folder, check=True)


def output(command, folder):
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(["bash", "-c", command], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # a terminal without writers
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    process.wait()
    text = text.decode().replace("\r\n", "\n").replace(str(folder), "/home/ada")
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    return [line.rsplit("\r", 1)[-1] for line in text.rstrip("\n").split("\n")]


def scenes(culeak):
    """(command, seconds, lines of the answer) of each command."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "bin").mkdir()
        (folder / "bin/culeak").symlink_to(Path(culeak).resolve())
        fake = subprocess.run([culeak, "shim-path", "--fake-driver"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        os.environ |= {
            "PATH": f"{folder}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": fake, "LIBRARY_PATH": fake,
            "CULEAK_CONFIG": "/dev/null", "CULEAK_PAGER": "", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8",
        }
        for name in ("NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LD_PRELOAD"):
            os.environ.pop(name, None)
        programs(folder)
        return [(command, seconds, output(command, folder)) for command, seconds in COMMANDS]


class Film:
    def __init__(self):
        self.rows, self.time, self.elements, self.appearances, self.scrolls = 0, 0.5, [], [], [(0.0, 0)]

    def line(self, text):
        found, _ = screen.runs(text, screen.Style())
        drawn = screen.drawn(found, screen.BAR + screen.MARGIN + self.rows * screen.HEIGHT)
        self.rows += 1
        return drawn

    def block(self, lines, extra=""):
        """Lines that appear now, and the scrolling that they need."""
        drawn = [element for line in lines for element in self.line(line)]
        self.elements.append(f'<g class="b{len(self.appearances)}"{extra}>{"".join(drawn)}</g>')
        self.appearances.append(self.time)
        hidden = max(0, self.rows - ROWS) * screen.HEIGHT
        if hidden != self.scrolls[-1][1]:
            self.scrolls.append((self.time, hidden))

    def command(self, command):
        self.block([PROMPT])
        self.rows -= 1
        # The keys appear one by one; all of them are one element.
        x, y = screen.MARGIN + 2 * screen.WIDTH, screen.BAR + screen.MARGIN + self.rows * screen.HEIGHT
        self.rows += 1
        for nth, key in enumerate(command):
            self.time += TYPED
            if key == " ":
                continue
            self.elements.append(f'<text class="b{len(self.appearances)}" x="{x + nth * screen.WIDTH:.1f}" y="{y + 13}" '
                                 f'fill="{screen.BRIGHT[7]}">{html.escape(key)}</text>')
            self.appearances.append(self.time)
        self.time += THINKING

    def drawn(self):
        total = self.time
        wide = COLUMNS * screen.WIDTH + 2 * screen.MARGIN
        high = ROWS * screen.HEIGHT + 2 * screen.MARGIN + screen.BAR
        percent = lambda time: f"{100 * time / total:.2f}%"
        rules = [f"g,text{{animation:{total:g}s step-end infinite}}"]
        for nth, time in enumerate(self.appearances):
            rules.append(f".b{nth}{{animation-name:b{nth}}}@keyframes b{nth}{{0%{{opacity:0}}{percent(time)}{{opacity:1}}}}")
        steps = "".join(f"{percent(time)}{{transform:translateY({-hidden}px)}}" for time, hidden in self.scrolls)
        last = self.scrolls[-1][1]
        rules.append(f".film{{animation-name:film;transform:translateY({-last}px)}}@keyframes film{{{steps}}}")
        rules.append("@media(prefers-reduced-motion:reduce){g,text{animation:none!important}}")
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}">',
            "<title>culeak run, on a program in C++ and one in Python, and culeak check</title>",
            f"<style>{''.join(rules)}</style>",
            f'<rect width="100%" height="100%" rx="8" fill="{screen.BACKGROUND}"/>',
            *(f'<circle cx="{screen.MARGIN + 6 + 18 * n}" cy="18" r="5.5" fill="#3b4048"/>' for n in range(3)),
            f'<clipPath id="screen"><rect x="0" y="{screen.BAR + screen.MARGIN - 1}" width="{wide:g}" height="{high - screen.BAR - screen.MARGIN:g}"/></clipPath>',
            '<g clip-path="url(#screen)" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="14">',
            '<g class="film">', *self.elements, "</g>", "</g>", "</svg>", "",
        ])


def film(found):
    film = Film()
    for command, seconds, lines in found:
        film.command(command)
        film.block([*lines, ""])
        film.time += seconds
    return film.drawn()


def main():
    culeak, *options = sys.argv[1:]
    path = HERE / "tour.svg"
    made = film(scenes(culeak))
    if options != ["--check"]:
        path.write_text(made, encoding="utf-8")
        print(f"{path}: {len(made)} bytes")
        return 0
    if made == path.read_text(encoding="utf-8"):
        print("ok      docs/images/tour.svg shows what culeak prints today")
        return 0
    texts = lambda svg: [html.unescape(text) for text in re.findall(r">([^<]{2,})</text>", svg)]
    old = set(texts(path.read_text(encoding="utf-8")))
    new = [text for text in texts(made) if text not in old]
    print("docs/images/tour.svg is stale; make it again with docs/images/tour.py CULEAK. New:", *new, sep="\n  ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
