//! The timeline: every allocation and free of a process, in order of time.
//!
//! A recording has one if the program ran with `culeak run --timeline`. The log is bounded, so it may lack the oldest
//! events: it is complete from [`Timeline::since_ns`] on. A snapshot of the same process ([`crate::reader::read_timeline`])
//! supplies the stacks, devices and the final state.
//!
//! Each event is self-contained: a free repeats the size and the stack of its allocation. So the state at any time follows
//! from the final state and the events after that time, even if the log lacks the allocations.
//!
//! | module | answers |
//! |---|---|
//! | [`lives`] | From which event to which was each block live? All other modules stand on these. |
//! | [`state`](Timeline::state_at) | What would a snapshot taken at that time contain? |
//! | `segments` | What had the kernel driver given to the process at a time? |
//! | [`window`] | What happened between two times: allocated, freed, left, and the high-water marks? |
//!
//! A free that CUDA refused is no free: the memory was live all the time. So a log is read without the events of such a free and
//! of the record that was restored after it, and no reader of a log sees them. [`Op::Restored`] remains where a duplicate of a
//! segment gets the bytes of its original: the duplicate without bytes ends, and one with bytes begins.

pub mod lives;
mod segments;
mod state;
#[cfg(test)]
mod tests;
pub mod window;

use std::fmt;

use foldhash::{HashMap, HashSet};

pub use crate::format::Op;
use crate::format::{ADDRESS, StoredEvent, lifetime_code, lifetime_ns};
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::{Allocation, Call};

/// The function of all blocks of domains that the program named.
pub const BLOCK_API: &str = "culeak_alloc";

/// Stack, kind, device and function of the memory of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Site {
    /// Index into the snapshot's stacks.
    pub stack: Option<usize>,
    pub kind: Kind,
    /// Index into the snapshot's devices.
    pub device: Option<usize>,
    /// The framework allocator of a tensor, buffer or block.
    pub domain: Option<String>,
    /// The function that allocated; for a block of a domain that the program named, `culeak_alloc`.
    pub api: String,
}

impl Site {
    /// The site of the events of a row: all blocks of a domain have one function.
    pub fn of_row(row: &Allocation) -> Site {
        Site {
            stack: row.stack,
            kind: row.kind,
            device: row.device,
            domain: row.call.domain.clone(),
            api: match row.kind {
                Kind::Block => BLOCK_API.to_owned(),
                _ => row.call.api.clone(),
            },
        }
    }

    /// The call of memory that was allocated here by this thread of the snapshot. Events lack everything else.
    pub fn call(&self, thread: usize) -> Call {
        Call {
            domain: self.domain.clone(),
            ..Call::new(self.kind, &*self.api, self.device, thread)
        }
    }
}

/// An allocation or a free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Since the recording began, exact to 8 ns.
    pub time_ns: u64,
    pub op: Op,
    /// The lowest 48 bits of the address or handle.
    pub address: u64,
    /// As in `snapshot::Allocation::bytes`.
    pub bytes: u64,
    /// Index into [`Log::sites`]: where the memory was allocated.
    pub site: u32,
    /// Of a free: how long the memory was live, exact to 0.1 %. Otherwise 0.
    pub lifetime_ns: u64,
    /// Of an allocation: index into the snapshot's threads.
    pub thread: Option<u32>,
}

/// The events of a process.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// All events after this time are in the log; 0: all events since the recording began.
    pub since_ns: u64,
    /// The last known time of the process.
    pub until_ns: u64,
    /// Events that could not be logged.
    pub lost: u64,
    pub memory: Log,
    /// Objects without an address.
    pub(crate) objects: Log,
    /// What the kernel driver gave.
    pub(crate) segments: Log,
}

/// Events and their sites.
#[derive(Debug, Clone, Default)]
pub struct Log {
    pub sites: Vec<Site>,
    /// In order of time; events of one thread are in its order.
    events: Vec<Packed>,
}

/// An event in 32 bytes: a log may have fifty million.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed {
    pub time_ns: u64,
    bytes: u64,
    /// The address in the lowest 48 bits, thread or lifetime above.
    address_detail: u64,
    pub site: u32,
    pub op: Op,
}
const _: () = assert!(size_of::<Packed>() == 32);

/// No thread is known.
const NO_THREAD: u16 = u16::MAX;

impl Packed {
    /// The site remains a row of totals and the thread a row of threads.
    pub fn of_stored(event: &StoredEvent) -> Packed {
        Packed {
            time_ns: event.time_ns,
            bytes: event.bytes,
            address_detail: event.address & ADDRESS | u64::from(event.detail) << 48,
            site: event.site,
            op: event.op,
        }
    }

    /// The thread, or the code of the lifetime.
    pub fn detail(&self) -> u16 {
        (self.address_detail >> 48) as u16
    }

    pub fn set_thread(&mut self, thread: Option<usize>) {
        let thread = thread.and_then(|thread| u16::try_from(thread).ok());
        self.address_detail = self.address_detail & ADDRESS | u64::from(thread.unwrap_or(NO_THREAD)) << 48;
    }

    fn of(event: &Event) -> Packed {
        let thread = event.thread.and_then(|thread| u16::try_from(thread).ok());
        let detail = match event.op {
            Op::Freed => lifetime_code(event.lifetime_ns),
            _ => thread.unwrap_or(NO_THREAD),
        };
        Packed {
            time_ns: event.time_ns,
            bytes: event.bytes,
            address_detail: event.address & ADDRESS | u64::from(detail) << 48,
            site: event.site,
            op: event.op,
        }
    }

    pub fn event(self) -> Event {
        let detail = self.detail();
        let is_free = self.op == Op::Freed;
        Event {
            time_ns: self.time_ns,
            op: self.op,
            address: self.address_detail & ADDRESS,
            bytes: self.bytes,
            site: self.site,
            lifetime_ns: if is_free { lifetime_ns(detail) } else { 0 },
            thread: (!is_free && detail != NO_THREAD).then_some(detail.into()),
        }
    }
}

/// Times of events are multiples of 8 ns, so all times of one unit of 8 ns are the same time.
pub(crate) const UNIT: u64 = 7;

/// A time this short after the last known time means that time: reports round to a tenth of a second.
const SLACK_NS: u64 = 100_000_000;

/// A time at which the state is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// The log has no events from before this time.
    Before { time_ns: u64, since_ns: u64 },
    /// The process ended, or was read, at this time.
    After { time_ns: u64, until_ns: u64 },
    /// The window ends before it begins.
    Reversed { from_ns: u64, to_ns: u64 },
}

impl fmt::Display for Unknown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Unknown::Before { time_ns, since_ns } => write!(
                out,
                "the state at {} is not known: the event log is complete from {} on; choose a later time, or record again with \
                 a larger log (culeak run --timeline=SIZE)",
                Point::Time(time_ns),
                // Rounded up, so that the time in the message is accepted.
                Point::Time(since_ns.div_ceil(1_000_000) * 1_000_000)
            ),
            Unknown::After { time_ns, until_ns } => write!(
                out,
                "{} is after the last recorded moment, {}; choose an earlier time",
                Point::Time(time_ns),
                Point::Time(until_ns / 1_000_000 * 1_000_000)
            ),
            Unknown::Reversed { from_ns, to_ns } => write!(
                out,
                "the window ends at {}, before it begins at {}; name the earlier time first",
                Point::Time(to_ns),
                Point::Time(from_ns)
            ),
        }
    }
}

impl Timeline {
    /// A timeline of these events, which need not be in order. Events at the same time keep their order.
    pub fn new(since_ns: u64, until_ns: u64, sites: Vec<Site>, events: impl IntoIterator<Item = Event>) -> Timeline {
        let events = events.into_iter().map(|event| Packed::of(&event)).collect();
        let memory = Log::new(sites, events);
        Timeline {
            since_ns,
            until_ns: until_ns.max(memory.last_ns()),
            memory,
            ..Timeline::default()
        }
    }

    /// The time as that of an event: the end of its unit of 8 ns, and no later than the last known time.
    ///
    /// # Errors
    /// The state at that time is not known.
    pub fn known(&self, time_ns: u64) -> Result<u64, Unknown> {
        let (since_ns, until_ns) = (self.since_ns, self.until_ns);
        if time_ns | UNIT < since_ns {
            return Err(Unknown::Before { time_ns, since_ns });
        }
        if time_ns > until_ns.saturating_add(SLACK_NS) {
            return Err(Unknown::After { time_ns, until_ns });
        }
        Ok(time_ns.min(until_ns) | UNIT)
    }

    /// The events up to and including this time.
    pub fn until(&self, until_ns: u64) -> Timeline {
        let mut until = self.clone();
        until.until_ns = until.until_ns.min(until_ns);
        until.memory.events.truncate(self.memory.count_until(until_ns));
        until
    }
}

impl Log {
    /// A log of these events, which need not be in order. Events at the same time keep their order.
    pub(crate) fn new(sites: Vec<Site>, mut events: Vec<Packed>) -> Log {
        events.sort_by_key(|event| event.time_ns);
        leave_out_undone(&mut events);
        Log { sites, events }
    }

    /// All events, in order of time.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = Event> + ExactSizeIterator {
        self.events.iter().map(|event| event.event())
    }

    /// Events after `from_ns`, up to and including `to_ns`, in order of time.
    pub fn between(&self, from_ns: u64, to_ns: u64) -> impl DoubleEndedIterator<Item = Event> + ExactSizeIterator {
        let (from, to) = (self.count_until(from_ns), self.count_until(to_ns));
        self.events[from.min(to)..to].iter().map(|event| event.event())
    }

    /// Events after this time, in order of time.
    pub fn after(&self, time_ns: u64) -> impl DoubleEndedIterator<Item = Event> + ExactSizeIterator {
        self.between(time_ns, u64::MAX)
    }

    /// The number of events up to and including this time.
    pub fn count_until(&self, time_ns: u64) -> usize {
        self.events.partition_point(|event| event.time_ns <= time_ns)
    }

    /// The event at this index, which must be in range.
    pub fn at(&self, index: usize) -> Event {
        self.events[index].event()
    }

    /// The time of the event at this index, which must be in range.
    pub fn time_ns(&self, index: usize) -> u64 {
        self.events[index].time_ns
    }

    /// The time of the last event; 0 without events.
    pub fn last_ns(&self) -> u64 {
        self.events.last().map_or(0, |event| event.time_ns)
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

/// Leaves out the frees that CUDA refused, and the events that restored their records.
fn leave_out_undone(events: &mut Vec<Packed>) {
    let key = |event: &Packed| (event.address_detail & ADDRESS, event.site);
    let restored = events.iter().filter(|event| event.op == Op::Restored);
    let restored: HashSet<(u64, u32)> = restored.map(key).collect();
    if restored.is_empty() {
        return;
    }
    let mut freed: HashMap<(u64, u32), usize> = HashMap::default();
    let mut undone: HashSet<usize> = HashSet::default();
    for (nth, event) in events.iter().enumerate() {
        match event.op {
            Op::Freed if restored.contains(&key(event)) => {
                freed.insert(key(event), nth);
            }
            Op::Restored => match freed.remove(&key(event)) {
                // A duplicate of a segment got the bytes of its original.
                Some(free) if events[free].bytes != event.bytes => {}
                Some(free) => undone.extend([free, nth]),
                // The free is older than the log, which begins with this block.
                None => undone.extend([nth]),
            },
            Op::Allocated | Op::Freed => {}
        }
    }
    let mut nth = 0;
    events.retain(|_| {
        nth += 1;
        !undone.contains(&(nth - 1))
    });
}
