use proptest::prelude::*;

use super::*;
use crate::kind::Kind;
use crate::sample::{MAIN, RUNTIME, Sample, leaky};
use crate::timeline::{Event, Op, Site};

const UNIT: u64 = 8;

fn site(kind: Kind, stack: usize, domain: Option<&str>) -> Site {
    Site {
        stack: Some(stack),
        kind,
        device: (kind != Kind::HostPinned).then_some(0),
        domain: domain.map(str::to_owned),
        api: "f".to_owned(),
    }
}

fn event(time: u64, op: Op, address: u64, bytes: u64, site: u32) -> Event {
    Event {
        time_ns: time * UNIT,
        op,
        address,
        bytes,
        site,
        lifetime_ns: 0,
        thread: None,
    }
}

/// The same events; each free knows how long its memory was live.
fn with_lifetimes(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut began = HashMap::default();
    let events = events.into_iter().map(|mut event| {
        let key = (event.address, event.site);
        match event.op {
            Op::Freed => event.lifetime_ns = began.get(&key).map_or(0, |began| event.time_ns - began),
            _ => {
                began.insert(key, event.time_ns);
            }
        }
        event
    });
    events.collect()
}

fn phase(name: &str, begin: u64, end: Option<u64>, parent: Option<usize>) -> Phase {
    Phase {
        name: name.to_owned(),
        domain: None,
        thread: 0,
        begin_ns: begin * UNIT,
        end_ns: end.map(|end| end * UNIT),
        parent,
    }
}

/// A process with two stacks; pinned memory at the second.
fn process(phases: Vec<Phase>) -> (Snapshot, Vec<Site>) {
    let mut sample = Sample::new();
    let first = sample.stack(&[RUNTIME, ("load", "/src/a.cu:1", "/opt/app"), MAIN]);
    let second = sample.stack(&[RUNTIME, ("step", "/src/a.cu:2", "/opt/app"), MAIN]);
    let mut snapshot = sample.finish(0, 0);
    snapshot.phases = phases;
    let sites = vec![site(Kind::Device, first, None), site(Kind::HostPinned, second, None)];
    (snapshot, sites)
}

fn figures(phases: &Phases, name: &str) -> Figures {
    let chosen = phases.chosen.iter().find(|chosen| chosen.name == name);
    chosen.map_or_else(|| panic!("no phase {name}"), |chosen| chosen.figures[0])
}

fn each(name: &str) -> Options {
    Options {
        name: Some(name.to_owned()),
        ..Options::default()
    }
}

fn tally(bytes: u64, count: u64) -> Tally {
    Tally { bytes, count }
}

#[test]
fn a_phase_has_what_was_allocated_freed_and_left_in_it() {
    let phases = vec![
        phase("outer", 10, Some(50), None),
        phase("inner", 20, Some(30), Some(0)),
    ];
    let (snapshot, sites) = process(phases);
    let events = [
        event(5, Op::Allocated, 1, 1000, 0),
        event(15, Op::Allocated, 2, 100, 0),
        event(21, Op::Allocated, 3, 10, 0),
        event(22, Op::Allocated, 4, 7, 1),
        event(23, Op::Freed, 3, 10, 0),
        event(24, Op::Freed, 1, 1000, 0),
        event(40, Op::Freed, 4, 7, 1),
        event(60, Op::Freed, 2, 100, 0),
    ];
    let timeline = Timeline::new(0, 70 * UNIT, sites, with_lifetimes(events));
    let found = Phases::of(&snapshot, Some(&timeline), &each("*"));
    let outer = Figures {
        held_at_begin: 1000,
        held_at_end: 100,
        high_water: 1117,
        allocated: tally(117, 3),
        freed: tally(1017, 3),
        freed_within: tally(17, 2),
        left_behind: tally(100, 1),
    };
    assert_eq!(figures(&found, "outer"), outer);
    let inner = Figures {
        held_at_begin: 1100,
        held_at_end: 107,
        high_water: 1117,
        allocated: tally(17, 2),
        freed: tally(1010, 2),
        freed_within: tally(10, 1),
        left_behind: tally(7, 1),
    };
    assert_eq!(figures(&found, "inner"), inner);
    let left: Vec<_> = found.chosen.iter().map(|chosen| &chosen.left_behind[0].label).collect();
    assert_eq!(left, ["load", "step"]);
    assert_eq!(found.chosen[1].within, ["outer"]);
    let rows: Vec<_> = found
        .rows
        .iter()
        .map(|row| (&*row.name, row.depth, row.parent))
        .collect();
    assert_eq!(rows, [("outer", 0, None), ("inner", 1, Some(0))]);
}

#[test]
fn a_free_that_failed_did_not_happen() {
    let (snapshot, sites) = process(vec![phase("a", 0, Some(9), None)]);
    let events = [
        event(1, Op::Allocated, 1, 100, 0),
        event(2, Op::Freed, 1, 100, 0),
        event(3, Op::Restored, 1, 100, 0),
    ];
    let timeline = Timeline::new(0, 9 * UNIT, sites, events);
    let found = figures(&Phases::of(&snapshot, Some(&timeline), &each("a")), "a");
    assert_eq!((found.freed, found.left_behind), (tally(0, 0), tally(100, 1)));
    assert_eq!((found.freed_within, found.high_water), (tally(0, 0), 100));
}

#[test]
fn blocks_count_instead_of_the_segment_that_they_lie_in() {
    let (mut snapshot, mut sites) = process(vec![phase("a", 0, Some(9), None)]);
    sites.push(site(Kind::Block, 1, Some("cache")));
    snapshot.counters.clear();
    let events = [
        event(1, Op::Allocated, 0x1000, 4096, 0),
        event(2, Op::Allocated, 0x1100, 100, 2),
    ];
    let timeline = Timeline::new(0, 9 * UNIT, sites, events);
    let found = Phases::of(&snapshot, Some(&timeline), &each("a"));
    let of = |layer: Layer| {
        let location = Some(crate::analysis::filter::Location::Gpu(0));
        let place = found
            .series
            .iter()
            .position(|&series| series == Series { layer, location });
        found.chosen[0].figures[place.unwrap()].high_water
    };
    assert_eq!(found.chosen[0].figures[0].high_water, 100);
    assert_eq!(
        (of(Layer::Held), of(Layer::Blocks), of(Layer::Driver)),
        (100, 100, 4096)
    );
}

#[test]
fn phases_before_the_log_have_times_only() {
    let (mut snapshot, sites) = process(vec![
        phase("early", 1, Some(5), None),
        phase("across", 2, Some(30), None),
        phase("late", 20, Some(30), None),
    ]);
    snapshot.taken.at_ns = 40 * UNIT;
    let call = crate::snapshot::Call {
        api: "f".to_owned(),
        ..leaky().allocations.calls()[0].clone()
    };
    snapshot.allocations.push(crate::snapshot::Allocation {
        address: 9,
        bytes: 5000,
        requested: 5000,
        time_ns: 3 * UNIT,
        stack: Some(0),
        call: &call,
    });
    let events = [event(25, Op::Freed, 1, 100, 0), event(26, Op::Allocated, 2, 1, 0)];
    snapshot.allocations.push(crate::snapshot::Allocation {
        address: 2,
        bytes: 1,
        requested: 1,
        time_ns: 26 * UNIT,
        stack: Some(0),
        call: &call,
    });
    let timeline = Timeline::new(10 * UNIT, 40 * UNIT, sites, events);
    let found = Phases::of(&snapshot, Some(&timeline), &each("*"));
    let with: Vec<bool> = found.chosen.iter().map(|chosen| !chosen.figures.is_empty()).collect();
    assert_eq!(with, [false, false, true]);
    let late = figures(&found, "late");
    assert_eq!((late.held_at_begin, late.held_at_end), (5100, 5001));
    assert!(
        found.warnings[0].starts_with("2 phases begin before the log"),
        "{:?}",
        found.warnings
    );
    let without = Phases::of(&snapshot, None, &each("late"));
    assert!(without.log.is_none() && without.chosen[0].figures.is_empty());
    assert_eq!(without.rows[2].duration_ns.max, 10 * UNIT);
}

#[test]
fn names_with_numbers_are_one_row_if_there_are_many() {
    let steps = (0..30).map(|nth| phase(&format!("step {nth}"), nth * 10, Some(nth * 10 + 5), None));
    let few = (0..3).map(|nth| phase(&format!("epoch {nth}"), 400 + nth, Some(401 + nth), None));
    let operators = (0..30).map(|nth| {
        let name = format!("aten::mm, seq = {nth}, op_id = {nth}");
        phase(&name, 500 + nth, Some(501 + nth), None)
    });
    let (snapshot, _) = process(steps.chain(few).chain(operators).collect());
    let found = Phases::of(&snapshot, None, &Options::default());
    let rows: Vec<_> = found.rows.iter().map(|row| (&*row.name, row.count)).collect();
    let expected = [
        ("step #", 30),
        ("epoch 0", 1),
        ("epoch 1", 1),
        ("epoch 2", 1),
        ("aten::mm", 30),
    ];
    assert_eq!(rows, expected);
    assert_eq!(own_name("batch 3, seq = 128"), "batch 3, seq = 128");
    for (name, count) in [
        ("aten::mm", 30),
        ("step #", 30),
        ("step 7", 1),
        ("epoch #", 0),
        ("s*#", 30),
    ] {
        assert_eq!(Phases::of(&snapshot, None, &each(name)).chosen.len(), count, "{name}");
    }
}

#[test]
fn a_million_nested_phases_are_no_recursion() {
    let phases = (0..100_000u64).map(|nth| phase("f", nth, None, (nth as usize).checked_sub(1)));
    let (snapshot, sites) = process(phases.collect());
    let timeline = Timeline::new(
        0,
        0,
        sites,
        (0..100_000).map(|nth| event(nth, Op::Allocated, nth, 1, 0)),
    );
    let found = Phases::of(&snapshot, Some(&timeline), &each("f"));
    assert_eq!(found.chosen[0].figures[0].left_behind.count, 100_000);
    assert_eq!(found.chosen.last().unwrap().within.len(), WITHIN_MAX);
    assert!(found.sites_are_cut().is_some());
}

/// The figures of a phase, from its definition.
fn by_definition(events: &[Event], phase: &Phase, end: u64, sites: &[Site], wanted: impl Fn(&Site) -> bool) -> Figures {
    let mut found = Figures::default();
    let mut live: Vec<(u64, u32, u64, bool)> = Vec::new();
    let held = |live: &[(u64, u32, u64, bool)]| live.iter().map(|block| block.2).sum::<u64>();
    let events = events.iter().filter(|event| wanted(&sites[event.site as usize]));
    let mut begun = false;
    for event in events {
        if event.time_ns > end {
            break;
        }
        let within = event.time_ns >= phase.begin_ns;
        if within && !begun {
            begun = true;
            found.held_at_begin = held(&live);
            found.high_water = found.held_at_begin;
        }
        let of = |block: &&(u64, u32, u64, bool)| (block.0, block.1) == (event.address, event.site);
        if event.op == Op::Allocated {
            live.push((event.address, event.site, event.bytes, within));
            if within {
                found.allocated.add(event.bytes);
            }
        } else {
            let block = *live.iter().find(of).unwrap();
            live.retain(|block| (block.0, block.1) != (event.address, event.site));
            if within {
                found.freed.add(event.bytes);
                if block.3 {
                    found.freed_within.add(event.bytes);
                }
            }
        }
        if within {
            found.high_water = found.high_water.max(held(&live));
        }
    }
    if !begun {
        found.held_at_begin = held(&live);
        found.high_water = found.held_at_begin;
    }
    found.held_at_end = held(&live);
    live.iter()
        .filter(|block| block.3)
        .for_each(|block| found.left_behind.add(block.2));
    found
}

proptest! {
    #[test]
    fn the_figures_are_those_of_the_definition(
        steps in prop::collection::vec((0u64..4, 0u64..6, 1u64..100, 0u32..2), 0..80),
        ranges in prop::collection::vec((0u64..120, 0u64..60, any::<bool>()), 0..12),
    ) {
        let mut live = HashMap::default();
        let mut time = 0;
        let mut events = Vec::new();
        for (pause, address, bytes, site) in steps {
            time += pause;
            match live.remove(&(address, site)) {
                Some(bytes) => events.push(event(time, Op::Freed, address, bytes, site)),
                None => {
                    live.insert((address, site), bytes);
                    events.push(event(time, Op::Allocated, address, bytes, site));
                }
            }
        }
        let mut phases: Vec<Phase> = ranges
            .iter()
            .map(|&(begin, length, ends)| phase("p", begin, ends.then_some(begin + length), None))
            .collect();
        phases.sort_by_key(|phase| phase.begin_ns);
        let (mut snapshot, sites) = process(phases);
        snapshot.taken.at_ns = 1000 * UNIT;
        let timeline = Timeline::new(0, 1000 * UNIT, sites.clone(), with_lifetimes(events.clone()));
        let found = Phases::of(&snapshot, Some(&timeline), &each("p"));
        for (phase, chosen) in snapshot.phases.iter().zip(&found.chosen) {
            let end = end_of(phase, &snapshot, Some(&timeline));
            for (series, &figures) in found.series.iter().zip(&chosen.figures) {
                let wanted = |site: &Site| match (series.layer, series.location) {
                    (_, None) => true,
                    (Layer::Driver, _) => site.kind == Kind::Device,
                    (_, Some(location)) => (location == crate::analysis::filter::Location::Host) == (site.kind == Kind::HostPinned),
                };
                prop_assert_eq!(figures, by_definition(&events, phase, end, &sites, wanted), "{:?}", series);
            }
            let left = Tally::total(chosen.left_behind.iter().map(|site| site.tally));
            prop_assert_eq!(left, chosen.figures[0].left_behind);
        }
    }
}
