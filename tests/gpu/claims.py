"""Claims about C, C++ and Rust programs: kinds of memory, threads, processes, contexts, graphs, and sharing."""

import json
import os
import re
import shutil
import subprocess

from harness import Failure, Missing, claim, expect, expect_equal, plain_api, site, tail

# ---- every kind of allocation, in every way to build a program ----

BUILDS = ["shared", "static", "rdynamic", "stripped", "ptds"]
# The runtime call, and the driver call behind it, which is the name that is recorded with a statically linked runtime.
RUNTIME_CALLS = {
    "cudaMalloc": "cuMemAlloc",
    "cudaMallocPitch": "cuMemAllocPitch",
    "cudaMalloc3D": "cuMemAllocPitch",
    "cudaMallocArray": "cuArray3DCreate",
    "cudaMalloc3DArray": "cuArray3DCreate",
    "cudaMallocMipmappedArray": "cuMipmappedArrayCreate",
    "cudaMallocHost": "cuMemHostAlloc",
    "cudaHostAlloc": "cuMemHostAlloc",
    "cudaHostRegister": "cuMemHostRegister",
    "cudaMallocManaged": "cuMemAllocManaged",
    "cudaMallocAsync": "cuMemAllocAsync",
    "cudaMallocFromPoolAsync": "cuMemAllocFromPoolAsync",
}
DRIVER_CALLS = ["cuMemAlloc", "cuMemAllocPitch", "cuMemAllocHost", "cuMemHostAlloc", "cuMemAllocManaged", "cuArrayCreate", "cuMemAllocAsync"]


def kinds(t, build):
    return t.run(t.program("rt-" + build), "kinds").must(0)


@claim(over=[(build, call) for build in BUILDS for call in RUNTIME_CALLS])
def leaked_memory_is_one_row_with_its_bytes_and_its_line(t, build_and_call):
    build, call = build_and_call
    done = kinds(t, build)
    snapshot = done.snapshot()
    [live] = [l for l in done.live() if l.label == call]
    row = snapshot.find(live)
    label = call if build in ("shared", "ptds") else RUNTIME_CALLS[call]
    expect_equal(plain_api(row["api"]), label, f"api of {snapshot.show(row)}\n{snapshot.where()}")
    if build != "stripped":
        snapshot.expect_site(row, call)
        snapshot.expect_function(row, "case_" + call)
    expect(row.get("device") is not None or live.kind in ("pinned", "registered"), f"no device: {snapshot.show(row)}\n{snapshot.where()}")
    expect_equal(snapshot.data["threads"][row["thread"]]["tid"], live.pid, "the main thread's id")


@claim(over=BUILDS)
def freed_memory_is_not_live(t, build):
    done = kinds(t, build)
    done.snapshot().expect_exactly(done.live())


@claim(over=BUILDS)
def a_pool_and_its_stream_are_named(t, build):
    done = kinds(t, build)
    snapshot = done.snapshot()
    [live] = [l for l in done.live() if l.label == "cudaMallocFromPoolAsync"]
    row = snapshot.find(live)
    expect_equal((row["pool"], row["stream"]), (done.fact("pool"), {"handle": done.fact("pool_stream")}), f"pool and stream of {snapshot.show(row)}")
    pools = [r["address"] for r in snapshot.of_kind("pool")]
    expect_equal(pools, [done.fact("pool")], f"pools that still exist\n{snapshot.where()}")


@claim(over=BUILDS)
def the_default_stream_differs_from_the_per_thread_one(t, build):
    done = kinds(t, build)
    snapshot = done.snapshot()
    [live] = [l for l in done.live() if l.label == "cudaMallocAsync"]
    expect_equal(snapshot.find(live)["stream"], "per_thread_default" if build == "ptds" else "legacy_default", "stream of cudaMallocAsync(…, 0)")


@claim
def a_stripped_program_keeps_the_addresses_of_its_stacks(t):
    def stacks(build):
        done = kinds(t, build)
        snapshot = done.snapshot()
        return {l.label: [a for m, a in snapshot.addresses(snapshot.find(l)) if m.startswith("rt-")] for l in done.live()}

    whole, stripped = stacks("static"), stacks("stripped")
    expect(all(whole.values()), f"no frames of the program itself: {whole}")
    expect_equal(stripped, whole, "addresses inside the program, stripped and whole")


@claim
def the_device_is_named_as_nvidia_smi_names_it(t):
    snapshot = kinds(t, "static").snapshot()
    if not shutil.which("nvidia-smi"):
        raise Missing("nvidia-smi")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    device = snapshot.data["devices"][0]
    expect(device["uuid"].startswith(("GPU-", "MIG-")) and device["uuid"] in listed, f"{device} is not among\n{tail(listed)}")
    expect(device["name"] and device["name"] in listed, f"{device} is not among\n{tail(listed)}")


@claim(over=DRIVER_CALLS)
def a_driver_program_leak_is_one_row_with_its_bytes_and_its_line(t, call):
    done = t.run(t.program("drv"), "kinds").must(0)
    snapshot = done.snapshot()
    [live] = [l for l in done.live() if l.label == call]
    row = snapshot.find(live)
    expect_equal(plain_api(row["api"]), call, f"api of {snapshot.show(row)}")
    snapshot.expect_site(row, call)


@claim
def what_a_driver_program_frees_is_not_live(t):
    done = t.run(t.program("drv"), "kinds").must(0)
    done.snapshot().expect_exactly(done.live())


@claim(over=["shared", "static"])
def a_program_that_frees_everything_is_clean(t, build):
    done = t.run(t.program("rt-" + build), "clean").must(0)
    done.snapshot().expect_exactly([])
    code, out, err = t.cli("check", done.recording(), "--allow", 0)
    expect_equal(code, 0, f"exit code of culeak check\n{tail(out + err)}")


# ---- names and lines ----


@claim(over=["shared", "static", "rdynamic"])
def cuda_malloc_leak_is_named_by_file_and_line_in_the_report(t, build):
    done = t.run(t.program("rt-" + build), "cudaMalloc").must(0)
    code, out, err = t.cli("report", done.recording())
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    file, line = site("cudaMalloc")
    expect(re.search(rf"{re.escape(file)}:{line}\b", out), f"{file}:{line} is not in the report:\n{tail(out, 40)}")
    expect("case_cudaMalloc" in out, f"case_cudaMalloc is not in the report:\n{tail(out, 40)}")


@claim
def a_stripped_program_is_reported_by_module_and_offset(t):
    done = t.run(t.program("rt-stripped"), "cudaMalloc").must(0)
    code, out, err = t.cli("report", done.recording())
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    expect(re.search(r"rt-stripped\s*\+\s*0x[0-9a-f]+", out), f"no rt-stripped+0x… in the report:\n{tail(out, 40)}")


@claim
def run_ends_with_the_report(t):
    folder = t.folder("run-with-report")
    code, out, err = t.cli("run", "-o", folder / "rec", "--", t.program("rt-static"), "cudaMalloc")
    file, line = site("cudaMalloc")
    expect_equal(code, 0, f"exit code of culeak run\n{tail(out + err)}")
    expect(re.search(rf"{re.escape(file)}:{line}\b", out + err), f"{file}:{line} is not in what culeak run printed:\n{tail(out + err, 40)}")


@claim
def templates_are_demangled_and_inlined_callers_are_named(t):
    done = t.run(t.program("rt-static"), "inlined").must(0)
    snapshot = done.snapshot()
    row = snapshot.find(done.live()[0])
    snapshot.expect_site(row, "template")
    snapshot.expect_site(row, "inlined_caller")
    snapshot.expect_function(row, "buffer<float>")
    snapshot.expect_function(row, "inlined_helper")


@claim
def allocations_during_exception_unwinding_name_their_lines(t):
    done = t.run(t.program("rt-static"), "exceptions").must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    labels = [l.label for l in done.live()]
    expect_equal((labels.count("unwinding"), labels.count("handler")), (1, 6), "allocations that the program printed")
    for live in done.live():
        row = snapshot.find(live)
        snapshot.expect_site(row, live.label)
        snapshot.expect_function(row, "case_exceptions")


@claim
def a_stack_deeper_than_the_limit_is_cut_at_its_outer_end_and_marked_as_truncated(t):
    done = t.run(t.program("rt-static"), "deep_stack").must(0)
    snapshot = done.snapshot()
    row = snapshot.find(done.live()[0])
    stack = snapshot.data["stacks"][row["stack"]]
    expect_equal((stack["truncated"], len(stack["frames"])), (True, snapshot.data["process"]["depth"]), f"truncated, and number of frames\n{snapshot.where()}")
    snapshot.expect_site(row, "deep")


@claim
def streams_are_named_by_handle(t):
    done = t.run(t.program("rt-static"), "streams").must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    expected = {"legacy": "legacy_default", "per_thread": "per_thread_default"} | {f"stream_{i}": {"handle": done.fact(f"stream_{i}")} for i in range(3)}
    expect_equal({l.label: snapshot.find(l)["stream"] for l in done.live()}, expected, f"streams\n{snapshot.where()}")


@claim
def the_pool_made_current_for_a_device_is_named(t):
    done = t.run(t.program("rt-static"), "current_pool").must(0)
    snapshot = done.snapshot()
    expect_equal(snapshot.find(done.live()[0])["pool"], done.fact("pool"), f"pool\n{snapshot.where()}")


# ---- threads ----


@claim(over=["shared", "static"])
def sixteen_threads_lose_no_record(t, build):
    done = t.run(t.program("rt-" + build), "threads").must(0)
    snapshot = done.snapshot()
    expect_equal(len(done.live()), 80, "blocks that the program printed")
    snapshot.expect_exactly(done.live())
    names = {}
    for live in done.live():
        row = snapshot.find(live)
        snapshot.expect_site(row, "threads")
        names.setdefault(snapshot.data["threads"][row["thread"]]["name"], set()).add(live.bytes)
    expect_equal(names, {f"worker-{i:02}": {4096 + 512 * i} for i in range(16)}, "sizes by thread name")
    total = {k: sum(c[k] for c in snapshot.data["counters"]) for k in ("total_count", "freed_count")}
    expect_equal(total, {"total_count": 16 * 405, "freed_count": 16 * 400}, f"allocations and frees counted\n{snapshot.where()}")


@claim
def memory_freed_on_another_thread_is_not_a_leak(t):
    done = t.run(t.program("rt-static"), "freed_elsewhere").must(0)
    done.snapshot().expect_exactly([])


# ---- ends ----

ENDS = {"sigkill": (-9, 137), "underscore_exit": (5,), "aborts": (-6, 134), "quick_exits": (6,), "segfault": (-11, 139)}


@claim(over=[(end, how) for end in ENDS for how in ("run", "preload")])
def a_process_that_ends_abruptly_loses_no_record(t, end_and_how):
    end, how = end_and_how
    done = t.run(t.program("rt-static"), end, how=how).must(*ENDS[end])
    expect_equal(len(done.live()), 500, "blocks that the program printed")
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    for live in done.live()[::100]:
        snapshot.expect_site(snapshot.find(live), "many")


@claim(over=["shared", "static"])
def static_destructors_may_free_after_cuda_is_gone(t, build):
    done = t.run(t.program("rt-" + build), "static_destructor").must(0)
    snapshot, address, result = done.snapshot(), done.fact("late_address"), done.fact("late_free")
    expect(result in (0, 4), f"cudaFree gave {result:#x} in a static destructor\n{done.story()}")
    live = [row for row in snapshot.memory() if row["address"] == address]
    if result == 0 or build == "shared":
        expect(not live, f"cudaFree gave {result} and the row is still live: {snapshot.show(live[0]) if live else ''}\n{snapshot.where()}")
    # With static cudart, error 4 comes from cudart itself and the driver is not called: the row may stay.


@claim
def exit_code_and_output_are_unchanged(t):
    command = [t.program("rt-static"), "clean", "7"]
    bare, run = t.run(*command, how="bare"), t.run(*command)
    expect_equal((run.code, run.out), (bare.code, bare.out), f"exit code and stdout\n{run.story()}")
    expect_equal(run.code, 7, "exit code")


# ---- fork, exec, plugins ----


@claim(over=["shared", "static"])
def a_child_forked_before_cuda_has_its_own_recording(t, build):
    done = t.run(t.program("rt-" + build), "fork_before").must(0)
    for who in ("parent", "child"):
        pid = done.pid_of(who)
        snapshot = done.snapshot(pid)
        snapshot.expect_exactly(done.live(pid))
        snapshot.expect_site(snapshot.find(done.live(pid)[0]), who)


@claim(over=["shared", "static"])
def a_child_forked_after_cuda_fails_as_without_culeak_and_leaks_nothing(t, build):
    done = t.run(t.program("rt-" + build), "fork_after").must(0)
    bare = t.run(t.program("rt-" + build), "fork_after", how="bare").must(0)
    for name in ("child_malloc", "child_free", "child_status"):
        expect_equal(done.fact(name), bare.fact(name), f"{name} with and without culeak\n{done.story()}")
    snapshot = done.snapshot(done.pid_of("after_fork"))
    snapshot.expect_exactly(done.live())
    for label in ("before_fork", "after_fork"):
        snapshot.expect_site(snapshot.find(next(l for l in done.live() if l.label == label)), label)
    child = done.fact("child_pid")
    for recording in done.recordings():
        if re.search(rf"\.{child}\.", recording.name):
            done.snapshot_of(recording).expect_exactly([])


@claim
def exec_starts_a_new_recording(t):
    done = t.run(t.program("rt-static"), "execs").must(0)
    wanted, problems = done.live(), []
    for recording in done.recordings():
        try:
            return done.snapshot_of(recording).expect_exactly(wanted)
        except Failure as failure:
            problems.append(str(failure))
    raise Failure(f"none of {[r.name for r in done.recordings()]} holds exactly what the new program leaked:\n" + "\n".join(problems))


@claim
def stacks_of_an_unloaded_plugin_still_name_its_functions(t):
    plugins = [t.program("plugin_one.so"), t.program("plugin_two.so")]
    done = t.run(t.program("plugin_host"), *plugins).must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    for live in done.live():
        row = snapshot.find(live)
        snapshot.expect_function(row, {1111: "plugin_one", 2222: "plugin_two"}[live.bytes])
        snapshot.expect_site(row, "plugin")
    if done.fact("still_loaded") == 0:
        gone = {os.path.basename(m["path"]) for m in snapshot.data["modules"] if m.get("unloaded_ns") is not None}
        expect({"plugin_one.so", "plugin_two.so"} <= gone, f"modules known to be unloaded: {gone}\n{snapshot.where()}")


# ---- frees that fail, requests that fail ----


@claim(over=["shared", "static"])
def a_double_free_and_a_free_inside_a_block_change_nothing(t, build):
    done = t.run(t.program("rt-" + build), "bad_frees").must(0)
    expect(done.fact("double_free") != 0 and done.fact("middle_free") != 0, f"CUDA accepted a bad free\n{done.story()}")
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    counted = snapshot.losses["unknown_frees"] + snapshot.losses["failed_frees"]
    expect(counted >= 2, f"two bad frees, but unknown_frees + failed_frees = {counted}\n{snapshot.where()}")


@claim(over=["shared", "static"])
def device_memory_passed_to_the_wrong_free_stays_recorded(t, build):
    done = t.run(t.program("rt-" + build), "wrong_free").must(0)
    done.snapshot().expect_exactly(done.live())


def expect_failed_request(snapshot, label):
    rows = snapshot.data["failed"]
    file, line = site(label)
    for row in rows:
        if (file, line) in [(os.path.basename(f or ""), n) for _, f, n, _ in snapshot.frames(row)]:
            expect_equal((row["bytes"], row["count"], row["error"]), (64 << 40, 1, 2), f"bytes, count and error of the failed request\n{snapshot.where()}")
            return
    raise Failure(f"no failed request at {file}:{line} among {[(r['api'], r['bytes'], snapshot.frames(r)[:6]) for r in rows]}\n{snapshot.where()}")


@claim(over=["shared", "static"])
def a_failed_request_for_64_tib_is_recorded_and_is_not_live(t, build):
    done = t.run(t.program("rt-" + build), "request_fails").must(0)
    expect_equal((done.fact("plain"), done.fact("ordered")), (2, 2), f"errors of the two requests\n{done.story()}")
    snapshot = done.snapshot()
    snapshot.expect_exactly([])
    expect_failed_request(snapshot, "request_fails")
    expect_failed_request(snapshot, "request_fails_async")
    expect_equal(sum(c["failed_count"] for c in snapshot.data["counters"]), 2, f"failed_count\n{snapshot.where()}")


@claim
def a_failed_driver_request_is_recorded_and_is_not_live(t):
    done = t.run(t.program("drv"), "request_fails").must(0)
    expect_equal(done.fact("plain"), 2, "error of the request")
    done.snapshot().expect_exactly([])
    expect_failed_request(done.snapshot(), "drv_request_fails")


# ---- contexts and reset ----


@claim(over=["shared", "static"])
def device_reset_frees_all_but_pool_memory(t, build):
    done = t.run(t.program("rt-" + build), "reset").must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    expect(snapshot.losses["implicit_frees"] >= 4, f"implicit_frees = {snapshot.losses['implicit_frees']}, expected 4 at least\n{snapshot.where()}")


@claim
def destroying_one_of_two_contexts_frees_its_memory_alone(t):
    done = t.run(t.program("drv"), "two_contexts").must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    contexts = {c["handle"]: c for c in snapshot.data["contexts"]}
    expect((contexts.get(done.fact("first")) or {}).get("destroyed_ns") is not None, f"the first context is not shown as destroyed: {contexts}\n{snapshot.where()}")
    row = snapshot.find(next(l for l in done.live() if l.label == "second_context"))
    expect_equal(snapshot.data["contexts"][row["context"]]["handle"], done.fact("second"), "context of the second one's memory")


@claim
def the_last_release_of_the_primary_context_frees_its_memory(t):
    t.run(t.program("drv"), "primary_release").must(0).snapshot().expect_exactly([])


@claim
def a_runtime_allocation_in_another_context_is_freed_with_it(t):
    done = t.run(t.program("mixed"), "foreign_context").must(0)
    done.snapshot().expect_exactly(done.live())


@claim
def memory_may_be_freed_by_the_other_api(t):
    t.run(t.program("mixed"), "mixed_frees").must(0).snapshot().expect_exactly([])


@claim(over=["entry_point", "proc_address"])
def driver_functions_looked_up_by_name_are_recorded(t, case):
    done = t.run(t.program("mixed"), case).must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    snapshot.expect_site(snapshot.find(done.live()[0]), case)


# ---- virtual memory management ----


@claim(over=["vmm_handle", "vmm_mapped_twice"])
def vmm_memory_is_counted_once_however_often_it_is_mapped(t, case):
    done = t.run(t.program("drv"), case).must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    for live in done.live():
        row = snapshot.find(live)
        snapshot.expect_site(row, "vmm")
        expect_equal(row.get("references", 0), 1, f"references of {snapshot.show(row)}")
    mappings = sorted(snapshot.find(l).get("mappings", 0) for l in done.live())
    expect_equal(mappings, {"vmm_handle": [0], "vmm_mapped_twice": [1, 2]}[case], f"mappings\n{snapshot.where()}")


@claim
def vmm_memory_is_freed_by_unmap_and_release_in_either_order_and_a_range_holds_0_bytes(t):
    done = t.run(t.program("drv"), "vmm_clean").must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly([])
    ranges = [(r["address"], r["bytes"], r["requested"]) for r in snapshot.of_kind("reserved")]
    expect_equal(ranges, [(done.fact("range"), 0, done.fact("range_bytes"))], f"reserved ranges\n{snapshot.where()}")


@claim(over=["vmm_released_while_mapped", "vmm_retained", "vmm_released_twice"])
def vmm_memory_is_live_while_its_handle_or_a_mapping_exists(t, case):
    done = t.run(t.program("drv"), case).must(0)
    snapshot = done.snapshot()
    rows = snapshot.of_kind("physical")
    got = (len(rows), sum(r["bytes"] for r in rows))
    expect_equal(got, (done.fact("physical_count"), done.fact("physical_bytes")), f"rows and bytes of physical memory\n{snapshot.where()}")
    expect_equal(snapshot.bytes_of("physical"), sum(r["bytes"] for r in snapshot.memory()), "no other memory")
    twice = case == "vmm_released_twice"
    expect_equal(snapshot.losses.get("failed_releases", 0), int(twice), f"failed releases\n{snapshot.where()}")
    if twice:
        expect_equal(done.fact("second"), 1, "answer to the second release")
    snapshot.expect_sane()


@claim
def one_unmap_of_several_mappings_frees_them_all(t):
    t.run(t.program("drv"), "vmm_unmap_many").must(0).snapshot().expect_exactly([])


# ---- graphs ----


@claim
def a_graph_never_launched_holds_nothing(t):
    snapshot = t.run(t.program("graphs"), "never_launched").must(0).snapshot()
    snapshot.expect_exactly([])
    expect_equal(snapshot.losses["captured_not_launched"], 1, f"losses.captured_not_launched\n{snapshot.where()}")


@claim(over=["launched", "auto_free", "freed_by_node", "outlives_graph", "explicit_nodes", "beside_capture"])
def graph_memory_is_live_from_launch_to_free(t, case):
    done = t.run(t.program("graphs"), case).must(0)
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    for live in done.live():
        snapshot.expect_function(snapshot.find(live), "case_" + case)


# ---- sharing between processes ----


def producer_and_consumer(t, case):
    """Runs both; the producer's memory counts for the producer. Returns the consumer's snapshot."""
    done = t.run(t.program("share"), case).must(0)
    producer = done.snapshot(done.pid_of("consumer"))
    producer.expect_exactly(done.live())
    return done, done.snapshot(done.fact("consumer"))


@claim
def an_ipc_handle_opened_twice_is_one_row_of_0_bytes(t):
    done, consumer = producer_and_consumer(t, "ipc")
    consumer.expect_exactly([])
    rows = [(r["address"], r["bytes"], r.get("references", 0)) for r in consumer.of_kind("ipc")]
    expect_equal(rows, [(done.fact("opened"), 0, 2)], f"opened IPC handles: address, bytes, references\n{consumer.where()}")


@claim
def shared_memory_has_its_owner_and_its_user_in_the_report_of_both(t):
    done, _ = producer_and_consumer(t, "ipc")
    code, out, err = t.cli("report", done.folder / "rec", "--json")
    expect_equal(code, 0, f"exit code of culeak report\n{tail(err)}")
    rows = [(row["bytes"], row["blocks"], row["owner"] and row["owner"]["pid"], [user["pid"] for user in row["users"]]) for row in json.loads(out)["shared"]]
    [block] = done.live()
    expect_equal(rows, [(block.bytes, 1, done.pid_of("consumer"), [done.fact("consumer")])], "shared memory: bytes, blocks, owner, users")


@claim
def an_ipc_handle_closed_as_often_as_opened_has_no_row(t):
    _, consumer = producer_and_consumer(t, "ipc_closed")
    consumer.expect_exactly([])
    expect_equal(consumer.of_kind("ipc"), [], f"opened IPC handles\n{consumer.where()}")


@claim
def a_vmm_handle_imported_by_file_descriptor_holds_0_bytes(t):
    done, consumer = producer_and_consumer(t, "vmm_fd")
    consumer.expect_exactly([])
    expect_equal([r["bytes"] for r in consumer.of_kind("imported")], [0], f"imported handles\n{consumer.where()}")
    expect_equal([(r["address"], r["bytes"]) for r in consumer.of_kind("mapping")], [(done.fact("mapped"), 0)], f"mappings\n{consumer.where()}")


@claim
def a_vmm_handle_imported_where_it_was_exported_is_counted_once(t):
    done = t.run(t.program("share"), "vmm_fd_within").must(0)
    snapshot = done.snapshot()
    expect_equal(sum(r["bytes"] for r in snapshot.memory()), done.fact("physical_bytes"), f"bytes live\n{snapshot.where()}")
    snapshot.expect_sane()


@claim
def a_vmm_handle_exported_imported_and_released_has_no_row(t):
    t.run(t.program("share"), "vmm_fd_within_released").must(0).snapshot().expect_exactly([])


@claim
def a_pointer_imported_from_a_shared_pool_holds_0_bytes(t):
    _, consumer = producer_and_consumer(t, "pool_fd")
    consumer.expect_exactly([])
    expect(consumer.of_kind("pool-import"), f"no pool-import row\n{consumer.where()}")


@claim
def a_pointer_imported_from_a_shared_pool_can_be_freed(t):
    done, consumer = producer_and_consumer(t, "pool_fd_freed")
    consumer.expect_exactly([])
    expect_equal([r["address"] for r in consumer.of_kind("pool-import")], [], f"pool imports\n{consumer.where()}")


# ---- Rust ----


@claim
def a_slice_leaked_by_a_rust_program_on_cudarc_is_found(t):
    command = t.rust_program()
    bare, done = t.run(command, how="bare").must(0), t.run(command).must(0)
    expect_equal(done.results(), bare.results(), "results with and without culeak")
    snapshot = done.snapshot()
    snapshot.expect_exactly(done.live())
    row = snapshot.find(done.live()[0])
    snapshot.expect_site(row, "cudarc")
    snapshot.expect_function(row, "leaks_a_slice")
