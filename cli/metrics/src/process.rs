//! The samples of one process: the figures of its report, so that both agree, and the judgement of its growth.
//!
//! Everything that a recording could make large has a limit: devices, lines of the ledger, call sites.

use std::collections::BTreeMap;

use culeak::analysis::job::member::Member;
use culeak::analysis::ledger::DeviceLedger;
use culeak::analysis::report::{Report, Row, Tally, is_finished};
use culeak::analysis::trend::{POINTS_NEEDED, Site, Trend};
use culeak::snapshot::{Losses, ProcessState, Snapshot};

use crate::choice::Choice;
use crate::families::Name;
use crate::label::{self, OTHER};
use crate::page::{Identity, ProcessSamples, Sample, Value};

/// The most devices of one process that have series.
const DEVICES_MAX: usize = 16;
/// The most lines of a device's ledger that have series.
const OWNERS_MAX: usize = 16;

/// The judgement of a process's growth.
#[derive(Debug, Clone, Default)]
pub struct Growth {
    /// Points in time that it rests on.
    pub points: usize,
    pub trend: Option<Trend>,
}

/// What the series of a process depend on besides its recording.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    pub job_id: &'a str,
    /// Call sites with series of their own.
    pub top: usize,
}

/// The samples of a process. `choice` is that of its earlier samples.
pub fn samples(
    snapshot: &Snapshot,
    report: &Report,
    growth: &Growth,
    shown: Shown,
    choice: &mut Choice,
) -> ProcessSamples {
    let member = Member::of(snapshot);
    let running = !report.finished && snapshot.process.state == ProcessState::Running;
    let mut all = Samples::default();
    all.push(
        Name::ProcessInfo,
        [
            label::value(&member.program.to_string()),
            snapshot.process.state.name().to_owned(),
        ],
        1.0,
    );
    all.push(Name::ProcessUp, [], f64::from(u8::from(running)));
    all.push(Name::ProcessStart, [], seconds(snapshot.process.started_unix_ns));
    let held = &report.totals.held;
    let places = [
        ("blocks", held.blocks),
        ("device", held.device),
        ("managed", held.managed),
        ("host", held.host),
    ];
    for (place, tally) in places {
        all.push(Name::Held, [place.to_owned()], tally.bytes as f64);
        all.push(Name::HeldCount, [place.to_owned()], tally.count as f64);
    }
    let leaked = if is_finished(snapshot) { held.total().bytes } else { 0 };
    all.push(Name::Leaked, [], leaked as f64);
    all.push(Name::Cached, [], report.totals.pool.bytes as f64);
    all.push(Name::Allocations, [], report.totals.allocated as f64);
    all.push(Name::Frees, [], report.totals.freed as f64);
    all.push(Name::Failed, [], report.totals.failed.count as f64);
    all.push(Name::RecorderTime, [], seconds(report.losses.recorder_ns));
    for (loss, number) in losses(report.losses) {
        all.push(Name::Losses, [loss.to_owned()], number as f64);
    }
    for kind in &report.objects.kinds {
        all.push(Name::Objects, [kind.kind.to_owned()], kind.live as f64);
    }
    for device in report.devices.iter().take(DEVICES_MAX) {
        let ordinal = || device.ordinal.to_string();
        let labels = [ordinal(), label::value(device.uuid), label::value(device.name)];
        all.push(Name::DeviceInfo, labels, 1.0);
        all.push(Name::Allocated, [ordinal()], device.live.bytes as f64);
        all.push(Name::Peak, [ordinal()], device.peak_bytes as f64);
    }
    for device in report.ledger.devices.iter().take(DEVICES_MAX) {
        all.ledger(device);
    }
    all.sites(&report.rows, growth, choice, shown.top);
    ProcessSamples {
        identity: Identity([
            label::value(shown.job_id),
            label::value(&member.host),
            member.rank.map_or_else(String::new, |rank| rank.to_string()),
            member.pid.to_string(),
        ]),
        running,
        started_unix_ns: member.started_unix_ns,
        samples: all.0,
        // What an ended process did would be called growth as long as it is shown.
        growth: match snapshot.process.state {
            ProcessState::Running | ProcessState::Unknown => growth_samples(growth, shown.top),
            ProcessState::Exited | ProcessState::Ended => Vec::new(),
        },
    }
}

/// The samples of a process's growth, which change although its recording does not.
pub fn growth_samples(growth: &Growth, top: usize) -> Vec<Sample> {
    let mut samples = Samples::default();
    samples.growth(growth, top);
    samples.0
}

#[derive(Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn push<const N: usize>(&mut self, of: Name, labels: [String; N], value: f64) {
        self.0.push(Sample::new(of, labels, Value(value)));
    }

    /// The lines of the process, largest first, and their rest.
    fn ledger(&mut self, device: &DeviceLedger) {
        let ordinal = || device.ordinal.to_string();
        let mut lines: BTreeMap<(String, String), i128> = BTreeMap::new();
        for line in device.lines.iter().filter(|line| line.what.is_of_process()) {
            let key = (what(&line.what), label::value(line.of.unwrap_or_default()));
            *lines.entry(key).or_default() += line.bytes;
        }
        let mut lines: Vec<_> = lines.into_iter().collect();
        lines.sort_by_key(|(key, bytes)| (std::cmp::Reverse(bytes.unsigned_abs()), key.clone()));
        let rest = lines.split_off(OWNERS_MAX.min(lines.len()));
        if !rest.is_empty() {
            let bytes = rest.iter().map(|(_, bytes)| bytes).sum();
            lines.push(((OTHER.to_owned(), String::new()), bytes));
        }
        for ((what, owner), bytes) in lines {
            self.push(Name::Owned, [ordinal(), what, owner], bytes as f64);
        }
        if let Some(unexplained) = device.unexplained {
            self.push(Name::Unexplained, [ordinal()], unexplained as f64);
        }
    }

    fn growth(&mut self, growth: &Growth, top: usize) {
        self.push(Name::GrowthPoints, [], growth.points as f64);
        let Some(trend) = growth.trend.as_ref().filter(|_| growth.points >= POINTS_NEEDED) else {
            return;
        };
        self.push(Name::GrowingSites, [], trend.classes.growing() as f64);
        for device in trend.devices.iter().take(DEVICES_MAX) {
            let label = || device_label(&device.label);
            self.push(Name::Growth, [label()], per_second(device.pace));
            if let Some(hours) = device.full_after {
                self.push(Name::UntilFull, [label()], hours * 3600.0);
            }
        }
        for (site, pace) in growing(growth, top) {
            self.push(Name::SiteGrowth, [site], per_second(pace));
        }
    }

    fn sites(&mut self, rows: &[Row], growth: &Growth, choice: &mut Choice, top: usize) {
        let mut all: BTreeMap<String, Tally> = BTreeMap::new();
        for row in rows {
            let site = row.site().and_then(|site| site.short_place());
            let sum = all.entry(site_label(&row.label, site.as_deref())).or_default();
            sum.join(row.tally());
        }
        let first: Vec<String> = growing(growth, top).into_keys().collect();
        choice.update(&all, &first, top);
        for (site, sum) in choice.split(&all) {
            self.push(Name::SiteHeld, [site.clone()], sum.bytes as f64);
            self.push(Name::SiteCount, [site], sum.count as f64);
        }
    }
}

/// The pace of growing call sites per hour: the `most` fastest.
fn growing(growth: &Growth, most: usize) -> BTreeMap<String, f64> {
    let rows = growth.trend.iter().flat_map(|trend| &trend.rows);
    let growing = rows.filter(|row| row.class.is_growth() && row.site.object.is_none());
    let mut paces: BTreeMap<String, f64> = BTreeMap::new();
    for row in growing {
        let Site { label, place, .. } = &row.site;
        *paces.entry(site_label(label, place.as_deref())).or_default() += row.bytes.pace;
    }
    let mut fastest: Vec<(String, f64)> = paces.into_iter().collect();
    fastest.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    fastest.truncate(most);
    fastest.into_iter().collect()
}

/// `step train.py:88`.
fn site_label(function: &str, place: Option<&str>) -> String {
    let function = culeak::analysis::function_name::plain(function);
    label::value(&match place {
        Some(place) => format!("{function} {place}"),
        None => function.into_owned(),
    })
}

/// `0` of `GPU 0`.
fn device_label(label: &str) -> String {
    label::value(label.strip_prefix("GPU ").unwrap_or(label))
}

fn per_second(per_hour: f64) -> f64 {
    per_hour / 3600.0
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The name of a ledger line in the report's JSON.
fn what(what: &culeak::analysis::ledger::LineKind) -> String {
    let name = serde_json::to_value(what).ok();
    name.and_then(|name| Some(name.as_str()?.to_owned()))
        .unwrap_or_default()
}

/// Losses by their names in the report's JSON.
pub fn losses(losses: &Losses) -> [(&'static str, u64); 13] {
    [
        ("lost_allocations", losses.lost_allocations),
        ("lost_stacks", losses.lost_stacks),
        ("lost_python", losses.lost_python),
        ("lost_details", losses.lost_details),
        ("unknown_frees", losses.unknown_frees),
        ("vanished", losses.vanished),
        ("unknown_blocks", losses.unknown_blocks),
        ("lost_snapshots", losses.lost_snapshots),
        ("lost_events", losses.lost_events),
        ("lost_phases", losses.lost_phases),
        ("lost_marks", losses.lost_marks),
        ("lost_segments", losses.lost_segments),
        ("unhooked", losses.unhooked.len() as u64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::leaky;
    use culeak::analysis::report::Options;

    const SHOWN: Shown = Shown {
        job_id: "job 7",
        top: 3,
    };

    fn of(snapshot: &Snapshot, growth: &Growth) -> ProcessSamples {
        let report = Report::of(snapshot, &Options::default());
        samples(snapshot, &report, growth, SHOWN, &mut Choice::default())
    }

    fn value(samples: &ProcessSamples, of: Name, labels: &[&str]) -> Option<f64> {
        let found = samples
            .samples
            .iter()
            .chain(&samples.growth)
            .find(|sample| sample.of == of && sample.labels == labels);
        found.map(|sample| sample.value.0)
    }

    fn sum(samples: &ProcessSamples, of: Name) -> f64 {
        let of = samples
            .samples
            .iter()
            .chain(&samples.growth)
            .filter(|sample| sample.of == of);
        of.map(|sample| sample.value.0).sum()
    }

    #[test]
    fn values_are_those_of_the_report() {
        let mut snapshot = leaky();
        snapshot.process.ranks.insert("RANK".to_owned(), "3".to_owned());
        let report = Report::of(&snapshot, &Options::default());
        let samples = of(&snapshot, &Growth::default());
        assert_eq!(
            samples.identity.0[..3],
            ["job 7".to_owned(), snapshot.process.host.clone(), "3".to_owned()]
        );
        assert_eq!(sum(&samples, Name::Held), report.totals.held.total().bytes as f64);
        assert_eq!(
            sum(&samples, Name::SiteHeld),
            report.rows.iter().map(|row| row.bytes as f64).sum::<f64>()
        );
        let sites = samples.samples.iter().filter(|sample| sample.of == Name::SiteHeld);
        assert_eq!(sites.count(), 4, "three call sites and the rest");
        for device in &report.devices {
            let ordinal = device.ordinal.to_string();
            assert_eq!(value(&samples, Name::Peak, &[&ordinal]), Some(device.peak_bytes as f64));
        }
        assert_eq!(
            value(&samples, Name::Losses, &["unknown_frees"]),
            Some(report.losses.unknown_frees as f64)
        );
        assert_eq!(value(&samples, Name::Growth, &["0"]), None, "growth is not judged yet");
    }

    #[test]
    fn a_process_that_has_ended_has_no_series_of_growth() {
        let growth = Growth {
            points: 20,
            trend: None,
        };
        let mut snapshot = leaky();
        snapshot.process.state = ProcessState::Running;
        assert_eq!(value(&of(&snapshot, &growth), Name::GrowthPoints, &[]), Some(20.0));
        for ended in [ProcessState::Exited, ProcessState::Ended] {
            snapshot.process.state = ended;
            assert_eq!(of(&snapshot, &growth).growth, []);
        }
    }

    #[test]
    fn hostile_names_are_bounded() {
        let mut snapshot = leaky();
        snapshot.process.host = "\n\u{202e}".repeat(1 << 20);
        snapshot.process.command_line = vec!["x\"\\\n".repeat(1 << 18); 2];
        snapshot.process.executable = "y".repeat(1 << 20);
        for (nth, location) in snapshot.locations.iter_mut().enumerate() {
            for symbol in &mut location.symbols {
                symbol.function = format!("{}{nth}", "f\n".repeat(1 << 19));
            }
        }
        let samples = of(&snapshot, &Growth::default());
        let labels = samples.samples.iter().flat_map(|sample| &sample.labels);
        for label in labels.chain(&samples.identity.0) {
            assert!(label.len() <= label::VALUE_MAX && !label.contains('\n'), "{label}");
        }
    }
}
