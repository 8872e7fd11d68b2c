//! Relations between answers: what two commands, two forms or two ways of asking must have in common, whatever the program did. They need no
//! model, and so hold for anything that culeak can read.
//!
//! What must not hold, and why: sums by stack of sampled recordings are estimates; claims (mappings, address ranges, pools) count at call
//! sites and in diffs, but not in totals of memory; the median of an even number of values is the upper one, so that of a reversed diff is
//! another; windows add up in what was allocated and freed, not in what they leave.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json as value};

use super::commands::{self, Sum, add, json, number, tally};
use super::{Mode, program, same};
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::script::Script;

mod inputs;
mod sums;
mod times;

/// Recordings of the same process of two runs of a program.
pub struct Runs<'a> {
    pub one: &'a Path,
    pub again: &'a Path,
}

/// Relations of what is recorded.
pub const OF_RECORDINGS: [fn(&Runs); 12] = [
    sums::rows_by_anything_add_up_to_the_same_totals,
    sums::a_filter_and_its_complement_add_up,
    sums::a_filter_and_its_complement_add_up_in_other_commands,
    sums::fewer_rows_are_the_first_of_more,
    sums::each_form_has_the_same_totals,
    sums::a_higher_limit_fails_no_sooner,
    times::a_program_that_runs_twice_does_not_differ,
    times::diffs_add_up,
    times::windows_add_up,
    inputs::a_process_is_the_same_however_it_is_named,
    inputs::what_is_written_reads_as_its_recording,
    inputs::trends_add_up,
];

/// Relations for which a script is recorded in several ways.
pub const OF_SCRIPTS: [fn(&Script); 5] = [
    times::a_snapshot_shows_what_the_log_shows_at_its_time,
    times::a_running_process_is_what_its_snapshot_shows,
    inputs::a_tiny_sample_is_everything,
    inputs::ranks_have_no_order,
    inputs::rows_of_a_job_are_those_of_its_processes,
];

impl Runs<'_> {
    pub fn one(&self) -> &str {
        text(self.one)
    }

    fn points(&self) -> Vec<String> {
        points(self.one())
    }
}

/// The points of a recording: its marks, each name once and in order, and the end.
fn points(recording: &str) -> Vec<String> {
    let report = json(&["report", recording]);
    let mut points: Vec<String> = Vec::new();
    for mark in list(&report["marks"]) {
        let point = format!("mark:{}", mark["name"].as_str().expect("a name"));
        // The last one of a name counts.
        points.retain(|other| *other != point);
        points.push(point);
    }
    points.push("exit".to_owned());
    points
}

/// Runs a script again, with other settings of the recorder, and returns its recordings, as they began.
fn record(script: &Script, mode: Mode, settings: &[(&str, &str)], folder: &Path) -> Vec<PathBuf> {
    let mut program = program(script, mode, folder);
    for (name, value) in settings {
        program = program.env(name, value);
    }
    let ended = program.start_in(folder).finish();
    let started = |path: &PathBuf| json(&["report", text(path)])["process"]["started_unix_ns"].as_u64();
    assert!(ended.status.code().is_none_or(|code| code == 0), "{}", ended.status);
    let mut recordings = recordings_in(&folder.join("out"));
    recordings.sort_by_cached_key(started);
    recordings
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// All rows of a report, also hidden ones.
fn listed(report: &Value) -> Sum {
    let rows = list(&report["rows"]).iter().map(tally);
    add(rows.chain([tally(&report["hidden"])]))
}

/// All rows without claims: what is held, and what pools hold whose blocks were not recorded.
fn memory(report: &Value) -> Sum {
    let (bytes, count) = listed(report);
    let claims = list(&report["rows"]).iter().map(|row| number(&row["claims"]));
    (bytes, count - claims.sum::<u64>())
}

fn claims(report: &Value) -> u64 {
    let claims = report["totals"]["claims"].as_object().expect("claims");
    claims.values().map(number).sum()
}

/// A document without what depends on when and from where it was read.
fn lasting(mut document: Value) -> Value {
    const PASSING: [&str; 5] = ["source", "next", "recording", "at_unix_ns", "taken_unix_ns"];
    match &mut document {
        Value::Object(fields) => {
            // Of jobs, the two inputs of a process.
            let is_input = |name: &str, value: &Value| ["before", "after"].contains(&name) && value.is_string();
            fields.retain(|name, value| !PASSING.contains(&&**name) && !is_input(name, value));
            fields.values_mut().for_each(|value| *value = lasting(value.take()));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = lasting(value.take())),
        _ => {}
    }
    document
}

/// What a report says of memory, without times, addresses and numbers of processes and threads.
fn facts(report: &Value) -> Value {
    let row = |row: &Value| {
        value!([
            row["label"],
            row["bytes"],
            row["count"],
            row["claims"],
            row["pool"],
            row["smallest"],
            row["largest"],
            row["kinds"]
        ])
    };
    let rows = |name: &str| sorted(list(&report[name]).iter().map(row));
    // A log knows devices that were used later, too.
    let devices = list(&report["devices"]).iter();
    let used = devices.filter(|device| number(&device["peak_bytes"]) > 0 || number(&device["live"]["count"]) > 0);
    let device = |device: &Value| value!([device["ordinal"], device["live"], device["peak_bytes"]]);
    let failed = |row: &Value| value!([row["bytes"], row["count"], row["kind"], row["device"], row["error"]]);
    let kind = |kind: &Value| value!([kind["kind"], kind["live"]]);
    value!({
        "rows": rows("rows"),
        "pools": rows("pools"),
        "hidden": report["hidden"],
        "totals": report["totals"],
        "devices": used.map(device).collect::<Vec<_>>(),
        "failed": sorted(list(&report["failed"]).iter().map(failed)),
        "objects": sorted(list(&report["objects"]["kinds"]).iter().map(kind)),
        "marks": list(&report["marks"]).iter().map(|mark| mark["name"].clone()).collect::<Vec<_>>(),
    })
}

fn sorted(values: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut values: Vec<Value> = values.collect();
    values.sort_by_cached_key(Value::to_string);
    values
}

/// Fails with the first place at which two documents differ.
#[track_caller]
fn alike(one: &Value, other: &Value, what: &str) {
    if let Some(place) = difference(one, other, String::new()) {
        panic!("{what}: {place}");
    }
}

fn difference(one: &Value, other: &Value, place: String) -> Option<String> {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => a
            .iter()
            .find_map(|(name, value)| difference(value, &b[name], format!("{place}.{name}"))),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            (a.iter().zip(b).enumerate()).find_map(|(nth, (a, b))| difference(a, b, format!("{place}[{nth}]")))
        }
        _ => (one != other).then(|| format!("{place}: {one}\n    and {other}")),
    }
}
