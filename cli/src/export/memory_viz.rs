//! A memory snapshot in PyTorch's format, for <https://pytorch.org/memory_viz> and `torch.cuda._memory_viz`.
//!
//! ```text
//! memory with a device address         → segment
//!   blocks of a framework within it    → its blocks, active_allocated; between them, inactive
//!   no blocks known                    → one block
//! live records, in order of time       → device_traces: segment_alloc, alloc
//!   or all events, if they were logged → also frees and failed requests (trace.rs)
//! ```
//!
//! So the viewer shows any program's memory as it shows PyTorch's: the blocks of each segment, with their stacks. Without an
//! event log, its timeline contains only live memory. The sizes of active blocks add up
//! to what the report lists on devices. Memory without a device address cannot be represented: host memory, arrays,
//! pools, unmapped VMM handles. [`LeftOut`] is its total. VMM memory appears at its mappings, so memory that is mapped
//! twice appears twice.
//!
//! There may be ten million records, so the layout keeps only indices and addresses of each.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::Range;

use culeak::analysis::groups::Level;
use culeak::analysis::lives;
use culeak::analysis::profile::{Options, Profile, Seen};
use culeak::analysis::report::Tally;
use culeak::analysis::site::CallStacks;
use culeak::kind::{Kind, Place};
use culeak::snapshot::{Allocation, Snapshot, Stream};
use culeak::timeline::Timeline;

use crate::escape::Escaped;
use crate::pickle::write::{Pickler, Sort};
use crate::progress::{Progress, Unit};
use crate::text::names::{self, Detail};

mod trace;

use trace::{Entry, Final, Traces};

/// Memory that the report lists and the format cannot represent.
pub type LeftOut = Tally;

/// PyTorch's limit between small and large segments.
const SMALL: u64 = 2 << 20;
/// The viewer has a list indexed by ordinal.
const DEVICES: i32 = 1024;

/// Writes the memory, and its events if there is a timeline, whose end is the state of the snapshot. Returns what is left out, and the number of blocks that are
/// missing from the trace because they lay in no known memory.
pub fn write(
    snapshot: &Snapshot,
    timeline: Option<&Timeline>,
    options: &Options,
    detail: Detail,
    out: &mut dyn Write,
) -> io::Result<(LeftOut, u64)> {
    let mut layout = Layout::new(snapshot);
    let options = Options {
        all_stacks: timeline.is_some(),
        ..options.clone()
    };
    let profile = Profile::visiting(snapshot, &options, |allocation, seen| layout.take(allocation, seen));
    layout.join_mappings();
    layout.place_blocks();
    layout.leave_out_unknown_devices();
    let left_out = layout.left_out;
    let traces = timeline.map(|timeline| {
        let stacks = CallStacks::of(snapshot);
        let lives = lives::of(snapshot, &snapshot.allocations, timeline, &stacks);
        let threads = lives.threads(&timeline.memory, &snapshot.allocations);
        let (filter, suppressions) = (&options.filter, &options.suppressions);
        let wanted = lives::wanted(&lives, snapshot, &stacks, filter, suppressions, &threads);
        Traces::of(snapshot, timeline, &lives, &wanted, &layout.rows())
    });
    let not_traced = traces.as_ref().map_or(0, |traces| traces.left_out);
    let document = Document {
        profile: &profile,
        detail,
        layout,
        traces,
    };
    document.write(out)?;
    Ok((left_out, not_traced))
}

/// The address layout of all memory.
struct Layout<'a> {
    snapshot: &'a Snapshot,
    /// In order of address after `join_mappings`.
    parts: Vec<Part>,
    /// Blocks of frameworks, in order of address after `place_blocks`.
    blocks: Vec<Block>,
    segments: Vec<Segment>,
    /// Starts of reserved ranges: segments do not extend across them.
    borders: BTreeSet<u64>,
    left_out: LeftOut,
}

/// One record's memory.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
    record: u32,
    path: u32,
    /// CUDA's ordinal. A mapping may have none and take that of its blocks.
    ordinal: Option<u16>,
    /// A framework's blocks lie in it; the rest is free.
    carries: bool,
}

/// A framework's block.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    record: u32,
    path: u32,
}

/// Contiguous memory. Adjacent mappings are one segment, as in PyTorch's expandable segments.
struct Segment {
    parts: Range<u32>,
    blocks: Range<u32>,
    ordinal: Option<u16>,
}

impl<'a> Layout<'a> {
    fn new(snapshot: &'a Snapshot) -> Layout<'a> {
        Layout {
            snapshot,
            parts: Vec::new(),
            blocks: Vec::new(),
            segments: Vec::new(),
            borders: BTreeSet::new(),
            left_out: Tally::default(),
        }
    }

    fn record(&self, record: u32) -> Allocation<'a> {
        self.snapshot.allocations.at(record as usize)
    }

    fn take(&mut self, allocation: &Allocation, seen: Seen) {
        let (record, path) = (seen.index as u32, seen.path as u32);
        if allocation.kind.place() == Place::Within {
            return self.blocks.push(Block {
                address: allocation.address,
                record,
                path,
            });
        }
        if allocation.kind == Kind::Reserved {
            self.borders.insert(allocation.address);
        }
        match addresses(allocation) {
            Some((start, end)) if end > start => self.parts.push(Part {
                start,
                end,
                record,
                path,
                ordinal: self.ordinal(allocation),
                carries: seen.level == Level::Behind,
            }),
            _ => self.leave_out(allocation, seen.level),
        }
    }

    /// Sorts the parts and makes segments of them, in order of address.
    fn join_mappings(&mut self) {
        self.parts
            .sort_unstable_by_key(|part| (part.start, part.end, part.record));
        for nth in 0..self.parts.len() as u32 {
            let part = self.parts[nth as usize];
            let joined = self.segments.last().is_some_and(|last| self.continues(last, &part));
            match self.segments.last_mut() {
                Some(last) if joined => {
                    last.parts.end = nth + 1;
                    last.ordinal = last.ordinal.or(part.ordinal);
                }
                _ => self.segments.push(Segment {
                    parts: nth..nth + 1,
                    blocks: 0..0,
                    ordinal: part.ordinal,
                }),
            }
        }
    }

    fn continues(&self, segment: &Segment, next: &Part) -> bool {
        let (first, last) = (self.first(segment), self.last(segment));
        let is_mapped = |part: &Part| self.record(part.record).kind == Kind::Mapping;
        let one_device = segment.ordinal.is_none() || next.ordinal.is_none() || segment.ordinal == next.ordinal;
        let both = first.carries && next.carries && is_mapped(first) && is_mapped(next);
        both && one_device && last.end == next.start && !self.borders.contains(&next.start)
    }

    fn first(&self, segment: &Segment) -> &Part {
        &self.parts[segment.parts.start as usize]
    }

    fn last(&self, segment: &Segment) -> &Part {
        &self.parts[segment.parts.end as usize - 1]
    }

    /// Assigns each framework block to the segment that contains it.
    fn place_blocks(&mut self) {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.sort_unstable_by_key(|block| (block.address, self.record(block.record).bytes, block.record));
        let (mut placed, mut behind, mut free) = (0, 0, 0);
        for nth in 0..blocks.len() {
            let block = blocks[nth];
            let allocation = self.record(block.record);
            while self
                .segments
                .get(behind)
                .is_some_and(|next| self.first(next).start <= block.address)
            {
                behind += 1;
                free = 0;
            }
            let end = block.address.checked_add(allocation.bytes);
            let fits = behind.checked_sub(1).filter(|&segment| {
                let segment = &self.segments[segment];
                self.first(segment).carries
                    && allocation.bytes > 0
                    && block.address >= free
                    && end.is_some_and(|end| end <= self.last(segment).end)
            });
            let Some(segment) = fits else {
                self.leave_out(&allocation, Level::Held);
                continue;
            };
            free = end.unwrap_or(u64::MAX);
            let ordinal = self.ordinal(&allocation);
            let segment = &mut self.segments[segment];
            segment.ordinal = segment.ordinal.or(ordinal);
            if segment.blocks.is_empty() {
                segment.blocks.start = placed;
            }
            blocks[placed as usize] = block;
            placed += 1;
            segment.blocks.end = placed;
        }
        blocks.truncate(placed as usize);
        self.blocks = blocks;
    }

    fn leave_out_unknown_devices(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        let (shown, nowhere): (Vec<_>, Vec<_>) = segments.into_iter().partition(|segment| segment.ordinal.is_some());
        for segment in &nowhere {
            for record in self.held(segment).map(|(record, _)| record).collect::<Vec<_>>() {
                self.leave_out(&self.record(record), Level::Held);
            }
        }
        self.segments = shown;
    }

    fn leave_out(&mut self, allocation: &Allocation, level: Level) {
        let at_its_mappings = allocation.kind == Kind::Physical && allocation.mappings > 0;
        if level.is_counted() && !at_its_mappings {
            self.left_out.add(allocation.bytes);
        }
    }

    /// CUDA's ordinal of the device, if the viewer supports it.
    fn ordinal(&self, allocation: &Allocation) -> Option<u16> {
        let snapshot = self.snapshot;
        let device = allocation
            .device
            .or_else(|| snapshot.contexts[allocation.context?].device);
        let ordinal = snapshot.devices[device?].ordinal;
        (0..DEVICES).contains(&ordinal).then_some(ordinal as u16)
    }

    /// Record and path of the memory in use in a segment: its blocks, or all of it if none are known.
    fn held(&self, segment: &Segment) -> impl Iterator<Item = (u32, u32)> + Clone {
        let first = self.first(segment);
        let whole = (!first.carries).then_some((first.record, first.path));
        let blocks = &self.blocks[segment.blocks.start as usize..segment.blocks.end as usize];
        let blocks = blocks.iter().map(|block| (block.record, block.path));
        whole.into_iter().chain(blocks)
    }

    fn parts_of(&self, segment: &Segment) -> &[Part] {
        &self.parts[segment.parts.start as usize..segment.parts.end as usize]
    }

    /// The device of each segment's rows, and whether blocks lie in them.
    fn rows(&self) -> Final {
        let of_segment = |segment: &Segment| {
            let ordinal = segment.ordinal;
            let parts = self.parts_of(segment).iter();
            parts
                .map(|part| (part.record, (ordinal, part.carries)))
                .collect::<Vec<_>>()
        };
        self.segments.iter().flat_map(of_segment).collect()
    }

    /// When the memory at an address of a segment was mapped; a block there cannot be older.
    fn mapped_at(&self, segment: &Segment, address: u64) -> u64 {
        let parts = self.parts_of(segment);
        let behind = parts.partition_point(|part| part.start <= address);
        parts[..behind]
            .last()
            .map_or(0, |part| self.record(part.record).time_ns)
    }
}

struct Document<'p, 'a> {
    profile: &'p Profile<'a>,
    detail: Detail,
    layout: Layout<'a>,
    /// `None`: the trace is that of live memory.
    traces: Option<Traces>,
}

/// The event that made a live record.
struct Event {
    time_ns: u64,
    record: u32,
    path: u32,
    /// The segment grew; otherwise a block was handed out.
    segment: bool,
}

/// A part of a segment, in use or free.
struct Piece {
    start: u64,
    size: u64,
    /// Record and path.
    block: Option<(u32, u32)>,
}

impl Document<'_, '_> {
    fn write(self, out: &mut dyn Write) -> io::Result<()> {
        let mut pickler = Pickler::new(out);
        let segments = &self.layout.segments;
        pickler.begin();
        pickler.word("segments")?;
        let progress = Progress::over("writing", segments.len() as u64, Unit::Of("segments"));
        pickler.list(segments.iter().enumerate(), |pickler, (nth, segment)| {
            progress.tick(nth);
            self.segment(pickler, segment)
        })?;
        drop(progress);
        pickler.word("device_traces")?;
        let devices = segments.iter().filter_map(|segment| segment.ordinal).max();
        let traced = self.traces.as_ref().map_or(0, |traces| traces.of_devices.len() as u16);
        let devices = traced.max(devices.map_or(0, |highest| highest + 1));
        pickler.list(0..devices, |pickler, ordinal| {
            if let Some(traces) = &self.traces {
                let trace = traces.of_devices.get(ordinal as usize).map_or(&[][..], Vec::as_slice);
                let progress = Progress::over("writing", trace.len() as u64, Unit::Of("events"));
                return pickler.list(trace.iter().enumerate(), |pickler, (nth, entry)| {
                    progress.tick(nth);
                    self.entry(pickler, entry)
                });
            }
            let trace = self.trace(ordinal);
            let progress = Progress::over("writing", trace.len() as u64, Unit::Of("events"));
            pickler.list(trace.iter().enumerate(), |pickler, (nth, event)| {
                progress.tick(nth);
                self.event(pickler, event)
            })
        })?;
        pickler.word("allocator_settings")?;
        pickler.begin();
        pickler.end();
        pickler.word("external_annotations")?;
        pickler.list(std::iter::empty::<()>(), |_, ()| Ok(()))?;
        pickler.end();
        pickler.finish()
    }

    fn segment(&self, pickler: &mut Pickler, segment: &Segment) -> io::Result<()> {
        let (first, end) = (self.layout.first(segment), self.layout.last(segment).end);
        let allocation = self.layout.record(first.record);
        let size = end - first.start;
        let held = self.layout.held(segment).map(|(record, _)| self.layout.record(record));
        let used = held
            .clone()
            .fold(0, |sum: u64, block| sum.saturating_add(bytes(&block)));
        let requested = held.fold(0, |sum: u64, block| sum.saturating_add(requested(&block)));
        pickler.begin();
        pickler.entry("device", segment.ordinal.unwrap_or(0).into())?;
        pickler.entry("address", first.start)?;
        pickler.entry("total_size", size)?;
        pickler.entry("allocated_size", used)?;
        pickler.entry("active_size", used)?;
        pickler.entry("requested_size", requested)?;
        pickler.entry("stream", stream(&allocation))?;
        pickler.word_entry("segment_type", if size <= SMALL { "small" } else { "large" })?;
        pickler.word("segment_pool_id")?;
        pickler.pair(0, 0);
        pickler.word("is_expandable")?;
        pickler.boolean(allocation.kind == Kind::Mapping);
        pickler.word("frames")?;
        self.frames(pickler, first.path)?;
        pickler.word("blocks")?;
        pickler.list(self.pieces(segment), |pickler, piece| self.piece(pickler, &piece))?;
        pickler.end();
        Ok(())
    }

    /// All pieces of a segment, free ones too: the viewer expects no gaps.
    fn pieces(&self, segment: &Segment) -> impl Iterator<Item = Piece> {
        let (mut at, end) = (self.layout.first(segment).start, self.layout.last(segment).end);
        let mut free_until = move |until: u64, next: u64| {
            let free = (until > at).then_some(Piece {
                start: at,
                size: until - at,
                block: None,
            });
            at = next;
            free
        };
        let blocks = self.layout.held(segment).map(Some).chain([None]);
        blocks
            .flat_map(move |block| {
                let Some((record, path)) = block else {
                    return [free_until(end, end), None];
                };
                let allocation = self.layout.record(record);
                let (start, size) = (allocation.address, bytes(&allocation));
                let piece = Piece {
                    start,
                    size,
                    block: Some((record, path)),
                };
                [free_until(start, start + size), Some(piece)]
            })
            .flatten()
    }

    fn piece(&self, pickler: &mut Pickler, piece: &Piece) -> io::Result<()> {
        let block = piece.block.map(|(record, path)| (self.layout.record(record), path));
        pickler.begin();
        pickler.entry("address", piece.start)?;
        pickler.entry("size", piece.size)?;
        pickler.entry("requested_size", block.map_or(0, |(block, _)| requested(&block)))?;
        let state = if block.is_some() {
            "active_allocated"
        } else {
            "inactive"
        };
        pickler.word_entry("state", state)?;
        pickler.word("frames")?;
        match block {
            Some((_, path)) => self.frames(pickler, path)?,
            None => pickler.list(std::iter::empty::<()>(), |_, ()| Ok(()))?,
        }
        pickler.end();
        Ok(())
    }

    /// Innermost first, as in PyTorch's files.
    fn frames(&self, pickler: &mut Pickler, path: u32) -> io::Result<()> {
        /// In place of frames that are missing.
        const CUT: usize = usize::MAX;
        let path = path as usize;
        pickler.shared(Sort::Frames, path, |pickler| {
            let known = &self.profile.paths[path];
            let frames = known.frames.iter().rev().copied().chain(known.truncated.then_some(CUT));
            pickler.list(frames, |pickler, frame| {
                pickler.shared(Sort::Frame, frame, |pickler| self.frame(pickler, frame))
            })
        })
    }

    fn frame(&self, pickler: &mut Pickler, frame: usize) -> io::Result<()> {
        pickler.begin();
        match self.profile.frames.get(frame) {
            Some(frame) => {
                pickler.text_entry("name", &names::function(frame, self.detail))?;
                pickler.text_entry("filename", &Escaped(frame.file.unwrap_or(frame.module)).to_string())?;
                pickler.entry("line", frame.line.unwrap_or(0).into())?;
            }
            None => {
                pickler.text_entry("name", names::CUT)?;
                pickler.text_entry("filename", "")?;
                pickler.entry("line", 0)?;
            }
        }
        pickler.end();
        Ok(())
    }

    /// Events of a device, in order of time; a segment comes before its blocks.
    fn trace(&self, ordinal: u16) -> Vec<Event> {
        let layout = &self.layout;
        let mut trace: Vec<Event> = Vec::new();
        for segment in layout
            .segments
            .iter()
            .filter(|segment| segment.ordinal == Some(ordinal))
        {
            trace.extend(layout.parts_of(segment).iter().map(|part| Event {
                time_ns: layout.record(part.record).time_ns,
                record: part.record,
                path: part.path,
                segment: true,
            }));
            trace.extend(layout.held(segment).map(|(record, path)| {
                let block = layout.record(record);
                Event {
                    time_ns: block.time_ns.max(layout.mapped_at(segment, block.address)),
                    record,
                    path,
                    segment: false,
                }
            }));
        }
        // The sort is stable: a segment stays before a block with the same time.
        trace.sort_by_key(|event| event.time_ns);
        trace
    }

    fn entry(&self, pickler: &mut Pickler, entry: &Entry) -> io::Result<()> {
        let began = self.profile.snapshot.process.started_unix_ns;
        pickler.begin();
        pickler.word_entry("action", entry.action.name())?;
        if entry.action == trace::Action::OutOfMemory {
            // The viewer requires it; a recording does not contain it.
            pickler.entry("device_free", 0)?;
        } else {
            pickler.entry("addr", entry.address)?;
        }
        pickler.entry("size", entry.size)?;
        // The log has no streams.
        pickler.entry("stream", 0)?;
        pickler.entry("time_us", began.saturating_add(entry.time_ns) / 1000)?;
        pickler.word("frames")?;
        let known = &self.profile.path_of;
        let path = entry.stack.map_or(known.len() - 1, |stack| stack as usize);
        self.frames(pickler, known[path].unwrap_or(0) as u32)?;
        pickler.end();
        Ok(())
    }

    fn event(&self, pickler: &mut Pickler, event: &Event) -> io::Result<()> {
        let began = self.profile.snapshot.process.started_unix_ns;
        let allocation = self.layout.record(event.record);
        pickler.begin();
        let action = match (event.segment, allocation.kind) {
            (false, _) => "alloc",
            (true, Kind::Mapping) => "segment_map",
            (true, _) => "segment_alloc",
        };
        pickler.word_entry("action", action)?;
        pickler.entry("addr", allocation.address)?;
        pickler.entry("size", bytes(&allocation))?;
        pickler.entry("stream", stream(&allocation))?;
        pickler.entry("time_us", began.saturating_add(event.time_ns) / 1000)?;
        pickler.word("frames")?;
        self.frames(pickler, event.path)?;
        pickler.end();
        Ok(())
    }
}

/// The size of a record's address range.
fn bytes(allocation: &Allocation) -> u64 {
    addresses(allocation).map_or(allocation.bytes, |(start, end)| end - start)
}

/// The requested size; the viewer shows the allocator's rounding separately.
fn requested(allocation: &Allocation) -> u64 {
    allocation.requested.min(bytes(allocation))
}

/// A record's address range, if it has device addresses.
fn addresses(allocation: &Allocation) -> Option<(u64, u64)> {
    let bytes = match allocation.kind {
        Kind::Mapping => allocation.requested,
        Kind::Device | Kind::Pitched | Kind::Async | Kind::Graph | Kind::Managed => allocation.bytes,
        _ => return None,
    };
    Some((allocation.address, allocation.address.checked_add(bytes)?))
}

fn stream(allocation: &Allocation) -> u64 {
    match allocation.stream {
        // CUDA's handles of its default streams.
        None | Some(Stream::LegacyDefault) => 0,
        Some(Stream::PerThreadDefault) => 2,
        Some(Stream::Handle(handle)) => handle,
    }
}
