//! The event log of a recording, as a [`Timeline`].
//!
//! Segments may be emptied and reused while they are read. A segment counts if its state is the same before and after its
//! bytes are read; and the time from which on the log is complete is read last, so events that disappeared meanwhile are
//! older than it.

use std::mem::offset_of;
use std::path::Path;

use foldhash::HashMap;

use super::decode::{Order, loss};
use super::records::runs;
use super::{RawSnapshot, ReadError, Source, Totals, read_until_still};
use crate::format::{Field, *};
use crate::kind::Kind;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::Snapshot;
use crate::timeline::{Event, Site, Timeline};

pub fn read(path: &Path) -> Result<(Snapshot, Option<Timeline>), ReadError> {
    let source = Source::open(path)?;
    let header = source.header()?;
    if header.field::<u64>(offset_of!(Header, timeline_segments)) == 0 {
        return Ok((super::read(path)?, None));
    }
    // The events first: the snapshot then has everything that they refer to.
    let (mut events, since_ns) = stored_events(&source)?;
    events.retain(|event| event.time_ns >= since_ns);
    let raw = read_until_still(path)?;
    let (numbers, sites) = used_sites(&mut events, &raw);
    let lost = loss(&raw.header, Loss::TimelineEvents);
    let (snapshot, sites, threads) = raw.into_snapshot_with_sites(path, Order::OldestFirst, Totals::LeftOut, &sites)?;
    let events = events.into_iter().filter_map(|event| {
        let thread = || threads.get(&event.detail.into()).map(|&thread| thread as u32);
        Some(Event {
            time_ns: event.time_ns,
            op: event.op,
            address: event.address,
            bytes: event.bytes,
            site: *numbers.get(&event.site)?,
            lifetime_ns: if event.op == Op::Freed {
                lifetime_ns(event.detail)
            } else {
                0
            },
            thread: if event.op == Op::Freed { None } else { thread() },
        })
    });
    let mut timeline = Timeline::new(since_ns, snapshot.taken.at_ns, sites, events);
    timeline.lost = lost;
    Ok((snapshot, Some(timeline)))
}

/// All events in the order of the file, which is that of each thread, and the time from which on the log is complete.
fn stored_events(source: &Source) -> Result<(Vec<StoredEvent>, u64), ReadError> {
    let header = source.header()?;
    let pieces = source.pieces(&header, Section::Events)?;
    let count: usize = pieces.iter().map(|piece| piece.count).sum();
    let progress = Progress::over("reading events", count as u64, Unit::Of("segments"));
    let mut segments: Vec<(u64, Vec<StoredEvent>)> = Vec::new();
    let mut buffer = Vec::new();
    for run in runs(&pieces) {
        for number in 0..run.count {
            let offset = run.offset + (number * run.element) as u64;
            buffer.resize(run.element, 0);
            source.read_into(offset, &mut buffer)?;
            let opened_ns: u64 = field(&buffer, offset_of!(EventSegment, opened_ns));
            let events = events_of(&buffer, opened_ns);
            let state: u64 = field(&source.read(offset, 8)?, 0);
            let known = SegmentState::from_word(state);
            let same = state == field::<u64>(&buffer, 0)
                || known.is_some_and(|state| state.used == Use::Closed)
                    && halves(state).1 == halves(field(&buffer, 0)).1;
            if same {
                segments.push((opened_ns, events));
            }
            progress.advance(1);
        }
    }
    let since_ns = source.header()?.field(offset_of!(Header, timeline_since_ns));
    // The segments of one shard in the order in which it filled them; `Timeline::new` keeps the order of equal times.
    segments.sort_by_key(|(opened_ns, _)| *opened_ns);
    let events = segments.into_iter().flat_map(|(_, events)| events).collect();
    Ok((events, since_ns))
}

fn field<F: Field>(bytes: &[u8], offset: usize) -> F {
    F::read(bytes.get(offset..).unwrap_or_default())
}

fn events_of(segment: &[u8], opened_ns: u64) -> Vec<StoredEvent> {
    let first = offset_of!(EventSegment, events);
    let slots = segment.get(first..).unwrap_or_default().chunks_exact(24).take(EVENTS);
    slots
        .filter_map(|slot| StoredEvent::from_words(<[u64; 3]>::read(slot), opened_ns))
        .collect()
}

/// The rows of totals that events refer to, and the number of each as a site. Rows of several shards may be one site.
fn used_sites(events: &mut [StoredEvent], raw: &RawSnapshot) -> (HashMap<u32, u32>, Vec<TotalKey>) {
    let totals = raw.section(Section::Totals);
    let (mut numbers, mut known, mut sites) = (HashMap::default(), HashMap::default(), Vec::new());
    for event in events {
        if numbers.contains_key(&event.site) {
            continue;
        }
        let row = totals.row::<TotalRow>(event.site as usize);
        let key = row.key_plus_one.checked_sub(1).map(TotalKey::from_word);
        let Some(key) = key.filter(|key| Kind::from_number(key.kind).is_some()) else {
            continue;
        };
        let key = TotalKey { shard: 0, ..key };
        let site = *known.entry(key).or_insert_with(|| {
            sites.push(key);
            sites.len() as u32 - 1
        });
        numbers.insert(event.site, site);
    }
    (numbers, sites)
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
