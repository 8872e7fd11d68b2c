//! Compares with a replay that keeps the state after every event.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::analysis::lives;
use crate::analysis::site::CallStacks;
use crate::kind::Kind;
use crate::sample::Sample;
use crate::snapshot::{Allocation, Snapshot};
use crate::timeline::{Event, Op, Site};

const SITES: u32 = 4;

fn sites() -> Vec<Site> {
    let kinds = [Kind::Device, Kind::Tensor, Kind::Device, Kind::HostPinned];
    let site = |(nth, kind)| Site {
        stack: Some(nth),
        kind,
        device: Some(0),
        domain: (kind == Kind::Tensor).then(|| "pytorch".to_owned()),
        api: "cudaMalloc".to_owned(),
    };
    kinds.into_iter().enumerate().map(site).collect()
}

/// A program's events with their exact result: per event the live blocks.
#[derive(Debug, Clone, Default)]
struct Program {
    events: Vec<Event>,
    live: BTreeMap<(u64, u32), (u64, usize)>,
    /// After each number of events: site, bytes and index of the allocation of each live block.
    states: Vec<Vec<(u32, u64, usize)>>,
}

impl Program {
    fn new() -> Program {
        Program {
            states: vec![Vec::new()],
            ..Program::default()
        }
    }

    fn event(&mut self, op: Op, address: u64, bytes: u64, site: u32, time_ns: u64) {
        let nth = self.events.len();
        let ended = match op {
            Op::Freed => self.live.remove(&(address, site)),
            _ => self.live.insert((address, site), (bytes, nth)),
        };
        let lifetime = |(_, nth): (u64, usize)| time_ns - self.events[nth].time_ns;
        let lifetime_ns = ended.map_or(0, lifetime);
        self.events.push(Event {
            time_ns,
            op,
            address,
            bytes,
            site,
            lifetime_ns,
            thread: None,
        });
        let live = self.live.iter().map(|(&(_, site), &(bytes, nth))| (site, bytes, nth));
        self.states.push(live.collect());
    }

    /// Steps: true allocates at a site with a size, false frees one of the live blocks.
    fn of(steps: &[(bool, u32, u64, u64)]) -> Program {
        let mut program = Program::new();
        let mut time = 0;
        for &(allocates, pick, bytes, wait) in steps {
            time += wait * 8;
            if allocates || program.live.is_empty() {
                // Addresses are used again, but not within 8 ns, which is how exact times are.
                let next = if wait > 0 {
                    1
                } else {
                    1000 + program.events.len() as u64
                };
                let site = pick % SITES;
                let first = (next..).map(|nth| nth * 0x1_0000 + (u64::from(site) << 40));
                let address = first
                    .into_iter()
                    .find(|&free| !program.live.contains_key(&(free, site)))
                    .unwrap();
                program.event(Op::Allocated, address, bytes, site, time);
            } else {
                let nth = pick as usize % program.live.len();
                let (&(address, site), &(bytes, _)) = program.live.iter().nth(nth).unwrap();
                program.event(Op::Freed, address, bytes, site, time);
            }
        }
        program
    }

    /// The final state, and a log that lacks the first events.
    fn recorded(&self, lacking: usize) -> (Snapshot, Timeline) {
        let mut sample = Sample::new();
        for nth in 0..SITES {
            sample.stack(&[(&format!("site_{nth}"), "/a.cu:1", "/opt/app")]);
        }
        let mut snapshot = sample.finish(0, 0);
        let sites = sites();
        for (&(address, site), &(bytes, nth)) in &self.live {
            let site = &sites[site as usize];
            let call = site.call(0);
            snapshot.allocations.push(Allocation {
                address: address | 0xffff << 48,
                bytes,
                requested: bytes,
                time_ns: self.events[nth].time_ns,
                stack: site.stack,
                call: &call,
            });
        }
        let since = lacking.checked_sub(1).map_or(0, |last| self.events[last].time_ns);
        let until = self.events.last().map_or(0, |event| event.time_ns) + 100;
        let events = self.events[lacking..].iter().copied();
        (snapshot, Timeline::new(since, until, sites, events))
    }
}

fn over_time(snapshot: &Snapshot, timeline: &Timeline, times: &[u64], detail: Detail) -> (Lives, OverTime) {
    let stacks = CallStacks::of(snapshot);
    let lives = lives::of(snapshot, &snapshot.allocations, timeline, &stacks);
    let classes = Classes {
        classes: (0..lives.sites.len() as u32).map(|site| [Some(site); 2]).collect(),
        places: lives
            .sites
            .iter()
            .map(|site| u32::from(site.kind == Kind::HostPinned))
            .collect(),
    };
    let over_time = OverTime::of(timeline, &lives, &classes, times, detail);
    (lives, over_time)
}

type Sums = HashMap<u32, (u64, u64)>;

fn sums(blocks: impl Iterator<Item = (u32, u64, u64)>) -> Sums {
    let mut sums = Sums::new();
    for (site, bytes, count) in blocks {
        let sum = sums.entry(site).or_default();
        *sum = (sum.0 + bytes, sum.1 + count);
    }
    sums
}

fn steps() -> impl Strategy<Value = Vec<(bool, u32, u64, u64)>> {
    prop::collection::vec((prop::bool::weighted(0.55), any::<u32>(), 1..5000u64, 0..4u64), 1..200)
}

proptest! {
    #[test]
    fn the_state_at_each_boundary_and_of_each_window_is_exact(
        steps in steps(), lacking in 0..50usize, boundaries in 2..40usize, most in 1..60usize,
    ) {
        let program = Program::of(&steps);
        let lacking = lacking.min(program.events.len() - 1);
        let (snapshot, timeline) = program.recorded(lacking);
        let named = timeline.since_ns + 40;
        let detail = Detail { boundaries, spans: most };
        let (_, found) = over_time(&snapshot, &timeline, &[named], detail);
        let state = |boundary: &Boundary| &program.states[lacking + boundary.events];
        for (nth, boundary) in found.boundaries.iter().enumerate() {
            let known = sums(state(boundary).iter().map(|&(site, bytes, _)| (site, bytes, 1)));
            let shown = sums(found.at(nth).map(|span| (span.class, span.bytes, span.count)));
            prop_assert_eq!(shown, known);
            let all_before = |event: &Event| event.time_ns <= boundary.time_ns;
            prop_assert!(timeline.memory.events().take(boundary.events).all(|event| all_before(&event)));
        }
        for (a, begin) in found.boundaries.iter().enumerate() {
            for (b, end) in found.boundaries.iter().enumerate().skip(a) {
                let allocated = state(end).iter().filter(|(_, _, nth)| *nth >= lacking + begin.events);
                let known = sums(allocated.map(|&(site, bytes, _)| (site, bytes, 1)));
                let spans = found.at(b).filter(|span| span.from as usize > a);
                prop_assert_eq!(sums(spans.map(|span| (span.class, span.bytes, span.count))), known);
            }
        }
        if found.spans.len() > most {
            prop_assert!(found.boundaries.len() <= 8, "only boundaries that must stay are left");
        }
        let within = timeline.since_ns..=timeline.until_ns;
        prop_assert!(!within.contains(&named) || found.boundaries.iter().any(|at| at.time_ns == named));
    }

    #[test]
    fn high_water_marks_and_peaks_are_exact(steps in steps(), lacking in 0..50usize, boundaries in 2..40usize) {
        let program = Program::of(&steps);
        let lacking = lacking.min(program.events.len() - 1);
        let (snapshot, timeline) = program.recorded(lacking);
        let (lives, found) = over_time(&snapshot, &timeline, &[], Detail { boundaries, spans: 30 });
        // No block lies in other memory here, so blocks count at one level only and all else at both.
        let counts = |curve: &Curve, site: u32| {
            let kind = lives.sites[site as usize].kind;
            let place = u32::from(kind == Kind::HostPinned);
            place == curve.place && (kind != Kind::Tensor || !curve.driver)
        };
        for curve in &found.curves {
            let at = |events: usize| -> u64 {
                let blocks = program.states[lacking + events].iter();
                blocks.filter(|(site, ..)| counts(curve, *site)).map(|(_, bytes, _)| bytes).sum()
            };
            prop_assert_eq!(curve.high.len() + 1, found.boundaries.len());
            for (ends, &high) in found.boundaries.windows(2).zip(&curve.high) {
                let known = (ends[0].events..=ends[1].events).map(at).max();
                prop_assert_eq!(Some(high), known);
            }
            let peak = (0..=timeline.memory.len()).map(at).max();
            prop_assert_eq!(Some(curve.peak_bytes), peak);
            prop_assert_eq!(at(found.boundaries[curve.peak].events), curve.peak_bytes);
        }
    }
}

fn one(sites: Vec<Site>, events: Vec<Event>) -> Lives {
    let snapshot = Sample::new().finish(0, 0);
    let timeline = Timeline::new(0, 1000, sites, events);
    lives::of(&snapshot, &snapshot.allocations, &timeline, &CallStacks::of(&snapshot))
}

fn event(op: Op, address: u64, site: u32, time_ns: u64) -> Event {
    Event {
        time_ns,
        op,
        address,
        bytes: 256,
        site,
        lifetime_ns: 0,
        thread: None,
    }
}

fn free(address: u64, site: u32, time_ns: u64, lifetime_ns: u64) -> Event {
    Event {
        lifetime_ns,
        ..event(Op::Freed, address, site, time_ns)
    }
}

fn plain_sites() -> Vec<Site> {
    let sites = sites().into_iter();
    sites
        .map(|site| Site {
            stack: None,
            device: None,
            ..site
        })
        .collect()
}

#[test]
fn an_allocation_met_before_the_free_of_the_block_before_it_is_another_block() {
    let events = vec![
        event(Op::Allocated, 0x1000, 0, 80),
        // By another thread, which received the address before the free was logged.
        event(Op::Allocated, 0x1000, 0, 800),
        free(0x1000, 0, 808, 728),
        free(0x1000, 0, 1600, 800),
        // The log lacks its allocation.
        event(Op::Allocated, 0x2000, 0, 2400),
        free(0x2000, 0, 2408, 2404),
    ];
    let lives = one(plain_sites(), events);
    let ends: Vec<_> = lives.lives.iter().map(|life| (life.from(), life.to())).collect();
    let known = [(Some(0), Some(2)), (Some(1), Some(3)), (Some(4), None), (None, Some(5))];
    assert_eq!(ends, known);
}

#[test]
fn a_free_that_failed_is_no_free() {
    let events = vec![
        event(Op::Allocated, 0x1000, 0, 8),
        free(0x1000, 0, 16, 8),
        event(Op::Restored, 0x1000, 0, 24),
        free(0x1000, 0, 32, 24),
    ];
    let lives = one(plain_sites(), events);
    assert_eq!(lives.lives.len(), 1);
    assert_eq!((lives.lives[0].from(), lives.lives[0].to()), (Some(0), Some(1)));
}

#[test]
fn memory_that_blocks_lie_in_is_behind_them() {
    // A segment, a tensor in it, and an allocation without blocks.
    let events = vec![
        event(Op::Allocated, 0x1000, 0, 8),
        event(Op::Allocated, 0x1000, 1, 16),
        free(0x1000, 1, 24, 8),
        event(Op::Allocated, 0x5000, 0, 32),
    ];
    let lives = one(plain_sites(), events);
    let behind: Vec<bool> = lives.lives.iter().map(|life| life.behind).collect();
    assert_eq!(behind, [true, false, false]);
}

#[test]
fn no_events_make_two_equal_boundaries_at_most() {
    let snapshot = Sample::new().finish(0, 0);
    let timeline = Timeline::new(0, 0, Vec::new(), Vec::new());
    let (_, found) = over_time(
        &snapshot,
        &timeline,
        &[],
        Detail {
            boundaries: 16,
            spans: 10,
        },
    );
    assert!(found.boundaries.len() <= 2 && found.spans.is_empty() && found.curves.is_empty());
}
