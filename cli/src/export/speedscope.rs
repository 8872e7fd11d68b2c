//! speedscope's own format: JSON that <https://speedscope.app>, its offline page and its VS Code extension open.
//!
//! A file holds several profiles, which the viewer lists: live bytes and live allocations of each place (a device, or the
//! host), because memory of different places does not add up; and all allocations since the start, if the input counts
//! them. The innermost frame is the kind in brackets.

use std::collections::BTreeMap;
use std::io::{self, Write};

use culeak::analysis::profile::{Profile, Sample};
use serde::Serialize;

use super::folded::Cost;
use crate::escape::Escaped;
use crate::text::names::{self, Detail};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    active_profile_index: usize,
    shared: Shared,
    profiles: Vec<Sampled>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

pub fn write(profile: &Profile, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let process = &profile.snapshot.process;
    let mut frames: Vec<Frame> = profile.frames.iter().map(|frame| named(frame, detail)).collect();
    let mut extra: BTreeMap<String, usize> = BTreeMap::new();
    let mut place_of: BTreeMap<String, Vec<(&Sample, Vec<usize>)>> = BTreeMap::new();
    for sample in &profile.samples {
        let path = &profile.paths[sample.path];
        let mut add = |text: String| {
            *extra.entry(text).or_insert_with_key(|text| {
                frames.push(Frame {
                    name: text.clone(),
                    file: None,
                    line: None,
                });
                frames.len() - 1
            })
        };
        let mut stack = Vec::with_capacity(path.frames.len() + 2);
        if path.frames.is_empty() {
            stack.push(add(names::NO_STACK.to_owned()));
        } else if path.truncated {
            stack.push(add(names::CUT.to_owned()));
        }
        stack.extend(&path.frames);
        stack.push(add(names::kind(profile, sample)));
        place_of.entry(profile.place(sample)).or_default().push((sample, stack));
    }
    let mut profiles = Vec::new();
    for (place, samples) in &place_of {
        let has_made = samples.iter().any(|(sample, _)| sample.made.is_some());
        let costs = [Cost::Bytes, Cost::Count, Cost::MadeBytes, Cost::MadeCount];
        for cost in costs.into_iter().filter(|cost| has_made || !cost.is_made()) {
            let weights: Vec<u64> = samples.iter().map(|(sample, _)| cost.of(sample)).collect();
            profiles.push(Sampled {
                r#type: "sampled",
                name: match cost.is_made() {
                    false => format!("{place}: live {}", cost.unit()),
                    true => format!("{place}: {}, freed or not", cost.unit()),
                },
                unit: match cost {
                    Cost::Bytes | Cost::MadeBytes => "bytes",
                    Cost::Count | Cost::MadeCount => "none",
                },
                start_value: 0,
                end_value: weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(*weight)),
                samples: samples.iter().map(|(_, stack)| stack.clone()).collect(),
                weights,
            });
        }
    }
    let file = File {
        schema: SCHEMA,
        exporter: format!("culeak {}", env!("CARGO_PKG_VERSION")),
        name: format!("{} {}", process.pid, Escaped(&process.executable)),
        active_profile_index: 0,
        shared: Shared { frames },
        profiles,
    };
    crate::json::write(&mut *out, &file)?;
    writeln!(out)
}

fn named(frame: &culeak::analysis::site::Frame, detail: Detail) -> Frame {
    let place = frame
        .file
        .or_else(|| (!frame.module.is_empty()).then_some(frame.module));
    Frame {
        name: names::function(frame, detail),
        file: place.map(|place| Escaped(place).to_string()),
        line: frame.line,
    }
}
