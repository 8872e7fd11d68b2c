//! A profile for OTLP, made from pprof's: one profile of bytes and one of allocations, with shared tables.

use std::collections::HashMap;

use culeak::snapshot::Snapshot;
use culeak_push::messages::new_id;
use culeak_push::messages::otlp::{Resource, Scope, Value, attribute};
use culeak_push::messages::otlp_profiles::{
    Attribute, Dictionary, ExportProfiles, Function, Line, Link, Location, Mapping, Profile, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};

use super::{PROFILE_NAME, metrics};
use crate::export::pprof::{self, ProfileMessage};

pub fn of(from: ProfileMessage, snapshot: &Snapshot, service: &str, labels: &[(String, String)]) -> ExportProfiles {
    let mut attributes = metrics::resource(snapshot, service);
    attributes.extend(labels.iter().map(|(name, value)| attribute(name, value.as_str())));
    let mut tables = Tables::of(&from);
    let sums = tables.samples(&from);
    let period_type = tables.value_type(PROFILE_NAME, "bytes");
    let types = [("inuse_space", "bytes"), ("inuse_objects", "count")];
    let profiles = types.iter().enumerate().map(|(nth, (name, unit))| Profile {
        sample_type: Some(tables.value_type(name, unit)),
        samples: sums.iter().map(|(sample, values)| sample.with(values[nth])).collect(),
        time_unix_nano: snapshot.taken.at_unix_ns,
        // It shows an instant.
        duration_nano: 0,
        period_type: Some(period_type),
        period: pprof::period(snapshot),
        profile_id: new_id().to_vec(),
    });
    let profiles = profiles.collect();
    ExportProfiles {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource { attributes }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(Scope::culeak()),
                profiles,
            }],
        }],
        dictionary: Some(tables.dictionary),
    }
}

/// What identifies a sample: a stack and attributes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Identity {
    stack: i32,
    attributes: Vec<i32>,
}

impl Identity {
    fn with(&self, value: i64) -> Sample {
        Sample {
            stack_index: self.stack,
            attribute_indices: self.attributes.clone(),
            values: vec![value],
        }
    }
}

struct Tables {
    dictionary: Dictionary,
    texts: HashMap<String, i32>,
    attributes: HashMap<(i32, String), i32>,
    stacks: HashMap<Stack, i32>,
}

/// An index of the tables. pprof's ids begin with 1, and 0 means none, as here.
fn index(id: u64) -> i32 {
    i32::try_from(id).unwrap_or_default()
}

fn text_index(index: i64) -> i32 {
    i32::try_from(index).unwrap_or_default()
}

impl Tables {
    fn of(from: &ProfileMessage) -> Tables {
        let mut tables = Tables {
            dictionary: Dictionary {
                mapping_table: vec![Mapping::default()],
                location_table: vec![Location::default()],
                function_table: vec![Function::default()],
                link_table: vec![Link {
                    trace_id: vec![0; 16],
                    span_id: vec![0; 8],
                }],
                string_table: from.string_table.clone(),
                attribute_table: vec![Attribute::default()],
                stack_table: vec![Stack::default()],
            },
            texts: HashMap::new(),
            attributes: HashMap::new(),
            stacks: HashMap::from([(Stack::default(), 0)]),
        };
        for (nth, text) in from.string_table.iter().enumerate() {
            tables.texts.entry(text.clone()).or_insert(index(nth as u64));
        }
        for mapping in &from.mapping {
            let mapping = tables.mapping(mapping, from);
            tables.dictionary.mapping_table.push(mapping);
        }
        let functions = from.function.iter().map(|function| Function {
            name_strindex: text_index(function.name),
            system_name_strindex: text_index(function.system_name),
            filename_strindex: text_index(function.filename),
        });
        tables.dictionary.function_table.extend(functions);
        let line = |line: &pprof::Line| Line {
            function_index: index(line.function_id),
            line: line.line,
        };
        let locations = from.location.iter().map(|location| Location {
            mapping_index: index(location.mapping_id),
            address: location.address,
            lines: location.line.iter().map(line).collect(),
        });
        tables.dictionary.location_table.extend(locations);
        tables
    }

    fn text(&mut self, text: &str) -> i32 {
        let next = index(self.dictionary.string_table.len() as u64);
        *self.texts.entry(text.to_owned()).or_insert_with(|| {
            self.dictionary.string_table.push(text.to_owned());
            next
        })
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType {
            type_strindex: self.text(name),
            unit_strindex: self.text(unit),
        }
    }

    fn attribute(&mut self, key: &str, value: &str) -> i32 {
        let key_strindex = self.text(key);
        let next = index(self.dictionary.attribute_table.len() as u64);
        *self
            .attributes
            .entry((key_strindex, value.to_owned()))
            .or_insert_with(|| {
                self.dictionary.attribute_table.push(Attribute {
                    key_strindex,
                    value: Some(Value::from(value).any()),
                });
                next
            })
    }

    fn mapping(&mut self, mapping: &pprof::Mapping, from: &ProfileMessage) -> Mapping {
        let build_id = usize::try_from(mapping.build_id).ok();
        let build_id = build_id
            .and_then(|nth| from.string_table.get(nth))
            .filter(|id| !id.is_empty());
        let attribute = build_id.map(|id| self.attribute("process.executable.build_id.gnu", id));
        Mapping {
            memory_start: mapping.memory_start,
            memory_limit: mapping.memory_limit,
            file_offset: mapping.file_offset,
            filename_strindex: text_index(mapping.filename),
            attribute_indices: attribute.into_iter().collect(),
        }
    }

    fn stack(&mut self, locations: &[u64]) -> i32 {
        let stack = Stack {
            location_indices: locations.iter().map(|&id| index(id)).collect(),
        };
        let next = index(self.dictionary.stack_table.len() as u64);
        *self.stacks.entry(stack).or_insert_with_key(|stack| {
            self.dictionary.stack_table.push(stack.clone());
            next
        })
    }

    /// Samples by identity, in the order of pprof's: bytes and allocations.
    fn samples(&mut self, from: &ProfileMessage) -> Vec<(Identity, [i64; 2])> {
        let mut nth_of: HashMap<Identity, usize> = HashMap::new();
        let mut sums: Vec<(Identity, [i64; 2])> = Vec::new();
        let text = |nth: i64| usize::try_from(nth).ok().and_then(|nth| from.string_table.get(nth));
        for sample in &from.sample {
            let named = sample
                .label
                .iter()
                .filter_map(|label| Some((text(label.key)?, text(label.str)?)));
            let identity = Identity {
                stack: self.stack(&sample.location_id),
                attributes: named.map(|(key, value)| self.attribute(key, value)).collect(),
            };
            let nth = *nth_of.entry(identity.clone()).or_insert_with(|| {
                sums.push((identity, [0; 2]));
                sums.len() - 1
            });
            for (sum, value) in sums[nth].1.iter_mut().zip(&sample.value) {
                *sum = sum.saturating_add(*value);
            }
        }
        sums
    }
}
