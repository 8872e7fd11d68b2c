"""Claims about the host memory of programs that use the GPU: its parts are what is resident, and what grows is named."""

import json
import re

from harness import HERE, claim, expect, expect_equal, tail
from observed import Watched

# By what a program grows: the parts that contain it, recorded and not, and the type, arena or part that `diff` says has grown.
GROWS = {"pinned": ["pinned_bytes", "devices_bytes"], "python": ["python_bytes"], "native": ["malloc_bytes"]}


def resident(pid):
    """What the kernel counts, in bytes."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return int(re.search(r"^Rss:\s+(\d+) kB", file.read(), re.MULTILINE).group(1)) << 10


def parts(host):
    return {name: value for name, value in host.items() if isinstance(value, int) and name != "resident_bytes"}


def asked(t, watched, name):
    """The parts of the resident memory, and what the kernel counted before."""
    path, before = watched.folder / name, resident(watched.pid)
    code, out, err = t.cli("snapshot", watched.pid, "--why", "--host", "--force", "-o", path)
    expect_equal(code, 0, f"exit code of culeak snapshot --why --host\n{tail(out + err)}\n  logs in {watched.folder}")
    return path, json.loads(path.read_text())["holders"]["search"]["host"], before


@claim(over=[f"{name}:{how}" for name in GROWS for how in ("run", "bare")], slow=True)
def the_parts_of_resident_memory_add_up_to_it_and_name_what_grew(t, which):
    name, how = which.split(":")
    with Watched(t, how, command=[t.python, HERE / "victims" / "fw_host.py", name]) as watched:
        facts = [line.split() for line in watched.lines if line.startswith("FACT")]
        added = next(int(fact[3], 16) for fact in facts if fact[2] == "added")
        path, before, counted = asked(t, watched, "before.json")
        watched.send("grow")
        _, after, counted_after = asked(t, watched, "after.json")
        code, out, err = t.cli("why", watched.pid, "--by", "holder", "--host")
        expect_equal(code, 0, f"exit code of culeak why --by holder --host\n{tail(out + err)}")
        rows = [line for line in out.splitlines() if "of the host" in line]
        expect(rows or name == "pinned", f"no holder with host memory\n{tail(out, 40)}")
        diff_code, diff, err = t.cli("diff", path, watched.pid, "--host", "--json")
        expect_equal(diff_code, 0, f"exit code of culeak diff --host\n{tail(err)}")
    for host, rss in ((before, counted), (after, counted_after)):
        expect_equal(sum(parts(host).values()), host["resident_bytes"], f"the sum of the parts and what is resident: {parts(host)}")
        expect(abs(host["resident_bytes"] - rss) <= rss / 100, f"resident: {host['resident_bytes']}, the kernel counts {rss}: {parts(host)}")
    grown = sum(after[part] - before[part] for part in GROWS[name])
    # Some drivers map pinned memory so that the kernel does not count it as resident.
    wanted = counted_after - counted if name == "pinned" else added
    expect(abs(grown - wanted) <= added / 20, f"{GROWS[name]} grew by {grown} bytes, expected {wanted}\n  {parts(before)}\n  {parts(after)}")
    changes = json.loads(diff)["host"]
    of_all = changes["after"] - changes["before"]
    # With the list of them, and what is free beside them.
    expect(wanted - added / 20 <= of_all <= wanted + added / 4, f"resident memory grew by {of_all}, expected {wanted}\n{json.dumps(changes)[:2000]}")
    if name != "pinned":
        largest = changes["holders" if name == "python" else "arenas"][0]
        named = "__main__.history" if name == "python" else "malloc: "
        expect(largest["name"].startswith(named) and largest["bytes_delta"] > added * 0.8, f"the largest change is {largest}, expected {named}")
