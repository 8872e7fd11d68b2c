//! The protobuf messages of Pyroscope and OTLP, written field by field with the numbers of the published definitions.
//!
//! | function | message |
//! |---|---|
//! | [`pyroscope`] | `push.v1.PushRequest`, documented as stable |
//! | [`otlp_metrics`] | `opentelemetry.proto.collector.metrics.v1.ExportMetricsServiceRequest` |
//! | [`otlp_profiles`] | `opentelemetry.proto.collector.profiles.v1development.ExportProfilesServiceRequest`, versions 1.10 and 1.11 |
//!
//! `tests/push` decodes them with the published definitions and compares every field.

use std::collections::{BTreeMap, HashMap};

use culeak::snapshot::Snapshot;
use culeak_metrics::families::{Name, Type};
use culeak_metrics::page::{ProcessSamples, Sample};
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::export::pprof::{self, ProfileMessage};

/// The first part of the type of profiles, and the period type of OTLP profiles.
const PROFILE_NAME: &str = "cuda_memory";

/// The process that a message describes.
pub struct Origin {
    pub service: String,
    pub host: String,
    pub pid: u32,
    pub labels: Vec<(String, String)>,
}

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, field: u32, number: u64) {
        encode_key(field, WireType::Varint, &mut self.0);
        encode_varint(number, &mut self.0);
    }

    fn fixed(&mut self, field: u32, number: u64) {
        encode_key(field, WireType::SixtyFourBit, &mut self.0);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        encode_key(field, WireType::LengthDelimited, &mut self.0);
        encode_varint(bytes.len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn numbers(&mut self, field: u32, numbers: impl IntoIterator<Item = u64>) {
        let mut packed = Vec::new();
        numbers
            .into_iter()
            .for_each(|number| encode_varint(number, &mut packed));
        self.bytes(field, &packed);
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// `KeyValue` with a text.
    fn attribute(&mut self, field: u32, key: &str, value: &str) {
        self.message(field, |attribute| {
            attribute.text(1, key);
            attribute.message(2, |any| any.text(1, value));
        });
    }

    /// `Resource`: attributes of OpenTelemetry's conventions.
    fn resource(&mut self, field: u32, origin: &Origin, labels: &[(String, String)]) {
        self.message(field, |resource| {
            resource.attribute(1, "service.name", &origin.service);
            resource.attribute(1, "service.instance.id", &format!("{}:{}", origin.host, origin.pid));
            resource.attribute(1, "host.name", &origin.host);
            resource.message(1, |attribute| {
                attribute.text(1, "process.pid");
                attribute.message(2, |any| any.number(3, origin.pid.into()));
            });
            labels
                .iter()
                .for_each(|(name, value)| resource.attribute(1, name, value));
        });
    }

    /// `InstrumentationScope`.
    fn scope(&mut self, field: u32) {
        self.message(field, |scope| {
            scope.text(1, "culeak");
            scope.text(2, env!("CARGO_PKG_VERSION"));
        });
    }
}

/// The 16 bytes of a new identifier, version 4 of RFC 9562.
fn new_id() -> [u8; 16] {
    let mut id = fastrand::u128(..).to_be_bytes();
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// One gzipped pprof profile.
pub fn pyroscope(origin: &Origin, profile: &[u8]) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |series| {
        let mut label = |name: &str, value: &str| {
            series.message(1, |pair| {
                pair.text(1, name);
                pair.text(2, value);
            });
        };
        label("__name__", PROFILE_NAME);
        label("service_name", &origin.service);
        let others = origin.labels.iter().filter(|(name, _)| name != "service_name");
        others.for_each(|(name, value)| label(name, value));
        series.message(2, |sample| {
            sample.bytes(1, profile);
            let hex = data_encoding::HEXLOWER.encode(&new_id());
            sample.text(
                2,
                &[&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"),
            );
        });
    });
    request.0
}

pub fn otlp_metrics(origin: &Origin, snapshot: &Snapshot, process: &ProcessSamples) -> Vec<u8> {
    let mut metrics: BTreeMap<Name, Vec<&Sample>> = BTreeMap::new();
    for sample in &process.samples {
        metrics.entry(sample.of).or_default().push(sample);
    }
    let times = [snapshot.process.started_unix_ns, snapshot.taken.at_unix_ns];
    let mut request = Message::default();
    request.message(1, |resource_metrics| {
        resource_metrics.resource(1, origin, &[]);
        resource_metrics.message(2, |scope_metrics| {
            scope_metrics.scope(1);
            for (name, samples) in &metrics {
                scope_metrics.message(2, |metric| write_metric(metric, *name, samples, origin, times));
            }
        });
    });
    request.0
}

fn write_metric(metric: &mut Message, name: Name, samples: &[&Sample], origin: &Origin, [start, at]: [u64; 2]) {
    let family = name.family();
    metric.text(1, &family.name());
    metric.text(2, family.help);
    let unit = match family.unit {
        Some("bytes") => "By",
        Some("seconds") => "s",
        // Without braces, Prometheus' receiver would call it a ratio.
        _ => "{count}",
    };
    metric.text(3, unit);
    let is_counter = family.kind == Type::Counter;
    metric.message(if is_counter { 7 } else { 5 }, |data| {
        for sample in samples {
            let own: Vec<(&str, &String)> = family.labels.iter().copied().zip(&sample.labels).collect();
            data.message(1, |point| {
                // A metric's own attribute replaces a label of the same name, since it distinguishes points.
                let labels = origin
                    .labels
                    .iter()
                    .filter(|(name, _)| own.iter().all(|(own, _)| own != name));
                labels.for_each(|(name, value)| point.attribute(7, name, value));
                let named = own.iter().filter(|(_, value)| !value.is_empty());
                named.for_each(|(name, value)| point.attribute(7, name, value));
                point.fixed(2, start);
                point.fixed(3, at);
                let value = sample.value.0;
                match value.fract() == 0.0 {
                    true => point.fixed(6, (value as i64).cast_unsigned()),
                    false => point.fixed(4, value.to_bits()),
                }
            });
        }
        if is_counter {
            // Cumulative and monotonic.
            data.number(2, 2);
            data.number(3, 1);
        }
    });
}

/// The tables of a `ProfilesDictionary` that pprof lacks. The first element of each is empty and means none.
struct Tables {
    texts: Vec<String>,
    text_index: HashMap<String, u64>,
    /// Key and value.
    attributes: HashMap<(u64, String), u64>,
    stacks: HashMap<Vec<u64>, u64>,
}

impl Tables {
    fn text(&mut self, text: &str) -> u64 {
        let next = self.texts.len() as u64;
        *self.text_index.entry(text.to_owned()).or_insert_with(|| {
            self.texts.push(text.to_owned());
            next
        })
    }

    fn attribute(&mut self, key: &str, value: &str) -> u64 {
        let key = self.text(key);
        let next = self.attributes.len() as u64 + 1;
        *self.attributes.entry((key, value.to_owned())).or_insert(next)
    }

    fn stack(&mut self, locations: &[u64]) -> u64 {
        let next = self.stacks.len() as u64;
        *self.stacks.entry(locations.to_vec()).or_insert(next)
    }
}

/// Elements of a table in the order of their indices.
fn in_order<K>(table: &HashMap<K, u64>) -> Vec<&K> {
    let mut all: Vec<_> = table.iter().collect();
    all.sort_unstable_by_key(|(_, index)| **index);
    all.into_iter().map(|(element, _)| element).collect()
}

/// A profile of bytes and one of allocations with shared tables, made from pprof's. Its ids begin with 1, and 0 means none, as in
/// the tables here.
pub fn otlp_profiles(origin: &Origin, snapshot: &Snapshot, from: &ProfileMessage) -> Vec<u8> {
    let index = |number: i64| u64::try_from(number).unwrap_or_default();
    let text = |number: i64| from.string_table.get(usize::try_from(number).ok()?).map(String::as_str);
    let mut tables = Tables {
        texts: from.string_table.clone(),
        text_index: from.string_table.iter().cloned().zip(0..).collect(),
        attributes: HashMap::new(),
        stacks: HashMap::from([(Vec::new(), 0)]),
    };
    // A sample is identified by its stack and its attributes.
    let mut samples: BTreeMap<(u64, Vec<u64>), [i64; 2]> = BTreeMap::new();
    for sample in &from.sample {
        let labels = sample
            .label
            .iter()
            .filter_map(|label| Some((text(label.key)?, text(label.str)?)));
        let attributes = labels.map(|(key, value)| tables.attribute(key, value)).collect();
        let sums = samples
            .entry((tables.stack(&sample.location_id), attributes))
            .or_default();
        for (sum, value) in sums.iter_mut().zip(&sample.value) {
            *sum = sum.saturating_add(*value);
        }
    }
    let mut dictionary = Message::default();
    dictionary.message(1, |_| {});
    for mapping in &from.mapping {
        let build_id = text(mapping.build_id).filter(|id| !id.is_empty());
        let build_id = build_id.map(|id| tables.attribute("process.executable.build_id.gnu", id));
        dictionary.message(1, |written| {
            written.number(1, mapping.memory_start);
            written.number(2, mapping.memory_limit);
            written.number(3, mapping.file_offset);
            written.number(4, index(mapping.filename));
            written.numbers(5, build_id);
        });
    }
    let types = [
        ("inuse_space", "bytes"),
        ("inuse_objects", "count"),
        (PROFILE_NAME, "bytes"),
    ];
    let types = types.map(|(name, unit)| [tables.text(name), tables.text(unit)]);
    dictionary.message(2, |_| {});
    for location in &from.location {
        dictionary.message(2, |written| {
            written.number(1, location.mapping_id);
            written.number(2, location.address);
            for line in &location.line {
                written.message(3, |written| {
                    written.number(1, line.function_id);
                    written.number(2, index(line.line));
                });
            }
        });
    }
    dictionary.message(3, |_| {});
    for function in &from.function {
        dictionary.message(3, |written| {
            written.number(1, index(function.name));
            written.number(2, index(function.system_name));
            written.number(3, index(function.filename));
        });
    }
    // Links are not used; identifiers have the usual lengths.
    dictionary.message(4, |link| {
        link.bytes(1, &[0; 16]);
        link.bytes(2, &[0; 8]);
    });
    tables.texts.iter().for_each(|text| dictionary.text(5, text));
    dictionary.message(6, |_| {});
    for (key, value) in in_order(&tables.attributes) {
        dictionary.message(6, |attribute| {
            attribute.number(1, *key);
            attribute.message(2, |any| any.text(1, value));
        });
    }
    for stack in in_order(&tables.stacks) {
        dictionary.message(7, |written| written.numbers(1, stack.iter().copied()));
    }
    let value_type = |profile: &mut Message, field: u32, [name, unit]: [u64; 2]| {
        profile.message(field, |value_type| {
            value_type.number(1, name);
            value_type.number(2, unit);
        });
    };
    let mut request = Message::default();
    request.message(1, |resource_profiles| {
        resource_profiles.resource(1, origin, &origin.labels);
        resource_profiles.message(2, |scope_profiles| {
            scope_profiles.scope(1);
            for nth in 0..2 {
                scope_profiles.message(2, |profile| {
                    value_type(profile, 1, types[nth]);
                    for ((stack, attributes), values) in &samples {
                        profile.message(2, |sample| {
                            sample.number(1, *stack);
                            sample.numbers(2, attributes.iter().copied());
                            sample.numbers(4, [values[nth].cast_unsigned()]);
                        });
                    }
                    profile.fixed(3, snapshot.taken.at_unix_ns);
                    value_type(profile, 5, types[2]);
                    profile.number(6, pprof::period(snapshot).cast_unsigned());
                    profile.bytes(7, &new_id());
                });
            }
        });
    });
    request.bytes(2, &dictionary.0);
    request.0
}
