//! The metrics of a process for OTLP: the figures of its report, with the names and labels of `culeak metrics`.

use std::collections::BTreeMap;

use culeak::analysis::function_name;
use culeak::analysis::job::member::Member;
use culeak::analysis::ledger::DeviceLedger;
use culeak::analysis::report::{Report, Tally};
use culeak::snapshot::Snapshot;
use culeak_metrics::families::{Name, Type};
use culeak_metrics::process::losses;
use culeak_push::messages::otlp::{KeyValue, attribute};
use culeak_push::messages::otlp_metrics::{Counts, Metric, ResourceMetrics, of_resource};

use super::value;

/// The most devices of one process that have metrics.
const MOST_DEVICES: usize = 16;
/// The most lines of a device's ledger that have metrics; the others are one.
const MOST_OWNERS: usize = 16;
/// The value of a label that stands for the rest.
const OTHER: &str = "other";

/// Attributes of the process as a resource: of OpenTelemetry's conventions.
pub fn resource(snapshot: &Snapshot, service: &str) -> Vec<KeyValue> {
    let member = Member::of(snapshot);
    let mut attributes = vec![attribute("service.name", service)];
    let instance = format!("{}:{}", value(&member.host), member.pid);
    attributes.push(attribute("service.instance.id", instance.as_str()));
    attributes.push(attribute("host.name", value(&member.host).as_str()));
    attributes.push(attribute("process.pid", i64::from(member.pid)));
    attributes
}

pub fn of(
    snapshot: &Snapshot,
    report: &Report,
    service: &str,
    labels: &[(String, String)],
    top: usize,
) -> ResourceMetrics {
    let mut metrics = Metrics {
        common: labels
            .iter()
            .map(|(name, value)| attribute(name, value.as_str()))
            .collect(),
        times: [snapshot.process.started_unix_ns, snapshot.taken.at_unix_ns],
        all: Vec::new(),
    };
    metrics.totals(report);
    metrics.devices(report);
    metrics.sites(report, top);
    let kinds = report.objects.kinds.iter();
    metrics.push(
        Name::Objects,
        "{object}",
        kinds.map(|kind| (vec![attribute("kind", kind.kind)], kind.live)),
    );
    metrics.push(
        Name::Losses,
        "1",
        losses(report.losses).map(|(loss, number)| (vec![attribute("loss", loss)], number)),
    );
    of_resource(resource(snapshot, service), metrics.all)
}

struct Metrics {
    common: Vec<KeyValue>,
    times: [u64; 2],
    all: Vec<Metric>,
}

impl Metrics {
    /// Adds a metric, whose name, help and kind are those of `culeak metrics`, with the unit in OpenTelemetry's words.
    fn push(&mut self, of: Name, unit: &str, points: impl IntoIterator<Item = (Vec<KeyValue>, u64)>) {
        let with_common = |(own, number): (Vec<KeyValue>, u64)| {
            // A metric's own attribute replaces a label of the same name, since it distinguishes points.
            let is_own = |other: &KeyValue| own.iter().any(|own| own.key == other.key);
            let mut attributes: Vec<KeyValue> = self.common.iter().filter(|label| !is_own(label)).cloned().collect();
            attributes.extend(own);
            (attributes, number)
        };
        let points: Vec<_> = points.into_iter().map(with_common).collect();
        let family = of.family();
        let counts = match family.kind {
            Type::Gauge => Counts::Now,
            Type::Counter => Counts::SinceStart,
        };
        if !points.is_empty() {
            let metric = Metric::new(&family.name(), family.help, unit, counts, self.times, points);
            self.all.push(metric);
        }
    }

    fn totals(&mut self, report: &Report) {
        let held = &report.totals.held;
        let places = [
            ("blocks", held.blocks),
            ("device", held.device),
            ("managed", held.managed),
            ("host", held.host),
        ];
        let by_place =
            |number: fn(Tally) -> u64| places.map(|(place, tally)| (vec![attribute("place", place)], number(tally)));
        let one = |number: u64| [(Vec::new(), number)];
        self.push(Name::Held, "By", by_place(|tally| tally.bytes));
        self.push(Name::HeldCount, "{allocation}", by_place(|tally| tally.count));
        self.push(Name::Cached, "By", one(report.totals.pool.bytes));
        self.push(
            Name::Leaked,
            "By",
            one(if report.finished { held.total().bytes } else { 0 }),
        );
        self.push(Name::Allocations, "{allocation}", one(report.totals.allocated));
        self.push(Name::Frees, "{allocation}", one(report.totals.freed));
        self.push(Name::Failed, "{request}", one(report.totals.failed.count));
    }

    fn devices(&mut self, report: &Report) {
        let devices = || report.devices.iter().take(MOST_DEVICES);
        let ordinal = |ordinal: i32| vec![attribute("device", ordinal.to_string().as_str())];
        self.push(
            Name::Allocated,
            "By",
            devices().map(|device| (ordinal(device.ordinal), device.live.bytes)),
        );
        self.push(
            Name::Peak,
            "By",
            devices().map(|device| (ordinal(device.ordinal), device.peak_bytes)),
        );
        let ledgers = report.ledger.devices.iter().take(MOST_DEVICES);
        let points: Vec<_> = ledgers.flat_map(owners).collect();
        self.push(Name::Owned, "By", points);
    }

    /// The call sites with most bytes, and the rest as one, so that the sum is that of the report.
    fn sites(&mut self, report: &Report, top: usize) {
        let mut sums: BTreeMap<String, Tally> = BTreeMap::new();
        for row in &report.rows {
            let function = function_name::plain(&row.label);
            let name = match row.site().and_then(|site| site.short_place()) {
                Some(place) => format!("{function} {place}"),
                None => function.into_owned(),
            };
            let name = Some(value(&name)).filter(|name| name != OTHER);
            sums.entry(name.unwrap_or_else(|| format!("{OTHER}~")))
                .or_default()
                .join(row.tally());
        }
        let mut sums: Vec<(String, Tally)> = sums.into_iter().collect();
        sums.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then_with(|| a.0.cmp(&b.0)));
        let rest = sums.split_off(top.min(sums.len()));
        sums.push((OTHER.to_owned(), Tally::total(rest.into_iter().map(|(_, tally)| tally))));
        let points = |number: fn(&Tally) -> u64| {
            let point = |(name, tally): &(String, Tally)| (vec![attribute("site", name.as_str())], number(tally));
            sums.iter().map(point).collect::<Vec<_>>()
        };
        self.push(Name::SiteHeld, "By", points(|tally| tally.bytes));
        self.push(Name::SiteCount, "{allocation}", points(|tally| tally.count));
    }
}

/// The lines of the process in a device's ledger, largest first, and their rest. A line below 0 is left out.
fn owners(device: &DeviceLedger) -> Vec<(Vec<KeyValue>, u64)> {
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for line in device
        .lines
        .iter()
        .filter(|line| line.what.is_of_process() && line.bytes >= 0)
    {
        // The name in the report's JSON.
        let what = serde_json::to_value(line.what).ok();
        let what = what.as_ref().and_then(|what| what.as_str()).unwrap_or(OTHER);
        let key = (what.to_owned(), value(line.of.unwrap_or_default()));
        let sum = sums.entry(key).or_default();
        *sum = sum.saturating_add(u64::try_from(line.bytes).unwrap_or_default());
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest = sums.split_off(MOST_OWNERS.min(sums.len()));
    if !rest.is_empty() {
        let bytes = rest.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        sums.push(((OTHER.to_owned(), String::new()), bytes));
    }
    let point = |((what, owner), bytes): ((String, String), u64)| {
        let mut attributes = vec![
            attribute("device", device.ordinal.to_string().as_str()),
            attribute("what", what.as_str()),
        ];
        if !owner.is_empty() {
            attributes.push(attribute("owner", owner.as_str()));
        }
        (attributes, bytes)
    };
    sums.into_iter().map(point).collect()
}
