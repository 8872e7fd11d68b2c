//! Adapters of the Python package (`cli/python/culeak/adapters`): blocks of frameworks' own pools, by the line that leaks one.
//!
//! The frameworks are stand-ins with the same API (`victims/adapters`), since they need a GPU or gigabytes of packages;
//! `gpu/adapters.py` runs the adapters on the real ones.

use std::path::Path;
use std::process::Command;

use culeak::kind::Kind::*;
use culeak::snapshot::{Pages, Snapshot};

use crate::interpreters::interpreters;
use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::outcome::recordings_in;
use crate::support::{Outcome, Profile, culeak, fake_driver, library, program, sources};

/// One block of each of these was leaked per request.
const LEAKED: usize = 5;

fn adapted(interpreter: &Path, behaviour: &str) -> Profile {
    let folder = sources().join("victims/adapters");
    let package = sources().join("../cli/python");
    program(interpreter)
        .arg("-B")
        .arg(folder.join("program.py"))
        .arg(behaviour)
        .env("CULEAK_QUIET", "1")
        .env("PYTHONPATH", format!("{}:{}", folder.display(), package.display()))
}

/// With the first interpreter.
fn run(behaviour: &str) -> Outcome {
    adapted(&interpreters()[0].command, behaviour).run()
}

/// Bytes of the blocks of a domain that were live when the script ended.
fn left(snapshot: &Snapshot, domain: &str) -> Vec<u64> {
    let end = snapshot.end.expect("an end").time_ns;
    let still = snapshot.allocations.iter().filter(|a| a.time_ns <= end);
    let all = still.chain(&snapshot.freed_after_end);
    let mut bytes: Vec<u64> = all
        .filter(|a| a.kind == Block && a.domain() == Some(domain))
        .map(|a| {
            let functions = snapshot.functions(a);
            assert!(functions.iter().any(|f| f == "request"), "{functions:?}");
            a.bytes
        })
        .collect();
    bytes.sort_unstable();
    bytes
}

#[track_caller]
fn expect_left(outcome: &Outcome, domain: &str, expected: &[u64]) -> Snapshot {
    outcome.expect_success();
    assert_eq!(outcome.our_lines(), [""; 0], "{}", outcome.everything());
    let snapshot = outcome.symbolized();
    assert_eq!(left(&snapshot, domain), expected, "{}", outcome.everything());
    assert_eq!(
        snapshot.losses.unknown_blocks, 0,
        "a free of a block that was not reported"
    );
    snapshot
}

#[test]
fn a_page_of_vllm_leaked_per_request_is_named() {
    for python in interpreters() {
        let outcome = adapted(&python.command, "vllm").run();
        let snapshot = expect_left(&outcome, "vLLM", &[3000; LEAKED]);
        assert_eq!(snapshot.counted(Block).total_count, 35, "the others were seen too");
    }
}

/// Owner, live and waiting pages, and whether it has ended.
fn owners(snapshot: &Snapshot) -> Vec<(&str, u64, u64, bool)> {
    let owners = snapshot.page_pools[0].owners.iter();
    let row = owners.map(|of| (of.name.as_str(), of.pages.live, of.pages.waiting, of.end_ns.is_some()));
    row.collect()
}

#[test]
fn pages_of_vllm_are_live_cached_waiting_or_free_and_those_of_requests_that_have_ended_are_rows_of_their_own() {
    for python in interpreters() {
        let outcome = adapted(&python.command, "vllm_pages").run();
        outcome.expect_success();
        assert_eq!(outcome.our_lines(), [""; 0], "{}", outcome.everything());
        let snapshot = outcome.symbolized();
        let states = Pages {
            live: 9,
            reclaimable: 16,
            waiting: 4,
            free: 34,
        };
        let pool = snapshot.only_pool("vLLM", 3000, states);
        assert_eq!(pool.owners_begun, 5007);
        let expected = [
            ("running", 4, 0, false),
            ("sharing", 4, 0, false),
            ("sent and waiting", 0, 3, true),
            ("preempted", 1, 0, false),
        ];
        assert_eq!(owners(&snapshot), expected);
        assert_eq!(snapshot.losses.lost_details, 0);
        let text = outcome.report();
        assert!(
            text.contains("pages of vLLM  9 live, 16 only cached, 4 waiting for a transfer, 34 free; 2.9 KiB each\n"),
            "{text}"
        );
        let line = |name: &str| {
            text.lines()
                .find(|line| line.contains(name))
                .expect(name)
                .trim()
                .to_owned()
        };
        assert!(line("of no owner").starts_with("2.9 KiB  1 page "), "{text}");
        assert!(line("sent and waiting").starts_with("8.8 KiB  3 pages"), "{text}");
        let at = |name: &str| text.find(name);
        assert!(
            at("sent and waiting") < at("  running "),
            "ended ones come first\n{text}"
        );
    }
}

#[test]
fn a_page_of_sglang_leaked_per_request_is_named() {
    let mut expected = vec![128; LEAKED];
    expected.extend([16 * 128; LEAKED]);
    for behaviour in ["sglang", "sglang_cuda"] {
        expect_left(&run(behaviour), "SGLang", &expected);
    }
}

#[test]
fn pages_of_sglang_are_live_cached_or_free_and_a_request_that_is_gone_has_ended() {
    let outcome = run("sglang_pages");
    outcome.expect_success();
    assert_eq!(outcome.our_lines(), [""; 0], "{}", outcome.everything());
    let snapshot = outcome.symbolized();
    let states = Pages {
        live: 63,
        reclaimable: 107,
        waiting: 11,
        free: 819,
    };
    snapshot.only_pool("SGLang", 128, states);
    let expected = [
        ("running", 49, 0, false),
        ("lost", 7, 0, true),
        ("lost", 5, 0, false),
        ("twice", 2, 0, false),
        ("sent", 0, 11, false),
    ];
    assert_eq!(owners(&snapshot), expected);
}

#[test]
fn a_block_of_a_pool_of_rmm_leaked_per_request_is_named() {
    expect_left(&run("rmm"), "RMM", &[500; LEAKED]);
}

#[test]
#[ignore = "needs g++"]
fn the_adaptor_for_rmm_in_cpp_names_the_line_that_leaks() {
    let include = format!("-I{}", sources().join("victims/adapters/include").display());
    let victim = executable("rmm_pool", &["-std=c++17", &include], &[fake_driver()]);
    let outcome = program(victim).arg("requests").run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.symbolized();
    snapshot.expect_live(Block, LEAKED, LEAKED as u64 * 500);
    assert_eq!(snapshot.counted(Block).total_count, 3 * LEAKED as u64);
    assert_eq!(snapshot.losses.unknown_blocks, 0);
    for block in snapshot.of_kind(Block) {
        assert_eq!(block.domain(), Some("my pool"));
    }
    let text = outcome.report();
    let site = "  2.4 KiB  in 5 blocks  request  rmm_pool.cpp:";
    assert!(text.contains(site), "the header's own function is not the site\n{text}");
}

#[test]
fn a_block_of_a_pool_of_cupy_leaked_per_request_is_named() {
    for python in interpreters() {
        let outcome = adapted(&python.command, "cupy").run();
        let mut expected = vec![500; LEAKED];
        expected.push(501);
        let snapshot = expect_left(&outcome, "CuPy", &expected);
        // Blocks without a pool are allocations of CUDA, and not reported twice.
        let mut device: Vec<u64> = snapshot.of_kind(Device).iter().map(|a| a.bytes).collect();
        device.extend(
            snapshot
                .freed_after_end
                .iter()
                .filter(|a| a.kind == Device)
                .map(|a| a.bytes),
        );
        device.sort_unstable();
        assert_eq!(device, [12345, 23456, 1 << 20]);
    }
}

#[test]
fn a_value_of_onnx_runtime_leaked_per_request_is_named() {
    expect_left(&run("onnxruntime"), "ONNX Runtime", &[500; LEAKED]);
}

#[test]
fn a_block_of_a_pluggable_allocator_leaked_per_request_is_named() {
    let allocator = library("pluggable", "libpluggable.so", &[], &[fake_driver()]);
    let name = allocator.file_name().expect("a name").to_string_lossy().into_owned();
    let profile = adapted(&interpreters()[0].command, "torch").env("PLUGGABLE", &allocator);
    let snapshot = expect_left(&profile.run(), &name, &[500; LEAKED]);
    let phases: Vec<&str> = snapshot.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(phases, ["MemPool 0.1"]);
}

fn with_tensorflow(flags: &[&str]) -> Profile {
    let stand_in = library("tensorflow", "libtensorflow_framework.so.2", flags, &[fake_driver()]);
    adapted(&interpreters()[0].command, "tensorflow")
        .env("TENSORFLOW", stand_in)
        .env("CULEAK_FAKE_DEVICES", "2")
}

#[test]
#[ignore = "needs g++"]
fn a_tensor_of_tensorflow_leaked_per_request_is_named_with_both_its_sizes() {
    let snapshot = expect_left(&with_tensorflow(&[]).run(), "TensorFlow", &[1024; 2 * LEAKED]);
    // The interpreter's shutdown gives them back.
    let blocks: Vec<_> = snapshot
        .freed_after_end
        .iter()
        .filter(|row| row.kind == Block)
        .collect();
    assert!(blocks.iter().all(|block| block.requested == 1000), "{blocks:?}");
    // Each belongs to the device of its allocator, whichever is current. Those in page-locked memory are left out.
    for device in [Some(0), Some(1)] {
        let count = blocks.iter().filter(|block| block.device == device).count();
        assert_eq!(count, LEAKED, "on device {device:?}: {blocks:?}");
    }
    let total = snapshot.counted(Block).total_count;
    assert_eq!(total, 2 * 4 * LEAKED as u64, "the others were seen too");
}

#[test]
#[ignore = "needs g++"]
fn without_its_adapter_the_use_of_a_pool_is_unknown_and_prevents_a_verdict() {
    let outcome = with_tensorflow(&[]).env("CULEAK_ADAPTERS", "0").run();
    outcome.expect_success();
    let recordings = recordings_in(&outcome.out());
    let culeak = |arguments: &[&str]| {
        let output = Command::new(culeak()).args(arguments).args(&recordings).output();
        let output = output.expect("the command runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let unknown = "3 MiB in TensorFlow's pool when the script ended: which part was in use is unknown; record with \
                   CULEAK_ADAPTERS=tensorflow";
    let (code, report) = culeak(&["report"]);
    assert!(code == Some(0) && report.contains(unknown), "{report}");
    assert!(!report.contains("nothing held"), "{report}");
    assert!(
        report.contains("\nnext: CULEAK_ADAPTERS=tensorflow culeak run -- "),
        "{report}"
    );
    for limits in [&[][..], &["--allow", "2MiB"], &["--at", "end"]] {
        let (code, text) = culeak(&[&["check"], limits].concat());
        let pool = "cannot be judged: 3 MiB in TensorFlow's pool";
        assert!(code == Some(2) && text.contains(pool), "{limits:?}: {text}");
    }
    for accepted in [&["--allow-losses"][..], &["--allow", "3MiB"]] {
        let (code, text) = culeak(&[&["check"], accepted].concat());
        assert_eq!(code, Some(0), "{accepted:?}: {text}");
    }
    let whole = culeak(&["check", "--judge-pools", "--allow", "1MiB", "--at", "end"]);
    assert_eq!(whole.0, Some(1), "{}", whole.1);
}

#[test]
#[ignore = "needs g++"]
fn an_allocator_of_tensorflow_with_other_names_is_left_alone() {
    let outcome = with_tensorflow(&["-DOTHER_NAMES"]).run();
    outcome.expect_success();
    let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("adapter")).collect();
    let expected = "culeak: the adapter for tensorflow does not fit tensorflow 2.21.0 and stays off: LookupError: \
                    libtensorflow_framework.so.2 does not export tsl::BFCAllocator::AllocateRaw";
    assert_eq!(lines, [expected], "{}", outcome.everything());
}

#[test]
fn the_environment_switches_adapters_on_too() {
    for value in ["1", "cupy,vllm"] {
        let profile = adapted(&interpreters()[0].command, "vllm");
        expect_left(&profile.env("CULEAK_ADAPTERS", value).run(), "vLLM", &[3000; LEAKED]);
    }
    for value in ["0", "cupy"] {
        let profile = adapted(&interpreters()[0].command, "vllm");
        let outcome = profile.env("CULEAK_ADAPTERS", value).run();
        outcome.expect_success();
        for snapshot in &outcome.snapshots {
            snapshot.expect_live(Block, 0, 0);
        }
    }
}

#[test]
fn without_culeak_the_adapters_replace_nothing() {
    let outcome = adapted(&interpreters()[0].command, "vllm").arg("count").bare().run();
    outcome.expect_success();
    let replaced = outcome.stdout.split(' ').next();
    assert_eq!(replaced, Some("0"), "{}", outcome.stdout);
}

#[test]
fn an_adapter_that_fails_says_so_once_and_the_framework_goes_on() {
    let outcome = run("breaks");
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(outcome.stdout, "served 5 0\n");
    let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("adapter")).collect();
    let expected = "culeak: the adapter for vLLM has stopped, and its blocks are not reported: ZeroDivisionError: division by zero";
    assert_eq!(lines, [expected], "{}", outcome.everything());
    for snapshot in &outcome.snapshots {
        snapshot.expect_live(Block, 0, 0);
    }
}

#[test]
fn an_adapter_that_does_not_fit_replaces_nothing() {
    let outcome = run("changed");
    outcome.expect_success().expect_same_output_as_bare();
    let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("adapter")).collect();
    assert_eq!(lines.len(), 1, "{}", outcome.everything());
    assert!(
        lines[0].starts_with("culeak: the part of the adapter for vllm that follows vllm.v1.core.kv_cache_manager does not fit vllm 0.33.0 and stays off: AttributeError"),
        "{}",
        lines[0]
    );
}

#[test]
fn an_unknown_adapter_is_an_error_of_the_call() {
    let outcome = run("unknown");
    outcome.expect_success();
    assert_eq!(
        outcome.stdout,
        "culeak.adapters has no adapter 'vlm'; there are cupy, onnxruntime, rmm, sglang, tensorflow, torch, vllm\n"
    );
}
