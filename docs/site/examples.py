"""Makes the example reports of the site: examples.py CULEAK FOLDER.

Writes FOLDER/gallery.md and FOLDER/files/examples/*.html: pages of culeak about the programs of docs/ten-steps.md and docs/images, which run
here, on the fake driver, and the pages of docs/site/gpu, which record.sh made on a GPU. Needs g++ and make.
"""

import gzip
import html
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
RECORD = """
make -s server
g++ -g -O1 -o train train.cpp -l:libcuda.so.1 -L$LIBRARY_PATH
culeak run -o server-runs --no-report --timeline --snapshot mark -- ./server
culeak run -o train-runs --no-report --why -- python3 train.py
for rank in 0 1 2 3 4 5 6 7; do
    RANK=$rank WORLD_SIZE=8 culeak run -o job-runs --no-report -- ./train $((rank == 5 ? 60 : 30))
done
"""
EXAMPLES = [
    ("report", "A report", "What a finished program leaked, by call site, with a graph of the stacks and the ledger.", "culeak run --html report.html -- ./train 30"),
    ("timeline", "Memory over time", "The same program with a log of all events. Select a window of the chart: the graph shows what was allocated in it.", "culeak run --timeline --html timeline.html -- ./train 60 40"),
    ("why", "What holds it", "The script of the [ten steps](docs/ten-steps.md): the paths from its variables to the memory on the GPU.", "culeak why train-runs -o why.html"),
    ("diff", "What has grown", "The server of the ten steps, between two of its marks.", "culeak diff server-runs/*.culeak server-runs/*.culeak --at mark:warm --at mark:done -o diff.html"),
    ("trend", "Leak or cache", "The same server at each of its marks: what grows, what has filled, what is freed only at the end.", "culeak trend server-runs --against marks -o trend.html"),
    ("job", "A job of eight processes", "One of its ranks holds more than the others.", "culeak report job-runs -o job.html"),
]
"""Name of the file, title, what it shows, and the command that writes it."""


def section(name, title, text, command):
    frame = f'<iframe src="examples/{name}.html" loading="lazy" title="{html.escape(title)}" style="width: 100%; height: 34rem; border: 1px solid #8888"></iframe>'
    return f'## {title}\n\n{text}\n\n    {command}\n\n{frame}\n\n<p><a href="examples/{name}.html">Open this page</a></p>\n'


def on_gpu(name, title, pages):
    """The section of the page with this name that record.sh made; nothing if there is none."""
    page = DOCS / f"site/gpu/{name}.html.gz"
    if page.exists():
        (pages / f"gpu-{name}.html").write_bytes(gzip.decompress(page.read_bytes()))
        command = next(line for line in (DOCS / "site/record.sh").read_text().splitlines() if f" {name}.html" in line).split(" & ")[0]
        program = "docs/example/train." + ("cu" if "./train" in command else "py")
        yield section(f"gpu-{name}", f"{title}, on a GPU", f"`{program}`, recorded by `docs/site/record.sh`.", command)


def main(culeak, out):
    pages = out / "files/examples"
    pages.mkdir(parents=True)
    sections = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        for program in [*(DOCS / "example/exercise").iterdir(), DOCS / "images/train.cpp"]:
            shutil.copy(program, folder)
        # By the name culeak, so that pages show commands that can be typed.
        (folder / "bin").mkdir()
        (folder / "bin/culeak").symlink_to(culeak)
        environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
        fake = subprocess.run([culeak, "shim-path", "--fake-driver"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        environment["LD_LIBRARY_PATH"] = environment["LIBRARY_PATH"] = fake

        def run(command):
            done = subprocess.run(["bash", "-euc", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}"

        def keep(name):
            text = (folder / f"{name}.html").read_text()
            (pages / f"{name}.html").write_text(text.replace(str(folder), "/home/ada/exercise"))

        run(RECORD)
        for name, title, text, command in EXAMPLES:
            run(command)
            keep(name)
            sections += [section(name, title, text, command), *on_gpu(name, title, pages)]
    head = "# What do reports look like?\n\nEach page is one file that needs no server. The programs ran on culeak's fake driver unless stated otherwise.\n"
    (out / "gallery.md").write_text("\n".join([head, *sections]))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
