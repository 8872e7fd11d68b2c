"""Claims about programs that a preload does not reach, and about folders that cannot hold a mapped file."""

import os
import subprocess

from harness import Missing, claim, expect, expect_equal, tail

# ---- libraries that bind past the preloaded one (docs/limits.md) ----

PAST = [(how, library) for how in ("deepbind", "namespace") for library in ("driver", "runtime")]
AUDIT = ("--record", "audit",)


def past(t, how, library, options=()):
    return t.run(t.program("past_host"), how, t.program(f"past_{library}.so"), options=options)


@claim(over=[("plain", "driver"), ("plain", "runtime"), *PAST])
def a_library_past_the_preload_is_recorded_with_audit(t, how_and_library):
    how, library = how_and_library
    done = past(t, how, library, AUDIT).must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    row = snapshot.find(done.live()[0])
    snapshot.expect_site(row, f"past_{library}")
    snapshot.expect_function(row, "leaks")
    expect_equal(row["device"], 0, f"device of {snapshot.show(row)}")
    expect_equal(snapshot.losses["unknown_frees"], 0, f"unknown frees\n{snapshot.where()}")


# Else the claim above would say nothing about the option.
@claim(over=PAST)
def without_audit_it_is_not_recorded(t, how_and_library):
    # 2: `run` says that it recorded nothing of a process that used CUDA. Before glibc 2.35 namespaces are not seen.
    sees_namespaces = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) >= (2, 35)
    done = past(t, *how_and_library).must(2 if how_and_library[0] == "deepbind" or sees_namespaces else 0)
    expect_equal(len(done.live()), 1, "blocks that the program printed")
    for recording in done.recordings():
        snapshot = done.snapshot_of(recording)
        expect_equal([snapshot.show(row) for row in snapshot.memory()], [], f"rows with memory\n{snapshot.where()}")


@claim(over=["rt-static", "rt-shared", "drv"])
def audit_records_an_ordinary_program_as_without_it(t, program):
    done = t.run(t.program(program), "kinds", options=AUDIT).must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    for live in done.live():
        snapshot.expect_site(snapshot.find(live), live.label)


# ---- /etc/ld.so.preload ----

# In a mount namespace with an /etc of its own. Arguments: the library, then the program.
ON_SYSTEM = """
set -e
layers=$(mktemp -d "$PWD/layers.XXXXXX")
mount -t tmpfs none "$layers"
mkdir "$layers/upper" "$layers/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$layers/upper,workdir=$layers/work" overlay /etc
echo "$1" >/etc/ld.so.preload
shift
exec "$@"
"""
RECORDED = """export CULEAK_OUTPUT="$PWD/rec/%e.%h.%p.culeak"; exec "$@" """


def on_system(library, *command):
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", ON_SYSTEM, "sh", library, *command]


def run_on_system(t, *command):
    if not t.shim or not t.shim.exists():
        raise Missing("libculeak.so (CULEAK_SHIM)")
    probe = subprocess.run(on_system("", "true"), cwd=t.folder("own-etc"), capture_output=True, text=True)
    if probe.returncode != 0:
        raise Missing(f"root that may mount over /etc in a namespace of its own\n{tail(probe.stderr)}")
    return t.run(*on_system(t.shim, *command), how="bare").must(0)


@claim(over=["rt-static", "drv"])
def a_program_with_an_output_is_recorded_by_ld_so_preload_alone(t, program):
    done = run_on_system(t, "sh", "-c", RECORDED, "sh", t.program(program), "kinds")
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    for live in done.live():
        snapshot.expect_function(snapshot.find(live), f"case_{live.label}")


@claim
def a_program_without_an_output_is_left_alone_by_ld_so_preload(t):
    done = run_on_system(t, t.program("drv"), "kinds")
    expect(done.live(), f"the program printed no block\n{done.story()}")
    expect_equal((done.recordings(), done.err), ([], ""), f"recordings and messages\n{done.story()}")
    left = sorted(path.name for path in done.folder.iterdir() if not path.name.startswith("layers."))
    expect_equal(left, ["command", "rec", "stderr", "stdout"], "files in the program's folder")


# ---- spools (docs/limits.md) ----


def spooled(t, *command, codes=(0,)):
    """A program whose folder is on a file system that cannot hold a mapped file, as a preloaded library answers; and its spools."""
    spools = t.out / "spools" / "-".join(os.path.basename(word) for word in command)
    spools.mkdir(parents=True, exist_ok=True)
    expect_equal(sorted(os.listdir(spools)), [], f"files in {spools} before the run")
    odd = {"LD_PRELOAD": str(t.program("odd_disk.so")), "ODD_DISK": str(t.out / "runs"), "ODD_DISK_IS": "network", "CULEAK_SPOOL": str(spools)}
    done = t.run(*command, env=odd).must(*codes)
    expect(str(spools) in done.err and "its file system cannot hold recordings" in done.err, f"culeak run does not say where the recording is\n{done.story()}")
    return done, sorted(os.listdir(spools))


@claim(over=[("rt-static", "kinds"), ("rt-shared", "threads"), ("drv", "kinds")])
def a_spooled_recording_is_in_its_folder_after_the_program(t, program_and_case):
    program, case = program_and_case
    done, left = spooled(t, t.program(program), case)
    expect_equal(left, [], f"spools that are left\n{done.story()}")
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    for live in done.live():
        snapshot.expect_site(snapshot.find(live), live.label)


@claim
def a_spooled_recording_of_a_killed_program_is_copied_by_culeak_run(t):
    done, left = spooled(t, t.program("rt-static"), "sigkill", codes=(-9, 137))
    expect_equal(left, [], f"spools that are left\n{done.story()}")
    expect_equal(len(done.live()), 500, "blocks that the program printed")
    done.snapshot().expect_exactly(done.live())
