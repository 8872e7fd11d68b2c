"""docs/errors.md lists every error, warning and note of the command, from its source: errors.py [--write].

Each is a text in a call that makes or changes one (CALLS). What is behind its first semicolon says what to do next.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/errors.md"
BEGIN, END = "<!-- errors -->\n", "<!-- end of errors -->\n"
CALLS = re.compile(r"\b(Failure::new|Failure::with_exit|map_err|ok_or|ok_or_else|Err|progress::note|progress::say|eprintln!|warnings\.push|(?<!::)warn)\(")
ADVICE = re.compile("note: |warning: |culeak: (nothing|no verdict|warning|--)")
"""Begins of what is no progress among the texts that are printed at once."""
FOLDERS = ["cli/src", "src/analysis"]
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
CHARACTER = re.compile(r"'(\\.[^']*|[^'\\])'")
WORDS = 25
"""Shorter texts are names and separators."""

GROUPS = {
    "analysis": "Warnings of reports, and rules",
    "export": "culeak export",
    "launch": "Recording: culeak run, check and live with a program",
    "live": "culeak live",
    "load": "Inputs: recordings, snapshots, processes",
    "monitor": "culeak watch",
    "options": "Options, culeak.toml, and files that they name",
    "output": "Output",
    "pickle": "Inputs: recordings, snapshots, processes",
    "push": "Sending to a server",
    "symbolize": "Names of functions",
    "text": "Output",
}
"""Headings by the first part of a path below cli/src."""
OF_COMMANDS = {
    "boundaries": "culeak check",
    "dataset": "culeak export",
    "job": "culeak report",
    "job_diff": "culeak diff",
    "job_why": "culeak why",
    "list": "culeak snapshot",
    "phases": "culeak report",
    "program": "culeak check",
    "send": "Sending to a server",
}
"""Headings by files in commands that are not called like a command."""


def heading(path):
    first, *rest = path.with_suffix("").parts
    command = OF_COMMANDS.get(rest[0], f"culeak {rest[0].replace('_', '-')}") if rest and first == "commands" else None
    return command or GROUPS.get(first, "Others")


def arguments(text, at):
    """What is between the parenthesis at this place and its partner."""
    depth, i = 0, at
    while i < len(text):
        skipped = TEXT.match(text, i) or CHARACTER.match(text, i)
        if skipped:
            i = skipped.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return text[at:i]
        i += 1
    raise AssertionError(text[at : at + 80])


def texts(file):
    source = re.split(r"\n#\[cfg\(test\)\]\n(?:pub )?mod \w+ \{", file.read_text())[0]
    source = "\n".join(line for line in source.split("\n") if not line.lstrip().startswith("//"))
    end = 0
    for call in CALLS.finditer(source):
        if call.start() >= end:
            inside = arguments(source, call.end() - 1)
            end = call.start() + len(inside)
            for text in TEXT.findall(inside):
                if call[1].startswith(("progress", "eprintln")) and not ADVICE.match(text):
                    continue
                text = re.sub(r"\\\n\s*", "", text).replace('\\"', '"')
                yield re.sub(r"\{(\w*)[^}]*\}", lambda name: "{" + (name[1] or "…") + "}", text)


def code(text):
    fence = "``" if "`" in text else "`"
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|") if text else ""


def page():
    groups = {}
    for file in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.rs")):
        path = file.relative_to(ROOT / ("cli/src" if "cli" in file.parts else "src"))
        if "tests" not in path.with_suffix("").parts:
            found = [text for text in texts(file) if len(text) > WORDS and " " in text]
            groups.setdefault(heading(path), {}).update(dict.fromkeys(found))
    out = ""
    for name, rows in sorted(groups.items(), key=lambda group: (group[0][0].isupper(), group[0])):
        if rows:
            split = [row.partition("; ") for row in sorted(rows)]
            out += f"## {name}\n\n| text | what to do |\n|---|---|\n" + "".join(f"| {code(why)} | {code(do)} |\n" for why, _, do in split) + "\n"
    return out, sum(map(len, groups.values()))


def main():
    made, count = page()
    before, rest = PAGE.read_text().split(BEGIN)
    listed, after = rest.split(END)
    assert count > 300, count
    if "--write" in sys.argv[1:]:
        PAGE.write_text(before + BEGIN + made + END + after)
    else:
        assert listed == made, "docs/errors.md: tests/errors.py --write"
    print(f"ok      docs/errors.md has the {count} errors, warnings and notes of the command")


main()
