"""Claims about the pytest plugin (cli/python) on real memory: PyTorch's tensors count, its caches do not."""

import importlib.util
import json

from frameworks import EXPANDABLE, UNCACHED
from harness import HERE, Missing, claim, expect, expect_equal, site, tail

MIB = 1 << 20
MODES = {"caching": {}, "expandable": EXPANDABLE, "uncached": UNCACHED}


@claim(over=sorted(MODES), slow=True)
def only_tests_that_exceed_their_limits_fail(t, mode):
    for module in ("torch", "pytest"):
        if importlib.util.find_spec(module) is None:
            raise Missing(f"the Python package {module}")
    folder = t.folder(f"pytest {mode}")
    env = {"CULEAK": str(t.culeak), "PYTHONPATH": str(HERE.parent.parent / "cli" / "python"), **MODES[mode]}
    words = [t.python, "-m", "pytest", "-p", "culeak.pytest_plugin", "-p", "no:cacheprovider", "--culeak", "--culeak-out", folder / "out.jsonl"]
    words += ["--culeak-recordings", folder / "rec", HERE / "victims" / "fw_pytest.py"]
    done = t.run(*words, env=env, how="bare", timeout=300)
    lines = (folder / "out.jsonl").read_text().splitlines() if (folder / "out.jsonl").exists() else []
    records = {record["test"].split("::")[-1]: record for record in map(json.loads, lines)}
    expect(len(records) == 7, f"expected a record of each of 7 tests, got {sorted(records)}\n{tail(done.out, 60)}\n{done.story()}")
    outcomes = {name: record["outcome"] for name, record in records.items()}
    expected = {name: "failed" if name.endswith("FAILS") else "passed" for name in records}
    expect_equal(outcomes, expected, f"outcomes of the tests\n{tail(done.out, 60)}")

    def sums(name):
        return records[name]["left_bytes"], records[name]["peak_bytes"]

    expect_equal(sums("test_needs_64_mib_and_leaves_nothing"), (0, 64 * MIB), "bytes left and needed, 32 MiB twice")
    expect_equal(sums("test_leaks_16_mib_FAILS"), (16 * MIB, 16 * MIB), "bytes left and needed, 16 MiB leaked")
    expect_equal(sums("test_cached_segments_are_no_leak"), (0, 256 * MIB), "bytes left and needed, one after the other")
    expect_equal(sums("test_needs_120_mib_FAILS"), (0, 120 * MIB), "bytes left and needed, 60 MiB twice")
    for label, message in [("pytest_leak", "GPU memory left behind: 16 MiB in 1 block, allowed 8 MiB"), ("pytest_peak", "GPU memory needed: 120 MiB at once, allowed 100 MiB")]:
        file, line = site(label)
        expect(message in done.out, f"expected in pytest's output: {message}\n{tail(done.out, 60)}")
        expect(f"{file}:{line}: in " in done.out, f"expected the line {file}:{line} in pytest's output\n{tail(done.out, 60)}")
