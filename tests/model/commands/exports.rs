//! Exports of a recording agree with the model.

use super::*;
use crate::model::compare::only_in;

pub fn csv(process: &Process, _: &Path, _: &[Process]) {
    let recorded = reader::read(Path::new(path(process))).expect("readable");
    let text = text(&["export", path(process), "-f", "csv", "-o", "-"]);
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let column = |name: &str| {
        header
            .iter()
            .position(|other| *other == name)
            .unwrap_or_else(|| panic!("{name}: {header:?}"))
    };
    let names = [
        "kind", "api", "domain", "level", "device", "stream", "pool", "thread", "pid", "stack",
    ];
    let (texts, numbers) = (names.map(column), ["address", "bytes", "requested"].map(column));
    let mut rows = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').map(|field| field.trim_matches('"')).collect();
        let numbers = numbers.map(|at| fields[at].parse::<u64>().expect("a number"));
        let mut texts = texts.map(|at| fields[at].to_owned());
        // Whether it counts; the thread without its name; the victim's functions.
        texts[3] = ["held", "cached"].contains(&&*texts[3]).to_string();
        texts[7] = texts[7].split(' ').next().unwrap_or_default().to_owned();
        let is_site = |frame: &&str| frame.starts_with("through_") || frame.starts_with("site_");
        let frames = texts[9]
            .split(';')
            .filter_map(|frame| frame.split(' ').next())
            .filter(is_site);
        let frames: Vec<&str> = frames.collect();
        texts[9] = [frames.first(), frames.last()]
            .map(|frame| frame.copied().unwrap_or_default())
            .join(" ");
        rows.push((numbers, texts));
    }
    rows.sort();
    let last = process.model.last();
    let held = last.held();
    let pid = recorded.process.pid.to_string();
    let mut modelled = Vec::new();
    for record in last.live.iter().filter(|record| record.kind.place().is_memory()) {
        let device = record.kind.place().counts_against(record.device);
        let stream = record.stream.map(|stream| match stream {
            0 => "default stream".to_owned(),
            2 => "per-thread default stream".to_owned(),
            handle => format!("stream {handle:#x}"),
        });
        let texts = [
            record.kind.name().to_owned(),
            record.api.to_owned(),
            record.domain.clone().unwrap_or_default(),
            held.iter().any(|other| other.is(record)).to_string(),
            device.map_or_else(String::new, |device| format!("GPU {device}")),
            stream.unwrap_or_default(),
            record.pool.map_or_else(String::new, |pool| format!("{pool:#x}")),
            record.thread.to_string(),
            pid.clone(),
            format!("through_{} site_{}", record.site / 4, record.site % 4),
        ];
        modelled.push(([record.address, record.bytes, record.requested], texts));
    }
    modelled.sort();
    assert!(
        rows == modelled,
        "export -f csv: {names:?}\n only recorded: {}\n only in the model: {}",
        only_in(&rows, &modelled),
        only_in(&modelled, &rows)
    );
}

/// The bytes of all stacks of an input.
pub fn folded_sum(input: &str, words: &[&str]) -> u64 {
    let text = text(&[&["export", input, "-f", "folded", "-o", "-"], words].concat());
    let numbers = text
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    numbers.sum()
}

pub fn folded(process: &Process, _: &Path, _: &[Process]) {
    let last = process.model.last();
    let (bytes, count) = sum(last.held());
    // Claims count, as in rows, with 0 bytes.
    let claims = last.live.iter().filter(|record| record.kind.place() == Place::Nowhere);
    for (cost, wanted) in [("bytes", bytes), ("count", count + claims.count() as u64)] {
        let text = text(&["export", path(process), "-f", "folded", "--cost", cost, "-o", "-"]);
        let numbers = text.lines().map(|line| {
            line.rsplit(' ')
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .expect("a number")
        });
        let all: u64 = numbers.sum();
        same!(all, wanted, "export -f folded --cost {cost}");
    }
}

pub fn metrics(process: &Process, _: &Path, _: &[Process]) {
    let text = text(&["export", path(process), "-f", "openmetrics", "-o", "-"]);
    let value = |line: &str| {
        line.rsplit(' ')
            .next()
            .and_then(|number| number.parse::<f64>().ok())
            .expect("a number")
    };
    let lines = text.lines().filter(|line| line.starts_with("culeak_held_bytes{"));
    let held: f64 = lines.map(value).sum();
    same!(held as u64, sum(process.model.last().held()).0, "export -f openmetrics");
}

pub fn speedscope(process: &Process, _: &Path, _: &[Process]) {
    let profile = text(&["export", path(process), "-f", "speedscope", "-o", "-"]);
    let profile: Value = serde_json::from_str(&profile).expect("JSON");
    let bytes = profile["profiles"]
        .as_array()
        .expect("profiles")
        .iter()
        .filter(|profile| {
            profile["name"]
                .as_str()
                .is_some_and(|name| name.ends_with("live bytes"))
        })
        .flat_map(|profile| {
            profile["weights"]
                .as_array()
                .expect("weights")
                .iter()
                .map(number)
                .collect::<Vec<_>>()
        });
    same!(
        bytes.sum::<u64>(),
        sum(process.model.last().held()).0,
        "export -f speedscope"
    );
}
