"""Claims about objects without an address: their counts by line, what destroys them besides the program, and a limit on their number."""

import collections
import os

from harness import Failure, claim, expect, expect_equal, site, tail

# The driver decides what else an event destroys: each of these is asked for afterwards.
AFTER = {
    "context_destroyed": ["stream", "event", "module", "library", "graph-object", "graph-exec", "texture", "surface", "linker", "pool"],
    "primary_reset": ["stream", "event", "module", "library", "graph-object", "graph-exec", "texture", "surface", "linker", "pool"],
    "primary_released": ["stream", "event", "module", "library", "graph-object", "graph-exec", "texture", "surface", "linker", "pool"],
    "green_destroyed": ["green-stream"],
    "library_unloaded": ["kernel"],
}
PAIRS = [(scenario, kind) for scenario, kinds in AFTER.items() for kind in kinds]
NOT_READY = 600


def objects_of(snapshot):
    """The objects of a snapshot, pools among them, each merged with the row of its call."""
    rows = [row for row in snapshot.rows if row["kind"] in ("pool", "external", "multicast")]
    table = snapshot.data.get("objects", {"calls": [], "columns": [], "rows": []})
    for places in table["rows"]:
        row = dict(zip(table["columns"], places))
        rows.append({**table["calls"][row.pop("call")], **row})
    return rows


def at(snapshot, row, label):
    """Whether this source line is on a row's stack."""
    return site(label) in [(os.path.basename(file or ""), line) for _, file, line, _ in snapshot.frames(row)]


def made(done):
    """(label, kind): the number of objects that are left, as the program says."""
    rows = done._lines("MADE")
    expect(rows, f"the program printed no MADE line\n{done.story()}")
    return {(label, kind): int(count) for _, label, kind, count in rows}


def expect_counts(done):
    snapshot = done.snapshot()
    objects = objects_of(snapshot)
    for (label, kind), count in made(done).items():
        found = [row for row in objects if row["kind"] == kind and at(snapshot, row, label)]
        listed = collections.Counter(row["kind"] for row in objects)
        expect_equal(len(found), count, f"{kind} of the line {label}; all objects: {dict(listed)}\n{snapshot.where()}")
    return snapshot, objects


@claim(over=["counts", "green", "contexts", "requests"])
def each_line_has_the_objects_that_it_left(t, case):
    expect_counts(t.run(t.program("objects"), case).must(0))


@claim
def an_object_that_the_program_destroyed_is_not_left(t):
    done = t.run(t.program("objects"), "counts").must(0)
    snapshot, objects = expect_counts(done)
    left = collections.Counter(row["kind"] for row in objects if any(at(snapshot, row, label) for label, _ in made(done)))
    expect_equal(dict(left), dict(sum((collections.Counter({kind: count}) for (_, kind), count in made(done).items()), collections.Counter())), snapshot.where())


@claim
def an_executable_has_the_number_of_its_nodes(t):
    done = t.run(t.program("objects"), "counts").must(0)
    snapshot, objects = expect_counts(done)
    nodes = sorted({row.get("nodes") for row in objects if row["kind"] == "graph-exec"})
    expect_equal(nodes, [done.fact("least_nodes"), done.fact("most_nodes")], f"nodes of the executables\n{snapshot.where()}")


@claim
def captures_and_instantiations_give_the_same_results_as_without_culeak(t):
    bare = t.run(t.program("objects"), "instantiates_in_captures", how="bare").must(0)
    recorded = t.run(t.program("objects"), "instantiates_in_captures").must(0)
    expect(bare.results(), f"no RESULT line\n{bare.story()}")
    expect_equal(recorded.results(), bare.results(), "results of the calls within a capture")


@claim
def a_graph_for_each_request_fails_the_check_and_is_named_by_line(t):
    done = t.run(t.program("objects"), "requests").must(0)
    file, line = site("obj_request")
    code, out, err = t.cli("check", done.recording(), "--allow", "graph-exec=8")
    expect_equal(code, 1, f"exit code of the check\n{tail(out + err)}")
    expect("40 graph-exec objects are 32 over the limit of 8" in out and f"{file}:{line}" in out, f"the verdict\n{tail(out)}")
    code, out, err = t.cli("check", done.recording(), "--allow", "graph-exec=40", "--allow", "stream=0")
    expect_equal(code, 0, f"exit code of the check within its limits\n{tail(out + err)}")
    code, out, err = t.cli("report", done.recording(), "--view", "objects")
    expect(code == 0 and "40 graph-exec" in out and "10 nodes each" in out, f"the report\n{tail(out + err, 40)}")


@claim(over=PAIRS)
def what_else_destroys_an_object_takes_it_off_the_books(t, scenario_and_kind):
    scenario, kind = scenario_and_kind
    bare = t.run(t.program("objects"), "after", scenario, kind, how="bare")
    asked = bare._lines("ASKS")
    expect(asked, f"the program did not come to the question\n{bare.story()}")
    answers = [int(words[-1]) for words in bare._lines("AFTER")]
    answer = answers[0] if answers else f"no answer: it ended with {bare.code}"
    print(f"  the driver about a {kind}, {scenario}: {answer}", flush=True)
    exists = answer in (0, NOT_READY)
    done = t.run(t.program("objects"), "after", scenario, kind)
    of_kind = {"green-stream": "stream", "kernel": "library"}.get(kind, kind)
    left = [row for row in objects_of(done.snapshot()) if row["kind"] == of_kind]
    if kind == "green-stream":
        # The program still has to destroy it, although no call accepts it any more.
        expect(left, f"a stream of a destroyed green context is not on the books\n{done.snapshot().where()}")
    elif kind == "kernel":
        expect(not exists and not left, f"a kernel of an unloaded library: the driver says {answer}; libraries left: {len(left)}")
    elif bool(left) != exists:
        raise Failure(f"the driver says {answer} about a {kind}, {scenario}, and culeak has {len(left)} of them on its books\n{done.snapshot().where()}")
