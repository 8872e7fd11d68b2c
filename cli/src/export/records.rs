//! Live allocations one by one, as tables have them: a row's fields in words, said once for every format of rows.
//!
//! All records are rows, also the segments behind a framework's tensors; `level` says which bytes to add up: the sum
//! over `held` and `cached` is what the report lists, and `behind` is memory that other rows lie in.

use culeak::census::Level;
use culeak::profile::{Options, Profile, Seen};
use culeak::report::{device_name, stream_name};
use culeak::snapshot::{Allocation, Snapshot};

use super::names::{self, Detail};
use crate::text::inert::Inert;

/// A column's name and how its field is found.
pub struct Column {
    pub name: &'static str,
    pub field: Field,
}

/// A field, by what it can hold. An empty text and `None` mean that there is nothing to tell.
pub enum Field {
    Number(fn(&Allocation) -> u64),
    Text(fn(&Rows, &Allocation, Seen) -> String),
}

/// In the order of the files' columns.
pub const COLUMNS: &[Column] = &[
    number("address", |allocation| allocation.address),
    number("bytes", |allocation| allocation.bytes),
    number("requested", |allocation| allocation.requested),
    text("kind", |_, allocation, _| allocation.kind.name().to_owned()),
    text("level", |_, _, seen| level(seen.level).to_owned()),
    text("api", |_, allocation, _| shown(&allocation.api)),
    text("domain", |_, allocation, _| {
        shown(allocation.domain.as_deref().unwrap_or_default())
    }),
    text("origin", |rows, _, seen| {
        rows.profile.paths[seen.path].origin.unwrap_or_default().to_owned()
    }),
    text("device", |rows, allocation, _| rows.device(allocation)),
    text("device_uuid", |rows, allocation, _| {
        let device = allocation.device.map(|device| &rows.profile.snapshot.devices[device]);
        shown(device.map_or("", |device| &device.uuid))
    }),
    text("stream", |_, allocation, _| {
        allocation
            .stream
            .map_or_else(String::new, |stream| stream_name(Some(stream)))
    }),
    text("pool", |_, allocation, _| {
        allocation.pool.map_or_else(String::new, |pool| format!("{pool:#x}"))
    }),
    text("thread", |rows, allocation, _| {
        let thread = &rows.profile.snapshot.threads[allocation.thread];
        shown(format!("{} {}", thread.tid, thread.name).trim_end())
    }),
    number("time_ns", |allocation| allocation.time_ns),
    text("stack", |rows, _, seen| rows.stacks[seen.path].clone()),
];

const fn number(name: &'static str, field: fn(&Allocation) -> u64) -> Column {
    Column {
        name,
        field: Field::Number(field),
    }
}

const fn text(name: &'static str, field: fn(&Rows, &Allocation, Seen) -> String) -> Column {
    Column {
        name,
        field: Field::Text(field),
    }
}

/// The word that says how a row's bytes count.
pub fn level(level: Level) -> &'static str {
    match level {
        Level::Held => "held",
        Level::Cached => "cached",
        Level::Behind => "behind",
        Level::Claim => "claim",
    }
}

fn shown(text: &str) -> String {
    Inert(text).to_string()
}

/// The rows of a snapshot.
pub struct Rows<'a> {
    pub profile: Profile<'a>,
    pub seen: Vec<Seen>,
    /// One text per path: `outermost;…;innermost`.
    stacks: Vec<String>,
}

impl<'a> Rows<'a> {
    pub fn of(snapshot: &'a Snapshot, options: &Options, detail: Detail) -> Rows<'a> {
        let mut seen = Vec::with_capacity(snapshot.allocations.len());
        let profile = Profile::visiting(snapshot, options, |_, this| seen.push(this));
        let text = |path| {
            let frames: Vec<String> = profile.path(path).map(|frame| names::frame(frame, detail)).collect();
            frames.join(";")
        };
        Rows {
            stacks: (0..profile.paths.len()).map(text).collect(),
            seen,
            profile,
        }
    }

    pub fn allocation(&self, seen: Seen) -> Allocation<'a> {
        self.profile.snapshot.allocations.at(seen.index)
    }

    fn device(&self, allocation: &Allocation) -> String {
        match allocation.device {
            Some(_) => device_name(self.profile.snapshot, allocation.device),
            None => String::new(),
        }
    }
}
