//! Live allocations as rows of a table: the columns that CSV and Parquet share.
//!
//! All records are rows, including the segments behind a framework's tensors. `level` shows which bytes to add up: the
//! sum over `held` and `cached` is what the report lists, and a row `behind` contains the memory of other rows.
//!
//! Millions of rows share a few thousand texts. So each text is stored once in its column's list ([`Texts`]), a row has
//! its index, and a format converts each text once.

use culeak::analysis::categories::Category;
use culeak::analysis::groups::Level;
use culeak::analysis::job::member::Member;
use culeak::analysis::profile::{Options, Profile};
use culeak::analysis::report::{device_name, stream_name};
use culeak::snapshot::{Allocation, Call, Snapshot};

use crate::escape::Escaped;
use crate::names::{self, Detail, Distinct};

/// A column's name and the source of its field.
pub struct Column {
    pub name: &'static str,
    pub field: Field,
}

/// The source of a field. An empty text means that the field does not apply.
#[derive(Clone, Copy)]
pub enum Field {
    Number(fn(&Allocation) -> u64),
    Level,
    Category,
    Call(fn(&Snapshot, &Call) -> String),
    Origin,
    Stack,
}

macro_rules! columns {
    ($($name:literal: $field:expr;)+) => { &[$(Column { name: $name, field: $field }),+] };
}

/// In the order of the columns in files.
pub const COLUMNS: &[Column] = columns! {
    "address": Field::Number(|allocation| allocation.address);
    "bytes": Field::Number(|allocation| allocation.bytes);
    "requested": Field::Number(|allocation| allocation.requested);
    "kind": Field::Call(|_, call| call.kind.name().to_owned());
    "level": Field::Level;
    "api": Field::Call(|_, call| shown(&call.api));
    "domain": Field::Call(|_, call| shown(call.domain.as_deref().unwrap_or_default()));
    "origin": Field::Origin;
    "sample_bytes": Field::Call(|snapshot, call| {
        let sampling = snapshot.sampling.as_ref();
        sampling.map_or_else(String::new, |sampling| sampling.of(call).to_string())
    });
    "device": Field::Call(|snapshot, call| match call.kind.place().counts_against(call.device) {
        None => String::new(),
        device => device_name(snapshot, device),
    });
    "device_uuid": Field::Call(|snapshot, call| {
        let device = call.kind.place().counts_against(call.device);
        shown(device.map_or("", |device| &snapshot.devices[device].uuid))
    });
    "stream": Field::Call(|_, call| call.stream.map_or_else(String::new, |stream| stream_name(Some(stream))));
    "pool": Field::Call(|_, call| call.pool.map_or_else(String::new, |pool| format!("{pool:#x}")));
    "thread": Field::Call(|snapshot, call| {
        let thread = &snapshot.threads[call.thread];
        shown(format!("{} {}", thread.tid, thread.name).trim_end())
    });
    "category": Field::Category;
    "time_ns": Field::Number(|allocation| allocation.time_ns);
    "stack": Field::Stack;
    "host": Field::Call(|snapshot, _| shown(&snapshot.process.host));
    "pid": Field::Call(|snapshot, _| known(Some(snapshot.process.pid).filter(|pid| *pid != 0)));
    "rank": Field::Call(|snapshot, _| known(Member::of(snapshot).rank));
};

/// A number as text, empty if it is not known.
fn known(number: Option<u32>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

fn shown(text: &str) -> String {
    Escaped(text).to_string()
}

/// The rows of a snapshot.
pub struct Rows<'a> {
    pub profile: Profile<'a>,
    rows: Vec<Row>,
    /// By column; `None` for columns of numbers.
    texts: Vec<Option<Texts>>,
}

/// A row: a record's index, its path and level in the profile, and its category.
#[derive(Clone, Copy)]
pub struct Row {
    index: u32,
    path: u32,
    /// Index into [`Level::ALL`].
    level: u8,
    category: Category,
}

/// The distinct texts of a column.
struct Texts {
    distinct: Vec<String>,
    /// The text index by level, category, call or path, depending on the column.
    of: Vec<u32>,
}

impl Texts {
    fn of(each: impl Iterator<Item = String>) -> Texts {
        let mut distinct = Distinct::default();
        let of = each.map(|text| distinct.number(text) as u32).collect();
        Texts {
            distinct: distinct.items,
            of,
        }
    }
}

impl<'a> Rows<'a> {
    pub fn of(snapshot: &'a Snapshot, options: &Options, detail: Detail) -> Rows<'a> {
        let mut rows = Vec::with_capacity(snapshot.allocations.len());
        let profile = Profile::visiting(snapshot, options, |_, seen| {
            let level = Level::ALL.iter().position(|level| *level == seen.level);
            rows.push(Row {
                index: seen.index as u32,
                path: seen.path as u32,
                level: level.unwrap_or(0) as u8,
                category: seen.category,
            })
        });
        let texts = COLUMNS.iter().map(|column| texts(&profile, column, detail));
        Rows {
            texts: texts.collect(),
            rows,
            profile,
        }
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn allocation(&self, row: &Row) -> Allocation<'a> {
        self.profile.snapshot.allocations.at(row.index as usize)
    }

    /// The distinct texts of a column.
    pub fn texts(&self, column: usize) -> &[String] {
        self.texts[column].as_ref().map_or(&[], |texts| &texts.distinct)
    }

    /// The index of a row's text in them.
    pub fn text(&self, column: usize, row: &Row) -> usize {
        let decides = match COLUMNS[column].field {
            Field::Level => row.level as usize,
            Field::Category => row.category as usize,
            Field::Call(_) => self.profile.snapshot.allocations.call_of(row.index as usize),
            _ => row.path as usize,
        };
        self.texts[column]
            .as_ref()
            .map_or(0, |texts| texts.of[decides] as usize)
    }
}

fn texts(profile: &Profile, column: &Column, detail: Detail) -> Option<Texts> {
    let (snapshot, paths) = (profile.snapshot, &profile.paths);
    Some(match column.field {
        Field::Number(_) => return None,
        Field::Level => Texts::of(Level::ALL.iter().map(|level| level.name().to_owned())),
        Field::Category => Texts::of(Category::ALL.iter().map(|category| category.name().to_owned())),
        Field::Call(text) => Texts::of(snapshot.allocations.calls().iter().map(|call| text(snapshot, call))),
        Field::Origin => Texts::of(paths.iter().map(|path| path.origin.unwrap_or_default().to_owned())),
        Field::Stack => {
            let names: Vec<String> = profile.frames.iter().map(|frame| names::frame(frame, detail)).collect();
            Texts::of(paths.iter().map(|path| {
                let frames: Vec<&str> = path.frames.iter().map(|&frame| names[frame].as_str()).collect();
                frames.join(";")
            }))
        }
    })
}
