//! Claims about what is sent, with the report beside it.

use super::*;
use crate::text::sample::leaky;
use culeak_push::messages::otlp::AnyValue;
use culeak_push::messages::otlp_metrics::{Data, Number};
use culeak_push::messages::otlp_profiles::ExportProfiles;

fn reported(snapshot: &Snapshot) -> [i64; 2] {
    let report = Report::of(snapshot, &report::Options::default());
    let sum = |of: fn(&report::Row) -> u64| report.rows.iter().map(of).sum::<u64>() as i64;
    [sum(|row| row.bytes), sum(|row| row.count)]
}

fn profiles(snapshot: &Snapshot) -> ExportProfiles {
    let bytes = pprof::compact(snapshot, &profile::Options::default()).expect("a profile");
    let profile = pprof::ProfileMessage::decode(bytes.as_slice()).expect("pprof");
    profiles::of(profile, snapshot, "service", &[("team".to_owned(), "a".to_owned())])
}

#[test]
fn sums_of_profiles_are_those_of_the_report() {
    let snapshot = leaky();
    let bytes = pprof::compact(&snapshot, &profile::Options::default()).expect("a profile");
    let plain = pprof::ProfileMessage::decode(bytes.as_slice()).expect("pprof");
    let sum = |nth: usize| plain.sample.iter().map(|sample| sample.value[nth]).sum::<i64>();
    assert_eq!([sum(0), sum(1)], reported(&snapshot));
    assert_eq!(plain.sample_type.len(), 2, "live memory only");
    let message = profiles(&snapshot);
    let scope = &message.resource_profiles[0].scope_profiles[0];
    let sums: Vec<i64> = scope
        .profiles
        .iter()
        .map(|profile| profile.samples.iter().map(|sample| sample.values[0]).sum())
        .collect();
    assert_eq!(sums, reported(&snapshot));
}

#[test]
fn indices_of_a_profile_point_into_its_tables() {
    let message = profiles(&leaky());
    let tables = message.dictionary.expect("tables");
    let below = |index: i32, length: usize| index >= 0 && (index as usize) < length;
    let texts = tables.string_table.len();
    for profile in &message.resource_profiles[0].scope_profiles[0].profiles {
        for sample in &profile.samples {
            assert!(below(sample.stack_index, tables.stack_table.len()));
            assert!(
                sample
                    .attribute_indices
                    .iter()
                    .all(|&index| below(index, tables.attribute_table.len()))
            );
        }
    }
    for stack in &tables.stack_table {
        assert!(
            stack
                .location_indices
                .iter()
                .all(|&index| index > 0 && below(index, tables.location_table.len()))
        );
    }
    for location in &tables.location_table {
        assert!(below(location.mapping_index, tables.mapping_table.len()));
        assert!(
            location
                .lines
                .iter()
                .all(|line| below(line.function_index, tables.function_table.len()))
        );
    }
    assert!(
        tables
            .function_table
            .iter()
            .all(|function| below(function.name_strindex, texts))
    );
    assert!(
        tables
            .attribute_table
            .iter()
            .all(|attribute| below(attribute.key_strindex, texts))
    );
    assert_eq!(
        (tables.string_table[0].as_str(), &tables.stack_table[0]),
        ("", &Default::default())
    );
}

fn points(message: &ResourceMetrics, name: &str) -> Vec<(Vec<(String, String)>, i64)> {
    let metrics = message.scope_metrics[0]
        .metrics
        .iter()
        .filter(|metric| metric.name == name);
    let text = |value: &Option<AnyValue>| format!("{:?}", value.as_ref().and_then(|value| value.value.as_ref()));
    metrics
        .flat_map(|metric| match metric.data.as_ref().expect("data") {
            Data::Gauge(gauge) => &gauge.data_points,
            Data::Sum(sum) => &sum.data_points,
        })
        .map(|point| {
            let labels = point
                .attributes
                .iter()
                .map(|label| (label.key.clone(), text(&label.value)));
            let Some(Number::Int(value)) = point.value else {
                panic!("no number")
            };
            (labels.collect(), value)
        })
        .collect()
}

#[test]
fn metrics_are_those_of_the_report_and_bounded() {
    let snapshot = leaky();
    let report = Report::of(&snapshot, &report::Options::default());
    for top in [0, 1, 1_000] {
        let labels = [
            ("place".to_owned(), "mine".to_owned()),
            ("team".to_owned(), "a".to_owned()),
        ];
        let message = metrics::of(&snapshot, &report, "service", &labels, top);
        let sum = |name| points(&message, name).iter().map(|(_, value)| value).sum::<i64>();
        assert_eq!(sum("culeak_held_bytes"), report.totals.held.total().bytes as i64);
        assert_eq!(sum("culeak_call_site_held_bytes"), reported(&snapshot)[0]);
        assert_eq!(sum("culeak_call_site_held_allocations"), reported(&snapshot)[1]);
        assert_eq!(sum("culeak_frees_total"), report.totals.freed as i64);
        let sites = points(&message, "culeak_call_site_held_bytes");
        assert!(sites.len() <= top.min(report.rows.len()) + 1);
        for metric in &message.scope_metrics[0].metrics {
            let mut seen = std::collections::HashSet::new();
            for (labels, _) in points(&message, &metric.name) {
                let names: std::collections::HashSet<&String> = labels.iter().map(|(name, _)| name).collect();
                assert_eq!(names.len(), labels.len(), "{}: a name twice", metric.name);
                assert!(seen.insert(labels), "{}: two points with equal labels", metric.name);
            }
        }
    }
}

#[test]
fn hostile_names_are_short_and_of_one_line() {
    let mut snapshot = leaky();
    snapshot.process.host = "\n\u{202e}\u{1b}[31m".repeat(1 << 16);
    let labels = Labels::default().of(&Member::of(&snapshot));
    let (_, host) = labels.iter().find(|(name, _)| name == "host").expect("a host");
    assert!(
        host.len() <= LONGEST_VALUE && !host.contains(['\n', '\u{1b}', '\u{202e}']),
        "{host}"
    );
}

#[test]
fn labels_of_the_user_take_precedence() {
    let own = [("host", "a"), ("team", "b"), ("team", "c")];
    let labels = Labels {
        job: Some("7".to_owned()),
        own: own.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        ..Labels::default()
    };
    let mut snapshot = leaky();
    snapshot.process.ranks.insert("RANK".to_owned(), "3".to_owned());
    let found = labels.of(&Member::of(&snapshot));
    let found: Vec<_> = found
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let pid = snapshot.process.pid.to_string();
    assert_eq!(
        found,
        [
            ("host", "a"),
            ("job_id", "7"),
            ("pid", pid.as_str()),
            ("rank", "3"),
            ("team", "c")
        ]
    );
}

/// The end of a script is sent once it has ended; the interpreter's shutdown had freed more by then.
#[test]
fn counters_of_a_process_never_fall() {
    let options = Options {
        to: "http://127.0.0.1:1/".to_owned(),
        protocol: Protocol::OtlpMetrics,
        connection: Connection::default(),
        labels: Labels::default(),
        top: 1,
        queue: None,
        queue_bytes: 1 << 20,
    };
    let mut pusher = Pusher::open(options).expect("nothing is connected");
    let mut snapshot = leaky();
    pusher.add(snapshot.clone()).expect("added");
    for counter in &mut snapshot.counters {
        counter.freed_count /= 2;
        counter.total_count = counter.live_count + counter.freed_count;
    }
    pusher.add(snapshot).expect("added");
    let freed: Vec<i64> = pusher
        .batch
        .iter()
        .map(|message| points(message, "culeak_frees_total")[0].1)
        .collect();
    assert!(freed[0] > 0 && freed[0] == freed[1], "{freed:?}");
}
