"""Claims about sampled stacks: totals stay exact, and the estimate of each call site is within its error."""

import json

from harness import claim, expect, expect_equal, tail

SITES = {"small_blocks": "device", "mixed_blocks": "device", "large_blocks": "async"}
# A fixed seed: the program's only thread makes the same choice in each run. Without a limit on stacks a second, time decides nothing.
OPTIONS = ("--sample", "512KiB", "--stack-rate", "0")
SEED = {"CULEAK_SAMPLE_SEED": "1"}


def sampled(t, fresh=False):
    return t.run(t.program("samples"), env=SEED, options=OPTIONS, fresh=fresh).must(0)


def truth(done, name):
    """What the program counted at a call site."""
    return {figure: done.fact(f"{name}_{figure}") for figure in ("live", "live_count", "all", "all_count")}


@claim
def totals_of_a_sampled_program_are_exact(t):
    done = sampled(t)
    snapshot = done.snapshot()
    snapshot.expect_sane()
    for kind in set(SITES.values()):
        sites = [truth(done, name) for name, of in SITES.items() if of == kind]
        expected = {figure: sum(site[figure] for site in sites) for figure in sites[0]}
        counters = [counter for counter in snapshot.data["counters"] if counter["kind"] == kind]
        got = {
            figure: sum(counter[name] for counter in counters)
            for figure, name in (("live", "live_bytes"), ("live_count", "live_count"), ("all", "total_bytes"), ("all_count", "total_count"))
        }
        expect_equal(got, expected, f"counters of {kind} memory\n{snapshot.where()}")
        freed = sum(counter["freed_count"] for counter in counters)
        expect_equal(freed, expected["all_count"] - expected["live_count"], f"frees of {kind} memory\n{snapshot.where()}")
        rows = snapshot.of_kind(kind)
        got = (sum(row["bytes"] for row in rows), len(rows))
        expect_equal(got, (expected["live"], expected["live_count"]), f"rows of {kind} memory\n{snapshot.where()}")


@claim
def most_blocks_of_a_sampled_program_have_no_stack_and_none_is_lost(t):
    snapshot = sampled(t).snapshot()
    left_out = snapshot.data["sampling"]["left_out"]
    rows = [row for row in snapshot.rows if row["kind"] in SITES.values()]
    expect(all(row.get("stack") is not None for row in rows), f"a block has neither a stack nor the mark of one that was not chosen\n{snapshot.where()}")
    without = sum(row["stack"] == left_out for row in rows)
    expect(len(rows) / 2 < without < len(rows), f"{without} of {len(rows)} blocks without a stack\n{snapshot.where()}")


@claim
def estimates_of_a_sampled_program_are_within_their_errors(t):
    done = sampled(t)
    code, out, err = t.cli("report", done.recording(), "--json", "--top", "0")
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    rows = {row["label"]: row for row in json.loads(out)["rows"]}
    expect_equal(sorted(rows), sorted(SITES), f"call sites of the report\n{done.story()}")
    for name, row in rows.items():
        site = truth(done, name)
        for figure, error, expected in (("bytes", "bytes_error", site["live"]), ("count", "count_error", site["live_count"])):
            found, error = row[figure], row["estimated"][error]
            # An error as large as the truth would allow anything.
            fits = abs(found - expected) <= 4 * error and error < expected / 2
            expect(fits, f"{name}: {found} ± {error} {figure}, and {expected} in truth\n{done.story()}")


@claim
def the_same_seed_chooses_the_same_blocks(t):
    def chosen(done):
        snapshot = done.snapshot()
        left_out = snapshot.data["sampling"]["left_out"]
        rows = sorted((row for row in snapshot.rows if row["kind"] in SITES.values()), key=lambda row: row["time_ns"])
        return [(row["bytes"], row["stack"] != left_out) for row in rows]

    first, second = chosen(sampled(t)), chosen(sampled(t, fresh=True))
    expect(any(taken for _, taken in first), "no block was chosen")
    expect(first == second, f"two runs with one seed chose {sum(taken for _, taken in first)} and {sum(taken for _, taken in second)} blocks, not the same ones")
