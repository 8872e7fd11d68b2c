//! A snapshot at another point in time: at the end of the program's own work, or at the peak.
//!
//! ```text
//! end     rows that were live at the end      allocations made until then, and freed_after_end
//! peak    one row for each stack and kind     at_peaks; no addresses, times, threads and streams; no objects
//!         segments at the peak of their sum   those that still live by themselves, the others by stack
//! exit    the rows as they are
//! ```
//!
//! Tables other than the rows stay as they are, so indices remain valid. Counters keep their totals and peaks; their live
//! sums follow the rows. Deliberately absent: marks and times, which need another snapshot or a timeline.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::{Allocation, Counter, EndOf, Gathering, ProcessState, Snapshot, Thread};
use crate::kind::{Kind, Place};
use crate::point::Point;

mod peak;

/// Why a snapshot cannot show a point in time, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointError {
    /// The process has no end yet.
    Running,
    /// The recorder took the snapshot while the process ran.
    Automatic,
    /// It is unknown whether the process has ended.
    Unknown,
    /// The snapshot lacks the memory at the peaks.
    NoPeak,
    /// Sampling has left out all blocks at the peaks.
    NoneChosen,
    /// The snapshot shows only this other point.
    Shows(Point),
    /// A mark or a time.
    Elsewhere(Point),
}

impl fmt::Display for PointError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            PointError::Running => {
                "the process is still running, so it has no end yet; leave out the point to see what it holds now"
            }
            PointError::Automatic => {
                "an automatic snapshot shows the process while it ran; name its recording to see the end"
            }
            PointError::Unknown => "it is unknown whether the process has ended; --at exit shows its last known state",
            PointError::NoPeak => {
                "contains no stacks of its peaks; name the recording of a process, or a snapshot of it by this version"
            }
            PointError::NoneChosen => {
                "contains no stacks of its peaks, since sampling chose none of these blocks; record with a smaller --sample"
            }
            PointError::Shows(point) => return write!(out, "shows the point {point} only; name the recording"),
            PointError::Elsewhere(point) => {
                let next = "record with `culeak run --timeline`, or take a snapshot at that point";
                return write!(out, "does not contain the point {point}; {next}");
            }
        })
    }
}

impl std::error::Error for PointError {}

impl Snapshot {
    /// The snapshot at this point: [`Point::End`], [`Point::Peak`] or [`Point::Exit`]. A process that ended without an end
    /// (`_exit`, a signal, exec) has its last state as its end.
    ///
    /// # Errors
    /// The point is not in the snapshot.
    pub fn at(&self, point: &Point) -> Result<Snapshot, PointError> {
        self.clone().into_at(point)
    }

    /// As [`Snapshot::at`], without a copy of the rows.
    ///
    /// # Errors
    /// See [`Snapshot::at`].
    pub fn into_at(mut self, point: &Point) -> Result<Snapshot, PointError> {
        match &self.taken.point {
            Some(shown) if shown == point => return Ok(self),
            Some(shown) => return Err(PointError::Shows(shown.clone())),
            None => {}
        }
        match point {
            Point::Exit => {
                self.keep_holders(point);
                return Ok(self);
            }
            Point::End => self.go_to_end()?,
            Point::Peak => self.go_to_peak()?,
            Point::Mark(_) | Point::Time(_) => return Err(PointError::Elsewhere(point.clone())),
        }
        self.taken.point = Some(point.clone());
        self.keep_holders(point);
        Ok(self)
    }

    /// The point that reports show by default: the end of a Python script that ended; otherwise the rows as they are.
    pub fn usual_point(&self) -> Point {
        let ended = self.process.state != ProcessState::Running && self.taken.automatic.is_none();
        match (&self.taken.point, self.end) {
            (Some(shown), _) => shown.clone(),
            (None, Some(end)) if ended && end.of == EndOf::Script => Point::End,
            (None, _) => Point::Exit,
        }
    }

    /// Drops holders that were found at another point, where other memory was held.
    fn keep_holders(&mut self, point: &Point) {
        let Some(holders) = &mut self.holders else { return };
        let end = self.end.map(|end| end.of);
        match (&holders.search.point, point) {
            (None, Point::Exit) => {}
            (Some(Point::Exit), Point::End) if end.is_none() => {}
            // What `main` left is not freed by a shutdown, except by exit handlers and destructors.
            (Some(Point::End), Point::Exit) if end == Some(EndOf::Main) => {
                let rows = self.allocations.iter();
                let live: HashSet<(u64, u64)> = rows.map(|row| (row.address, row.time_ns)).collect();
                holders.retain(|block| live.contains(&(block.address, block.time_ns)));
            }
            (found, shown) if found.as_ref() == Some(shown) => {}
            _ => self.holders = None,
        }
    }

    fn go_to_end(&mut self) -> Result<(), PointError> {
        if self.taken.automatic.is_some() {
            return Err(PointError::Automatic);
        }
        let Some(end) = self.end else {
            return match self.process.state {
                ProcessState::Exited | ProcessState::Ended => Ok(()),
                ProcessState::Running => Err(PointError::Running),
                ProcessState::Unknown => Err(PointError::Unknown),
            };
        };
        let later = self.allocations.iter().chain(self.objects.iter());
        let later = later.filter(|row| row.time_ns > end.time_ns);
        let later = by_place(later.map(|row| (row, 1)));
        for counter in self.counters.iter_mut().chain(&mut self.object_counters) {
            let (count, bytes) = later.get(&place(counter)).copied().unwrap_or_default();
            counter.total_count = counter.total_count.saturating_sub(count);
            counter.total_bytes = counter.total_bytes.saturating_sub(bytes);
        }
        let mut later = Gathering::default();
        let rows = self.allocations.iter().chain(self.objects.iter());
        rows.filter(|row| row.time_ns > end.time_ns)
            .for_each(|row| later.add(row));
        self.allocated_after_end = later.finish();
        self.allocations.retain(|row| row.time_ns <= end.time_ns);
        let freed = std::mem::take(&mut self.freed_after_end);
        self.allocations.join(&freed);
        self.objects.retain(|row| row.time_ns <= end.time_ns);
        let destroyed = std::mem::take(&mut self.objects_freed_after_end);
        self.objects.join(&destroyed);
        self.segments.retain(|row| row.time_ns <= end.time_ns);
        let given_back = std::mem::take(&mut self.segments_freed_after_end);
        self.segments.join(&given_back);
        self.count_rows();
        self.taken.lasted_ns.get_or_insert(self.taken.at_ns);
        self.taken.at_ns = end.time_ns;
        Ok(())
    }

    /// Sets the live sums of the counters to those of the rows. The other sums stay consistent with them.
    fn count_rows(&mut self) {
        let rows = self.allocations.iter().enumerate();
        let mut live = by_place(rows.map(|(index, row)| (row, self.allocations.count(index))));
        live.extend(by_place(self.objects.iter().map(|row| (row, 1))));
        let objects = self.object_counters.iter_mut();
        let objects = objects.filter(|counter| counter.kind.place() == Place::Object);
        for counter in self.counters.iter_mut().chain(objects) {
            (counter.live_count, counter.live_bytes) = live.get(&place(counter)).copied().unwrap_or_default();
            // Rows of a peak from sampled stacks are estimates, and the counter's peak is exact.
            if self.sampling.is_some() && self.allocations.is_summed() {
                counter.live_bytes = counter.live_bytes.min(counter.peak_bytes);
            }
            counter.total_count = counter.total_count.max(counter.live_count);
            counter.freed_count = counter.total_count - counter.live_count;
            counter.peak_bytes = counter.peak_bytes.max(counter.live_bytes);
            counter.total_bytes = counter.total_bytes.max(counter.peak_bytes);
        }
    }
}

/// The row of the thread of memory whose thread is not known, which is added if it is missing.
pub(crate) fn unknown_thread(threads: &mut Vec<Thread>) -> usize {
    threads.iter().position(Thread::is_unknown).unwrap_or_else(|| {
        threads.push(Thread {
            name: "?".to_owned(),
            ..Thread::default()
        });
        threads.len() - 1
    })
}

type OfCounter = (Option<usize>, Kind);

fn place(counter: &Counter) -> OfCounter {
    (counter.device, counter.kind)
}

/// Count and bytes of rows by device and kind.
fn by_place<'a>(rows: impl Iterator<Item = (Allocation<'a>, u64)>) -> HashMap<OfCounter, (u64, u64)> {
    let mut sums: HashMap<OfCounter, (u64, u64)> = HashMap::new();
    for (row, blocks) in rows {
        let (count, bytes) = sums.entry((row.device, row.kind)).or_default();
        *count = count.saturating_add(blocks);
        *bytes = bytes.saturating_add(row.bytes);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{MAIN, MIB, RUNTIME, Sample, leaky, shut_down};
    use crate::snapshot::{End, HeldBlock, HolderPath, Holders, Retainer, Search};
    use proptest::prelude::*;

    fn sums(snapshot: &Snapshot) -> HashMap<OfCounter, (u64, u64)> {
        let rows = snapshot.allocations.iter().enumerate();
        by_place(rows.map(|(index, row)| (row, snapshot.allocations.count(index))))
    }

    pub fn assert_counters_agree(snapshot: &Snapshot) {
        let mut sums = sums(snapshot);
        for counter in &snapshot.counters {
            let live = sums.remove(&place(counter)).unwrap_or_default();
            assert_eq!((counter.live_count, counter.live_bytes), live, "{counter:?}");
            assert!(counter.peak_bytes >= counter.live_bytes && counter.total_bytes >= counter.peak_bytes);
            assert_eq!(
                counter.total_count,
                counter.live_count + counter.freed_count,
                "{counter:?}"
            );
        }
        assert!(sums.is_empty(), "rows without a counter: {sums:?}");
    }

    #[test]
    fn the_end_has_the_rows_that_shutdown_freed() {
        let exit = shut_down();
        let end = exit.at(&Point::End).expect("an end");
        assert_eq!(end.taken.point, Some(Point::End));
        assert_eq!(end.taken.at_ns, exit.end.unwrap().time_ns);
        let later = 1;
        let rows = exit.allocations.len() + exit.freed_after_end.len() - later;
        assert_eq!(end.allocations.len(), rows);
        assert!(end.freed_after_end.is_empty());
        end.validate().expect("valid");
        assert_counters_agree(&end);
        assert_eq!(end.at(&Point::End).as_ref(), Ok(&end), "the same point again");
        assert_eq!(end.at(&Point::Peak), Err(PointError::Shows(Point::End)));
        assert_eq!(exit.at(&Point::Exit), Ok(exit));
    }

    #[test]
    fn a_process_without_an_end_ends_with_its_last_state() {
        let mut snapshot = leaky();
        snapshot.process.state = ProcessState::Ended;
        let end = snapshot.at(&Point::End).expect("the last state");
        assert_eq!(end.allocations, snapshot.allocations);
        snapshot.process.state = ProcessState::Running;
        assert_eq!(snapshot.at(&Point::End), Err(PointError::Running));
        snapshot.process.state = ProcessState::Unknown;
        assert_eq!(snapshot.at(&Point::End), Err(PointError::Unknown));
    }

    /// A process whose memory was searched at its end.
    fn searched(of: EndOf) -> Snapshot {
        let mut snapshot = shut_down();
        let end = snapshot.end.expect("an end");
        snapshot.end = Some(End { of, ..end });
        // The sample's rows have addresses by their number in each table.
        snapshot.freed_after_end.change(|_, row, _| row.address ^= 1 << 46);
        let rows: Vec<(u64, u64, u64)> = (snapshot.allocations.iter())
            .chain(&snapshot.freed_after_end)
            .map(|row| (row.address, row.time_ns, row.bytes))
            .collect();
        let total = rows.iter().map(|row| row.2).sum();
        let blocks = rows.iter().map(|&(address, time_ns, bytes)| HeldBlock {
            address,
            time_ns,
            bytes,
            path: 0,
            retainer: Some(0),
            module: None,
            tensor: None,
        });
        snapshot.holders = Some(Holders {
            search: Search {
                point: Some(Point::End),
                ..Search::default()
            },
            paths: vec![HolderPath::default()],
            retainers: vec![Retainer {
                bytes: total,
                count: rows.len() as u64,
                ..Retainer::default()
            }],
            modules: Vec::new(),
            blocks: blocks.collect(),
            ..Holders::default()
        });
        snapshot
    }

    #[test]
    fn holders_belong_to_the_point_at_which_they_were_found() {
        let script = searched(EndOf::Script);
        let known = |point: &Point| script.at(point).expect("a point").holders.is_some();
        assert!(known(&Point::End) && !known(&Point::Exit) && !known(&Point::Peak));
        // What is left of the end of `main` is still held by the same.
        let main = searched(EndOf::Main);
        let left = main.at(&Point::Exit).expect("the last state").holders.expect("holders");
        let live: Vec<u64> = main.allocations.iter().map(|row| row.bytes).collect();
        let retained = (left.retainers[0].bytes, left.retainers[0].count);
        assert_eq!(retained, (live.iter().sum(), live.len() as u64));
        assert!(left.blocks.len() == live.len() && !main.freed_after_end.is_empty());
        let mut now = searched(EndOf::Main);
        now.holders.as_mut().expect("holders").search.point = None;
        assert!(now.at(&Point::Exit).expect("now").holders.is_some());
        assert!(now.at(&Point::End).expect("the end").holders.is_none());
    }

    #[test]
    fn only_a_script_changes_the_default() {
        let mut snapshot = shut_down();
        assert_eq!(snapshot.usual_point(), Point::End);
        snapshot.process.state = ProcessState::Running;
        assert_eq!(snapshot.usual_point(), Point::Exit);
        snapshot.process.state = ProcessState::Exited;
        snapshot.end.as_mut().unwrap().of = EndOf::Main;
        assert_eq!(snapshot.usual_point(), Point::Exit);
    }

    proptest! {
        #[test]
        fn the_end_is_what_was_live_then(
            rows in proptest::collection::vec((any::<bool>(), 0u64..100, 1u64..1000, any::<bool>()), 0..60),
            end_ns in 0u64..100,
        ) {
            let mut sample = Sample::new();
            let stack = sample.stack(&[RUNTIME, MAIN]);
            let call = |kind| {
                let mut one = Sample::new();
                let stack = one.stack(&[RUNTIME, MAIN]);
                one.holds(kind, "cudaMalloc", MIB, 1, stack);
                one.0.allocations.at(0).call.clone()
            };
            let calls = [call(Kind::Device), call(Kind::HostPinned)];
            let mut expected: HashMap<OfCounter, (u64, u64)> = HashMap::new();
            let (mut live, mut freed) = (Gathered::default(), Gathered::default());
            for (nth, (pinned, time_ns, bytes, is_freed)) in rows.into_iter().enumerate() {
                let call = &calls[usize::from(pinned)];
                let row = Allocation {
                    address: 1 + nth as u64, bytes, requested: bytes, time_ns, stack: Some(stack), call,
                };
                if time_ns <= end_ns {
                    let sum = expected.entry((call.device, call.kind)).or_default();
                    *sum = (sum.0 + 1, sum.1 + bytes);
                }
                // A recording keeps no freed memory that was allocated after the end.
                match is_freed {
                    true if time_ns <= end_ns => freed.add(row),
                    true => {}
                    false => live.add(row),
                }
            }
            sample.0.allocations = live.finish();
            let mut snapshot = sample.finish(0, 100);
            snapshot.freed_after_end = freed.finish();
            snapshot.end = Some(End { of: EndOf::Script, time_ns: end_ns });
            let end = snapshot.at(&Point::End).expect("an end");
            let mut found = sums(&end);
            found.retain(|_, sum| sum.0 > 0);
            prop_assert_eq!(found, expected);
            prop_assert!(end.allocations.iter().is_sorted_by_key(|row| row.time_ns));
            for counter in &end.counters {
                prop_assert_eq!(counter.total_count, counter.live_count + counter.freed_count);
                prop_assert!(counter.total_bytes >= counter.peak_bytes && counter.peak_bytes >= counter.live_bytes);
            }
        }
    }

    type Gathered = crate::snapshot::Gathering;
}
