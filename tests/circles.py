"""No circle of more than three files in a crate: each file uses what lies below it. Names that a file passes on with `pub use` count for their own file."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 3
CRATES = [
    "cli/holders/src/lib.rs",
    "src/lib.rs",
    "cli/src/main.rs",
    "cli/dataset/src/lib.rs",
    "cli/metrics/src/lib.rs",
    "shim/src/lib.rs",
    "shim/cpython/src/lib.rs",
    "shim/elf/src/lib.rs",
    "shim/walker/src/lib.rs",
]


def files(file, at=()):
    """The module path and the source of a file and of all below it, without tests."""
    text = re.sub(r"//[^\n]*", "", re.split(r"\n#\[cfg\([^\n]*test[^\n]*\)\]\nmod \w+ \{", file.read_text())[0])
    yield at, text
    below = file.parent if file.name in ("lib.rs", "main.rs") else file.with_suffix("")
    for attributes, name in re.findall(r"((?:#\[[^\n]*\]\s*)*)\b(?:pub(?:\([^)]*\))? )?mod (\w+);", text):
        if "test" not in attributes:
            yield from files(below / f"{name}.rs", (*at, name))


def names(tree):
    """The paths of a `use`, each as its parts."""
    head, brace, rest = re.sub(r"\s+(as\s+\w+)?", "", tree).partition("{")
    parts, depth = [""], 0
    for letter in rest.rpartition("}")[0]:
        depth += (letter == "{") - (letter == "}")
        parts = [*parts, ""] if (letter, depth) == (",", 0) else [*parts[:-1], parts[-1] + letter]
    head = [part for part in head.split("::") if part]
    return [[*head, *inner] for part in parts if part for inner in names(part)] if brace else [head]


def used(modules):
    """By file: the files that it uses."""
    imports = {at: [(pub, name[:-1] if name[-1] == "self" else name) for pub, tree in re.findall(r"\b(pub(?:\([^)]*\))? )?use ([^;]+);", text) for name in names(tree)] for at, text in modules.items()}

    def file_of(at, name, seen=()):
        here, rest = ((), name[1:]) if name[0] == "crate" else (at, name[1:] if name[0] == "self" else name)
        while rest[:1] == ["super"]:
            here, rest = here[:-1], rest[1:]
        while rest and (*here, rest[0]) in modules:
            here, rest = (*here, rest[0]), rest[1:]
        passed = [other for _, other in imports[here] if rest and other[-1] == rest[0] and (here, rest[0]) not in seen]
        found = [file_of(here, [*other, *rest[1:]], (*seen, (here, rest[0]))) for other in passed]
        return next(filter(None, found), here if here != at else None)

    def of(at, text):
        words = [word.split("::") for word in re.findall(r"(?<![:\w])\w+(?:::\w+)+", re.sub(r"\buse [^;]+;", "", text))]
        wanted = [name for pub, name in imports[at] if not pub] + words
        return {file_of(at, name) for name in wanted} - {None, at}

    return {at: of(at, text) for at, text in modules.items()}


def main():
    for crate in CRATES:
        below = used(dict(files(ROOT / crate)))
        for _ in below:
            below = {at: found.union(*(below[other] for other in found)) for at, found in below.items()}
        circles = {frozenset(other for other in below[at] if at in below[other]) for at in below}
        long = [sorted("/".join(at) or "(root)" for at in circle) for circle in circles if len(circle) > MOST]
        assert not long, f"{crate}: circles of more than {MOST} files: {long}"
        assert len(below) > 1, f"{crate}: no files found below it"
        print(f"ok      {crate}: no circle of more than {MOST} of {len(below)} files")


main()
