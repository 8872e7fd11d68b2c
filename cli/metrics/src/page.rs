//! The samples of all processes: each series once, and no more of them than Prometheus should get from one target.
//!
//! Of two recordings of one process identity (a copy, or a process id that was used again) the later one counts. Beyond the most
//! processes, those that ended and those that started last are left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::families::{FAMILIES, Name, PROCESS_LABELS, Type};

/// The most series of one process.
pub const SERIES_MAX: usize = 1000;

/// A sample's value. Prometheus has no other type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value(pub f64);

/// A sample, without the labels of its process.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub of: Name,
    /// In the order of the metric's own labels.
    pub labels: Vec<String>,
    pub value: Value,
}

impl Sample {
    pub fn new<const N: usize>(of: Name, labels: [String; N], value: Value) -> Sample {
        Sample {
            of,
            labels: labels.to_vec(),
            value,
        }
    }
}

/// Which process samples belong to, in the order of [`PROCESS_LABELS`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub [String; PROCESS_LABELS.len()]);

/// One process.
#[derive(Debug, Clone)]
pub struct ProcessSamples {
    pub identity: Identity,
    pub running: bool,
    pub started_unix_ns: u64,
    pub samples: Vec<Sample>,
    /// Those of its growth.
    pub growth: Vec<Sample>,
}

impl ProcessSamples {
    /// Keeps counters of the same process from being less than before.
    pub fn never_fall(&mut self, before: &ProcessSamples) {
        if (&self.identity, self.started_unix_ns) != (&before.identity, before.started_unix_ns) {
            return;
        }
        let is_counter = |sample: &&Sample| sample.of.family().kind == Type::Counter;
        for known in before.samples.iter().filter(is_counter) {
            let same = |sample: &&mut Sample| sample.of == known.of && sample.labels == known.labels;
            match self.samples.iter_mut().find(same) {
                Some(sample) => sample.value.0 = sample.value.0.max(known.value.0),
                None => self.samples.push(known.clone()),
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().chain(&self.growth)
    }
}

/// All series, by family.
#[derive(Debug, Clone)]
pub struct Page {
    pub families: Vec<BTreeMap<Vec<Box<str>>, f64>>,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            families: vec![BTreeMap::new(); FAMILIES.len()],
        }
    }
}

/// What became of the processes of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    pub exported: usize,
    pub left_out: usize,
    pub duplicates: usize,
    /// Series beyond [`SERIES_MAX`].
    pub series_left_out: usize,
}

impl Page {
    /// Adds a sample of the node.
    pub fn add(&mut self, sample: Sample) {
        let labels = sample.labels.iter().map(|label| label.as_str().into());
        self.put(sample.of, labels.collect(), sample.value);
    }

    fn put(&mut self, of: Name, labels: Vec<Box<str>>, value: Value) {
        debug_assert_eq!(labels.len(), of.family().all_labels().len(), "{of:?}");
        self.families[of as usize].insert(labels, value.0);
    }

    /// Adds processes, at most `most` of them.
    pub fn add_processes<'a>(&mut self, all: impl IntoIterator<Item = &'a ProcessSamples>, most: usize) -> Exported {
        let mut exported = Exported::default();
        let mut order: Vec<&ProcessSamples> = all.into_iter().collect();
        order.sort_by_key(|process| (std::cmp::Reverse(process.started_unix_ns), !process.running));
        let mut seen = BTreeSet::new();
        order.retain(|process| {
            let is_first = seen.insert(&process.identity);
            exported.duplicates += usize::from(!is_first);
            is_first
        });
        // The oldest first: a process that starts later changes no series of the others.
        order.sort_by_key(|process| (!process.running, process.started_unix_ns, &process.identity));
        exported.left_out = order.len().saturating_sub(most);
        exported.exported = order.len() - exported.left_out;
        for process in order.into_iter().take(most) {
            exported.series_left_out += process.all().count().saturating_sub(SERIES_MAX);
            process.all().take(SERIES_MAX).for_each(|sample| {
                let labels = process.identity.0.iter().chain(&sample.labels);
                self.put(
                    sample.of,
                    labels.map(|label| label.as_str().into()).collect(),
                    sample.value,
                );
            });
        }
        exported
    }

    /// The number of series.
    pub fn series(&self) -> usize {
        self.families.iter().map(BTreeMap::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u64, running: bool, bytes: f64) -> ProcessSamples {
        let place = || ["device".to_owned()];
        ProcessSamples {
            identity: Identity(["job", "host", "", &pid.to_string()].map(str::to_owned)),
            running,
            started_unix_ns: pid,
            samples: vec![
                Sample::new(Name::Held, place(), Value(bytes)),
                Sample::new(Name::ProcessStart, [], Value(pid as f64)),
            ],
            growth: Vec::new(),
        }
    }

    fn held(page: &Page) -> Vec<(String, f64)> {
        let of = &page.families[Name::Held as usize];
        of.iter()
            .map(|(labels, value)| (labels[3].to_string(), *value))
            .collect()
    }

    #[test]
    fn processes_beyond_the_limit_are_left_out_those_that_ended_first() {
        let processes: Vec<_> = (1..=5).map(|pid| process(pid, pid != 1, 10.0)).collect();
        let mut page = Page::default();
        let exported = page.add_processes(&processes, 2);
        assert_eq!((exported.exported, exported.left_out), (2, 3));
        let expected = [("2", 10.0), ("3", 10.0)];
        assert_eq!(held(&page), expected.map(|(pid, bytes)| (pid.to_owned(), bytes)));
    }

    #[test]
    fn of_two_recordings_with_the_same_labels_the_later_counts() {
        let mut later = process(7, true, 2.0);
        later.started_unix_ns = 8;
        let mut page = Page::default();
        let exported = page.add_processes([&process(7, true, 1.0), &later], 10);
        assert_eq!((exported.exported, exported.duplicates), (1, 1));
        assert_eq!(held(&page), [("7".to_owned(), 2.0)]);
    }

    #[test]
    fn one_process_cannot_fill_the_page() {
        let mut hostile = process(1, true, 0.0);
        let sample = |n: usize| Sample::new(Name::SiteHeld, [format!("site {n}")], Value(1.0));
        hostile.samples = (0..10_000).map(sample).collect();
        let mut page = Page::default();
        let exported = page.add_processes([&hostile], 1);
        assert_eq!(exported.series_left_out, 9_000);
        assert_eq!(page.series(), SERIES_MAX);
    }

    #[test]
    fn counters_of_a_process_never_fall() {
        let with = |count: f64| {
            let mut process = process(7, true, 9.0 - count);
            process.samples.push(Sample::new(Name::Frees, [], Value(count)));
            process
        };
        let values =
            |process: &ProcessSamples| -> Vec<f64> { process.samples.iter().map(|sample| sample.value.0).collect() };
        let mut now = with(5.0);
        now.never_fall(&with(8.0));
        assert_eq!(values(&now), [4.0, 7.0, 8.0], "gauges are as they are");
        let mut restarted = with(1.0);
        restarted.started_unix_ns += 1;
        restarted.never_fall(&with(8.0));
        assert_eq!(values(&restarted), [8.0, 7.0, 1.0]);
    }
}
