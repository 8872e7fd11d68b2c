"""Claims about what holds GPU memory, on real frameworks: each program prints what a reader expects of the path to each block, and
answers what is freed when a holder is dropped (victims/holding.py).

Each program runs once, and its claims share what was found. A failure prints the answers that are wrong as culeak gave them."""

import collections
import json
import math
import re
import threading
from concurrent.futures import Future

from frameworks import SLAB, UNCACHED
from harness import HERE, Failure, Missing, allocations, claim, expect, expect_equal, tail
from observed import Watched

PROGRAMS = ["kv_caches", "generated", "logits", "trainer", "lightning", "peft", "cached_method", "logged_error", "rebuilt_ddp", "loader"]
JAX = {**SLAB, "CULEAK_JAX_BUFFERS": "addresses"}


# ---- what culeak says: the only place that knows its format ----


class Answer:
    """What holds each block of a running program."""

    def __init__(self, t, watched, *options):
        path = watched.folder / "why.json"
        code, out, err = t.cli("snapshot", watched.pid, "--why", "--force", "-o", path, *options)
        expect_equal(code, 0, f"exit code of culeak snapshot --why\n{tail(out + err)}\n  logs in {watched.folder}")
        data = json.loads(path.read_text())
        rows = list(allocations(data))
        held, self.tensors = data["holders"], {row["address"] for row in rows if row["kind"] == "tensor"}
        self.segments = sum(row["bytes"] for row in rows if row["kind"] == "device")
        self.search, self.retainers, self.made = held["search"], held.get("retainers", []), held.get("tensors", [])
        self.blocks = [{**held["paths"][block["path"]], **block} for block in held["blocks"]]
        self.where = f"  {path}"

    def at(self, address):
        """The answer for the block that contains this address, or None if no block, or more than one, does."""
        found = [block for block in self.blocks if block["address"] <= address < block["address"] + max(block["bytes"], 1)]
        return found[0] if len(found) == 1 else None

    def of_class(self, of):
        return [block for block in self.blocks if block["class"] == of]

    def searched(self):
        """How the search went, in one line."""
        return json.dumps({name: value for name, value in self.search.items() if name != "point"})

    def roots(self):
        """(global of the main module, its retained bytes) of the outermost retainers. What has several holders is retained by none."""
        for retainer in self.retainers:
            name = re.match(r"__main__\.(\w+)(?: \(|$)", retainer["name"])
            is_shared = retainer.get("also") or retainer.get("also_unnamed")
            if name and retainer.get("parent") is None and retainer["root"] == "module" and not is_shared:
                yield name.group(1), retainer["bytes"]

    def unretained(self, name):
        """Blocks whose path begins with this global of the main module, but of which it is not known what frees them: also those that
        memory of a library without symbols holds, too, since its words may be stale."""
        is_of = re.compile(rf"__main__\.{re.escape(name)}\b")
        has_no_symbol = re.compile(r"\S+\.so[.\d]*\+0x[0-9a-f]+$")

        def is_known(block):
            at = block.get("retainer")
            while at is not None:
                retainer = self.retainers[at]
                others = [other for other in [retainer["name"], *retainer.get("also", [])] if not is_of.match(other)]
                if others and not retainer.get("also_unnamed") and all(has_no_symbol.match(other) for other in others):
                    return False
                at = retainer.get("parent")
            return block.get("retainer") is not None

        return [block for block in self.of_class("held") if is_of.match(block["origin"]) and not is_known(block)]


def tell(block):
    """All that culeak says of a block, in two lines."""
    if block is None:
        return "no answer, or several"
    rest = {name: value for name, value in block.items() if name not in ("steps", "origin", "origin_type", "class", "path", "time_ns")}
    return f"{block['class']}: {text(block)[:900]}\n      {json.dumps({**rest, 'address': hex(block['address'])})}"


def text(block):
    """The whole path in one line, and its note."""
    kind = f" ({block['origin_type']})" if block["origin_type"] else ""
    return block["origin"] + kind + "".join(f" {step['via']} → {step['holder']}" for step in block["steps"]) + f" {block.get('note') or ''}"


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


def expect_named(seen, share=0.95):
    """Every block has the class that a reader expects, and `share` of them the path."""
    other, wrong = [], []
    expect(seen.expected, f"the program printed no expectation\n{seen.answer.where}")
    for label, classes, address, texts in seen.expected:
        block = seen.answer.at(address)
        if block is None or block["class"] not in classes:
            wrong.append(f"{label} {address:#x}: expected {' or '.join(classes)} {texts}, got {tell(block)}")
        elif not says(text(block), texts):
            other.append(f"{label} {address:#x}: expected the path {texts}, got {tell(block)}")
    listed = "".join(f"\n    {line}" for line in wrong + other) + f"\n    {seen.answer.searched()}"
    count = len(seen.expected)
    expect(not wrong, f"{len(wrong)} of {count} classes are wrong, {len(other)} paths differ:{listed}\n{seen.answer.where}")
    expect(len(other) <= (1 - share) * count, f"{len(other)} of {count} paths differ from what a reader expects:{listed}\n{seen.answer.where}")


def asked(watched, question):
    """Bytes that the framework freed; None if it refused."""
    before = len(watched.lines)
    watched.send(question)
    facts = {words[2]: int(words[3], 16) for words in (line.split() for line in watched.lines[before:]) if words[0] == "FACT"}
    return facts["freed"] if facts.get("dropped", 1) else None


def released(seen, name):
    """Bytes that are freed with a root although another one holds them. PyTorch's random generator has two tensors, the seed and
    the offset, as long as a captured graph is registered with it. The last graph that is freed makes it drop them."""
    if name != "captured":
        return 0
    of_generator = [block for block in seen.answer.blocks if block["origin"].startswith("torch.cuda.default_generators")]
    expect(len(of_generator) <= 2, f"the generator has more than its seed and offset: {[tell(block) for block in of_generator]}")
    return sum(block["bytes"] for block in of_generator)


def expect_freed(seen, at_least):
    """The collector frees what is classed as cycles, and then each root what it retains, never less. What it holds besides, without it
    being known what frees that, it may free as well."""
    expect(not seen.broken, f"after {seen.dropped}: {seen.broken}\n{seen.answer.where}")
    cycles = [block for block in seen.answer.of_class("cycle") if "does not free it" not in (block.get("note") or "")]
    wrong = []
    if (bytes_of := sum(block["bytes"] for block in cycles)) != seen.collected:
        wrong.append(f"gc.collect() freed {seen.collected} bytes, classed as cycles are {bytes_of}:")
        wrong += [f"  {tell(block)}" for block in cycles]
        wrong += [f"  expected a cycle: {label} {address:#x}: {tell(seen.answer.at(address))}" for label, of, address, _ in seen.expected if "cycle" in of]
    for name, retained, freed in seen.dropped:
        least = retained + released(seen, name)
        most = least + sum(block["bytes"] for block in seen.answer.unretained(name))
        if freed is not None and not least <= freed <= most:
            wrong.append(f"`del {name}` freed {freed} bytes, retained are {retained}:")
            wrong += [f"  {tell(block)}" for block in seen.answer.blocks if re.match(rf"__main__\.{name}\b", block["origin"])][:20]
            wrong += [f"  {retainer}" for retainer in seen.answer.retainers if re.match(rf"__main__\.{name}\b", retainer["name"])][:20]
            # What was freed although something else is said to hold it.
            elsewhere = [block for block in seen.answer.blocks if not re.match(rf"__main__\.{name}\b", block["origin"])]
            wrong += [f"  elsewhere: {tell(block)}" for block in elsewhere if block["bytes"] <= abs(freed - retained)][:20]
    listed = "".join(f"\n    {line}" for line in wrong) + f"\n    {seen.answer.searched()}"
    expect(not wrong, f"what is freed differs from what is retained:{listed}\n{seen.answer.where}")
    dropped = [name for name, _, freed in seen.dropped if freed is not None]
    refused = [name for name, _, freed in seen.dropped if freed is None]
    expect(len(dropped) >= at_least, f"{len(dropped)} roots could be dropped: {dropped}; refused: {refused}\n{seen.answer.where}")


def missing(watched):
    """What the program lacks, if it ended because of that."""
    said = [line for line in watched.lines if line.startswith("UNSUPPORTED")]
    return said[0].split(None, 2)[2].strip() if said else None


# What a program printed, what culeak answered, and what was freed: by `gc.collect()`, and by dropping each root
# (name, retained bytes, freed bytes or None). `broken`: why it answered no further question.
Seen = collections.namedtuple("Seen", "answer expected held reserved collected dropped broken")
_seen, _lock = {}, threading.Lock()


def searched(t, name, *words, env=None, how="run"):
    """Runs the program, or waits for the claim that runs it."""
    with _lock:
        mine = (name, words, how) not in _seen
        future = _seen.setdefault((name, words, how), Future())
    if mine:
        try:
            future.set_result(search(t, name, words, env, how))
        except BaseException as error:
            future.set_exception(error)
    return future.result()


def search(t, name, words, env, how):
    watched = Watched(t, how, command=[t.python, HERE / "victims" / f"{name}.py", *words], env=env)
    try:
        with watched:
            answer = Answer(t, watched)
            facts = [line.split() for line in watched.lines if line.startswith("FACT")]
            held, reserved = (next((int(fact[3], 16) for fact in facts if fact[2] == name), 0) for name in ("held", "reserved"))
            collected, dropped, broken = None, [], None
            try:
                collected = asked(watched, "collect")
                for root, retained in answer.roots():
                    dropped.append((root, retained, asked(watched, f"drop {root}")))
            except (Failure, OSError) as failure:
                broken = str(failure)
            return Seen(answer, expected(watched), held, reserved, collected, dropped, broken)
    except Failure:
        if lacks := missing(watched):
            raise Missing(lacks) from None
        raise


# ---- claims ----


def expect_all_answered(seen):
    answered = sum(block["bytes"] for block in seen.answer.blocks if block["address"] in seen.answer.tensors)
    expect_equal(answered, seen.held, f"bytes with an answer (got) and memory_allocated()\n    {seen.answer.searched()}\n{seen.answer.where}")


@claim(slow=True)
def every_holder_of_a_tensor_is_classed_and_named(t):
    seen = searched(t, "fw_why_torch")
    expect(len(seen.expected) >= 50, f"{len(seen.expected)} expectations")
    expect_named(seen)


@claim(slow=True)
def every_block_of_pytorchs_allocator_has_an_answer(t):
    expect_all_answered(searched(t, "fw_why_torch"))


@claim(slow=True)
def what_is_said_to_be_freed_with_a_tensors_holder_is_freed(t):
    expect_freed(searched(t, "fw_why_torch"), at_least=25)


def expect_segments(seen):
    """Of a process that was never recorded: what PyTorch has from the driver."""
    expect_equal(seen.answer.segments, seen.reserved, f"bytes of segments (got) and memory_reserved()\n{seen.answer.where}")


@claim(slow=True)
def a_process_that_was_never_recorded_has_the_same_answers(t):
    seen = searched(t, "fw_why_torch", how="bare")
    expect_all_answered(seen)
    expect_segments(seen)
    expect_named(seen)


@claim(over=PROGRAMS, slow=True)
def a_real_program_that_was_never_recorded_has_the_same_answers(t, name):
    seen = searched(t, "fw_why_programs", name, how="bare")
    expect_segments(seen)
    expect_named(seen)
    expect_freed(seen, at_least=0)


def holders_of(seen, *facts):
    """The class, the root and these facts of each block that the program names, whatever its address is."""
    blocks = [(label, seen.answer.at(address)) for label, _, address, _ in seen.expected]
    expect(all(block for _, block in blocks), f"blocks without an answer\n{seen.answer.where}")
    rows = ((label, *(block[fact] for fact in ("class", "origin", *facts))) for label, block in blocks)
    # Threads have numbers of their own in each process.
    return sorted(tuple(re.sub(r"^thread \d+", "thread", str(fact)) for fact in row) for row in rows)


def expect_same(recorded, unrecorded, what, story):
    sides = (("recorded", recorded, unrecorded), ("not recorded", unrecorded, recorded))
    apart = "".join(f"\n    {side}: {row}" for side, rows, others in sides for row in rows if row not in others)
    expect(recorded == unrecorded, f"{what} differ:{apart}\n{story}")


# How many batches wait in the queue of `loader` depends on time.
@claim(over=[name for name in PROGRAMS if name != "loader"], slow=True)
def a_real_program_has_the_same_holders_recorded_and_not(t, name):
    """Training of GPT-2 (logits), a cache of keys and values (kv_caches), trainers and others."""
    recorded, unrecorded = (searched(t, "fw_why_programs", name, how=how) for how in ("run", "bare"))
    expect_all_answered(unrecorded)
    expect_same(holders_of(recorded, "bytes"), holders_of(unrecorded, "bytes"), "holders of blocks", unrecorded.answer.where)
    # Objects without an address, such as streams, are known with a recording only.
    retained = [sorted(root for root in seen.answer.roots() if root[1] > 0) for seen in (recorded, unrecorded)]
    expect_same(*retained, "what roots retain", unrecorded.answer.where)


def sets_of_holders(seen):
    """The class of each block that the program names, and all that frees it, in any order."""
    rows = []
    for label, _, address, _ in seen.expected:
        block, holders = seen.answer.at(address), set()
        expect(block, f"{label} {address:#x} has no answer\n{seen.answer.where}")
        at = block.get("retainer")
        while at is not None:
            retainer = seen.answer.retainers[at]
            holders |= {retainer["name"], *retainer.get("also", [])}
            at = retainer.get("parent")
        # Threads have numbers of their own in each process.
        rows.append((label, block["class"], *sorted(re.sub(r"^thread \d+|(?<=_active\[)\d+", "thread", holder) for holder in holders)))
    return sorted(rows)


# JAX also keeps some arrays in caches, and runs differ in which caches are named. So only the class of its arrays is compared.
@claim(over=["cupy", "jax"], slow=True)
def an_array_program_has_the_same_holders_recorded_and_not(t, name):
    unrecorded = searched(t, "fw_why_arrays", name, env=SLAB if name == "jax" else None, how="bare")
    recorded, found = ([row[: 2 if name == "jax" else None] for row in sets_of_holders(of)] for of in (arrays(t, name), unrecorded))
    expect_same(recorded, found, "holders of arrays", unrecorded.answer.where)


@claim(slow=True)
def a_model_that_was_never_recorded_has_modules_shapes_and_a_page(t):
    if t.run(t.python, "-c", "import transformers", how="bare").code != 0:
        raise Missing("the Python package transformers")
    with Watched(t, "bare", command=[t.python, HERE / "victims" / "fw_why_programs.py", "generated"]) as watched:
        answer, named, page = Answer(t, watched), expected(watched), watched.folder / "why.html"
        modules = t.cli("why", watched.pid, "--by", "module")
        code, out, err = t.cli("why", watched.pid, "-o", page)
        written = page.read_text() if code == 0 else tail(out + err)
    expect(modules[0] == 0 and "GPT2LMHeadModel" in modules[1], f"culeak why --by module\n{tail(modules[1] + modules[2], 40)}")
    expect("__main__.answers" in written, f"the page has no holder\n{written[:2000]}")
    parameters = [answer.at(address) for label, _, address, _ in named if label == "parameter"]
    for block in parameters:
        made = block and answer.made[block["tensor"]]
        # The allocator rounds up.
        fits = made and made["dtype"] == "float32" and 0 <= block["bytes"] - 4 * math.prod(made["shape"]) < 512
        expect(fits, f"a parameter's type and shape: {made}\n    {tell(block)}\n{answer.where}")


OTHERS = {
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
    "uncached": UNCACHED,
}


# In a container, NVML may not know the process.
@claim(over=[*OTHERS, "pluggable"], slow=True)
def storages_are_found_where_pytorchs_allocator_is_not_understood(t, name):
    env = OTHERS.get(name) or {"PLUGGABLE": str(t.program("pluggable.so"))}
    with Watched(t, "bare", command=[t.python, HERE / "victims" / "fw_growth.py", "watched"], env=env) as watched:
        answer = Answer(t, watched)
        code, out, err = t.cli("why", watched.pid)
    expect(code == 0 and re.search(r"found by their class instead.*; found: 97 MiB(?: of .* that NVML counts|; NVML does not say)", err), f"the note, exit code {code}\n{tail(out + err)}")
    held = {of: sum(block["bytes"] for block in answer.blocks if text(block).startswith(of)) for of in ("__main__.history", "__main__.cache", "__main__.weights")}
    expect_equal(held, {"__main__.history": 48 << 20, "__main__.cache": 48 << 20, "__main__.weights": 1 << 20}, f"bytes by holder\n{answer.where}")
    expect_equal(sum(block["bytes"] for block in answer.blocks), 97 << 20, f"bytes of all storages\n{answer.where}")


@claim(slow=True)
def tensors_held_by_a_cpp_extension_are_named_by_its_globals(t):
    expect_named(searched(t, "fw_why_torch", "extension", env={"TORCH_EXTENSIONS_DIR": str(t.out / "extensions")}))


@claim(over=PROGRAMS, slow=True)
def what_a_real_program_keeps_is_named(t, name):
    expect_named(searched(t, "fw_why_programs", name))


@claim(over=PROGRAMS, slow=True)
def what_is_said_to_be_freed_with_a_real_programs_holder_is_freed(t, name):
    # A program's own garbage is collected before the search.
    expect_freed(searched(t, "fw_why_programs", name), at_least=0)


def arrays(t, name):
    env, how = (JAX, "preload") if name == "jax" else (None, "run")
    return searched(t, "fw_why_arrays", name, env=env, how=how)


@claim(over=["jax", "cupy", "numba"], slow=True)
def every_holder_of_an_array_is_classed_and_named(t, name):
    expect_named(arrays(t, name))


@claim(over=["jax", "cupy"], slow=True)
def what_is_said_to_be_freed_with_an_arrays_holder_is_freed(t, name):
    expect_freed(arrays(t, name), at_least=5)


@claim(slow=True)
def a_numba_program_that_was_never_recorded_has_the_same_answers(t):
    expect_named(searched(t, "fw_why_arrays", "numba", how="bare"))


@claim(slow=True)
def a_cupy_program_that_was_never_recorded_has_the_same_answers(t):
    seen = searched(t, "fw_why_arrays", "cupy", how="bare")
    expect_equal(sum(block["bytes"] for block in seen.answer.blocks), seen.held, f"bytes found (got) and used bytes of the pool\n{seen.answer.where}")
    expect_named(seen)
    expect_freed(seen, at_least=5)


@claim(slow=True)
def a_jax_program_that_was_never_recorded_has_the_same_answers(t):
    seen = searched(t, "fw_why_arrays", "jax", env=SLAB, how="bare")
    # XLA's allocator also has constants, temporary memory, and the ends of blocks.
    found = sum(block["bytes"] for block in seen.answer.blocks)
    expect(seen.held <= found, f"{found} bytes found, {seen.held} of live arrays\n{seen.answer.where}")
    expect_equal(found, seen.reserved, f"bytes found (got) and bytes_in_use of memory_stats()\n{seen.answer.where}")
    expect_named(seen)


@claim(slow=True)
def a_search_leaves_a_training_program_as_it_was(t):
    with Watched(t, command=[t.python, HERE / "victims" / "fw_growth.py", "watched", "and-grow"]) as watched:
        for _ in range(3):
            answer = Answer(t, watched)
            wrong = "".join(f"\n    {tell(block)}" for block in answer.blocks if block["class"] != "held")
            expect(not wrong, f"the program holds everything:{wrong}\n    {answer.searched()}\n{answer.where}")
            kept = [block for block in answer.blocks if says(text(block), ["__main__.history|__main__.cache", "[*]"])]
            others = {text(block) for block in answer.blocks} - {text(block) for block in kept}
            expect(len(kept) >= 18, f"{len(kept)} blocks in the program's list and cache; others: {others}\n{answer.where}")
    expect_equal(watched.process.returncode, 0, "exit code of the program")
