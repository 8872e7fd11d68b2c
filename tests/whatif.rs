//! Memory that PyTorch's allocator reserves and does not use: what pins it, and what other settings would have reserved.
//!
//! The stand-in for PyTorch takes segments as the real one does for the requests here, except for the odd one. Claims about the
//! real one are in `gpu/fragmentation.py`.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{Outcome, culeak};
use crate::tensors::{tensors, torch};
use crate::timeline::{LOGGED, json, recording, refused, run};

const MIB: u64 = 1 << 20;
/// Of the behaviour `grows`: 40, 42 … 78 MiB, and a small segment.
const RESERVED: u64 = 1182 * MIB;

/// Runs a behaviour of the stand-in for PyTorch with a timeline, and returns its recording, too.
pub fn logged(behaviour: &str, variables: &[(&str, &str)]) -> (Outcome, PathBuf) {
    let run = tensors(behaviour, &torch(1, &["-DNAMED", "-fno-optimize-sibling-calls"])).env(LOGGED.0, LOGGED.1);
    let outcome = variables
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value))
        .run();
    outcome.expect_success();
    let file = recording(&outcome);
    (outcome, file)
}

fn peak_of(whatif: &Value, label: &str) -> Option<u64> {
    let rows = whatif["devices"][0]["predictions"].as_array()?;
    rows.iter().find(|row| row["label"] == label)?["peak_reserved_bytes"].as_u64()
}

#[test]
fn a_run_that_the_model_reproduces_gets_the_setting_that_reserves_least() {
    let (_outcome, file) = logged("grows", &[]);
    let whatif = json(&["whatif", "--json", "--try", "roundup_power2_divisions:2"], &file);
    let device = &whatif["devices"][0];
    assert_eq!(
        (&device["error_bytes"], &device["no_advice"]),
        (&0.into(), &Value::Null),
        "{device}"
    );
    assert_eq!(device["recorded_peak_bytes"], RESERVED, "{device}");
    assert_eq!(device["allocations"], 21);
    assert_eq!(device["peak_live_bytes"], 78 * MIB);
    assert_eq!(peak_of(&whatif, "as recorded"), Some(RESERVED));
    // The requests are multiples of 2 MiB, so pages of 20 MiB up to 80 MiB, and one of the small pool.
    assert_eq!(peak_of(&whatif, "expandable_segments:True"), Some(82 * MIB));
    // 40 to 48, 50 to 64, and 66 to 78 MiB.
    assert_eq!(
        peak_of(&whatif, "roundup_power2_divisions:2"),
        Some((48 + 64 + 96 + 2) * MIB)
    );
    let best = device["recommended"].as_array().expect("settings").iter();
    let best = best.map(|nth| device["predictions"][nth.as_u64().expect("a row") as usize]["settings"].as_str());
    // And no combination that gains no more than one of its settings.
    let expected = [
        "expandable_segments:True",
        "roundup_power2_divisions:2",
        "roundup_power2_divisions:4",
    ];
    assert_eq!(best.collect::<Option<Vec<_>>>(), Some(expected.to_vec()), "{device}");
    let shown = run(&["whatif"], &file);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{text}");
    assert!(
        text.contains("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        "{text}"
    );
}

#[test]
fn the_cache_given_back_at_a_mark_or_for_a_smaller_device_is_reserved_no_more() {
    let (_outcome, file) = logged("grows", &[]);
    let whatif = json(&["whatif", "--json", "--device-memory", "200MiB"], &file);
    let rows = whatif["devices"][0]["predictions"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["fits_device"] == true), "{rows:#?}");
    let other = whatif["devices"][0]["other_peak_bytes"].as_u64().expect("a number");
    assert!(
        peak_of(&whatif, "as recorded").is_some_and(|peak| peak + other <= 200 * MIB),
        "{rows:#?}"
    );
    let too_small = json(&["whatif", "--json", "--device-memory", "60MiB"], &file);
    assert_eq!(too_small["devices"][0]["predictions"][0]["fits_device"], false);
    let end = |label: &str| {
        let whatif = json(&["whatif", "--json"], &file);
        let rows = whatif["devices"][0]["predictions"].as_array().expect("rows").clone();
        let row = rows.into_iter().find(|row| row["label"] == label).expect("the row");
        row["end_reserved_bytes"].as_u64()
    };
    assert_eq!(end("as recorded"), Some(RESERVED));
    assert_eq!(end("empty_cache() at mark:grown"), Some(2 * MIB));
}

#[test]
fn a_run_that_the_model_does_not_reproduce_gets_no_advice() {
    let (_outcome, file) = logged("odd_segment", &[]);
    let shown = run(&["whatif"], &file);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert_eq!(shown.status.code(), Some(2), "{text}");
    assert!(
        text.contains("no advice: the model does not reproduce this run"),
        "{text}"
    );
    assert!(!text.contains("export "), "{text}");
}

#[test]
fn the_settings_of_the_run_are_recorded_and_one_without_effect_is_named() {
    let (_outcome, file) = logged("grows", &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")]);
    let whatif = json(&["whatif", "--json"], &file);
    let device = &whatif["devices"][0];
    assert_eq!(device["variable"], "PYTORCH_CUDA_ALLOC_CONF");
    assert_eq!(device["ignored"], "expandable_segments:True");
    assert_eq!(device["error_bytes"], 0);
    let shown = String::from_utf8_lossy(&run(&["whatif"], &file).stdout).into_owned();
    assert!(shown.contains("expandable_segments:True had no effect"), "{shown}");
    let said = "expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF had no effect";
    for command in [&["report"][..], &["report", "--view", "segments"]] {
        let text = String::from_utf8_lossy(&run(command, &file).stdout).into_owned();
        assert!(text.contains(said), "{command:?}: {text}");
    }
    let doctor = Command::new(culeak()).args(["doctor", "--job"]).arg(&file).output();
    let text = String::from_utf8_lossy(&doctor.expect("culeak runs").stdout).into_owned();
    assert!(
        text.contains(&format!(
            "{said}: PyTorch took its memory in whole segments, in 1 process"
        )),
        "{text}"
    );
    let (_outcome, file) = logged("grows", &[("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")]);
    let why = json(&["whatif", "--json"], &file)["devices"][0]["no_advice"].clone();
    assert!(why.as_str().is_some_and(|why| why.contains("not modelled")), "{why}");
    // Without what does not fit in the recording, it would be 24 MiB.
    let long = format!("{}max_split_size_mb:240", ",".repeat(108));
    let (_outcome, file) = logged("grows", &[("PYTORCH_CUDA_ALLOC_CONF", &long)]);
    let why = json(&["whatif", "--json"], &file)["devices"][0]["no_advice"].clone();
    assert!(why.as_str().is_some_and(|why| why.contains("too long")), "{why}");
}

#[test]
fn a_request_that_failed_is_tried_under_each_setting() {
    let (_outcome, file) = logged("runs_out", &[]);
    let whatif = json(&["whatif", "--json", "--oom"], &file);
    let device = &whatif["devices"][0];
    assert_eq!(device["failed_bytes"], 1u64 << 50);
    let rows = device["predictions"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["failed_request"] == "fails"), "{rows:#?}");
    let (_outcome, file) = logged("grows", &[]);
    assert!(refused(&["whatif", "--try", "max_split_size_mb:19"], &file).contains("only 20 and more"));
    assert!(refused(&["whatif", "--oom"], &file).contains("no request to PyTorch's allocator failed"));
}

#[test]
fn the_view_of_segments_divides_what_is_reserved() {
    let (_outcome, file) = logged("grows", &[]);
    let segments = json(&["report", "--view", "segments", "--json"], &file);
    let pool = &segments["pools"][0];
    assert_eq!(
        (&pool["reserved_bytes"], &pool["live_bytes"]),
        (&RESERVED.into(), &1024.into()),
        "{pool}"
    );
    assert_eq!(pool["idle"]["bytes"], 1180 * MIB);
    // All but the last one are too small for those that came later.
    let idle = pool["idle_by"].as_array().expect("rows").iter();
    let idle: Vec<(&str, u64)> = idle
        .filter_map(|row| Some((row["why"].as_str()?, row["bytes"].as_u64()?)))
        .collect();
    assert_eq!(idle, [("size", 1102 * MIB), ("cached", 78 * MIB)]);
    let [pin] = &pool["pins"].as_array().expect("pins")[..] else {
        panic!("{pool}")
    };
    assert_eq!(
        (&pin["free_bytes"], &pin["segments"]),
        (&(2 * MIB - 1024).into(), &1.into())
    );
    let [site] = &pin["sites"].as_array().expect("sites")[..] else {
        panic!("{pin}")
    };
    assert!(
        site["label"].as_str().is_some_and(|label| label == "training_step"),
        "{site}"
    );
    // The peak and any other time, from the log.
    let at_mark = json(&["report", "--view", "segments", "--at", "mark:grown", "--json"], &file);
    assert_eq!(at_mark["pools"][0]["live_bytes"], 0);
    let at_peak = json(&["report", "--view", "segments", "--at", "peak", "--json"], &file);
    assert_eq!(at_peak["pools"][0]["reserved_bytes"], RESERVED, "{at_peak}");
    let shown = run(&["report", "--view", "segments"], &file);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(text.contains("1.2 GiB reserved, 1 KiB in live blocks"), "{text}");
    let page = file.with_extension("html");
    let made = run(
        &["report", "--view", "segments", "-o", &page.display().to_string()],
        &file,
    );
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(
        html.starts_with("<!doctype html>") && html.contains("1.2 GiB reserved, 1 KiB in live blocks"),
        "{html}"
    );
}

#[test]
fn settings_that_the_program_makes_are_recorded_whichever_function_its_version_of_pytorch_has() {
    let environment = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    let (outcome, file) = logged("sets", &[environment]);
    outcome.expect_same_output_as_bare();
    let whatif = json(&["whatif", "--json"], &file);
    let device = &whatif["devices"][0];
    assert_eq!(
        device["variable"], "torch.cuda.memory._set_allocator_settings",
        "{device}"
    );
    // A call resets what it does not set, but not expandable segments.
    assert_eq!(
        device["settings"],
        "expandable_segments:False,roundup_power2_divisions:4"
    );
    assert_eq!(
        (&device["ignored"], &device["error_bytes"]),
        (&Value::Null, &0.into()),
        "{device}"
    );
    let shown = run(&["whatif"], &file);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(text.contains("the program changed its settings while it ran"), "{text}");
    let line = "torch.cuda.memory._set_allocator_settings(\"expandable_segments:True\")";
    assert!(text.contains(line) && !text.contains("export "), "{text}");
    let report = String::from_utf8_lossy(&run(&["report"], &file).stdout).into_owned();
    let calls = "setAllocatorSettings max_split_size_mb:64; max_split_size_mb:128,expandable_segments:False; roundup_power2_divisions:4";
    assert!(report.contains(calls), "{report}");
}

#[test]
fn a_segment_that_is_taken_while_a_graph_is_captured_is_of_a_private_pool_at_any_time() {
    let (_outcome, file) = logged("captures", &[]);
    for at in [&[][..], &["--at", "mark:captured"]] {
        let arguments = ["report", "--view", "segments", "--json"];
        let segments = json(&[&arguments[..], at].concat(), &file);
        let idle = segments["pools"][0]["idle_by"].as_array().expect("rows");
        let private = idle.iter().find(|row| row["why"] == "private_pool");
        assert_eq!(private.map(|row| &row["bytes"]), Some(&(60 * MIB).into()), "{segments}");
    }
    let text = String::from_utf8_lossy(&run(&["report", "--view", "segments"], &file).stdout).into_owned();
    assert!(text.contains("60 MiB  idle in 1 segment of private pools"), "{text}");
    assert!(
        text.contains("1 segment of 60 MiB  training_step  tensors.c:"),
        "{text}"
    );
    assert!(text.contains("at most 511 B of the live blocks is rounding"), "{text}");
    // The stand-in's block of 1000 bytes lies in a segment that is no graph's, so nothing is concluded.
    let whatif = json(&["whatif", "--json"], &file);
    let device = &whatif["devices"][0];
    assert_eq!(
        (&device["error_bytes"], &device["no_advice"]),
        (&0.into(), &Value::Null),
        "{device}"
    );
    assert_eq!(device["pools"], 2, "{device}");
}
