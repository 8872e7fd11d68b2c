//! pprof's profile: a gzipped protobuf that `go tool pprof`, pprof.me, Speedscope, Polar Signals and others open.
//!
//! The values have the names of Go's heap profiles: `inuse_space` and `inuse_objects` are live memory; `alloc_space` and
//! `alloc_objects`, all memory allocated since the start, are absent if the input does not count it. Samples have the
//! labels `kind`, `device`, `stream`, `thread`, `bytes` (the size of one block), and, for memory of a library or an
//! allocator, `library` or `cached`; those of the process are `host`, `pid` and `rank`. Each address has its mapping with
//! build id and its lines, inlined calls included. `pprof -diff_base before.pb.gz after.pb.gz` compares.
//!
//! The location of a Python line has neither an address nor a mapping.

use std::collections::HashMap;
use std::io::{self, Write};

use culeak::analysis::categories::Category;
use culeak::analysis::estimate::sampled;
use culeak::analysis::groups::Level;
use culeak::analysis::job::member::Member;
use culeak::analysis::profile::{Options, Profile};
use culeak::analysis::report::{Tally, stream_name};
use culeak::analysis::site::Frame;
use culeak::kind::{Kind, Place};
use culeak::snapshot::{Module, Snapshot, Stream};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::Input;
use super::protobuf::messages;
use crate::names::Distinct;
use crate::progress::{Progress, Unit};

// The parts of pprof's `profile.proto` that are written here, with its field numbers.
messages! {
    ProfileMessage {
        sample_type: Vec<ValueType> = 1 message repeated;
        sample: Vec<SampleMessage> = 2 message repeated;
        mapping: Vec<Mapping> = 3 message repeated;
        location: Vec<Location> = 4 message repeated;
        function: Vec<Function> = 5 message repeated;
        string_table: Vec<String> = 6 string repeated;
        time_nanos: i64 = 9 int64;
        duration_nanos: i64 = 10 int64;
        period_type: Option<ValueType> = 11 message optional;
        period: i64 = 12 int64;
        comment: Vec<i64> = 13 int64 repeated;
        default_sample_type: i64 = 14 int64;
    }
    #[derive(Copy)]
    ValueType { r#type: i64 = 1 int64; unit: i64 = 2 int64; }
    SampleMessage {
        location_id: Vec<u64> = 1 uint64 repeated;
        value: Vec<i64> = 2 int64 repeated;
        label: Vec<Label> = 3 message repeated;
    }
    #[derive(Copy)]
    Label { key: i64 = 1 int64; str: i64 = 2 int64; num: i64 = 3 int64; num_unit: i64 = 4 int64; }
    #[derive(Copy)]
    Mapping {
        id: u64 = 1 uint64;
        memory_start: u64 = 2 uint64;
        memory_limit: u64 = 3 uint64;
        file_offset: u64 = 4 uint64;
        filename: i64 = 5 int64;
        build_id: i64 = 6 int64;
        has_functions: bool = 7 bool;
        has_filenames: bool = 8 bool;
        has_line_numbers: bool = 9 bool;
        has_inline_frames: bool = 10 bool;
    }
    Location {
        id: u64 = 1 uint64;
        mapping_id: u64 = 2 uint64;
        address: u64 = 3 uint64;
        line: Vec<Line> = 4 message repeated;
    }
    #[derive(Copy)]
    Line { function_id: u64 = 1 uint64; line: i64 = 2 int64; }
    #[derive(Copy)]
    Function { id: u64 = 1 uint64; name: i64 = 2 int64; system_name: i64 = 3 int64; filename: i64 = 4 int64; }
}

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    let snapshots: Vec<&Snapshot> = input.snapshots().map(|(_, snapshot)| snapshot).collect();
    write(&snapshots, &input.options, out)
}

/// Writes one profile of several processes; labels tell their samples apart.
pub fn write(snapshots: &[&Snapshot], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    // The level that Go uses: higher levels save little space.
    let mut packed = GzEncoder::new(out, Compression::fast());
    write_plain(snapshots, options, Detail::Full, &mut packed)?;
    packed.finish().map(drop)
}

/// The profile without compression, for servers that make a series of each set of labels: live memory only, in samples without
/// `thread`, `stream`, `bytes` and the labels of the process. The period type is that of Go's heap profiles.
#[cfg(feature = "push")]
pub fn compact(snapshot: &Snapshot, options: &Options) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write_plain(&[snapshot], options, Detail::Compact, &mut bytes)?;
    Ok(bytes)
}

/// How samples are distinguished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Detail {
    #[default]
    Full,
    Compact,
}

/// Records with equal keys are one sample.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
struct Key {
    path: usize,
    kind: Kind,
    level: Level,
    category: Category,
    device: Option<usize>,
    stream: Option<Stream>,
    thread: usize,
    bytes: u64,
}

/// The mean distance in bytes of sampled stacks; 1 if there is the stack of every block. Values are weighted already.
pub fn period(snapshot: &Snapshot) -> i64 {
    snapshot.sampling.map_or(1, |sampling| number(sampling.bytes))
}

/// Writes the message in pieces, one sample each: there may be millions.
fn write_plain(snapshots: &[&Snapshot], options: &Options, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let is_full = detail == Detail::Full;
    let options = Options {
        addresses: true,
        made: is_full,
        ..options.clone()
    };
    // All samples have the same values.
    let lacks = |snapshot: &&Snapshot| snapshot.totals.is_empty() && !snapshot.allocations.is_empty();
    let has_made =
        is_full && snapshots.iter().any(|snapshot| !snapshot.totals.is_empty()) && !snapshots.iter().any(lacks);
    let mut kept = Kept {
        detail,
        ..Kept::default()
    };
    let mut has_bytes = false;
    for snapshot in snapshots {
        has_bytes |= write_samples(snapshot, &options, has_made, &mut kept, out)?;
    }
    let space = kept.value_type("inuse_space", "bytes");
    let objects = kept.value_type("inuse_objects", "count");
    let mut sample_type = vec![space, objects];
    if has_made {
        sample_type.push(kept.value_type("alloc_space", "bytes"));
        sample_type.push(kept.value_type("alloc_objects", "count"));
    }
    let period_type = Some(match detail {
        Detail::Full => space,
        Detail::Compact => kept.value_type("space", "bytes"),
    });
    let comment = |snapshot: &&Snapshot| {
        let sampled = snapshot
            .sampling
            .map(|sampling| format!(", {}", sampled("of this profile", sampling)));
        kept.text(&format!(
            "culeak {}, process {}{}",
            env!("CARGO_PKG_VERSION"),
            snapshot.process.pid,
            sampled.unwrap_or_default()
        ))
    };
    let comment = snapshots.iter().map(comment).collect();
    let rest = ProfileMessage {
        sample_type,
        sample: Vec::new(),
        time_nanos: number(
            snapshots
                .iter()
                .map(|snapshot| snapshot.taken.at_unix_ns)
                .max()
                .unwrap_or(0),
        ),
        duration_nanos: number(snapshots.iter().map(|snapshot| snapshot.taken.at_ns).max().unwrap_or(0)),
        period_type,
        period: snapshots.iter().map(|snapshot| period(snapshot)).max().unwrap_or(1),
        comment,
        // Objects have counts only.
        default_sample_type: if has_bytes { space.r#type } else { objects.r#type },
        mapping: kept.mappings,
        location: kept.locations,
        function: kept.functions,
        string_table: kept.texts.items,
    };
    out.write_all(&rest.encode_to_vec())
}

/// Writes the samples of one process, and keeps what they refer to. Returns whether it has none, or any with bytes.
fn write_samples(
    snapshot: &Snapshot,
    options: &Options,
    has_made: bool,
    kept: &mut Kept,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let is_full = kept.detail == Detail::Full;
    let mut sums: Vec<(Key, Tally)> = Vec::new();
    let profile = Profile::visiting_sizes(snapshot, options, |group, path, category| {
        let key = Key {
            path,
            kind: group.call.kind,
            level: group.level,
            category,
            device: group.call.device,
            stream: group.call.stream.filter(|_| is_full),
            thread: if is_full { group.call.thread } else { 0 },
            bytes: if is_full { group.largest } else { 0 },
        };
        sums.push((key, group.tally()));
    });
    sums.sort_unstable_by_key(|(key, _)| *key);
    sums.dedup_by(|(key, tally), (known, sum)| {
        let same = key == known;
        if same {
            sum.join(*tally);
        }
        same
    });
    sums.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.bytes));
    let mut tables = Tables::new(&profile, kept);
    let paths: Vec<Vec<u64>> = (0..profile.paths.len()).map(|path| tables.locations_of(path)).collect();
    // `made` includes live memory. The difference was freed, and of that only the stack is known.
    let values = |live: Tally, made: Tally| {
        let values = [live.bytes, live.count, made.bytes, made.count];
        values
            .iter()
            .take(if has_made { 4 } else { 2 })
            .map(|&value| number(value))
            .collect::<Vec<_>>()
    };
    let mut bytes = Vec::new();
    let mut write = |sample: SampleMessage| {
        // Concatenated pieces of a message are the message.
        let piece = ProfileMessage {
            sample: vec![sample],
            ..ProfileMessage::default()
        };
        bytes.clear();
        piece.encode(&mut bytes).map_err(io::Error::other)?;
        out.write_all(&bytes)
    };
    let progress = Progress::over("writing", sums.len() as u64, Unit::Of("samples"));
    for (nth, (key, tally)) in sums.iter().enumerate() {
        progress.tick(nth);
        write(SampleMessage {
            location_id: paths[key.path].clone(),
            value: values(*tally, *tally),
            label: tables.labels(key),
        })?;
    }
    for of in profile.samples.iter().filter(|_| has_made) {
        let freed = of.made.unwrap_or_default().less(of.live);
        if freed.count > 0 {
            write(SampleMessage {
                location_id: paths[of.path].clone(),
                value: values(Tally::default(), freed),
                label: tables.common_labels(of.kind, of.level, of.device, of.path),
            })?;
        }
    }
    Ok(sums.is_empty() || sums.iter().any(|(_, tally)| tally.bytes > 0))
}

/// The format has signed numbers.
fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The tables that samples of all processes refer to. Ids begin with 1; 0 means none.
struct Kept {
    detail: Detail,
    texts: Distinct<String>,
    mappings: Vec<Mapping>,
    functions: Vec<Function>,
    function_of: HashMap<(i64, i64), u64>,
    locations: Vec<Location>,
}

impl Default for Kept {
    fn default() -> Kept {
        let mut kept = Kept {
            detail: Detail::Full,
            texts: Distinct::default(),
            mappings: Vec::new(),
            functions: Vec::new(),
            function_of: HashMap::new(),
            locations: Vec::new(),
        };
        // The format requires the empty text at 0.
        kept.text("");
        kept
    }
}

impl Kept {
    /// The number of a text. It is escaped, because `pprof -top` prints it to a terminal.
    fn text(&mut self, text: &str) -> i64 {
        self.texts.escaped(text) as i64
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType {
            r#type: self.text(name),
            unit: self.text(unit),
        }
    }
}

/// The tables, and what one process has in them.
struct Tables<'p, 'a> {
    profile: &'p Profile<'a>,
    kept: &'p mut Kept,
    /// By path, the first module of that name.
    mapping_of: HashMap<&'a str, (u64, &'a Module)>,
    location_of: HashMap<Vec<usize>, u64>,
}

impl<'p, 'a> Tables<'p, 'a> {
    fn new(profile: &'p Profile<'a>, kept: &'p mut Kept) -> Tables<'p, 'a> {
        let mut tables = Tables {
            profile,
            kept,
            mapping_of: HashMap::new(),
            location_of: HashMap::new(),
        };
        tables.add_mappings();
        tables
    }

    /// The modules of all frames, the executable first, as pprof expects.
    fn add_mappings(&mut self) {
        let profile = self.profile;
        let snapshot = profile.snapshot;
        let mut used: Vec<&Module> = Vec::new();
        for module in &snapshot.modules {
            let lies_in = |frame: &Frame| frame.module == module.path;
            let known = used.iter().any(|other| other.path == module.path);
            if !known && profile.frames.iter().any(lies_in) {
                used.push(module);
            }
        }
        used.sort_by_key(|module| module.path != snapshot.process.executable);
        for module in used {
            let named = |has: fn(&Frame) -> bool| {
                let mut frames = profile.frames.iter().filter(|frame| frame.module == module.path);
                frames.all(has)
            };
            let mapping = Mapping {
                id: self.kept.mappings.len() as u64 + 1,
                memory_start: module.start,
                memory_limit: module.end,
                // Addresses are those of the process; the bias gives those of the file.
                file_offset: module.start.saturating_sub(module.bias),
                filename: self.text(&module.path),
                build_id: self.text(&module.build_id),
                // Keeps pprof from searching the reader's machine for symbols that are in the file.
                has_functions: named(|frame| frame.function.is_some()),
                has_filenames: named(|frame| frame.file.is_some()),
                has_line_numbers: named(|frame| frame.line.is_some()),
                has_inline_frames: named(|frame| frame.function.is_some()),
            };
            self.mapping_of.insert(&module.path, (mapping.id, module));
            self.kept.mappings.push(mapping);
        }
    }

    fn text(&mut self, text: &str) -> i64 {
        self.kept.text(text)
    }

    /// Locations of a path, innermost first; calls inlined into one address are lines of one location.
    fn locations_of(&mut self, path: usize) -> Vec<u64> {
        let mut frames: Vec<usize> = self.profile.paths[path].frames.clone();
        frames.reverse();
        let all = &self.profile.frames;
        let one_address = |&inner: &usize, &outer: &usize| {
            let (inner, outer) = (&all[inner], &all[outer]);
            inner.inlined && (inner.module, inner.address) == (outer.module, outer.address)
        };
        let groups: Vec<Vec<usize>> = frames.chunk_by(one_address).map(<[usize]>::to_vec).collect();
        groups.into_iter().map(|group| self.location(group)).collect()
    }

    fn location(&mut self, frames: Vec<usize>) -> u64 {
        if let Some(&id) = self.location_of.get(&frames) {
            return id;
        }
        let first = &self.profile.frames[frames[0]];
        let mapping = self.mapping_of.get(first.module).copied();
        let address = match mapping {
            // The frame has a return address; the call is before it.
            Some((_, module)) => first.address.saturating_sub(1).wrapping_add(module.bias),
            None if first.is_python() => 0,
            None => first.address,
        };
        let id = self.kept.locations.len() as u64 + 1;
        let line = frames.iter().filter_map(|&frame| self.line(frame)).collect();
        self.kept.locations.push(Location {
            id,
            mapping_id: mapping.map_or(0, |(id, _)| id),
            address,
            line,
        });
        self.location_of.insert(frames, id);
        id
    }

    /// `None` if no name is known; the location then has only an address.
    fn line(&mut self, frame: usize) -> Option<Line> {
        let frame = &self.profile.frames[frame];
        // pprof removes angle brackets as template arguments, so write `<module>` with parentheses.
        let name = match frame.function? {
            name if frame.is_python() => &name.replace('<', "(").replace('>', ")"),
            name => name,
        };
        let name = self.text(name);
        let filename = self.text(frame.file.unwrap_or_default());
        let next = self.kept.functions.len() as u64 + 1;
        let id = *self.kept.function_of.entry((name, filename)).or_insert(next);
        if id == next {
            self.kept.functions.push(Function {
                id,
                name,
                system_name: name,
                filename,
            });
        }
        Some(Line {
            function_id: id,
            line: frame.line.unwrap_or(0).into(),
        })
    }

    /// The labels that freed memory has, too.
    fn common_labels(&mut self, kind: Kind, level: Level, device: Option<usize>, path: usize) -> Vec<Label> {
        let snapshot = self.profile.snapshot;
        let mut labels = vec![self.label("kind", kind.name())];
        if let Some(device) = kind.place().counts_against(device) {
            let name = format!("GPU {}", snapshot.devices[device].ordinal);
            labels.push(self.label("device", &name));
        }
        match (level, self.profile.paths[path].origin) {
            (Level::Cached, owner) => labels.push(self.label("cached", owner.unwrap_or("pool"))),
            (_, Some(library)) if kind.place() != Place::Within => labels.push(self.label("library", library)),
            _ => {}
        }
        if self.kept.detail == Detail::Compact {
            return labels;
        }
        // Profiles of several processes are merged by other tools.
        let member = Member::of(snapshot);
        if member.pid != 0 {
            labels.push(self.label("host", &member.host));
            labels.push(self.label("pid", &member.pid.to_string()));
        }
        if let Some(rank) = member.rank {
            labels.push(self.label("rank", &rank.to_string()));
        }
        labels
    }

    fn labels(&mut self, key: &Key) -> Vec<Label> {
        let snapshot = self.profile.snapshot;
        let mut labels = self.common_labels(key.kind, key.level, key.device, key.path);
        if key.stream.is_some() {
            labels.push(self.label("stream", &stream_name(key.stream)));
        }
        labels.push(self.label("category", key.category.name()));
        if self.kept.detail == Detail::Compact {
            return labels;
        }
        let thread = &snapshot.threads[key.thread];
        let name = format!("{} {}", thread.tid, thread.name);
        labels.push(self.label("thread", name.trim_end()));
        labels.push(Label {
            key: self.text("bytes"),
            str: 0,
            num: number(key.bytes),
            num_unit: self.text("bytes"),
        });
        labels
    }

    fn label(&mut self, key: &str, text: &str) -> Label {
        Label {
            key: self.text(key),
            str: self.text(text),
            num: 0,
            num_unit: 0,
        }
    }
}
