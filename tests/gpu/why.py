"""Claims about what holds GPU memory, on real frameworks: each program prints what a reader expects of the path to each block, and
answers what is freed when a holder is dropped (victims/holding.py)."""

import contextlib
import json
import re

from claims import Watched
from frameworks import SLAB
from harness import HERE, Failure, Missing, allocations, claim, expect, expect_equal, tail

PROGRAMS = ["kv_caches", "logits", "trainer", "lightning", "peft", "cached_method", "logged_error", "rebuilt_ddp"]
JAX = {**SLAB, "CULEAK_JAX_BUFFERS": "addresses"}


# ---- what culeak says: the only place that knows its format ----


class Answer:
    """What holds each block of a running program."""

    def __init__(self, t, watched, *options):
        path = watched.folder / "why.json"
        code, out, err = t.cli("snapshot", watched.pid, "--why", "--force", "-o", path, *options)
        expect_equal(code, 0, f"exit code of culeak snapshot --why\n{tail(out + err)}\n  logs in {watched.folder}")
        data = json.loads(path.read_text())
        held, self.tensors = data["holders"], {row["address"] for row in allocations(data) if row["kind"] == "tensor"}
        self.search, self.retainers = held["search"], held.get("retainers", [])
        self.blocks = [{**held["paths"][block["path"]], **block} for block in held["blocks"]]
        self.where = f"  {path}"

    def at(self, address):
        found = [block for block in self.blocks if block["address"] <= address < block["address"] + max(block["bytes"], 1)]
        expect(len(found) == 1, f"expected one answer for {address:#x}, found {len(found)}\n{self.where}")
        return found[0]

    def bytes_of(self, of):
        return sum(block["bytes"] for block in self.blocks if block["class"] == of)

    def roots(self):
        """(global of the main module, its retained bytes) of the outermost retainers."""
        for retainer in self.retainers:
            name = re.match(r"__main__\.(\w+)(?: \(|$)", retainer["name"])
            if name and retainer.get("parent") is None and retainer["root"] == "module":
                yield name.group(1), retainer["bytes"]


def text(block):
    """The whole path in one line."""
    kind = f" ({block['origin_type']})" if block["origin_type"] else ""
    return block["origin"] + kind + "".join(f" {step['via']} → {step['holder']}" for step in block["steps"])


def says(path, texts):
    """The texts occur in this order; `a|b` means one of them."""
    rest = re.sub(r"\[[^\]]*\]", "[*]", path)
    for alternatives in texts:
        ends = [rest.find(one) + len(one) for one in alternatives.split("|") if one in rest]
        if not ends:
            return False
        rest = rest[min(ends) :]
    return True


# ---- the programs ----


def expected(watched):
    """(label, classes, address, texts), as the program printed them."""
    rows = [line.split() for line in watched.lines if line.startswith("HOLDS")]
    return [(label, of.split("|"), int(address, 16), json.loads(texts)) for _, _, label, of, address, texts in rows]


def expect_named(answer, watched, share=0.95):
    """Every block has the class that a reader expects, and `share` of them the path."""
    rows, other, wrong = expected(watched), [], []
    expect(rows, f"the program printed no expectation\n  logs in {watched.folder}")
    for label, classes, address, texts in rows:
        block = answer.at(address)
        if block["class"] not in classes:
            wrong.append(f"{label}: {block['class']}, expected {' or '.join(classes)}: {text(block)[:600]}")
        elif not says(text(block), texts):
            other.append(f"{label}: {text(block)[:600]}\n      expected {texts}")
    listed = "".join(f"\n    {line}" for line in wrong + other)
    expect(not wrong, f"{len(wrong)} of {len(rows)} classes are wrong, {len(other)} paths differ:{listed}\n{answer.where}")
    expect(len(other) <= (1 - share) * len(rows), f"{len(other)} of {len(rows)} paths differ from what a reader expects:{listed}\n{answer.where}")


def asked(watched, question):
    """Bytes that the framework freed; None if it refused."""
    before = len(watched.lines)
    watched.send(question)
    facts = {words[2]: int(words[3], 16) for words in (line.split() for line in watched.lines[before:]) if words[0] == "FACT"}
    return facts["freed"] if facts.get("dropped", 1) else None


def expect_freed(answer, watched, at_least):
    """The collector frees what is classed as cycles, and then each root what it retains."""
    expect_equal(asked(watched, "collect"), answer.bytes_of("cycle"), f"bytes freed by gc.collect() (got) and classed as cycles\n{answer.where}")
    dropped = 0
    for name, retained in answer.roots():
        freed = asked(watched, f"drop {name}")
        if freed is not None:
            expect_equal(freed, retained, f"bytes freed by `del {name}` (got) and retained by it\n{answer.where}")
            dropped += 1
    expect(dropped >= at_least, f"{dropped} roots could be dropped, of {[name for name, _ in answer.roots()]}\n{answer.where}")


def missing(watched):
    """What the program lacks, if it ended because of that."""
    said = [line for line in watched.lines if line.startswith("UNSUPPORTED")]
    return said[0].split(None, 2)[2].strip() if said else None


@contextlib.contextmanager
def searched(t, name, *words, env=None, how="run"):
    watched = Watched(t, how, command=[t.python, HERE / "victims" / f"{name}.py", *words], env=env)
    try:
        with watched:
            yield Answer(t, watched), watched
    except Failure:
        if lacks := missing(watched):
            raise Missing(lacks) from None
        raise


# ---- claims ----


@claim(slow=True)
def every_holder_of_a_tensor_is_classed_and_named(t):
    with searched(t, "fw_why_torch") as (answer, watched):
        expect(len(expected(watched)) >= 50, f"{len(expected(watched))} expectations")
        expect_named(answer, watched)


@claim(slow=True)
def what_is_said_to_be_freed_with_a_tensors_holder_is_freed(t):
    with searched(t, "fw_why_torch") as (answer, watched):
        # Every block of PyTorch's allocator has an answer.
        held = next(int(line.split()[3], 16) for line in watched.lines if line.startswith("FACT") and line.split()[2] == "held")
        answered = sum(block["bytes"] for block in answer.blocks if block["address"] in answer.tensors)
        expect_equal(answered, held, f"bytes with an answer (got) and memory_allocated()\n{answer.where}")
        expect_freed(answer, watched, at_least=25)


@claim(slow=True)
def tensors_held_by_a_cpp_extension_are_named_by_its_globals(t):
    with searched(t, "fw_why_torch", "extension", env={"TORCH_EXTENSIONS_DIR": str(t.out / "extensions")}) as (answer, watched):
        expect_named(answer, watched)


@claim(over=PROGRAMS, slow=True)
def what_a_real_program_keeps_is_named(t, name):
    with searched(t, "fw_why_programs", name) as (answer, watched):
        expect_named(answer, watched)
        # A program's own garbage is collected before the search.
        expect_freed(answer, watched, at_least=0)


@claim(over=["jax", "cupy", "numba"], slow=True)
def every_holder_of_an_array_is_classed_and_named(t, name):
    env, how = (JAX, "preload") if name == "jax" else (None, "run")
    with searched(t, "fw_why_arrays", name, env=env, how=how) as (answer, watched):
        expect_named(answer, watched)


@claim(over=["jax", "cupy"], slow=True)
def what_is_said_to_be_freed_with_an_arrays_holder_is_freed(t, name):
    env, how = (JAX, "preload") if name == "jax" else (None, "run")
    with searched(t, "fw_why_arrays", name, env=env, how=how) as (answer, watched):
        expect_freed(answer, watched, at_least=5)


@claim(slow=True)
def a_search_leaves_a_training_program_as_it_was(t):
    with Watched(t, command=[t.python, HERE / "victims" / "fw_growth.py", "watched", "and-grow"]) as watched:
        for _ in range(3):
            answer = Answer(t, watched)
            classes = {block["class"] for block in answer.blocks}
            expect(classes <= {"held"}, f"classes of a program that holds everything: {classes}\n{answer.where}")
            kept = [block for block in answer.blocks if says(text(block), ["__main__.history|__main__.cache", "[*]"])]
            others = {text(block) for block in answer.blocks} - {text(block) for block in kept}
            expect(len(kept) >= 18, f"{len(kept)} blocks in the program's list and cache; others: {others}\n{answer.where}")
    expect_equal(watched.process.returncode, 0, "exit code of the program")
