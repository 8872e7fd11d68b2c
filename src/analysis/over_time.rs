//! Memory over time, in levels of detail: what a timeline of millions of events looks like in a few thousand steps.
//!
//! ```text
//! events ─► lives (allocated at one event, freed at another) ─► spans: class, from bucket, to bucket, bytes, count
//!                                                          └──► curves: the high-water mark within each bucket
//!
//! boundary   0         1         2         3         4        the state after a number of events
//! bucket     │    1    │    2    │    3    │    4    │
//! from, to   0 before the first boundary, 1 … in that bucket; to = 5: live at the last boundary
//! ```
//!
//! A block is live at boundary `k` if `from <= k < to`. Blocks that differ only within a bucket are one span, and blocks that
//! are freed in the bucket of their allocation are in no span, since they are live at no boundary. So the state at each
//! boundary, and what was allocated between two boundaries and is live at the second, are exact. Half of the boundaries are
//! at equal distances in time, half at equal numbers of events, so a short burst in a long run has its own. The peaks and
//! the times that the caller names are boundaries too. Between boundaries, a curve has the exact high-water mark.
//!
//! Deliberately absent: names and stacks of classes, which the caller chooses.

use serde::Serialize;

use crate::kind::Place;
use crate::timeline::Timeline;
use crate::timeline::lives::{Life, Lives};

/// What each site counts as.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    /// By site, and by whether blocks lay in the memory ([`Life::behind`]): the class; `None` if it is left out.
    pub classes: Vec<[Option<u32>; 2]>,
    /// By site: the number of its place (a device or the host); curves are per place.
    pub places: Vec<u32>,
}

/// How much detail is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Detail {
    /// The most boundaries, besides those at the peaks and at named times.
    pub boundaries: usize,
    /// The most spans: the number of boundaries is halved until there are no more.
    pub spans: usize,
}

/// A point in the order of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boundary {
    pub time_ns: u64,
    /// The number of events before it.
    pub events: usize,
}

/// Blocks of one class that were allocated in one bucket and freed in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub class: u32,
    /// The bucket of the allocation; 0: before the first boundary.
    pub from: u32,
    /// The bucket of the free; the number of boundaries: live at the last boundary.
    pub to: u32,
    pub bytes: u64,
    pub count: u64,
}

/// The memory of one place, counted in one of two ways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Curve {
    pub place: u32,
    /// Counts what the driver handed out. Otherwise the blocks of frameworks count instead of the memory that they lie in.
    pub driver: bool,
    /// The most bytes live at once within each bucket, its boundaries included; the first element belongs to bucket 1.
    #[serde(skip)]
    pub high: Vec<u64>,
    pub peak_bytes: u64,
    /// Index of the boundary at which the peak was reached.
    pub peak: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OverTime {
    /// In order of time; the first is where the log begins and the last where it ends.
    pub boundaries: Vec<Boundary>,
    /// Sorted.
    pub spans: Vec<Span>,
    pub curves: Vec<Curve>,
}

impl OverTime {
    /// `times`: instants that get boundaries, in any order.
    pub fn of(timeline: &Timeline, lives: &Lives, classes: &Classes, times: &[u64], detail: Detail) -> OverTime {
        let running = Running::of(lives, classes);
        let peaks = running.peaks(lives);
        let mut most = detail.boundaries;
        let (boundaries, positions, spans) = loop {
            let boundaries = boundaries(timeline, times, &peaks, most);
            let positions: Vec<usize> = boundaries.iter().map(|boundary| boundary.events).collect();
            let spans = spans(lives, classes, &positions);
            // With fewer than four there are only those that must be there.
            if spans.len() <= detail.spans || most < 4 {
                break (boundaries, positions, spans);
            }
            most /= 2;
        };
        let highs = running.highs(lives, &positions);
        let curves = running
            .curves
            .iter()
            .zip(highs)
            .zip(peaks)
            .map(|((key, high), peak)| Curve {
                place: key.0,
                driver: key.1,
                high,
                peak_bytes: peak.bytes,
                peak: boundaries.partition_point(|boundary| boundary.events < peak.events),
            });
        OverTime {
            curves: curves.collect(),
            boundaries,
            spans,
        }
    }

    /// Bytes and blocks of each class at a boundary.
    pub fn at(&self, boundary: usize) -> impl Iterator<Item = &Span> {
        let live = move |span: &&Span| span.from as usize <= boundary && boundary < span.to as usize;
        self.spans.iter().filter(live)
    }
}

/// The beginning and the end of the log, the peaks, named times, and about `most` others.
fn boundaries(timeline: &Timeline, times: &[u64], peaks: &[Peak], most: usize) -> Vec<Boundary> {
    let (log, begin) = (&timeline.memory, timeline.since_ns);
    let events = log.len();
    let after = |events: usize| Boundary {
        time_ns: events.checked_sub(1).map_or(begin, |last| log.time_ns(last)),
        events,
    };
    let end = timeline.until_ns.max(after(events).time_ns).max(begin);
    // All events up to and including this time are before the boundary.
    let at_time = |time_ns: u64| Boundary {
        time_ns,
        events: log.count_until(time_ns),
    };
    let start = Boundary {
        time_ns: begin,
        events: 0,
    };
    let mut all = vec![start, after(events), Boundary { time_ns: end, events }];
    let half = (most / 2).max(1);
    for nth in 1..half {
        let part = |whole: u64| (u128::from(whole) * nth as u128 / half as u128) as u64;
        all.push(at_time(begin + part(end - begin)));
        all.push(after(part(events as u64) as usize));
    }
    let named = times.iter().filter(|&&time| begin <= time && time <= end);
    all.extend(named.map(|&time| at_time(time)));
    all.extend(peaks.iter().map(|peak| after(peak.events)));
    all.sort_unstable();
    all.dedup();
    all
}

fn spans(lives: &Lives, classes: &Classes, positions: &[usize]) -> Vec<Span> {
    /// Alike spans are joined when there are this many, so that few need memory at once.
    const MANY: usize = 1 << 22;
    let last = positions.len() as u32;
    // The bucket of an event is the number of boundaries at or before it.
    let bucket_of = |event: u32| positions.partition_point(|&position| position <= event as usize) as u32;
    let (mut spans, mut limit) = (Vec::new(), MANY);
    for life in &lives.lives {
        let Some(class) = classes.class(life) else { continue };
        let from = life.from().map_or(0, bucket_of);
        let to = life.to().map_or(last, bucket_of);
        if from == to {
            continue;
        }
        let (bytes, count) = (life.bytes, 1);
        spans.push(Span {
            class,
            from,
            to,
            bytes,
            count,
        });
        if spans.len() >= limit {
            join(&mut spans);
            limit = spans.len() * 2 + MANY;
        }
    }
    join(&mut spans);
    spans
}

impl Classes {
    fn class(&self, life: &Life) -> Option<u32> {
        self.classes[life.site as usize][usize::from(life.behind)]
    }
}

/// Sorts spans and joins those that are alike.
fn join(spans: &mut Vec<Span>) {
    let key = |span: &Span| (span.class, span.from, span.to);
    spans.sort_unstable_by_key(key);
    spans.dedup_by(|next, known| {
        let same = key(next) == key(known);
        if same {
            known.bytes = known.bytes.saturating_add(next.bytes);
            known.count += next.count;
        }
        same
    });
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Peak {
    bytes: u64,
    /// The number of events after which it was reached.
    events: usize,
}

/// Whether memory counts at the level of the driver, or else at that of reports, where each byte counts for the block in it.
fn counts(lives: &Lives, life: &Life, driver: bool) -> bool {
    match driver {
        true => lives.sites[life.site as usize].kind.place() != Place::Within,
        false => !life.behind,
    }
}

/// Sums over time.
struct Running<'c> {
    classes: &'c Classes,
    /// Place, and whether it counts what the driver handed out.
    curves: Vec<(u32, bool)>,
    /// By place and way of counting: the number of the curve.
    numbers: Vec<[Option<usize>; 2]>,
    /// Bytes at the first boundary.
    first: Vec<u64>,
}

impl<'c> Running<'c> {
    fn of(lives: &Lives, classes: &'c Classes) -> Running<'c> {
        let places = classes.places.iter().max().map_or(0, |most| *most as usize + 1);
        let mut numbers = vec![[None; 2]; places];
        let (mut curves, mut first): (Vec<(u32, bool)>, Vec<u64>) = (Vec::new(), Vec::new());
        for life in &lives.lives {
            if classes.class(life).is_none() {
                continue;
            }
            let place = classes.places[life.site as usize];
            for driver in [false, true] {
                if !counts(lives, life, driver) {
                    continue;
                }
                let curve = *numbers[place as usize][usize::from(driver)].get_or_insert_with(|| {
                    curves.push((place, driver));
                    first.push(0);
                    curves.len() - 1
                });
                if life.from().is_none() {
                    first[curve] = first[curve].saturating_add(life.bytes);
                }
            }
        }
        Running {
            classes,
            curves,
            numbers,
            first,
        }
    }

    /// Calls `changed` with the number of events, the curve, and its bytes after each change.
    fn replay(&self, lives: &Lives, mut changed: impl FnMut(usize, usize, u64)) {
        let mut bytes = self.first.clone();
        for (nth, change, life) in lives.changes() {
            if self.classes.class(life).is_none() {
                continue;
            }
            let place = self.classes.places[life.site as usize] as usize;
            for driver in [false, true] {
                if let (true, Some(curve)) = (counts(lives, life, driver), self.numbers[place][usize::from(driver)]) {
                    let bytes = &mut bytes[curve];
                    *bytes = match change.is_free() {
                        true => bytes.saturating_sub(life.bytes),
                        false => bytes.saturating_add(life.bytes),
                    };
                    changed(nth + 1, curve, *bytes);
                }
            }
        }
    }

    fn peaks(&self, lives: &Lives) -> Vec<Peak> {
        let mut peaks: Vec<Peak> = self.first.iter().map(|&bytes| Peak { bytes, events: 0 }).collect();
        self.replay(lives, |events, curve, bytes| {
            if bytes > peaks[curve].bytes {
                peaks[curve] = Peak { bytes, events };
            }
        });
        peaks
    }

    /// By curve, the high-water mark within each bucket.
    fn highs(&self, lives: &Lives, positions: &[usize]) -> Vec<Vec<u64>> {
        let buckets = positions.len().saturating_sub(1);
        let mut highs = vec![vec![0; buckets]; self.curves.len()];
        let mut now = self.first.clone();
        // The bucket that the next event is in, counted from 0.
        let mut bucket = 0;
        let enter = |highs: &mut Vec<Vec<u64>>, bucket: usize, now: &[u64]| {
            for (high, &now) in highs.iter_mut().zip(now) {
                high[bucket] = now;
            }
        };
        if buckets > 0 {
            enter(&mut highs, 0, &now);
        }
        self.replay(lives, |events, curve, bytes| {
            while bucket + 1 < buckets && positions[bucket + 1] < events {
                bucket += 1;
                enter(&mut highs, bucket, &now);
            }
            now[curve] = bytes;
            let high = &mut highs[curve][bucket];
            *high = bytes.max(*high);
        });
        for later in bucket + 1..buckets {
            enter(&mut highs, later, &now);
        }
        highs
    }
}

#[cfg(test)]
mod tests;
