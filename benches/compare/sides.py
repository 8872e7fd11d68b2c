"""Draws the cost of culeak beside other tools: `run.sh --sides`.

Each program runs without a tool and under each tool alternately; a bar is the median of the ratios of their times. `sides.json`
contains the figures, `sides.md` a table and `sides.svg` the chart. A tool that is missing has no bar; the table gives the reason.
"""

import argparse
import html
import json
import pathlib
import re
import statistics
import sys

import targets
from harness import Failure, Missing
from pairs import sanitizer, table
from suite import find_machine
from targets import SAMPLED, Switched

FULL, SAMPLE, SANITIZER, TORCH = "culeak", "culeak --sample 512KiB", "compute-sanitizer", "PyTorch's recorder"
# Python's own memory, as the twin of tensors: blocks of the size at which memray sees a call of malloc.
TWIN = """
import statistics, time
each = []
for _ in range(200):
    began = time.perf_counter()
    for _ in range(250):
        bytearray(4000)
    each.append(1e9 * (time.perf_counter() - began) / 250)
print("NANOSECONDS", statistics.median(each))
"""


def workloads(t):
    """Name, unit, a function that measures a bare run, and for each tool one that returns its multiple of the bare time it is given.

    culeak and PyTorch's recorder are measured against bare turns of their own process, the other tools against the bare run."""
    cost = t.machine.out / "bin" / "cost"

    def call(case, before=()):
        if not cost.exists():
            raise Missing("cost.cu was not built")
        return nanoseconds(t.machine.run(*before, cost, case, how="bare", fresh=True, timeout=t.left(60)).must().out)

    def switched(command, env=None, what=""):
        return Switched(t, 1, command, env).ratio(what=what)

    for name, case in (("cudaMallocAsync + cudaFreeAsync", "ordered_pair"), ("20,000 live cudaMalloc", "many_live")):
        yield name, "ns", lambda case=case: call(case), {
            FULL: lambda bare, case=case: switched([cost, case]),
            SAMPLE: lambda bare, case=case: switched([cost, case], SAMPLED),
            SANITIZER: lambda bare, case=case: call(case, sanitizer()) / bare,
        }
    # Both figures of a process of PyTorch are kept, so that it is started once for them.
    kept = {}

    def torch(tool, word, measure):
        mine = kept.setdefault(tool, {})
        if word not in mine:
            mine.update(measure())
        return mine.pop(word)

    def recorded(env):
        runs = Switched(t, 1, [t.machine.python, targets.HERE / "step.py", "switched", targets.torch_of(t), t.times(60)], env)
        return {word: runs.ratio(what=word) for word in ("STEP", "PAIR")}

    def recorder():
        timed = targets.step(t, targets.torch_of(t), "recorder")[0]
        return {word: timed[beside][0] / timed[word][0] for word, beside in (("STEP", "RECORDED"), ("PAIR", "RECORDED_PAIR"))}

    plain = lambda: {word: values[0] for word, values in targets.step(t, targets.torch_of(t))[0].items()}
    for name, unit, word in (("torch.empty + del", "ns", "PAIR"), ("transformer step", "ms", "STEP")):
        yield name, unit, lambda word=word: torch("bare", word, plain), {
            FULL: lambda bare, word=word: torch(FULL, word, lambda: recorded(None)),
            SAMPLE: lambda bare, word=word: torch(SAMPLE, word, lambda: recorded(SAMPLED)),
            TORCH: lambda bare, word=word: torch(TORCH, word, recorder),
        }
    pair = lambda run: run["bare"].allocation + run["bare"].free
    yield "malloc + free, host memory", "ns", lambda: pair(targets.event(t, "malloc")), {
        "heaptrack": lambda bare: pair(targets.event(t, "malloc", under=targets.heaptrack(t))) / bare,
    }
    script = t.machine.out / "twin.py"
    script.write_text(TWIN)

    def memray(bare):
        found = t.machine.run(t.machine.python, "-c", "import memray", how="bare", fresh=True)
        if found.code != 0:
            raise Missing("no memray")
        options = ("-m", "memray", "run", "--native", "--trace-python-allocators", "--force", "-o", t.machine.out / "twin.bin")
        return nanoseconds(t.must([t.machine.python, *options, script], env={}).stdout) / bare

    yield "bytearray + del, host memory", "ns", lambda: nanoseconds(t.must([t.machine.python, script], env={}).stdout), {"memray --native": memray}


def nanoseconds(text):
    return float(re.search(r"NANOSECONDS ([\d.]+)", text)[1])


def measured(t, turns):
    """For each workload: its unit, the bare times and the ratios of each tool, one for each turn; and why tools are missing."""
    found, missing = [], {}
    for name, unit, once, tools in workloads(t):
        bare, ratios, absent = [], {tool: [] for tool in tools}, {}
        try:
            for _ in range(t.times(turns)):
                bare.append(once())
                for tool, measure in tools.items():
                    if tool in absent:
                        continue
                    try:
                        ratios[tool].append(measure(bare[-1]))
                    except (Missing, Failure) as why:
                        absent[tool] = str(why).splitlines()[0]
        except (Missing, Failure) as why:
            absent["bare"] = str(why).splitlines()[0]
        if absent:
            missing[name] = absent
        if bare:
            found.append({"name": name, "unit": unit, "bare": bare, "ratios": {tool: each for tool, each in ratios.items() if each and tool not in absent}})
    return found, missing


def medians(workload):
    return {tool: statistics.median(each) for tool, each in workload["ratios"].items()}


COLOURS = {FULL: "#2a7f3f", SAMPLE: "#7fbf7b", SANITIZER: "#b35806", TORCH: "#e08214", "heaptrack": "#542788", "memray --native": "#8073ac"}
WIDTH, NAMES, BAR, GAP = 760, 250, 15, 22


def svg(found, words):
    """Bars from 1x on; those beyond 3x are cut, and their figure says how long they are."""
    longest, scale = 3.0, WIDTH - NAMES - 90
    parts, y = [], 34
    for workload in found:
        parts.append(f'<text x="10" y="{y + 11}" font-weight="bold">{html.escape(workload["name"])}</text>')
        bare = statistics.median(workload["bare"])
        digits = 0 if workload["unit"] == "ns" else 2
        parts.append(f'<text x="{NAMES}" y="{y + 11}" fill="#666">bare {bare:.{digits}f} {workload["unit"]}</text>')
        y += BAR + 3
        for tool, ratio in medians(workload).items():
            width = max(scale * (min(ratio, longest) - 1) / (longest - 1), 1)
            parts.append(f'<text x="{NAMES - 8}" y="{y + 11}" text-anchor="end">{html.escape(tool)}</text>')
            parts.append(f'<rect x="{NAMES}" y="{y}" width="{width:.1f}" height="{BAR - 3}" fill="{COLOURS[tool]}"/>')
            cut = " →" if ratio > longest else ""
            parts.append(f'<text x="{NAMES + width + 6:.1f}" y="{y + 11}">{ratio:.2f}×{cut}</text>')
            y += BAR + 3
        y += GAP - BAR
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 22}" font-family="sans-serif" font-size="12">'
    ground = f'<rect width="{WIDTH}" height="{y + 22}" fill="#fff"/>'
    title = f'<text x="10" y="18" font-size="14">Time of a program under each tool, as a multiple of the bare run (bars begin at 1×)</text>'
    foot = f'<text x="10" y="{y + 12}" fill="#666" font-size="10">{html.escape(words)}</text>'
    return "\n".join([head, ground, title, *parts, foot, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(prog="benches/compare/run.sh --sides")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--limit", type=float, default=330)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--draw", type=pathlib.Path, metavar="SIDES.JSON", help="draw these figures instead of measuring")
    options = parser.parse_args()
    if options.draw is not None:
        saved = json.loads(options.draw.read_text())
        found, missing, words = saved["workloads"], saved["missing"], saved["machine"]
    else:
        trial = targets.Trial(find_machine(options), options)
        words = targets.machine_words()
        found, missing = measured(trial, options.turns)
        (options.out / "sides.json").write_text(json.dumps({"machine": words, "workloads": found, "missing": missing}, indent=1) + "\n")
    rows = [
        [workload["name"], f"{statistics.median(workload['bare']):.2f} {workload['unit']}", tool, f"{ratio:.2f}"]
        for workload in found
        for tool, ratio in medians(workload).items()
    ]
    rows += [[name, "", tool, f"not measured: {why}"] for name, tools in missing.items() for tool, why in tools.items()]
    table(options.out / "sides.md", f"{words}.", ["workload", "bare", "tool", "times bare"], rows)
    (options.out / "sides.svg").write_text(svg(found, words))
    return 0 if found else 2


if __name__ == "__main__":
    sys.exit(main())
