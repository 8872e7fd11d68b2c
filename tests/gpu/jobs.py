"""Claims about jobs on several GPUs: `culeak report FOLDER` names the rank that leaks and its line in its first ten lines."""

import collections
import json
import pathlib
import re

from harness import HERE, HOST, claim, expect, expect_equal, site, tail

NCCL = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# Way, backend, ranks, and the rank that leaks. NCCL takes one rank for each GPU; with gloo, eight ranks share what there is.
JOBS = {"ddp": ("nccl", 2, 1), "fsdp": ("nccl", 2, 1), "tp": ("nccl", 2, 1), "ddp-of-8": ("gloo", 8, 5)}


def job(t, name, *words, how="run"):
    backend, ranks, leaking = JOBS[name]
    command = [t.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", HERE / "victims" / "fw_job.py", name.split("-")[0], backend, leaking, *words]
    return t.run(*command, env=NCCL, how=how, timeout=240).must(0)


def ranks_of(t, name, done):
    """The recordings of the job's ranks. torchrun's agent may have one of its own."""
    code, out, err = t.cli("report", done.folder / "rec", "--json")
    expect_equal(code, 0, f"exit code of culeak report\n{tail(out + err)}")
    found = sorted((row["rank"], row["source"]) for row in json.loads(out)["processes"] if row["rank"] is not None)
    expect_equal([rank for rank, _ in found], list(range(JOBS[name][1])), f"ranks with a recording\n{done.story()}")
    return [pathlib.Path(source) for _, source in found]


@claim(over=list(JOBS), slow=True)
def the_rank_that_leaks_and_its_line_are_in_the_first_ten_lines(t, name):
    leaking = JOBS[name][2]
    done = job(t, name)
    ranks_of(t, name, done)
    code, out, err = t.cli("report", done.folder / "rec")
    expect_equal(code, 0, f"exit code of culeak report\n{tail(out + err)}")
    (done.folder / "report.txt").write_text(out)
    file, number = site("job_kept")
    first = out.splitlines()[:10]
    found = [line for line in first if re.search(rf"\brank {leaking}\b", line) and f"{file}:{number}" in line]
    expect(found, f"no line of the first ten names rank {leaking} and {file}:{number}\n{tail(out, 40)}\n{done.story()}")
    # Of two ranks, any difference of 64 KiB is said. The leak is the largest one.
    sentences = [line for line in first if "rank" in line and f"{file}:" in line]
    expect_equal(sentences[0], found[0], f"the first sentence\n{tail(out, 40)}\n{done.story()}")


@claim(over=list(JOBS), slow=True)
def a_job_computes_the_same_with_and_without_culeak(t, name):
    with_culeak, bare = job(t, name), job(t, name, how="bare")
    expect_equal(len(bare.results()), JOBS[name][1], f"results of the ranks\n{bare.story()}")
    expect_equal(sorted(with_culeak.results()), sorted(bare.results()), f"results with culeak, and without it\n{with_culeak.story()}")


@claim(over=["ddp", "fsdp", "tp"], slow=True)
def the_buffers_of_nccl_are_equal_on_all_ranks(t, name):
    done = job(t, name, "leave")
    amounts = []
    for recording in ranks_of(t, name, done):
        snapshot = done.snapshot_of(recording)
        rows = [row for row in snapshot.memory() if any("libnccl" in module for _, _, _, module in snapshot.frames(row))]
        amounts.append(sorted(collections.Counter((row["kind"], row["bytes"]) for row in rows if row["kind"] not in HOST).items()))
    expect(amounts[0], f"no memory of NCCL\n{done.story()}")
    expect_equal(amounts[0], amounts[1], f"memory of NCCL on both ranks\n{done.story()}")
