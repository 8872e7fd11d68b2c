"""Claims about the first lines of a report: the line to blame is in the first five."""

from harness import HERE, claim, expect, expect_equal, site, tail

PROGRAMS = [
    "kept_losses",
    "kept_features",
    "kept_by_a_helper",
    "kept_gradients",
    "optimizer_state",
    "kept_graphs",
    "pinned_batches",
    "freed_at_exit",
    "kept_arrays",
    "kept_model",
]


@claim(over=PROGRAMS)
def the_line_to_blame_is_in_the_first_five(t, name):
    done = t.run(t.python, HERE / "victims" / "fw_answers.py", name).must(0)
    code, out, err = t.cli("report", done.recording())
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    file, line = site(f"answer_{name}")
    first = out.splitlines()[:5]
    expect(any(f"{file}:{line}" in text for text in first), f"{file}:{line} is not in the first five lines:\n{tail(out, 40)}")
