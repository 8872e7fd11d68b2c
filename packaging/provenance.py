#!/usr/bin/env python3
"""Writes FOLDER/culeak.intoto.json, an in-toto statement with SLSA's provenance: the commit that all files of FOLDER were built from, the
files that fix the versions of what was compiled, and who built them.

    packaging/provenance.py FOLDER

It is not signed: release.yml attests the files of a tag by a signed statement of GitHub's.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys

SOURCES = pathlib.Path(__file__).resolve().parent.parent
STATEMENT = "culeak.intoto.json"
# Who builds, if it is no workflow.
HERE = "urn:culeak:this-machine"


def digest(file):
    return {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def git(*words):
    return subprocess.run(["git", "-C", SOURCES, *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def statement(files):
    workflow, address = os.environ.get("GITHUB_WORKFLOW_REF"), None
    if workflow:
        address = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}".format(**os.environ)
    commit = {"name": "sources", "digest": {"gitCommit": git("rev-parse", "HEAD")}}
    if address:
        commit["uri"] = f"git+{address}@{os.environ['GITHUB_REF']}"
    if git("status", "--porcelain", "--untracked-files=no"):
        commit["annotations"] = {"uncommitted changes": True}
    versions = [{"name": name, "digest": digest(SOURCES / name)} for name in ("Cargo.lock", "cli/python/build-tools.txt")]
    run = {"builder": {"id": f"{os.environ['GITHUB_SERVER_URL']}/{workflow}" if workflow else HERE}}
    if address:
        run["metadata"] = {"invocationId": "{}/actions/runs/{GITHUB_RUN_ID}/attempts/{GITHUB_RUN_ATTEMPT}".format(address, **os.environ)}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": digest(file)} for file in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:culeak:packaging",
                "externalParameters": {"commands": ["packaging/build.sh", "packaging/gather.sh"]},
                "resolvedDependencies": [commit, *versions],
            },
            "runDetails": run,
        },
    }


folder = pathlib.Path(sys.argv[1])
built = sorted(file for file in folder.iterdir() if file.name not in (STATEMENT, "SHA256SUMS"))
(folder / STATEMENT).write_text(json.dumps(statement(built), indent=1) + "\n")
