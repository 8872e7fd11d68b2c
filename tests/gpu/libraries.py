"""Claims about the memory that CUDA libraries cost at their start: code by library, and the sum is NVML's figure after each step."""

from harness import claim, expect, expect_equal
from stepped import MIB, expect_figures, figures, ledger, parts, program, python, run, run_with_figures, shown

# Programs on the toolkit's libraries, whose first code on the device is the library's.
TOOLKIT = ["cublas", "cublasLt", "cufft", "cusolver", "cusparse"]
# By PyTorch, which brings these libraries.
IN_PYTORCH = ["cudnn", "nccl"]
ALL = ["cublas", "cublasLt", "cudnn", "cufft", "cusolver", "cusparse", "nccl"]
# A library's kernels may be those of another one.
NEEDS = {"cublas": ["cublasLt"], "cusolver": ["cublas", "cublasLt", "cusparse"], "cudnn": ["cublas", "cublasLt"]}
NCCL = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def command(t, library):
    return python(t, "libraries", library) if library in IN_PYTORCH else [program(t, f"library-{library}")]


def last_step(library):
    return library if library in IN_PYTORCH else "used"


@claim(over=ALL, slow=True)
def code_of_a_library_has_a_line_of_that_library(t, library):
    done = run(t, command(t, library), NCCL)
    device = ledger(t, done, last_step(library))
    code = parts(device, "code")
    own = [f"lib{name}" for name in [library, *NEEDS.get(library, [])]]
    named = [name for name in code if any(name.startswith(start) for start in own)]
    # The first kernels of cuSPARSE are small enough for memory that the context has already.
    taken = [part["bytes"] for part in device["process"]["at_peak"] if part["purpose"] not in ("context", "linear")]
    expect(named or library == "cusparse" and not taken, f"no code of {library}: {code}\n{shown(device)}\n{done.story()}")
    if library not in IN_PYTORCH:
        expect_equal(sorted(code), sorted(named), f"binaries whose code is on the device, in a program that uses {library} only\n{shown(device)}")


@claim(over=TOOLKIT, alone=True)
def a_library_has_at_each_step_what_nvml_counts(t, library):
    expect_figures(t, run_with_figures(t, command(t, library), NCCL))


@claim(alone=True)
def libraries_in_one_process_have_after_each_what_nvml_counts(t):
    expect_figures(t, run_with_figures(t, python(t, "libraries", *ALL), NCCL))


@claim(slow=True)
def what_each_library_adds_to_a_process_is_in_its_ledger(t):
    done = run(t, python(t, "libraries", *ALL), NCCL)
    rows, before = [], {}
    for _, name, _ in figures(done):
        device = ledger(t, done, name.removeprefix("at_"))
        now = {(entry["what"], entry["of"]): entry["bytes"] for entry in device["lines"]}
        grown = {" ".join(filter(None, key)): now.get(key, 0) - before.get(key, 0) for key in {**before, **now} if now.get(key) != before.get(key)}
        rows.append(f"{name:12} {device['process']['bytes'] / MIB:8.1f} MiB  " + ", ".join(f"{key} {value / MIB:+.2f}" for key, value in sorted(grown.items())))
        rows.append(" " * 14 + "code of " + ", ".join(f"{key} {value / MIB:.0f}" for key, value in parts(device, "code").items()))
        before = now
        expect("unrecorded" not in {what for what, _ in now}, f"memory without a recorded block at {name}\n{shown(device)}")
    (done.folder / "libraries.txt").write_text("\n".join(rows) + "\n")
    print("\n".join("  " + row for row in rows), flush=True)
