#!/usr/bin/env python3
"""Claims about a folder of packaging/build.sh: the SBOM and the licences name every crate that is linked into the packages, and
the wheel contains both.

    tests/packages/contents.py FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import zipfile

folder = pathlib.Path(sys.argv[1])
sources = pathlib.Path(__file__).resolve().parent.parent.parent
(wheel,) = folder.glob("culeak-*.whl")
target = ["--target", "aarch64-unknown-linux-gnu"] if "aarch64" in wheel.name else []


def linked(package, *options):
    """Name and version of the crates that cargo links into a package, its build scripts and macros aside."""
    command = ["cargo", "tree", "--locked", "--package", package, "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", *target, *options]
    lines = subprocess.run(command, cwd=sources, check=True, capture_output=True, text=True).stdout.splitlines()
    return {(line.split()[0], line.split()[1].lstrip("v")) for line in lines if line}


expected = linked("culeak-cli", "--features", "parquet,push")
for library in ("culeak-shim", "culeak-hold", "culeak-audit", "culeak-fake-driver"):
    expected |= linked(library)
assert len(expected) > 100, expected

sbom = json.loads((folder / "culeak.cdx.json").read_text())
assert sbom["bomFormat"] == "CycloneDX", sbom["bomFormat"]
listed = {(part["name"], part["version"]) for part in sbom["components"]} | {("culeak-cli", sbom["metadata"]["component"]["version"])}
missing = expected - listed
assert not missing, f"the SBOM lacks {sorted(missing)}"
unlicensed = [part["name"] for part in sbom["components"] if not part.get("licenses")]
assert not unlicensed, f"the SBOM names no licence of {unlicensed}"
print(f"ok      the SBOM names the {len(expected)} crates that are linked")

text = (folder / "THIRD-PARTY-LICENCES.txt").read_text()
own = {name for name, _ in expected if name.startswith("culeak")}
missing = [f"{name} {version}" for name, version in expected if name not in own and f"{name} {version}" not in text]
assert not missing, f"the list of licences lacks {sorted(missing)}"
for other in ("d3-hierarchy", "uPlot", "Rust standard library", "LLVM"):
    assert other in text, f"the list of licences lacks {other}"
print(f"ok      the list of licences names {len(expected) - len(own)} crates, and what else is contained")

with zipfile.ZipFile(wheel) as archive:
    (records,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    information = records.removesuffix("/RECORD")
    same = {
        f"{information}/sboms/culeak.cdx.json": folder / "culeak.cdx.json",
        f"{information}/licenses/licences/THIRD-PARTY-LICENCES.txt": folder / "THIRD-PARTY-LICENCES.txt",
        f"{information}/licenses/licences/LICENSE": sources / "LICENSE",
    }
    missing = same.keys() - set(archive.namelist())
    assert not missing, f"the wheel lacks {sorted(missing)}"
    for name, file in same.items():
        assert archive.read(name) == file.read_bytes(), f"{name} in the wheel differs from {file}"
    sboms = [name for name in archive.namelist() if "/sboms/" in name]
    assert len(sboms) == 1, f"the wheel has more than one SBOM: {sboms}"
    (command,) = [archive.read(name) for name in archive.namelist() if name.endswith(".data/scripts/culeak")]
# Debug information of the linker's own files names the folder of the build.
assert b"\0.debug_info\0" not in command, "the command in the wheel has debug information"
print("ok      the wheel contains the SBOM and the licences, and a command without debug information")
