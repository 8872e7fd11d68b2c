#!/usr/bin/env python3
"""Claims about a folder of packaging/build.sh: the SBOM and the licences name every crate that is linked into the packages;
the wheel, the deb, the rpm and the tarball contain both, and the same command; the command and the libraries inside it are of
the architecture that the packages name, and need no library but those of glibc 2.17.

    tests/packages/contents.py FOLDER

It runs nothing of the packages, which may be of another architecture. Needs Rust, readelf, dpkg-deb and rpm.
"""
import gzip
import hashlib
import io
import json
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
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
for other in ("d3-hierarchy", "d3-selection", "Rust standard library", "LLVM"):
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
# Hashes of the compiler's intermediate code: two builds of the same machine code may differ in them.
hashes = re.findall(rb"\.llvm\.\d+\0", command)
assert not hashes, f"{len(hashes)} names of functions in the wheel's command contain a hash: {hashes[0]}"
print("ok      the wheel contains the SBOM and the licences, and a command without debug information and hashes in names")

machine, debian, elf_machine = ("aarch64", "arm64", 183) if target else ("x86_64", "amd64", 62)


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def members(archive, top):
    """The SHA-256 of each file of a tar archive, by its path below `top`."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = [member for member in tar if member.isfile()]
        return {member.name.removeprefix(top): hashlib.sha256(tar.extractfile(member).read()).hexdigest() for member in files}


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


(deb,), (rpm,), (tarball,) = folder.glob("*.deb"), folder.glob("*.rpm"), folder.glob("*-linux.tar.gz")
in_deb = members(output("dpkg-deb", "--fsys-tarfile", deb), "./")
# %{FILEDIGESTS} is empty for folders.
digests = output("rpm", "--query", "--package", "--queryformat", "[%{FILENAMES}\t%{FILEDIGESTS}\n]", rpm).decode()
in_rpm = {path.removeprefix("/"): digest for path, digest in (line.split("\t") for line in digests.splitlines())}
in_tarball = members(gzip.decompress(tarball.read_bytes()), tarball.name.removesuffix(".tar.gz") + "/")
licences = folder / "THIRD-PARTY-LICENCES.txt"
packed = {
    deb: (in_deb, "usr/bin/culeak", "usr/share/doc/culeak/culeak.cdx.json", None),
    rpm: (in_rpm, "usr/bin/culeak", "usr/share/doc/culeak/culeak.cdx.json", "usr/share/licenses/culeak/THIRD-PARTY-LICENCES.txt"),
    tarball: (in_tarball, "bin/culeak", "culeak.cdx.json", "THIRD-PARTY-LICENCES.txt"),
}
for package, (files, its_command, its_sbom, its_licences) in packed.items():
    assert files.get(its_command) == hashlib.sha256(command).hexdigest(), f"{package.name}: {its_command} is not the wheel's command"
    assert files.get(its_sbom) == sha256(folder / "culeak.cdx.json"), f"{package.name}: {its_sbom} is not the SBOM"
    assert its_licences is None or files.get(its_licences) == sha256(licences), f"{package.name}: {its_licences} is not the list of licences"
with tarfile.open(fileobj=io.BytesIO(output("dpkg-deb", "--fsys-tarfile", deb))) as tar:
    compressed = tar.extractfile("./usr/share/doc/culeak/THIRD-PARTY-LICENCES.txt.gz").read()
assert gzip.decompress(compressed) == licences.read_bytes(), f"{deb.name}: its list of licences is another one"
print("ok      the deb, the rpm and the tarball contain the SBOM, the licences, and the wheel's command")

assert wheel.name.removesuffix(".whl").endswith(f"manylinux_2_17_{machine}"), wheel.name
assert output("dpkg-deb", "--field", deb, "Architecture").decode().strip() == debian, deb.name
assert output("dpkg-deb", "--field", deb, "Depends").decode().strip() == "libc6 (>= 2.17)", deb.name
assert output("rpm", "--query", "--package", "--queryformat", "%{ARCH}", rpm).decode() == machine, rpm.name
assert f"-{machine}-linux" in tarball.name, tarball.name


def images(data):
    """The ELF files in the bytes of one, itself included: 64 bits, little-endian, a program or library with section headers."""
    for match in re.finditer(rb"\x7fELF\x02\x01\x01[\0\x03]\0{8}[\2\3]\0", data):
        start = match.start()
        (sections,) = struct.unpack_from("<Q", data, start + 40)
        size, count = struct.unpack_from("<HH", data, start + 58)
        yield data[start : start + sections + size * count]


GLIBC = r"lib(c|m|dl|rt|pthread)\.so\.\d+|ld-linux[^ ]*\.so\.\d+"
found = list(images(command))
assert len(found) == 5, f"the command and its 4 libraries are {len(found)} ELF files"
for image in found:
    with tempfile.NamedTemporaryFile() as file:
        file.write(image)
        file.flush()
        text = output("readelf", "--wide", "--dynamic", "--version-info", file.name).decode()
    name = (re.findall(r"\(SONAME\).*\[(.*)\]", text) or ["culeak"])[0]
    (its_machine,) = struct.unpack_from("<H", image, 18)
    assert its_machine == elf_machine, f"{name} is of ELF machine {its_machine}, not of {machine}"
    others = [needed for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", text) if not re.fullmatch(GLIBC, needed)]
    assert not others, f"{name} needs {others}"
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([0-9.]+)", text)}
    assert versions and max(versions) <= (2, 17), f"{name} needs glibc {max(versions, default=None)}"
print(f"ok      the command and the libraries inside it are {machine} and need no library but those of glibc 2.17")
