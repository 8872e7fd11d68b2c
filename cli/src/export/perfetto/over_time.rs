//! A trace of a timeline: counters of all memory, slices of the largest blocks by call site, and phases.
//!
//! A trace of ten million blocks is more than the viewer opens, so a counter has at most [`POINTS`](crate::export::curve::POINTS) points, among them the
//! highest and the lowest, and there are at most [`SLICES`] blocks: those with the most bytes × time. Blocks of one call site
//! overlap, and slices of one track must not, so a call site has several tracks of one name, which the viewer joins.

use std::collections::BTreeMap;
use std::io;

use culeak::analysis::lives::{self, Logged};
use culeak::analysis::site::CallStacks;
use culeak::kind::Kind;
use culeak::snapshot::Snapshot;
use culeak::timeline::lives::{Life, Lives};

use super::super::curve::Curve;
use super::{
    Data, Points, SLICE_BEGIN, SLICE_END, TrackDescriptor, TrackEvent, Writer, has_bytes, points, track, track_name,
};
use crate::escape::Escaped;
use crate::names;
use crate::text::units;

/// The most blocks that are slices.
const SLICES: usize = 50_000;

/// A range of time on a track.
struct Slice {
    begin_ns: u64,
    /// `None`: it had not ended.
    end_ns: Option<u64>,
    name: String,
    notes: Vec<(&'static str, String)>,
}

impl Writer<'_> {
    pub fn over_time(
        &mut self,
        owner: u64,
        offset: u64,
        snapshot: &Snapshot,
        logged: &Logged,
        wanted: &dyn Fn(Kind) -> bool,
    ) -> io::Result<()> {
        let stacks = CallStacks::of(snapshot);
        let lives = lives::of(snapshot, &logged.last, &logged.timeline, &stacks);
        let shown = |life: &Life| {
            let kind = lives.sites[life.site as usize].kind;
            wanted(kind) && has_bytes(kind)
        };
        for (name, points) in counters(snapshot, logged, &lives, &shown) {
            let track = self.counter(owner, name)?;
            for (time, bytes) in points {
                self.value(track, offset.saturating_add(time), bytes)?;
            }
        }
        for (name, slices) in blocks(snapshot, logged, &lives, &stacks, &shown) {
            self.slices(owner, offset, &name, slices, false)?;
        }
        let mut threads: BTreeMap<usize, Vec<Slice>> = BTreeMap::new();
        for phase in &snapshot.phases {
            let notes = phase.domain.iter().map(|domain| ("domain", domain.clone())).collect();
            threads.entry(phase.thread).or_default().push(Slice {
                begin_ns: phase.begin_ns,
                end_ns: phase.end_ns,
                name: phase.name.clone(),
                notes,
            });
        }
        for (thread, slices) in threads {
            let thread = &snapshot.threads[thread];
            let name = format!("phases of thread {} {}", thread.tid, thread.name);
            self.slices(owner, offset, name.trim_end(), slices, true)?;
        }
        Ok(())
    }

    /// Slices on as few tracks of one name as they need. `nested`: a slice may contain others.
    fn slices(&mut self, owner: u64, offset: u64, name: &str, mut slices: Vec<Slice>, nested: bool) -> io::Result<()> {
        let end_of = |slice: &Slice| slice.end_ns.unwrap_or(u64::MAX);
        slices.sort_by_key(|slice| (slice.begin_ns, std::cmp::Reverse(end_of(slice))));
        // By track: its number, and the ends of the slices that are open, innermost last.
        let mut tracks: Vec<(u64, Vec<u64>)> = Vec::new();
        for slice in slices {
            let (begin, end) = (slice.begin_ns, end_of(&slice));
            let fits = |open: &Vec<u64>| {
                let around = open.iter().rev().find(|&&end| end > begin);
                around.is_none_or(|&around| nested && around >= end)
            };
            let free = tracks.iter().position(|(_, open)| fits(open));
            let nth = match free {
                Some(nth) => nth,
                None => {
                    let track = self.track(TrackDescriptor {
                        name: Some(Escaped(name).to_string()),
                        parent_uuid: Some(owner),
                        ..TrackDescriptor::default()
                    })?;
                    tracks.push((track, Vec::new()));
                    tracks.len() - 1
                }
            };
            let (track, open) = &mut tracks[nth];
            while let Some(ended) = open.pop_if(|end| *end <= begin) {
                self.slice_end(*track, offset.saturating_add(ended))?;
            }
            open.push(end);
            let (track, time) = (*track, offset.saturating_add(begin));
            self.named(SLICE_BEGIN, track, time, &slice.name, &slice.notes)?;
        }
        for (track, open) in tracks {
            // A slice without an end is still open, and so are those around it.
            for end in open.into_iter().rev().take_while(|&end| end < u64::MAX) {
                self.slice_end(track, offset.saturating_add(end))?;
            }
        }
        Ok(())
    }

    fn slice_end(&mut self, track: u64, time: u64) -> io::Result<()> {
        let event = TrackEvent {
            r#type: Some(SLICE_END),
            track_uuid: Some(track),
            ..TrackEvent::default()
        };
        self.packet(Some(time), Data::TrackEvent(event))
    }
}

type Track = (Kind, Option<usize>);

fn track_of(lives: &Lives, life: &Life) -> Track {
    let site = &lives.sites[life.site as usize];
    track(site.kind, site.device)
}

/// All live memory of each kind on each device, over time.
fn counters(
    snapshot: &Snapshot,
    logged: &Logged,
    lives: &Lives,
    shown: &dyn Fn(&Life) -> bool,
) -> Vec<(String, Points)> {
    let mut counters: BTreeMap<Track, Curve> = BTreeMap::new();
    for life in lives.lives.iter().filter(|life| shown(life)) {
        let counter = counters.entry(track_of(lives, life)).or_default();
        counter.expect(life.bytes, life.from().is_none());
    }
    for counter in counters.values_mut() {
        counter.begin(logged.timeline.since_ns);
    }
    for (nth, change, life) in lives.changes() {
        if let (true, Some(counter)) = (shown(life), counters.get_mut(&track_of(lives, life))) {
            let time_ns = logged.timeline.memory.time_ns(nth);
            match change.is_free() {
                true => counter.remove(time_ns, life.bytes),
                false => counter.add(time_ns, life.bytes),
            }
        }
    }
    let named = |((kind, device), counter)| (track_name(snapshot, device, kind), points(counter));
    counters.into_iter().map(named).collect()
}

/// The largest blocks, by call site and kind; the sites with the most bytes × time first.
fn blocks(
    snapshot: &Snapshot,
    logged: &Logged,
    lives: &Lives,
    stacks: &CallStacks,
    shown: &dyn Fn(&Life) -> bool,
) -> Vec<(String, Vec<Slice>)> {
    let timeline = &logged.timeline;
    let time = |event: u32| timeline.memory.time_ns(event as usize);
    let begin = |life: &Life| life.from().map_or(timeline.since_ns, time);
    let weight = |life: &Life| {
        let end = life.to().map_or(timeline.until_ns, time);
        u128::from(life.bytes) * u128::from(end.saturating_sub(begin(life)).max(1))
    };
    let all = lives.lives.iter().filter(|life| shown(life));
    let mut ranked: Vec<(u128, &Life)> = all.map(|life| (weight(life), life)).collect();
    if ranked.len() > SLICES {
        ranked.select_nth_unstable_by_key(SLICES, |(weight, _)| std::cmp::Reverse(*weight));
        ranked.truncate(SLICES);
    }
    let mut sites: BTreeMap<String, (u128, Vec<Slice>)> = BTreeMap::new();
    for (weight, life) in ranked {
        let site = &lives.sites[life.site as usize];
        let name = names::site(stacks.get(site.stack));
        let place = track_name(snapshot, track(site.kind, site.device).1, site.kind);
        let (sum, slices) = sites.entry(format!("{name} [{place}]")).or_default();
        *sum = sum.saturating_add(weight);
        slices.push(Slice {
            begin_ns: begin(life),
            end_ns: life.to().map(time),
            name: units::bytes(life.bytes),
            notes: vec![
                ("bytes", life.bytes.to_string()),
                ("address", format!("{:#x}", life.address)),
                ("function", site.api.clone()),
            ],
        });
    }
    let mut sites: Vec<_> = sites.into_iter().collect();
    sites.sort_by_key(|(_, (weight, _))| std::cmp::Reverse(*weight));
    sites.into_iter().map(|(name, (_, slices))| (name, slices)).collect()
}
