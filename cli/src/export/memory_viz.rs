//! A memory snapshot in PyTorch's format, for <https://pytorch.org/memory_viz> and `torch.cuda._memory_viz`.
//!
//! ```text
//! memory with a device address         → segment
//!   blocks of a framework within it    → its blocks, active_allocated; between them, inactive
//!   no blocks known                    → one block
//! live records, in order of time       → device_traces: segment_alloc, alloc
//!   or all events, if they were logged → also frees and failed requests (trace.rs)
//! what PyTorch's snapshot, if it is the input, says about a block → user_metadata, compile_context, annotate
//! phases and marks                     → external_annotations
//! settings of PyTorch's allocator      → allocator_settings
//! ```
//!
//! So the viewer shows any program's memory as it shows PyTorch's: the blocks of each segment, with their stacks. Without an
//! event log, its timeline contains only live memory. The sizes of active blocks add up
//! to what the report lists on devices. Memory without a device address cannot be represented: host memory, arrays,
//! pools, unmapped VMM handles. Its total is reported. VMM memory appears at its mappings, so memory that is mapped
//! twice appears twice.

use std::borrow::Cow;
use std::io::{self, Write};

use culeak::analysis::lives;
use culeak::analysis::profile::{Options, Profile};
use culeak::analysis::report::Tally;
use culeak::analysis::site::CallStacks;
use culeak::analysis::whatif::{Stated, VARIABLE};
use culeak::kind::Kind;
use culeak::point::Point;
use culeak::snapshot::Snapshot;
use culeak::timeline::Timeline;

use super::Input;
use crate::document::counted;
use crate::escape::Escaped;
use crate::load::Loaded;
use crate::load::memory_viz::{COMPILED, REPLACED, SAID};
use crate::names::{self, Detail};
use crate::pickle::write::{Pickler, Sort};
use crate::progress::{self, Progress, Unit};
use crate::text::parts::tally;

mod layout;
mod trace;

use layout::{Layout, Segment, bytes, pool, requested, stream};
use trace::{Action, Entry, Path, Traces};

/// PyTorch's limit between small and large segments.
const SMALL: u64 = 2 << 20;

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    let item = &input.items[0];
    let timeline = events_until(item);
    let (left_out, not_traced) = write(&item.snapshot, timeline.as_ref(), &input.options, input.detail(), out)?;
    if not_traced > 0 {
        let blocks = counted(not_traced, "block");
        progress::note(format_args!(
            "note: {blocks} in no known memory are left out of the trace"
        ));
    }
    if left_out.count > 0 {
        progress::note(format_args!(
            "note: {} without a device address (host memory, arrays, pools) is left out: this format cannot hold it",
            tally(left_out)
        ));
    }
    Ok(())
}

/// The events of an input up to the state that its snapshot describes. `None`: they are not known, or lead to another state.
fn events_until(item: &Loaded) -> Option<Timeline> {
    let timeline = &item.timeline.as_ref()?.timeline;
    match item.snapshot.taken.point {
        None | Some(Point::Exit) => Some(timeline.clone()),
        Some(Point::End) => item.snapshot.end.map(|end| timeline.until(end.time_ns)),
        Some(_) => None,
    }
}

/// Writes the memory, and its events if there is a timeline, whose end is the state of the snapshot. Returns what is left out, and the number of blocks that are
/// missing from the trace because they lay in no known memory.
pub fn write(
    snapshot: &Snapshot,
    timeline: Option<&Timeline>,
    options: &Options,
    detail: Detail,
    out: &mut dyn Write,
) -> io::Result<(Tally, u64)> {
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
        has_labels: snapshot.taken.is_by_pytorch(),
    };
    document.write(out)?;
    Ok((left_out, not_traced))
}

struct Document<'p, 'a> {
    profile: &'p Profile<'a>,
    detail: Detail,
    layout: Layout<'a>,
    /// `None`: the trace is that of live memory.
    traces: Option<Traces>,
    /// Frames may be labels of PyTorch's snapshot.
    has_labels: bool,
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
            let known = self
                .traces
                .as_ref()
                .map(|traces| traces.of_devices.get(ordinal as usize));
            let live = || self.trace(ordinal).into();
            let trace: Cow<[Entry]> = known.map_or_else(live, |known| known.map_or(&[][..], Vec::as_slice).into());
            let progress = Progress::over("writing", trace.len() as u64, Unit::Of("events"));
            pickler.list(trace.iter().enumerate(), |pickler, (nth, entry)| {
                progress.tick(nth);
                self.entry(pickler, entry)
            })
        })?;
        pickler.word("allocator_settings")?;
        pickler.begin();
        let snapshot = self.profile.snapshot;
        let Stated { source, text, .. } = Stated::of(snapshot);
        match source {
            // The name of the variable tells snapshots of other devices from those of CUDA's memory.
            Some(name) if snapshot.taken.is_by_pytorch() => pickler.text_entry(name, &text)?,
            None if snapshot.taken.is_by_pytorch() => {}
            _ => pickler.text_entry(VARIABLE, &text)?,
        }
        pickler.end();
        pickler.word("external_annotations")?;
        pickler.list(self.annotations().into_iter(), |pickler, (time_ns, stage, name)| {
            pickler.begin();
            pickler.word_entry("stage", stage)?;
            pickler.text_entry("name", name)?;
            pickler.entry("device", 0)?;
            pickler.entry("time_us", self.time_us(time_ns))?;
            pickler.end();
            Ok(())
        })?;
        pickler.end();
        pickler.finish()
    }

    /// Phases and marks, in order of time. A mark has no end, as in PyTorch's own files if the program ended within a phase.
    fn annotations(&self) -> Vec<(u64, &'static str, &str)> {
        let Snapshot { phases, marks, .. } = self.profile.snapshot;
        let begins = phases.iter().map(|phase| (phase.begin_ns, "START", &*phase.name));
        let ends = phases
            .iter()
            .filter_map(|phase| Some((phase.end_ns?, "END", &*phase.name)));
        let marks = marks.iter().map(|mark| (mark.time_ns, "START", &*mark.name));
        let mut annotations: Vec<_> = begins.chain(ends).chain(marks).collect();
        annotations.sort_by_key(|(time_ns, ..)| *time_ns);
        annotations
    }

    fn time_us(&self, time_ns: u64) -> u64 {
        self.profile.snapshot.process.started_unix_ns.saturating_add(time_ns) / 1000
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
        let pool = pool(&allocation, self.profile.snapshot);
        // The envelope of a pool is that of its blocks with the same stream, and the log has none.
        let is_one = pool != (0, 0) && self.traces.is_some();
        pickler.entry("stream", if is_one { 0 } else { stream(&allocation) })?;
        pickler.word_entry("segment_type", if size <= SMALL { "small" } else { "large" })?;
        pickler.word("segment_pool_id")?;
        pickler.pair(pool.0, pool.1);
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
            let frames = frames.filter(|&frame| !self.is_label(frame, SAID) && !self.is_label(frame, COMPILED));
            pickler.list(frames, |pickler, frame| {
                pickler.shared(Sort::Frame, frame, |pickler| self.frame(pickler, frame))
            })
        })
    }

    fn is_label(&self, frame: usize, sort: &str) -> bool {
        let frame = self.profile.frames.get(frame).filter(|_| self.has_labels);
        frame.is_some_and(|frame| frame.file == Some(sort))
    }

    /// The labels of this sort in a stack, in the order in which they were set.
    fn labels(&self, path: u32, sort: &'static str) -> impl Iterator<Item = String> {
        let frames = self.profile.paths[path as usize].frames.iter().rev();
        let labels = frames.filter(move |&&frame| self.is_label(frame, sort));
        labels.map(|&frame| {
            let text = self.profile.frames[frame].function.unwrap_or_default();
            let original = |character| REPLACED.iter().find(|(_, other)| *other == character);
            text.chars()
                .map(|character| original(character).map_or(character, |(plain, _)| *plain))
                .collect()
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

    /// The events that made the live records of a device, in order of time; a segment comes before its blocks. What PyTorch's history does
    /// not contain is left out: to the viewer, it was there before.
    fn trace(&self, ordinal: u16) -> Vec<Entry> {
        let layout = &self.layout;
        let covers_allocators_only = self.profile.snapshot.taken.covers_allocators_only();
        let is_timed = |record: u32| layout.record(record).time_ns > 0 || !covers_allocators_only;
        let entry = |segment: &Segment, record: u32, path: u32, action: Action, time_ns: u64| {
            let (allocation, first) = (layout.record(record), layout.record(layout.first(segment).record));
            Entry {
                time_ns,
                action,
                address: allocation.address,
                size: bytes(&allocation),
                stream: stream(&first),
                stack: Path::OfProfile(path),
                label: 0,
            }
        };
        let mut trace: Vec<Entry> = Vec::new();
        for segment in layout
            .segments
            .iter()
            .filter(|segment| segment.ordinal == Some(ordinal))
        {
            let parts = layout.parts_of(segment).iter().filter(|part| is_timed(part.record));
            trace.extend(parts.map(|part| {
                let allocation = layout.record(part.record);
                let action = match allocation.kind {
                    Kind::Mapping => Action::SegmentMap,
                    _ => Action::SegmentAlloc,
                };
                entry(segment, part.record, part.path, action, allocation.time_ns)
            }));
            for (record, path) in layout.held(segment) {
                let block = layout.record(record);
                let time_ns = block.time_ns.max(layout.mapped_at(segment, block.address));
                let is_timed = is_timed(record);
                trace.extend(is_timed.then(|| entry(segment, record, path, Action::Alloc, time_ns)));
                // An allocation has the first label. When the program set the others is not known.
                trace.extend(
                    (usize::from(is_timed)..self.labels(path, SAID).count()).map(|label| Entry {
                        label,
                        ..entry(segment, record, path, Action::Annotate, time_ns)
                    }),
                );
            }
        }
        // The sort is stable: a segment stays before a block with the same time.
        trace.sort_by_key(|entry| entry.time_ns);
        trace
    }

    fn entry(&self, pickler: &mut Pickler, entry: &Entry) -> io::Result<()> {
        pickler.begin();
        pickler.word_entry("action", entry.action.name())?;
        if entry.action == Action::OutOfMemory {
            // The viewer requires it; a recording does not contain it.
            pickler.entry("device_free", 0)?;
        } else {
            pickler.entry("addr", entry.address)?;
        }
        pickler.entry("size", entry.size)?;
        pickler.entry("stream", entry.stream)?;
        pickler.entry("time_us", self.time_us(entry.time_ns))?;
        pickler.word("frames")?;
        let known = &self.profile.path_of;
        let path = match entry.stack {
            Path::OfProfile(path) => path,
            Path::OfStack(stack) => known[stack.map_or(known.len() - 1, |stack| stack as usize)].unwrap_or(0) as u32,
        };
        self.frames(pickler, path)?;
        if let Action::Alloc | Action::Annotate = entry.action {
            for (name, sort) in [("user_metadata", SAID), ("compile_context", COMPILED)] {
                if let Some(text) = self.labels(path, sort).nth(entry.label) {
                    pickler.text_entry(name, &Escaped(&text).to_string())?;
                }
            }
        }
        pickler.end();
        Ok(())
    }
}
