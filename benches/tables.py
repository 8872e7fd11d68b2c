"""Prints criterion's results as Markdown tables, one per group: a row for each function, a column for each parameter."""

import collections
import json
import pathlib
import sys


def shown(nanoseconds):
    return f"{nanoseconds:.1f} ns" if nanoseconds < 1000 else f"{nanoseconds / 1000:.2f} us"


def groups(home):
    """{group: {function: {parameter: median in nanoseconds}}}"""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for result in sorted(pathlib.Path(home).glob("**/new/benchmark.json"), key=lambda path: path.stat().st_mtime_ns):
        name = json.loads(result.read_text())
        median = json.loads((result.parent / "estimates.json").read_text())["median"]["point_estimate"]
        found[name["group_id"]][name["function_id"]][name["value_str"]] = median
    return found


def main(home):
    for group, functions in groups(home).items():
        columns = list(dict.fromkeys(column for row in functions.values() for column in row))
        print(f"| {group} | " + " | ".join(columns) + " |\n| --- |" + " --- |" * len(columns))
        for function, row in functions.items():
            print(f"| {function} | " + " | ".join(shown(row[column]) if column in row else "" for column in columns) + " |")
        print()


if __name__ == "__main__":
    main(sys.argv[1])
