//! Phases as tables.

use culeak::analysis::phases::{Options, Phases};
use culeak::kind::Kind;
use culeak::snapshot::{Phase, Snapshot};
use culeak::timeline::{Event, Op, Site, Timeline};

use super::{expect_golden, plain};
use crate::document::columns::{width, with_available};
use crate::document::wrap;
use crate::text;
use crate::text::sample::{MAIN, MIB, RUNTIME, Sample};

const SECOND: u64 = 1_000_000_000;

/// Two epochs of three steps; each step leaves 1 MiB and uses 64 MiB meanwhile.
fn training() -> (Snapshot, Timeline) {
    let mut sample = Sample::new();
    let stack = sample.stack(&[RUNTIME, ("Trainer::step", "/src/train.cu:212", "/opt/app"), MAIN]);
    let mut snapshot = sample.finish(0, 0);
    let (mut phases, mut events) = (Vec::new(), Vec::new());
    let phase = |name: &str, begin_ns, end_ns, parent| Phase {
        name: name.to_owned(),
        domain: None,
        thread: 0,
        begin_ns,
        end_ns,
        parent,
    };
    for epoch in 0..2u64 {
        let start = (1 + epoch * 10) * SECOND;
        let parent = Some(phases.len());
        phases.push(phase("epoch", start, (epoch == 0).then_some(start + 9 * SECOND), None));
        for step in 0..3u64 {
            let begin = start + (1 + 2 * step) * SECOND;
            phases.push(phase("step", begin, Some(begin + SECOND), parent));
            let address = 1000 * (epoch * 3 + step);
            let event = |after: u64, op, address, bytes| Event {
                time_ns: begin + after,
                op,
                address,
                bytes,
                site: 0,
                lifetime_ns: if op == Op::Freed { 2000 } else { 0 },
                thread: Some(0),
            };
            events.push(event(1000, Op::Allocated, address, 64 * MIB));
            events.push(event(2000, Op::Allocated, address + 1, MIB));
            events.push(event(3000, Op::Freed, address, 64 * MIB));
        }
    }
    snapshot.phases = phases;
    let site = Site {
        stack: Some(stack),
        kind: Kind::Device,
        device: Some(0),
        domain: None,
        api: "cudaMalloc".to_owned(),
    };
    let timeline = Timeline::new(0, 60 * SECOND, vec![site], events);
    (snapshot, timeline)
}

fn tables(timeline: Option<&Timeline>, snapshot: &Snapshot) -> String {
    let of = |name: Option<&str>| Options {
        name: name.map(str::to_owned),
        sites: Some(text::phases::SITES_SHOWN),
        ..Options::default()
    };
    plain(|out| {
        wrap::lines(out, |out| {
            text::phases::page(&Phases::of(snapshot, timeline, &of(None)), Some(20), "train.culeak").text(out)?;
            writeln!(out)?;
            text::phases::page_of_chosen(&Phases::of(snapshot, timeline, &of(Some("step"))), Some(4)).text(out)
        })
    })
}

#[test]
fn golden_phases() {
    let (snapshot, timeline) = training();
    expect_golden("phases.txt", &tables(Some(&timeline), &snapshot));
    expect_golden("phases-times-only.txt", &tables(None, &snapshot));
}

#[test]
fn on_a_narrow_terminal_the_least_important_columns_are_left_out() {
    let (mut snapshot, timeline) = training();
    for phase in &mut snapshot.phases {
        phase.name = format!(
            "{} of the distributed training program with all its options",
            phase.name
        );
    }
    for available in [40, 60, 80, 100, 140] {
        let text = with_available(available, || tables(Some(&timeline), &snapshot));
        let table = text.lines().take_while(|line| !line.starts_with("allocated,"));
        for line in table {
            assert!(width(line) <= available.max(60), "{available}: {line}");
        }
        assert!(text.contains("left behind"));
        assert_eq!(text.contains("at most"), available >= 140, "{available}:\n{text}");
    }
}
