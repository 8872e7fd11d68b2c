"""Runs the acceptance suite on programs that are already built; started by run.sh, which lists the options."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import adapters
import answers
import backward
import categories
import claims
import coexist
import compare
import devices
import ends
import exports
import fragmentation
import frameworks
import harness
import hosts
import jobs
import ledgers
import libraries
import long_programs
import objects
import observed
import pages
import phases
import plugin
import reach
import sampled
import segments
import tensors
import watching
import why

assert adapters and answers and backward and categories and claims and coexist and devices and ends and exports and fragmentation and frameworks and hosts and jobs and ledgers and libraries and long_programs and objects and observed and pages and phases and plugin and reach and sampled and segments and tensors and watching and why  # importing them registers their claims


def main():
    options = parse()
    machine = find_machine(options)
    failed = 0
    if options.compare:
        compare.beyond_blocks(machine)
        compare.leak_checkers(machine)
    else:
        failed = run_claims(machine, options)
    return 1 if failed else 0


def parse():
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("--only", metavar="REGEX", help="run the claims whose name matches")
    parser.add_argument("--list", action="store_true", help="print the names of all claims and stop")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for logs, recordings, snapshots and results.json")
    parser.add_argument("--allow-missing", action="store_true", help="list what this machine cannot run instead of failing")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--compare", action="store_true", help="instead, compare with other tools: compare.md, compare-objects.md")
    options = parser.parse_args()
    if options.list:
        print(*(c.name for c in harness.claims), sep="\n")
        sys.exit(0)
    return options


def find_machine(options):
    binaries = pathlib.Path(os.environ.get("CULEAK_BIN") or harness.HERE.parent.parent / "target" / "release").resolve()
    culeak = binaries / "culeak"
    if not os.access(culeak, os.X_OK):
        sys.exit(f"{culeak}: missing or not executable; build it with `cargo build --release`, or set CULEAK_BIN to its folder")
    return harness.Machine(options.out.resolve(), options.out.resolve() / "bin", culeak, find_shim(binaries, culeak))


def find_shim(binaries, culeak):
    """CULEAK_SHIM, or the library beside the CLI, or the one inside it."""
    for path in (os.environ.get("CULEAK_SHIM"), binaries / "libculeak.so"):
        if path and pathlib.Path(path).exists():
            return pathlib.Path(path).resolve()
    result = subprocess.run([culeak, "shim-path"], capture_output=True, text=True)
    return pathlib.Path(result.stdout.strip()) if result.returncode == 0 else None


def run_claims(machine, options):
    chosen = [c for c in harness.claims if not options.only or re.search(options.only, c.name)]
    results, printing, began = [], threading.Lock(), time.monotonic()

    def judge(claim):
        started = time.monotonic()
        status, message = verdict(claim, machine, options)
        with printing:
            results.append({"claim": claim.name, "status": status, "seconds": round(time.monotonic() - started, 2), "message": message})
            print(f"{status:8}{claim.name}  ({results[-1]['seconds']} s)", flush=True)
            if message:
                print("    " + message.replace("\n", "\n    "), flush=True)

    together = sorted((c for c in chosen if not c.alone), key=lambda c: not c.slow)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(judge, together))
    for claim in chosen:
        if claim.alone:
            judge(claim)
    (machine.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")

    names = {status: [r["claim"] for r in results if r["status"] == status] for status in ("ok", "FAILED", "not run")}
    if names["FAILED"]:
        print("\nfailed:", *names["FAILED"], sep="\n  ")
    if names["not run"]:
        print("\nnot run:", *names["not run"], sep="\n  ")
        print(f"{len(names['not run'])} not run, because this machine lacks what they need (--allow-missing)")
    print(f"\nlogs, snapshots and results.json in {machine.out}; {time.monotonic() - began:.0f} s with {options.jobs} jobs")
    print(f"{len(names['ok'])} passed, {len(names['FAILED'])} failed", flush=True)
    return len(names["FAILED"]) + (0 if chosen else 1)


def verdict(claim, machine, options):
    try:
        claim.function(machine)
        return "ok", ""
    except harness.Missing as missing:
        return ("not run" if options.allow_missing else "FAILED"), f"this machine lacks {missing}"
    except harness.Failure as failure:
        return "FAILED", str(failure)
    except Exception:  # an error in the claim itself is a failure too, printed with its traceback
        return "FAILED", traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
