#!/usr/bin/env python3
"""Writes what the packages contain besides culeak itself: culeak.cdx.json, an SBOM in CycloneDX 1.6, and
THIRD-PARTY-LICENCES.txt, the licences of all of it in full.

    packaging/licences.py [--target TRIPLE] FOLDER

The list is that of cargo: every crate linked into the command and into the libraries that it embeds, for the target. The texts are
the files that the crates contain. A crate without such a file, or without a licence in its manifest, ends the script, unless
TEXTS names the crate that has its text. The same sources and SOURCE_DATE_EPOCH give the same bits.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)
RULE = "-" * 118
# Crates that contain no text, and a crate of the same authors that contains the one that applies.
TEXTS = {"fxprof-processed-profile": "debugid"}

PREFACE = """\
The packages of culeak contain the software below. Its licences apply to it.

Rust standard library (MIT OR Apache-2.0), https://www.rust-lang.org. Copyright The Rust Project Developers; it contains
parts under the licences that its own COPYRIGHT lists. The texts of both licences are below, with the crates.

LLVM's libunwind and compiler-rt (Apache-2.0 WITH LLVM-exception), https://llvm.org, linked by the portable build. Copyright the
LLVM contributors. The text is that of Apache-2.0 below, with the exception:

    As an exception, if, as a result of your compiling your source code, portions of this Software are embedded into an Object
    form of such source code, you may redistribute such embedded portions in such Object form without complying with the conditions
    of Sections 4(a), 4(b) and 4(d) of the License. In addition, if you combine or link compiled forms of this Software with
    software that is licensed under the GPLv2 ("Combined Software") and if a court of competent jurisdiction determines that the
    patent provision (Section 3), the indemnity provision (Section 9) or other Section of the License conflicts with the conditions
    of the GPLv2, you may retroactively and prospectively choose to deem waived or otherwise exclude such Section(s) of the License,
    but only in their entirety and only with respect to the Combined Software.
"""


def host():
    output = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return re.search(r"^host: (.*)$", output, re.MULTILINE)[1]


def linked(target):
    """The packages that are linked into the command and its libraries, each with the features of a release."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--features", "culeak-cli/parquet,culeak-cli/push"]
    # The libraries are dependencies of the command with this flag: cli/build.rs.
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_ENCODED_RUSTFLAGS"}
    environment["RUSTFLAGS"] = "--cfg culeak_libraries"
    output = subprocess.run([*command, "--filter-platform", target], cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE).stdout
    metadata = json.loads(output)
    packages = {package["id"]: package for package in metadata["packages"]}
    edges = {}
    for node in metadata["resolve"]["nodes"]:
        used = [dep for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        edges[node["id"]] = sorted({dep["pkg"] for dep in used if not is_macro(packages[dep["pkg"]])})
    start = next(id for id, package in packages.items() if package["name"] == "culeak-cli")
    found, todo = {start}, [start]
    while todo:
        for dependency in edges[todo.pop()]:
            if dependency not in found:
                found.add(dependency)
                todo.append(dependency)
    order = sorted(found, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    return packages[start], [packages[id] for id in order], edges


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def expression(package):
    # Cargo accepted a slash before SPDX expressions.
    licence = package["license"]
    if not licence:
        sys.exit(f"licences.py: {package['name']} {package['version']} names no licence in its manifest: look for it, and add it here")
    return re.sub(r"\s*/\s*", " OR ", licence)


def checksums():
    """The SHA-256 of each crate, from Cargo.lock."""
    blocks = (ROOT / "Cargo.lock").read_text().split("[[package]]")[1:]
    value = lambda block, key: next(iter(re.findall(rf'^{key} = "(.*)"$', block, re.MULTILINE)), None)
    return {(value(block, "name"), value(block, "version")): value(block, "checksum") for block in blocks}


def sbom(own, packages, edges, time):
    sums = checksums()
    by_id = {package["id"]: purl(package) for package in packages}

    def component(package):
        part = {
            "type": "application" if package is own else "library",
            "bom-ref": purl(package),
            "name": package["name"],
            "version": package["version"],
            "purl": purl(package),
            "licenses": [{"expression": expression(package)}],
        }
        if package["description"]:
            part["description"] = " ".join(package["description"].split())
        if digest := sums.get((package["name"], package["version"])):
            part["hashes"] = [{"alg": "SHA-256", "content": digest}]
        return part

    d3_and_plots = [{"type": "library", "bom-ref": name, "name": name, "version": version, "licenses": [{"license": {"id": licence}}]} for name, version, licence in bundled()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": time, "component": component(own)},
        "components": [component(package) for package in packages if package is not own] + d3_and_plots,
        "dependencies": [
            {"ref": purl(package), "dependsOn": [by_id[id] for id in edges[package["id"]] if id in by_id]} for package in packages
        ],
    }


NOTICES = ROOT / "cli/src/html/vendor/NOTICES.txt"


def bundled():
    """The libraries in the HTML pages that culeak writes: name, version, licence."""
    return re.findall(r"^(\S+) (\d\S*) \((\S+)\)", NOTICES.read_text(), re.MULTILINE)


def texts(package, packages):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.match(path.name) and path.suffix not in (".rs", ".toml"))
    if files:
        return [path.read_text(errors="replace").replace("\r\n", "\n").strip("\n") for path in files]
    other = TEXTS.get(package["name"])
    match = next((candidate for candidate in packages if candidate["name"] == other), None)
    if match is None:
        sys.exit(f"licences.py: {package['name']} {package['version']} contains no licence: find its text, and name in TEXTS who has it")
    return texts(match, packages)


def third_party(packages):
    """Each text once, with the crates that it came with."""
    users = {}
    for package in packages:
        if package["source"] is None:
            continue
        for text in texts(package, packages):
            users.setdefault(text, []).append(package)
    parts = [PREFACE]
    for text, crates in sorted(users.items(), key=lambda item: (-len(item[1]), item[1][0]["name"], hashlib.sha256(item[0].encode()).hexdigest())):
        names = "\n".join(f"{crate['name']} {crate['version']} ({expression(crate)})" for crate in crates)
        parts.append(f"{RULE}\n{names}\n\n{text}\n")
    parts.append(f"{RULE}\n{NOTICES.read_text()}")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="the triple of the packages [default: this machine's]")
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    own, packages, edges = linked(arguments.target or host())
    document = sbom(own, packages, edges, time)
    (arguments.folder / "culeak.cdx.json").write_text(json.dumps(document, indent=2) + "\n")
    (arguments.folder / "THIRD-PARTY-LICENCES.txt").write_text(third_party(packages))


if __name__ == "__main__":
    main()
