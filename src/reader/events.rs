//! The event log of a recording, as a [`Timeline`].
//!
//! Segments may be emptied and reused while they are read. A segment counts if its state is the same before and after its
//! bytes are read; and the time from which on the log is complete is read last, so events that disappeared meanwhile are
//! older than it. If the process goes on while it is read, the events that contradict its records are dropped.

use std::mem::offset_of;
use std::path::Path;

use foldhash::HashMap;

use super::decode::{Decoded, Totals};
use super::raw::{self, read_until_still, sections_except_records};
use super::records::runs;
use super::{RawSnapshot, ReadError, Source};
use crate::format::{Field, *};
use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Allocations, Snapshot};
use crate::timeline::{Event, Log, Packed, Site, Timeline};

pub fn read(path: &Path) -> Result<(Snapshot, Option<Timeline>), ReadError> {
    let source = Source::open(path)?;
    let header = source.header()?;
    if header.field::<u64>(offset_of!(Header, timeline_segments)) == 0 {
        return Ok((read_until_still(path)?.into_snapshot(path, Totals::LeftOut)?, None));
    }
    // The records first: what disappears from them while the events are read is then among the events.
    let mut raw = read_until_still(path)?;
    let counted = raw::events(raw.section(Section::Counters));
    let (mut events, missing, since_ns) = stored_events(&source)?;
    events.retain(|event| event.time_ns >= since_ns);
    // Again: the events may refer to rows that were added meanwhile.
    for section in sections_except_records() {
        raw.sections
            .insert(section as u32, source.section(&source.header()?, section)?);
    }
    let is_still = raw.events_during_read == 0 && raw::events(raw.section(Section::Counters)) == counted;
    let began_ns = raw.began_ns;
    // A process that goes on is about to write those that are missing.
    let missing = if is_still { missing } else { 0 };
    let mut lost = raw.header.loss(Loss::TimelineEvents).saturating_add(missing);
    let (numbers, [mut keys, keys_of_objects, keys_of_segments]) = used_sites(&events, &raw);
    let sites_of_memory = keys.len();
    let sites_of_objects = keys_of_objects.len();
    keys.extend(keys_of_objects);
    keys.extend(keys_of_segments);
    let Decoded {
        mut snapshot,
        mut sites,
        threads,
        stack_keys: _,
    } = raw.into_snapshot_with_sites(path, Totals::LeftOut, &keys, None)?;
    let mut sites_of_objects_and_segments = sites.split_off(sites_of_memory);
    let sites_of_segments = sites_of_objects_and_segments.split_off(sites_of_objects);
    let sites_of_objects = sites_of_objects_and_segments;
    let (mut of_objects, mut of_segments) = (Vec::new(), Vec::new());
    events.retain_mut(|event| {
        let of = numbers.get(&event.site).copied();
        if let Some(Numbered::Memory(site) | Numbered::Object(site) | Numbered::Segment(site)) = of {
            event.site = site;
            if event.op != Op::Freed {
                let row = u32::from(event.detail());
                event.set_thread(threads.get(&row).copied());
            }
        }
        match of {
            Some(Numbered::Object(_)) => of_objects.push(*event),
            Some(Numbered::Segment(_)) => of_segments.push(*event),
            None => lost += 1,
            _ => {}
        }
        matches!(of, Some(Numbered::Memory(_)))
    });
    if !is_still {
        agree(&mut events, &snapshot.allocations, &sites, began_ns);
        agree(&mut of_objects, &snapshot.objects, &sites_of_objects, began_ns);
        agree(&mut of_segments, &snapshot.segments, &sites_of_segments, began_ns);
    }
    let memory = Log::new(sites, events);
    let timeline = Timeline {
        since_ns,
        until_ns: snapshot.taken.at_ns.max(memory.last_ns()),
        lost,
        memory,
        objects: Log::new(sites_of_objects, of_objects),
        segments: Log::new(sites_of_segments, of_segments),
    };
    // Records of a process that was killed do not say when it freed memory last.
    snapshot.taken.at_ns = timeline.until_ns;
    Ok((snapshot, Some(timeline)))
}

/// Drops the events that contradict the rows, of a process that went on while it was read. The rows are blocks that were
/// live during the whole read of the records, and no block that was allocated after `began_ns`.
fn agree(events: &mut Vec<Packed>, rows: &Allocations, sites: &[Site], began_ns: u64) {
    type Identity<'a> = (Kind, Option<&'a str>, u64, u64);
    let rows: HashMap<Identity, u64> = (rows.iter())
        .map(|row| {
            let place = (row.kind, row.call.domain.as_deref(), row.address & ADDRESS, row.bytes);
            (place, row.time_ns)
        })
        .collect();
    let place = |event: &Event| {
        let site = &sites[event.site as usize];
        (site.kind, site.domain.as_deref(), event.address, event.bytes)
    };
    let mut younger = foldhash::HashSet::default();
    for event in events
        .iter()
        .filter(|event| event.time_ns > began_ns)
        .map(|event| event.event())
    {
        if event.op == Op::Allocated {
            younger.insert(place(&event));
        }
    }
    events.retain(|event| {
        if event.time_ns <= began_ns {
            return true;
        }
        let event = event.event();
        let row = rows.get(&place(&event));
        match event.op {
            Op::Allocated => row.is_some_and(|time_ns| time_ns & !7 == event.time_ns),
            // Memory that was live when the read began, and freed before its record was read.
            Op::Freed => row.is_none() && !younger.contains(&place(&event)),
            Op::Restored => false,
        }
    });
}

/// All events in the order of the file, which is that of each thread; the number of those that were begun and not written; and the time
/// from which on the log is complete.
fn stored_events(source: &Source) -> Result<(Vec<Packed>, u64, u64), ReadError> {
    let header = source.header()?;
    let pieces = source.pieces(&header, Section::Events)?;
    let count: usize = pieces.iter().map(|piece| piece.count).sum();
    let progress = Progress::over("reading events", count as u64, Unit::Of("segments"));
    let mut segments = Vec::new();
    for run in runs(&pieces) {
        for number in 0..run.count {
            let offset = run.offset + (number * run.element) as u64;
            let opened_ns: u64 = field(
                &source.read(offset, SEGMENT_HEADER)?,
                offset_of!(EventSegment, opened_ns),
            );
            segments.push((opened_ns, offset, run.element));
        }
    }
    // The segments of one shard in the order in which it filled them; sorting keeps the order of equal times.
    segments.sort_unstable();
    let (mut events, mut missing) = (Vec::new(), 0);
    let mut buffer = Vec::new();
    for (_, offset, element) in segments {
        buffer.resize(element, 0);
        source.read_into(offset, &mut buffer)?;
        let state: u64 = field(&source.read(offset, 8)?, 0);
        let known = SegmentState::from_word(state);
        let same = state == field::<u64>(&buffer, 0)
            || known.is_some_and(|state| state.used == Use::Closed) && halves(state).1 == halves(field(&buffer, 0)).1;
        if same {
            missing += add_events(&buffer, &mut events);
        }
        progress.advance(1);
    }
    let since_ns = source.header()?.field(offset_of!(Header, timeline_since_ns));
    Ok((events, missing, since_ns))
}

/// The words of a segment before its events.
const SEGMENT_HEADER: usize = offset_of!(EventSegment, events);

fn field<F: Field>(bytes: &[u8], offset: usize) -> F {
    F::read(bytes.get(offset..).unwrap_or_default())
}

/// Returns the number of slots that were taken and not written: at least one if the segment, which was taken too, was never opened.
fn add_events(segment: &[u8], events: &mut Vec<Packed>) -> u64 {
    let opened_ns: u64 = field(segment, offset_of!(EventSegment, opened_ns));
    let slots = segment.get(SEGMENT_HEADER..).unwrap_or_default().chunks_exact(24);
    let stored = slots
        .take(EVENTS)
        .filter_map(|slot| StoredEvent::from_words(<[u64; 3]>::read(slot), opened_ns));
    events.extend(stored.map(|event| Packed::of_stored(&event)));
    let state = SegmentState::from_word(field(segment, 0));
    if state.is_some_and(|state| state.used == Use::Unused) {
        return 1;
    }
    let is_in_use = state.is_some_and(|state| matches!(state.used, Use::Open | Use::Closed));
    let cursor: u64 = field(segment, offset_of!(EventSegment, cursor));
    let taken = if is_in_use { cursor.min(EVENTS as u64) } else { 0 };
    let words = segment.get(SEGMENT_HEADER..).unwrap_or_default().chunks_exact(24);
    let empty = words.take(taken as usize).filter(|slot| field::<u64>(slot, 0) == 0);
    empty.count() as u64
}

/// A row of totals as a site.
#[derive(Clone, Copy)]
enum Numbered {
    Memory(u32),
    Object(u32),
    Segment(u32),
}

/// The rows of totals that events refer to, and the number of each as a site; the keys of the sites of memory, of objects and
/// of segments. Rows of several shards may be one site.
fn used_sites(events: &[Packed], raw: &RawSnapshot) -> (HashMap<u32, Numbered>, [Vec<TotalKey>; 3]) {
    let totals = raw.section(Section::Totals);
    let (mut numbers, mut known) = (HashMap::default(), HashMap::default());
    let [mut of_memory, mut of_objects, mut of_segments] = [const { Vec::new() }; 3];
    for event in events {
        if numbers.contains_key(&event.site) {
            continue;
        }
        let row = totals.row::<TotalRow>(event.site as usize);
        let key = row.key_plus_one.checked_sub(1).map(TotalKey::from_word);
        let kind = |key: &TotalKey| Kind::from_number(key.kind);
        let Some((key, kind)) = key.and_then(|key| Some((key, kind(&key)?))) else {
            continue;
        };
        let (sites, numbered): (_, fn(u32) -> Numbered) = match kind.place() {
            Place::Segment => (&mut of_segments, Numbered::Segment),
            Place::Object => (&mut of_objects, Numbered::Object),
            _ => (&mut of_memory, Numbered::Memory),
        };
        let key = TotalKey { shard: 0, ..key };
        let site = *known.entry(key).or_insert_with(|| {
            sites.push(key);
            sites.len() as u32 - 1
        });
        numbers.insert(event.site, numbered(site));
    }
    (numbers, [of_memory, of_objects, of_segments])
}

impl RawSnapshot {
    /// The site of a row of totals, given its stack and device in the snapshot.
    pub fn site(&self, key: &TotalKey, stack: Option<usize>, device: Option<usize>) -> Site {
        // Checked by `used_sites`.
        let kind = Kind::from_number(key.kind).unwrap_or(Kind::Device);
        let (domain, api) = self.domain_and_api(kind, key.name);
        Site {
            stack,
            kind,
            device,
            domain,
            api,
        }
    }
}
