//! The timeline: every allocation and free of a process, in order of time.
//!
//! A recording has one if the program ran with `culeak run --timeline`. The log is bounded, so it may lack the oldest
//! events: it is complete from [`Timeline::since_ns`] on. A snapshot of the same process ([`crate::reader::read_timeline`])
//! supplies the stacks, devices and the final state.
//!
//! Each event is self-contained: a free repeats the size and the stack of its allocation. So the state at any time follows
//! from the final state and the events after that time, even if the log lacks the allocations.

pub use crate::format::Op;
use crate::format::{lifetime_code, lifetime_ns};
use crate::kind::Kind;

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
}

/// An event in 32 bytes: a log may have fifty million.
#[derive(Debug, Clone, Copy)]
struct Packed {
    time_ns: u64,
    bytes: u64,
    /// The address in the lowest 48 bits, thread or lifetime above.
    address_detail: u64,
    site: u32,
    op: Op,
}
const _: () = assert!(size_of::<Packed>() == 32);

/// No thread is known.
const NO_THREAD: u16 = u16::MAX;

impl Packed {
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

    fn event(self) -> Event {
        let detail = (self.address_detail >> 48) as u16;
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

const ADDRESS: u64 = (1 << 48) - 1;

impl Timeline {
    /// A timeline of these events, which need not be in order. Events at the same time keep their order.
    pub fn new(since_ns: u64, until_ns: u64, sites: Vec<Site>, events: impl IntoIterator<Item = Event>) -> Timeline {
        let mut events: Vec<Packed> = events.into_iter().map(|event| Packed::of(&event)).collect();
        events.sort_by_key(|event| event.time_ns);
        Timeline {
            since_ns,
            until_ns,
            lost: 0,
            sites,
            events,
        }
    }

    /// All events, in order of time.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = Event> + ExactSizeIterator {
        self.events.iter().map(|event| event.event())
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
