//! speedscope's own format: JSON that <https://speedscope.app>, its offline page and its VS Code extension open.
//!
//! A file holds several profiles, which the viewer lists: live bytes and live allocations of each place (a device, or the
//! host), because memory of different places does not add up; and all allocations since the start, if the input counts
//! them. The innermost frame is the kind in brackets. Of several processes each has profiles of its own, named by rank.

use std::collections::BTreeMap;
use std::io::{self, Write};

use culeak::analysis::profile::{Profile, Sample};
use serde::Serialize;

use super::Input;
use super::folded::Cost;
use crate::escape::Escaped;
use crate::names::{self, Detail, Distinct};

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

#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
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

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    write(input.profiles(), input.detail_of_graph(), out)
}

pub fn write<'a>(
    profiles: impl Iterator<Item = (Option<String>, Profile<'a>)>,
    detail: Detail,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (mut pages, mut names) = (Pages::default(), Vec::new());
    for (process, profile) in profiles {
        pages.add(process.as_deref(), &profile, detail);
        names.push(name_of(&profile));
    }
    let name = match names.as_slice() {
        [one] => one.clone(),
        several => format!("{} processes", several.len()),
    };
    pages.write(&name, out)
}

fn name_of(profile: &Profile) -> String {
    let process = &profile.snapshot.process;
    format!("{} {}", process.pid, Escaped(&process.executable))
}

/// The frames and profiles so far.
#[derive(Default)]
struct Pages {
    /// Those of all processes.
    frames: Distinct<Frame>,
    profiles: Vec<Sampled>,
}

impl Pages {
    fn bare(&mut self, text: String) -> usize {
        self.frames.number(Frame {
            name: text,
            file: None,
            line: None,
        })
    }

    fn add(&mut self, process: Option<&str>, profile: &Profile, detail: Detail) {
        let own: Vec<usize> = profile
            .frames
            .iter()
            .map(|frame| self.frames.number(named(frame, detail)))
            .collect();
        let mut place_of: BTreeMap<String, Vec<(&Sample, Vec<usize>)>> = BTreeMap::new();
        for sample in &profile.samples {
            let path = &profile.paths[sample.path];
            let mut stack = Vec::with_capacity(path.frames.len() + 2);
            if path.frames.is_empty() {
                stack.push(self.bare(names::NO_STACK.to_owned()));
            } else if path.truncated {
                stack.push(self.bare(names::CUT.to_owned()));
            }
            stack.extend(path.frames.iter().map(|&frame| own[frame]));
            stack.push(self.bare(names::kind(profile, sample)));
            place_of.entry(profile.place(sample)).or_default().push((sample, stack));
        }
        let process = process.map_or_else(String::new, |name| format!("{}, ", Escaped(name)));
        for (place, samples) in &place_of {
            let has_made = samples.iter().any(|(sample, _)| sample.made.is_some());
            let costs = [Cost::Bytes, Cost::Count, Cost::MadeBytes, Cost::MadeCount];
            for cost in costs.into_iter().filter(|cost| has_made || !cost.is_made()) {
                let weights: Vec<u64> = samples.iter().map(|(sample, _)| cost.of(sample)).collect();
                self.profiles.push(Sampled {
                    r#type: "sampled",
                    name: match cost.is_made() {
                        false => format!("{process}{place}: live {}", cost.unit()),
                        true => format!("{process}{place}: {}, freed or not", cost.unit()),
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
    }

    fn write(self, name: &str, out: &mut dyn Write) -> io::Result<()> {
        let file = File {
            schema: SCHEMA,
            exporter: format!("culeak {}", env!("CARGO_PKG_VERSION")),
            name: name.to_owned(),
            active_profile_index: 0,
            shared: Shared {
                frames: self.frames.items,
            },
            profiles: self.profiles,
        };
        crate::json::write(&mut *out, &file)?;
        writeln!(out)
    }
}

fn named(frame: &culeak::analysis::site::Frame, detail: Detail) -> Frame {
    let place = frame
        .file
        .or_else(|| (!frame.module.is_empty()).then_some(frame.module));
    Frame {
        name: names::function(frame, detail),
        file: place.map(|place| Escaped(place).to_string()),
        line: frame.line.filter(|_| detail.lines),
    }
}
