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
//! | `live` | Which blocks were live at a time? |
//! | [`state`](Timeline::state_at) | What would a snapshot taken at that time contain? |
//! | `objects` | Which objects without an address existed at a time? |
//! | `segments` | What had the kernel driver given to the process at a time? |
//! | [`window`] | What happened between two times: allocated, freed, left, and the high-water marks? |

pub(crate) mod live;
mod objects;
mod segments;
mod state;
#[cfg(test)]
mod tests;
pub mod window;

use std::fmt;

use foldhash::{HashMap, HashSet};

pub use crate::format::Op;
use crate::format::{StoredEvent, lifetime_code, lifetime_ns};
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::Call;

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
    /// Index into [`Timeline::sites`]: where the memory was allocated.
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
    pub sites: Vec<Site>,
    /// In order of time; events of one thread are in its order.
    events: Vec<Packed>,
    /// The same for objects without an address.
    pub(crate) objects: Log,
    /// The same for what the kernel driver gave.
    pub(crate) segments: Log,
}

/// Events and their sites.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    pub sites: Vec<Site>,
    /// In order of time.
    pub events: Vec<Packed>,
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

pub(crate) const ADDRESS: u64 = (1 << 48) - 1;

/// Times of events are multiples of 8 ns, so all times of one unit of 8 ns are the same time.
const UNIT: u64 = 7;

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
        Timeline::of_packed(since_ns, until_ns, sites, events)
    }

    /// As [`Timeline::new`].
    pub(crate) fn of_packed(since_ns: u64, until_ns: u64, sites: Vec<Site>, mut events: Vec<Packed>) -> Timeline {
        events.sort_by_key(|event| event.time_ns);
        Timeline {
            since_ns,
            until_ns: until_ns.max(events.last().map_or(0, |event| event.time_ns)),
            lost: 0,
            sites,
            events,
            objects: Log::default(),
            segments: Log::default(),
        }
    }

    /// Events after `from_ns`, up to and including `to_ns`, in order of time.
    pub fn between(&self, from_ns: u64, to_ns: u64) -> impl DoubleEndedIterator<Item = Event> + ExactSizeIterator {
        let (from, to) = (self.after(from_ns), self.after(to_ns));
        self.events[from.min(to)..to].iter().map(|event| event.event())
    }

    /// The number of the first event after this time.
    fn after(&self, time_ns: u64) -> usize {
        self.events.partition_point(|event| event.time_ns <= time_ns)
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

    /// All events, in order of time.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = Event> + ExactSizeIterator {
        self.events.iter().map(|event| event.event())
    }

    /// All events and those of segments, in order of time. The sites of segments follow those of memory.
    pub(crate) fn all_events(&self) -> impl Iterator<Item = Event> {
        let of_memory = self.sites.len() as u32;
        let mut segments = self.segments.events.iter().peekable();
        let mut memory = self.events.iter().peekable();
        std::iter::from_fn(move || {
            let next_ns = memory.peek().map_or(u64::MAX, |event| event.time_ns);
            // What memory lies in comes first.
            match segments.next_if(|event| event.time_ns <= next_ns) {
                Some(event) => Some(Event {
                    site: event.site + of_memory,
                    ..event.event()
                }),
                None => memory.next().map(|event| event.event()),
            }
        })
    }

    /// The event at this index, which must be in range.
    pub fn at(&self, index: usize) -> Event {
        self.events[index].event()
    }

    /// The events up to and including this time.
    pub fn until(&self, until_ns: u64) -> Timeline {
        let events = self.events.partition_point(|event| event.time_ns <= until_ns);
        Timeline {
            until_ns: self.until_ns.min(until_ns),
            events: self.events[..events].to_vec(),
            sites: self.sites.clone(),
            objects: self.objects.clone(),
            segments: self.segments.clone(),
            ..*self
        }
    }

    /// The indices of the frees that CUDA refused and of the events that restored their records: that memory was live all the
    /// time.
    pub(crate) fn undone(&self) -> HashSet<usize> {
        let mut undone = HashSet::default();
        let restored = self.events().filter(|event| event.op == Op::Restored);
        let restored: HashSet<(u64, u32)> = restored.map(|event| (event.address, event.site)).collect();
        if restored.is_empty() {
            return undone;
        }
        let mut freed: HashMap<(u64, u32), usize> = HashMap::default();
        for (nth, event) in self.events().enumerate() {
            let key = (event.address, event.site);
            match event.op {
                Op::Freed if restored.contains(&key) => {
                    freed.insert(key, nth);
                }
                Op::Restored => {
                    if let Some(free) = freed.remove(&key) {
                        undone.extend([free, nth]);
                    }
                }
                _ => {}
            }
        }
        undone
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
