//! The samples of all processes: each series once, and no more of them than Prometheus should get from one target.
//!
//! Of two recordings of one process identity (a copy, or a process id that was used again) the later one counts. Beyond the most
//! processes, those that ended and those that started last are added up as one, whose pid is `other`: figures that can be added
//! stay complete. Which processes these are changes, so a counter of theirs adds up what each has counted while it was among them.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use crate::families::{FAMILIES, Name, PROCESS_LABELS, Type};
use crate::label::OTHER;

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

/// What the processes that are added up have counted, over all pages.
#[derive(Debug, Clone, Default)]
pub struct Others {
    /// The counters of each process on the last page.
    last: HashMap<(Identity, u64), Vec<f64>>,
    sums: BTreeMap<(Name, Vec<Box<str>>), f64>,
}

impl Others {
    /// Adds what a process has counted since the last page, if it is one of those that are added up. Returns its counters.
    fn add(&mut self, process: &ProcessSamples, other: Option<&Identity>) -> Vec<f64> {
        let counters = process.all().filter(|sample| sample.of.family().kind == Type::Counter);
        let counters: Vec<&Sample> = counters.collect();
        let key = (process.identity.clone(), process.started_unix_ns);
        let before = self.last.get(&key);
        for (nth, sample) in counters.iter().enumerate() {
            let Some(other) = other.filter(|_| sample.of.family().adds) else {
                continue;
            };
            let before = before.and_then(|values| values.get(nth)).copied().unwrap_or(0.0);
            let labels = other.0.iter().chain(&sample.labels).map(|label| label.as_str().into());
            let sum = self.sums.entry((sample.of, labels.collect())).or_insert(0.0);
            *sum += (sample.value.0 - before).max(0.0);
        }
        counters.iter().map(|sample| sample.value.0).collect()
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
    pub summed: usize,
    pub duplicates: usize,
    /// Series beyond [`SERIES_MAX`].
    pub series_left_out: usize,
}

impl Page {
    /// Adds a sample of the node.
    pub fn add(&mut self, sample: Sample) {
        let labels = sample.labels.iter().map(|label| label.as_str().into());
        self.put(sample.of, labels.collect(), sample.value, false);
    }

    fn put(&mut self, of: Name, labels: Vec<Box<str>>, value: Value, add: bool) {
        debug_assert_eq!(labels.len(), of.family().all_labels().len(), "{of:?}");
        let series = self.families[of as usize].entry(labels).or_insert(0.0);
        *series = if add { *series + value.0 } else { value.0 };
    }

    /// Adds processes, at most `most` of them each by itself. `others` is that of the page before.
    pub fn add_processes<'a>(
        &mut self,
        all: impl IntoIterator<Item = &'a ProcessSamples>,
        most: usize,
        others: &mut Others,
    ) -> Exported {
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
        let mut last: HashMap<(Identity, u64), Vec<f64>> = HashMap::default();
        for (nth, process) in order.into_iter().enumerate() {
            let other = (nth >= most)
                .then(|| Identity([process.identity.0[0].clone(), OTHER.into(), OTHER.into(), OTHER.into()]));
            let counters = others.add(process, other.as_ref());
            last.insert((process.identity.clone(), process.started_unix_ns), counters);
            let Some(other) = other else {
                exported.exported += 1;
                exported.series_left_out += process.all().count().saturating_sub(SERIES_MAX);
                let shown = process.all().take(SERIES_MAX);
                shown.for_each(|sample| self.add_of(&process.identity, sample, false));
                continue;
            };
            exported.summed += 1;
            let is_added = |sample: &&Sample| sample.of.family().adds && sample.of.family().kind == Type::Gauge;
            let added = process.all().filter(is_added);
            added.for_each(|sample| self.add_of(&other, sample, true));
        }
        others.last = last;
        for ((of, labels), sum) in &others.sums {
            self.put(*of, labels.clone(), Value(*sum), false);
        }
        exported
    }

    fn add_of(&mut self, identity: &Identity, sample: &Sample, add: bool) {
        let labels = identity.0.iter().chain(&sample.labels);
        let labels = labels.map(|label| label.as_str().into()).collect();
        self.put(sample.of, labels, sample.value, add);
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
    fn processes_beyond_the_limit_are_one_sum() {
        let processes: Vec<_> = (1..=5).map(|pid| process(pid, pid != 1, 10.0)).collect();
        let mut page = Page::default();
        let exported = page.add_processes(&processes, 2, &mut Others::default());
        assert_eq!((exported.exported, exported.summed), (2, 3));
        let expected = [("2", 10.0), ("3", 10.0), ("other", 30.0)];
        assert_eq!(held(&page), expected.map(|(pid, bytes)| (pid.to_owned(), bytes)));
        assert_eq!(page.families[Name::ProcessStart as usize].len(), 2);
    }

    #[test]
    fn of_two_recordings_with_the_same_labels_the_later_counts() {
        let mut later = process(7, true, 2.0);
        later.started_unix_ns = 8;
        let mut page = Page::default();
        let exported = page.add_processes([&process(7, true, 1.0), &later], 10, &mut Others::default());
        assert_eq!((exported.exported, exported.duplicates), (1, 1));
        assert_eq!(held(&page), [("7".to_owned(), 2.0)]);
    }

    #[test]
    fn one_process_cannot_fill_the_page() {
        let mut hostile = process(1, true, 0.0);
        let sample = |n: usize| Sample::new(Name::SiteHeld, [format!("site {n}")], Value(1.0));
        hostile.samples = (0..10_000).map(sample).collect();
        let mut page = Page::default();
        let exported = page.add_processes([&hostile], 1, &mut Others::default());
        assert_eq!(exported.series_left_out, 9_000);
        assert_eq!(page.series(), SERIES_MAX);
    }

    #[test]
    fn a_counter_of_the_others_never_falls() {
        let with = |pid: u64, count: f64| {
            let mut process = process(pid, true, 1.0);
            process.samples.push(Sample::new(Name::Allocations, [], Value(count)));
            process
        };
        let mut others = Others::default();
        let mut page = |all: &[ProcessSamples]| {
            let mut page = Page::default();
            page.add_processes(all, 1, &mut others);
            let of = &page.families[Name::Allocations as usize];
            let other = of.iter().find(|(labels, _)| &*labels[3] == OTHER);
            other.map(|(_, value)| *value)
        };
        assert_eq!(page(&[with(1, 100.0)]), None);
        assert_eq!(page(&[with(1, 100.0), with(2, 10.0), with(3, 20.0)]), Some(30.0));
        // One of them ends and is forgotten, and the other counts on.
        assert_eq!(page(&[with(1, 100.0), with(3, 25.0)]), Some(35.0));
        // It gets series of its own, and then it is one of the others again.
        assert_eq!(page(&[with(3, 30.0)]), Some(35.0));
        assert_eq!(page(&[with(1, 100.0), with(3, 31.0)]), Some(36.0));
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
