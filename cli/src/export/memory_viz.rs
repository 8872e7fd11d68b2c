//! A memory snapshot as PyTorch writes them, for <https://pytorch.org/memory_viz> and `torch.cuda._memory_viz`.
//!
//! ```text
//! memory with a device address         → segment
//!   blocks of a framework within it    → its blocks, active_allocated; between them, inactive
//!   none known                         → one block
//! live records, in the order of time   → device_traces: segment_alloc, alloc
//! ```
//!
//! So the viewer shows every program's memory the way it shows PyTorch's: which segment holds what, and by which line.
//! Its timeline grows by what is still live; what was freed in between was not kept by the recording and is not in it.
//! Sizes of active blocks add up to what the report lists on devices. Memory without a device address has no place in this
//! format: host memory, arrays, pools, VMM handles that are mapped nowhere. How much that is, [`LeftOut`] says. Memory of
//! the VMM kind stands at its mappings, so what is mapped twice is there twice.

use std::collections::BTreeSet;
use std::io::{self, Write};

use culeak::census::Level;
use culeak::kind::{Kind, Place};
use culeak::profile::{Options, Profile, Seen};
use culeak::report::Share;
use culeak::snapshot::{Allocation, Snapshot, Stream};

use super::names::{self, Detail};
use crate::pickle::write::Pickler;
use crate::text::inert::Inert;

/// What the format has no place for, of that which the report lists.
pub type LeftOut = Share;

/// PyTorch's border between its two sorts of segments.
const SMALL: u64 = 2 << 20;
/// The viewer keeps a list by ordinal.
const DEVICES: i32 = 1024;

pub fn write(snapshot: &Snapshot, options: &Options, detail: Detail, out: &mut dyn Write) -> io::Result<LeftOut> {
    let mut seen = Vec::new();
    let profile = Profile::visiting(snapshot, options, |_, this| seen.push(this));
    let mut picture = Picture {
        profile: &profile,
        detail,
        segments: Vec::new(),
        left_out: Share::default(),
    };
    picture.lay_out(&seen);
    picture.write(out)?;
    Ok(picture.left_out)
}

struct Picture<'p, 'a> {
    profile: &'p Profile<'a>,
    detail: Detail,
    segments: Vec<Segment<'a>>,
    left_out: LeftOut,
}

/// Memory in one piece. Mappings side by side are one, as PyTorch's expandable segments are.
struct Segment<'a> {
    parts: Vec<Part<'a>>,
    /// CUDA's number for the device. A mapping may not know its own, but its blocks do.
    ordinal: Option<u64>,
    /// A framework hands out of it, so what is not handed out is free.
    carries: bool,
    blocks: Vec<Block<'a>>,
}

/// One record's memory.
struct Part<'a> {
    allocation: Allocation<'a>,
    path: usize,
    start: u64,
    end: u64,
}

impl<'a> Segment<'a> {
    fn start(&self) -> u64 {
        self.parts[0].start
    }

    fn end(&self) -> u64 {
        self.last().end
    }

    fn last(&self) -> &Part<'a> {
        &self.parts[self.parts.len() - 1]
    }

    fn is_mapped(&self) -> bool {
        self.parts[0].allocation.kind == Kind::Mapping
    }

    /// When the memory at an address came; a block there cannot be older.
    fn mapped_at(&self, address: u64) -> u64 {
        let behind = self.parts.partition_point(|part| part.start <= address);
        self.parts[..behind].last().map_or(0, |part| part.allocation.time_ns)
    }

    fn goes_on_in(&self, next: &Segment) -> bool {
        let one_device = self.ordinal.is_none() || next.ordinal.is_none() || self.ordinal == next.ordinal;
        self.is_mapped() && next.is_mapped() && self.carries && next.carries && self.end() == next.start() && one_device
    }

    fn join(&mut self, next: Segment<'a>) {
        self.ordinal = self.ordinal.or(next.ordinal);
        self.parts.extend(next.parts);
    }
}

struct Block<'a> {
    allocation: Allocation<'a>,
    path: usize,
}

impl<'a> Picture<'_, 'a> {
    /// Segments in order of address, and the blocks into theirs.
    fn lay_out(&mut self, seen: &[Seen]) {
        let snapshot = self.profile.snapshot;
        let record = |seen: &Seen| snapshot.allocations.at(seen.index);
        let (within, own): (Vec<&Seen>, Vec<&Seen>) =
            seen.iter().partition(|seen| record(seen).kind.place() == Place::Within);
        let mut pieces: Vec<Segment> = Vec::new();
        // Where reserved ranges begin, one segment ends and another begins, though they may touch.
        let mut borders: BTreeSet<u64> = BTreeSet::new();
        for seen in own {
            let allocation = record(seen);
            if allocation.kind == Kind::Reserved {
                borders.insert(allocation.address);
            }
            match addresses(&allocation) {
                Some((start, end)) if end > start => pieces.push(Segment {
                    parts: vec![Part {
                        allocation,
                        path: seen.path,
                        start,
                        end,
                    }],
                    ordinal: self.ordinal(&allocation),
                    carries: seen.level == Level::Behind,
                    blocks: Vec::new(),
                }),
                _ => self.leave_out(&allocation, seen.level),
            }
        }
        pieces.sort_by_key(|segment| (segment.start(), segment.end()));
        for piece in pieces {
            match self.segments.last_mut() {
                Some(last) if last.goes_on_in(&piece) && !borders.contains(&piece.start()) => last.join(piece),
                _ => self.segments.push(piece),
            }
        }
        let mut within: Vec<(Allocation, usize)> = within.into_iter().map(|seen| (record(seen), seen.path)).collect();
        within.sort_by_key(|(block, _)| (block.address, block.bytes));
        for (allocation, path) in within {
            if !self.place(allocation, path) {
                self.leave_out(&allocation, Level::Held);
            }
        }
        for segment in &mut self.segments {
            if !segment.carries {
                let Part { allocation, path, .. } = segment.parts[0];
                segment.blocks = vec![Block { allocation, path }];
            }
        }
        let (shown, nowhere): (Vec<_>, Vec<_>) = std::mem::take(&mut self.segments)
            .into_iter()
            .partition(|segment| segment.ordinal.is_some());
        self.segments = shown;
        for block in nowhere.iter().flat_map(|segment| &segment.blocks) {
            self.leave_out(&block.allocation, Level::Held);
        }
    }

    /// Puts a framework's block into the segment it lies in, behind the one before.
    fn place(&mut self, allocation: Allocation<'a>, path: usize) -> bool {
        let behind = self
            .segments
            .partition_point(|segment| segment.start() <= allocation.address);
        let ordinal = self.ordinal(&allocation);
        let Some(segment) = behind.checked_sub(1).map(|index| &mut self.segments[index]) else {
            return false;
        };
        let free = segment.blocks.last().map_or(segment.start(), Block::end);
        let end = allocation.address.checked_add(allocation.bytes);
        let fits = segment.carries
            && allocation.bytes > 0
            && allocation.address >= free
            && end.is_some_and(|end| end <= segment.end());
        if fits {
            segment.ordinal = segment.ordinal.or(ordinal);
            segment.blocks.push(Block { allocation, path });
        }
        fits
    }

    fn leave_out(&mut self, allocation: &Allocation, level: Level) {
        let at_its_mappings = allocation.kind == Kind::Physical && allocation.mappings > 0;
        if matches!(level, Level::Held | Level::Cached) && !at_its_mappings {
            self.left_out.add(allocation.bytes);
        }
    }

    /// CUDA's number for the device, if the viewer can count so far.
    fn ordinal(&self, allocation: &Allocation) -> Option<u64> {
        let snapshot = self.profile.snapshot;
        let device = allocation
            .device
            .or_else(|| snapshot.contexts[allocation.context?].device);
        let ordinal = snapshot.devices[device?].ordinal;
        (0..DEVICES).contains(&ordinal).then_some(ordinal as u64)
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut pickler = Pickler::new(out)?;
        pickler.begin()?;
        pickler.text("segments")?;
        pickler.list(&self.segments, |pickler, segment| self.segment(pickler, segment))?;
        pickler.text("device_traces")?;
        pickler.list(&self.traces(), |pickler, trace| {
            pickler.list(trace, |pickler, event| self.event(pickler, event))
        })?;
        pickler.text("allocator_settings")?;
        pickler.begin()?;
        pickler.end()?;
        pickler.text("external_annotations")?;
        pickler.list(&[(); 0], |_, ()| Ok(()))?;
        pickler.end()?;
        pickler.finish()
    }

    fn segment(&self, pickler: &mut Pickler, segment: &Segment) -> io::Result<()> {
        let size = segment.end() - segment.start();
        let first = &segment.parts[0];
        let used = |bytes: &dyn Fn(&Block) -> u64| segment.blocks.iter().map(bytes).fold(0, u64::saturating_add);
        pickler.begin()?;
        pickler.entry("device", segment.ordinal.unwrap_or(0))?;
        pickler.entry("address", first.start)?;
        pickler.entry("total_size", size)?;
        pickler.entry("allocated_size", used(&|block| block.bytes()))?;
        pickler.entry("active_size", used(&|block| block.bytes()))?;
        pickler.entry("requested_size", used(&|block| block.requested()))?;
        pickler.entry("stream", stream(&first.allocation))?;
        pickler.text_entry("segment_type", if size <= SMALL { "small" } else { "large" })?;
        pickler.text("segment_pool_id")?;
        pickler.pair(0, 0)?;
        pickler.text("is_expandable")?;
        pickler.boolean(segment.is_mapped())?;
        pickler.text("frames")?;
        self.frames(pickler, first.path)?;
        pickler.text("blocks")?;
        pickler.list(&pieces(segment), |pickler, piece| self.piece(pickler, piece))?;
        pickler.end()
    }

    fn piece(&self, pickler: &mut Pickler, piece: &Piece) -> io::Result<()> {
        pickler.begin()?;
        pickler.entry("address", piece.start)?;
        pickler.entry("size", piece.size)?;
        pickler.entry("requested_size", piece.block.map_or(0, Block::requested))?;
        pickler.text_entry(
            "state",
            if piece.block.is_some() {
                "active_allocated"
            } else {
                "inactive"
            },
        )?;
        pickler.text("frames")?;
        match piece.block {
            Some(block) => self.frames(pickler, block.path)?,
            None => pickler.list(&[(); 0], |_, ()| Ok(()))?,
        }
        pickler.end()
    }

    /// Innermost first, as PyTorch has them.
    fn frames(&self, pickler: &mut Pickler, path: usize) -> io::Result<()> {
        let known = &self.profile.paths[path];
        let mut frames: Vec<Option<usize>> = known.frames.iter().rev().map(|&frame| Some(frame)).collect();
        if known.truncated {
            frames.push(None);
        }
        pickler.shared_list(path, &frames, |pickler, frame| {
            pickler.begin()?;
            match frame.map(|frame| &self.profile.frames[frame]) {
                Some(frame) => {
                    pickler.text_entry("name", &names::function(frame, self.detail))?;
                    pickler.text_entry("filename", &Inert(frame.file.unwrap_or(frame.module)).to_string())?;
                    pickler.entry("line", frame.line.unwrap_or(0).into())?;
                }
                None => {
                    pickler.text_entry("name", names::CUT)?;
                    pickler.text_entry("filename", "")?;
                    pickler.entry("line", 0)?;
                }
            }
            pickler.end()
        })
    }

    /// Events by device, in the order of time; a block never before its segment.
    fn traces(&self) -> Vec<Vec<Event<'_>>> {
        let mut traces: Vec<Vec<Event>> = Vec::new();
        for segment in &self.segments {
            let ordinal = segment.ordinal.unwrap_or(0) as usize;
            if traces.len() <= ordinal {
                traces.resize_with(ordinal + 1, Vec::new);
            }
            traces[ordinal].extend(segment.parts.iter().map(|part| Event {
                action: if segment.is_mapped() {
                    "segment_map"
                } else {
                    "segment_alloc"
                },
                time: part.allocation.time_ns,
                address: part.start,
                size: part.end - part.start,
                allocation: part.allocation,
                path: part.path,
            }));
            traces[ordinal].extend(segment.blocks.iter().map(|block| {
                Event {
                    action: "alloc",
                    time: block
                        .allocation
                        .time_ns
                        .max(segment.mapped_at(block.allocation.address)),
                    address: block.allocation.address,
                    size: block.bytes(),
                    allocation: block.allocation,
                    path: block.path,
                }
            }));
        }
        for trace in &mut traces {
            // Stable: a segment and its first block of the same moment stay in this order.
            trace.sort_by_key(|event| event.time);
        }
        traces
    }

    fn event(&self, pickler: &mut Pickler, event: &Event) -> io::Result<()> {
        let began = self.profile.snapshot.process.started_unix_ns;
        pickler.begin()?;
        pickler.text_entry("action", event.action)?;
        pickler.entry("addr", event.address)?;
        pickler.entry("size", event.size)?;
        pickler.entry("stream", stream(&event.allocation))?;
        pickler.entry("time_us", began.saturating_add(event.time) / 1000)?;
        pickler.text("frames")?;
        self.frames(pickler, event.path)?;
        pickler.end()
    }
}

struct Event<'a> {
    action: &'static str,
    time: u64,
    address: u64,
    size: u64,
    allocation: Allocation<'a>,
    path: usize,
}

/// A stretch of a segment, in use or free.
struct Piece<'s, 'a> {
    start: u64,
    size: u64,
    block: Option<&'s Block<'a>>,
}

/// All of a segment, without gaps, as the viewer counts.
fn pieces<'s, 'a>(segment: &'s Segment<'a>) -> Vec<Piece<'s, 'a>> {
    let mut pieces = Vec::new();
    let mut at = segment.start();
    let free_until = |at: u64, until: u64, pieces: &mut Vec<Piece<'s, 'a>>| {
        if until > at {
            pieces.push(Piece {
                start: at,
                size: until - at,
                block: None,
            });
        }
    };
    for block in &segment.blocks {
        let start = block.allocation.address;
        free_until(at, start, &mut pieces);
        pieces.push(Piece {
            start,
            size: block.bytes(),
            block: Some(block),
        });
        at = block.end();
    }
    free_until(at, segment.end(), &mut pieces);
    pieces
}

impl Block<'_> {
    fn bytes(&self) -> u64 {
        addresses(&self.allocation).map_or(self.allocation.bytes, |(start, end)| end - start)
    }

    /// Rounding up is the allocator's; the viewer shows it apart.
    fn requested(&self) -> u64 {
        self.allocation.requested.min(self.bytes())
    }

    fn end(&self) -> u64 {
        self.allocation.address + self.bytes()
    }
}

/// Where a record's memory lies, if it has addresses of a device.
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
        // CUDA's own numbers for its default streams.
        None | Some(Stream::LegacyDefault) => 0,
        Some(Stream::PerThreadDefault) => 2,
        Some(Stream::Handle(handle)) => handle,
    }
}
