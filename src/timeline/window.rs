//! What happened between two times: bytes allocated and freed, and the high-water mark of each sum, with what was live at it.
//!
//! The sums are those whose peaks a recording keeps: of each kind on each device, and of all memory on each device. A
//! replay of all events from the beginning therefore finds the peaks of the recording. As there, what was live at a
//! high-water mark is found without visiting all call sites at each new one: a site saves its live bytes when it changes for
//! the first time since.

use std::borrow::Cow;

use foldhash::HashMap;
use serde::Serialize;

use super::{Log, Op, Site, Timeline, Unknown};
use crate::kind::Kind;
use crate::snapshot::{Allocations, AtPeak, Call, Counter, DevicePeak, Failed, Snapshot};
use crate::tally::{SignedTally, Tally};

/// The events between two times, added up.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Window {
    /// Nanoseconds since the recording began.
    pub from_ns: u64,
    pub to_ns: u64,
    /// Of each device all memory on it, then of each kind; only those with memory.
    pub sums: Vec<WindowSum>,
}

/// The memory of one kind on one device, or all memory on a device, over a window.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WindowSum {
    /// Index into the snapshot's devices.
    pub device: Option<usize>,
    /// `None`: all memory on the device.
    pub kind: Option<Kind>,
    pub begin: Tally,
    pub end: Tally,
    pub allocated: Tally,
    pub freed: Tally,
    /// The high-water mark, at or after the beginning.
    pub peak_bytes: u64,
    pub peak_ns: u64,
    /// What was live at the high-water mark, largest first. Empty for a kind that counts in the sum of its device.
    pub at_peak: Vec<AtPeak>,
}

impl Timeline {
    /// The events after `from_ns`, up to and including `to_ns`.
    ///
    /// # Errors
    /// The state at one of the two times is not known, or the first is later.
    pub fn window(&self, snapshot: &Snapshot, from_ns: u64, to_ns: u64) -> Result<Window, Unknown> {
        let (from_ns, to_ns) = self.range(from_ns, to_ns)?;
        Ok(Window {
            from_ns,
            to_ns,
            sums: self.memory.sums_between(&snapshot.allocations, from_ns, to_ns),
        })
    }

    /// The memory that was allocated in the window and was live at its end, as a snapshot: [`Timeline::state_at`] the end,
    /// with only those rows. Its counters count the events of the window, and its peaks are the high-water marks within the
    /// window, which include memory that was allocated before.
    ///
    /// # Errors
    /// As [`Timeline::window`].
    pub fn left_by(&self, snapshot: &Snapshot, from_ns: u64, to_ns: u64) -> Result<Snapshot, Unknown> {
        let window = self.window(snapshot, from_ns, to_ns)?;
        let mut state = self.state_at(snapshot, to_ns)?;
        state.taken.after_ns = Some(from_ns);
        state.allocations.retain(|row| row.time_ns > window.from_ns);
        state.freed_after_end = Allocations::default();
        state.objects.retain(|row| row.time_ns > window.from_ns);
        let in_window = |failed: &Failed| failed.last_ns > window.from_ns;
        state.failed.retain(in_window);
        (state.counters, state.device_peaks, state.at_peaks) = Default::default();
        let mut live: HashMap<(Option<usize>, Kind), Tally> = HashMap::default();
        for row in &state.allocations {
            live.entry((row.device, row.kind)).or_default().add(row.bytes);
        }
        for sum in window.sums {
            state.at_peaks.extend(sum.at_peak);
            let Some(kind) = sum.kind else {
                state.device_peaks.extend(sum.device.map(|device| DevicePeak {
                    device,
                    peak_bytes: sum.peak_bytes,
                    time_ns: sum.peak_ns,
                }));
                continue;
            };
            let live = live.get(&(sum.device, kind)).copied().unwrap_or_default();
            state.counters.push(Counter {
                device: sum.device,
                kind,
                live_bytes: live.bytes,
                live_count: live.count,
                peak_bytes: sum.peak_bytes,
                peak_ns: sum.peak_ns,
                total_bytes: sum.allocated.bytes,
                total_count: sum.allocated.count,
                freed_count: sum.freed.count,
                failed_count: 0,
            });
        }
        state.at_peaks.sort_by(AtPeak::by_size);
        Ok(state)
    }

    fn range(&self, from_ns: u64, to_ns: u64) -> Result<(u64, u64), Unknown> {
        if from_ns > to_ns {
            return Err(Unknown::Reversed { from_ns, to_ns });
        }
        Ok((self.known(from_ns)?, self.known(to_ns)?))
    }
}

impl Log {
    /// The events after `from_ns`, up to and including `to_ns`, added up. `last`: the final state.
    pub(super) fn sums_between(&self, last: &Allocations, from_ns: u64, to_ns: u64) -> Vec<WindowSum> {
        let mut replay = Replay::new(self, last, from_ns);
        for event in self.between(from_ns, to_ns) {
            replay.apply(event.op, event.site, event.bytes, event.time_ns);
        }
        replay.finish()
    }
}

/// The sums while events are replayed.
struct Replay<'a> {
    sites: Vec<SiteSum<'a>>,
    sums: Vec<Running>,
}

/// What is live at a site. Negative if the log lacks events.
struct SiteSum<'a> {
    site: Cow<'a, Site>,
    live: SignedTally,
    /// The sum of its kind, and that of its device if the memory is on a device.
    of_kind: u32,
    of_device: Option<u32>,
    /// The high-water mark of its sum at which `saved` was live, as [`Running::mark`].
    saved_mark: u32,
    saved: SignedTally,
}

struct Running {
    sum: WindowSum,
    live: SignedTally,
    /// Counts high-water marks.
    mark: u32,
}

impl<'a> Replay<'a> {
    /// With the state at this time.
    fn new(log: &'a Log, last: &Allocations, at_ns: u64) -> Replay<'a> {
        let mut replay = Replay {
            sites: Vec::new(),
            sums: Vec::new(),
        };
        let mut numbers = HashMap::default();
        for site in &log.sites {
            replay.add_site(Cow::Borrowed(site), &mut numbers);
        }
        let mut of_rows: HashMap<(Option<usize>, *const Call), u32> = HashMap::default();
        let sites = (0..).zip(&log.sites);
        let mut known: HashMap<Site, u32> = sites.map(|(number, site)| (site.clone(), number)).collect();
        for row in last.iter().filter(|row| row.time_ns <= at_ns) {
            let site = *of_rows
                .entry((row.stack, std::ptr::from_ref(row.call)))
                .or_insert_with(|| {
                    let site = Site::of_row(&row);
                    *known.entry(site.clone()).or_insert_with(|| {
                        replay.add_site(Cow::Owned(site), &mut numbers);
                        replay.sites.len() as u32 - 1
                    })
                });
            replay.change(site, row.bytes, 1);
        }
        for ended in log.ended_after(at_ns) {
            replay.change(ended.free.site, ended.free.bytes, 1);
        }
        for sum in &mut replay.sums {
            let begin = sum.live.tally();
            (sum.sum.begin, sum.sum.peak_bytes, sum.sum.peak_ns) = (begin, begin.bytes, at_ns);
        }
        replay
    }

    fn add_site(&mut self, site: Cow<'a, Site>, numbers: &mut HashMap<(Option<usize>, Option<Kind>), u32>) {
        let mut sum = |kind| {
            *numbers.entry((site.device, kind)).or_insert_with(|| {
                let sum = WindowSum {
                    device: site.device,
                    kind,
                    ..WindowSum::default()
                };
                let live = SignedTally::default();
                self.sums.push(Running { sum, live, mark: 1 });
                self.sums.len() as u32 - 1
            })
        };
        let of_device = site.kind.place().on_device().then(|| sum(None));
        let of_kind = sum(Some(site.kind));
        self.sites.push(SiteSum {
            site,
            live: SignedTally::default(),
            of_kind,
            of_device,
            saved_mark: 0,
            saved: SignedTally::default(),
        });
    }

    fn change(&mut self, site: u32, bytes: u64, sign: i64) {
        let site = &mut self.sites[site as usize];
        site.live.add(bytes, sign);
        for sum in [Some(site.of_kind), site.of_device].into_iter().flatten() {
            self.sums[sum as usize].live.add(bytes, sign);
        }
    }

    #[inline]
    fn apply(&mut self, op: Op, site: u32, bytes: u64, time_ns: u64) {
        let of = &mut self.sites[site as usize];
        let mark = self.sums[of.of_device.unwrap_or(of.of_kind) as usize].mark;
        if of.saved_mark != mark {
            (of.saved_mark, of.saved) = (mark, of.live);
        }
        let sums = [Some(of.of_kind), of.of_device];
        self.change(site, bytes, if op == Op::Freed { -1 } else { 1 });
        for sum in sums.into_iter().flatten() {
            let Running { sum, live, mark } = &mut self.sums[sum as usize];
            match op {
                Op::Freed => sum.freed.add(bytes),
                _ => sum.allocated.add(bytes),
            }
            let bytes = live.tally().bytes;
            if bytes > sum.peak_bytes {
                (sum.peak_bytes, sum.peak_ns, *mark) = (bytes, time_ns, *mark + 1);
            }
        }
    }

    fn finish(self) -> Vec<WindowSum> {
        let mut at_peaks: Vec<Vec<AtPeak>> = self.sums.iter().map(|_| Vec::new()).collect();
        for site in self.sites {
            let sum = site.of_device.unwrap_or(site.of_kind) as usize;
            let unchanged = site.saved_mark != self.sums[sum].mark;
            let Tally { bytes, count } = if unchanged { site.live } else { site.saved }.tally();
            let of = site.site.into_owned();
            if bytes > 0 && count > 0 {
                at_peaks[sum].push(AtPeak {
                    stack: of.stack,
                    kind: of.kind,
                    device: of.device,
                    domain: of.domain,
                    api: of.api,
                    bytes,
                    count,
                });
            }
        }
        let sums = self.sums.into_iter().zip(at_peaks).map(|(of, mut at_peak)| {
            at_peak.sort_by(AtPeak::by_size);
            WindowSum {
                end: of.live.tally(),
                at_peak,
                ..of.sum
            }
        });
        let mut sums: Vec<WindowSum> = sums
            .filter(|sum| sum.peak_bytes > 0 || sum.allocated.count > 0 || sum.begin.count > 0)
            .collect();
        sums.sort_by_key(|sum| (sum.kind.is_some(), sum.device, sum.kind));
        sums
    }
}
