//! Boundaries: marks that a program sets again and again, and what it holds at them.
//!
//! An inference engine that goes to sleep, a model that is unloaded, an epoch that ends: each time the program should hold what
//! it held the last time. What is live at a mark and was allocated after the previous mark of its name was not there the last
//! time. So the state at the mark suffices; it comes from a timeline, or from an automatic snapshot that was taken at the mark.

use foldhash::{HashMap, HashSet};
use serde::Serialize;

use crate::analysis::filter::no_mark;
use crate::analysis::words;
use crate::point::Point;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Allocation, Allocations, Call, Gathering, Reason, Snapshot, Thread};
use crate::tally::Tally;
use crate::timeline::lives::{Lives, thread_of};
use crate::timeline::{Timeline, UNIT};

/// The mark at which a check judges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Boundary {
    pub mark: String,
    /// Which of the marks of this name, from 1 on, and their number.
    pub number: usize,
    pub count: usize,
    pub time_ns: u64,
    /// The previous mark of this name, if only what was allocated since then is judged.
    pub previous_ns: Option<u64>,
    /// The judged memory at each mark of this name whose state is known, if each of them is judged.
    pub held: Vec<HeldAt>,
}

/// What was held at a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldAt {
    pub time_ns: u64,
    #[serde(flatten)]
    pub tally: Tally,
}

/// When the program set marks of this name.
///
/// # Errors
/// It set none. The text names the marks that it set.
pub fn times(snapshot: &Snapshot, name: &str) -> Result<Vec<u64>, String> {
    let marks = snapshot.marks.iter().filter(|mark| mark.name == name);
    let mut times: Vec<u64> = marks.map(|mark| mark.time_ns).collect();
    times.sort_unstable();
    let (what, next) = no_mark(snapshot, name);
    if times.is_empty() {
        Err(format!("{what}; {next}"))
    } else {
        Ok(times)
    }
}

/// The last mark of this name in the snapshot, and the one before it.
///
/// # Errors
/// The program set none, or only one.
pub fn last(snapshot: &Snapshot, name: &str) -> Result<Boundary, String> {
    let times = times(snapshot, name)?;
    let &[.., previous, time_ns] = times.as_slice() else {
        return Err(format!(
            "the program set the mark {name:?} only once, so there is no earlier one to compare with; use --not-above SIZE, or \
             let it run through another round"
        ));
    };
    Ok(Boundary {
        mark: name.to_owned(),
        number: times.len(),
        count: times.len(),
        time_ns,
        previous_ns: Some(previous),
        held: Vec::new(),
    })
}

/// Whether the recorder took this snapshot at a mark of this name.
pub fn was_taken_at(snapshot: &Snapshot, name: &str) -> bool {
    let automatic = snapshot.taken.automatic.as_ref();
    automatic.is_some_and(|automatic| automatic.reason == Reason::Mark && automatic.name.as_deref() == Some(name))
}

/// The states of a process at several times, in one pass. `snapshot` is the final state. Calls `each` with the number of the
/// time and the snapshot of it; times before the log are left out.
pub fn states(snapshot: &Snapshot, timeline: &Timeline, times: &[u64], mut each: impl FnMut(usize, &Snapshot)) {
    let lives = Lives::of(&timeline.memory, timeline.since_ns, &snapshot.allocations);
    let mut live: HashSet<usize> = lives.at_begin().map(|(number, _)| number).collect();
    let mut state = Snapshot {
        allocations: Allocations::default(),
        freed_after_end: Allocations::default(),
        objects_freed_after_end: Allocations::default(),
        object_counters: Vec::new(),
        segments: Allocations::default(),
        ..snapshot.clone()
    };
    state.taken.automatic = None;
    state.losses.lost_events = timeline.lost;
    let known = times.iter().enumerate().filter(|&(_, &time)| time >= timeline.since_ns);
    let mut known = known.peekable();
    let mut reach = |live: &HashSet<usize>, until: Option<u64>| {
        while let Some((number, &time_ns)) = known.next_if(|&(_, &time)| until.is_none_or(|until| time | UNIT < until))
        {
            state.allocations = rows(&mut state.threads, snapshot, timeline, &lives, live);
            let objects = [&snapshot.objects, &Allocations::default()];
            let threads = &mut state.threads;
            state.objects = timeline.objects.rows_at(time_ns, objects, threads, |_, _| true);
            state.taken.lasted_ns.get_or_insert(state.taken.at_ns);
            state.taken.at_ns = time_ns;
            state.taken.point = Some(Point::Time(time_ns));
            each(number, &state);
        }
    };
    let progress = Progress::over("following events", timeline.memory.len() as u64, Unit::Of("events"));
    for (nth, change, _) in lives.changes() {
        progress.tick(nth);
        reach(&live, Some(timeline.memory.time_ns(nth)));
        match (change.life(), change.is_free()) {
            (Some(life), true) => live.remove(&life),
            (Some(life), false) => live.insert(life),
            (None, _) => false,
        };
    }
    reach(&live, None);
}

fn rows(
    threads: &mut Vec<Thread>,
    snapshot: &Snapshot,
    timeline: &Timeline,
    lives: &Lives,
    live: &HashSet<usize>,
) -> Allocations {
    let mut gathered = Gathering::default();
    let mut calls: HashMap<(u32, Option<usize>), Call> = HashMap::default();
    for &number in live {
        let life = &lives.lives[number];
        let site = &lives.sites[life.site as usize];
        let (time_ns, thread) = life.began(&timeline.memory, &snapshot.allocations);
        gathered.add(Allocation {
            address: life.address,
            bytes: life.bytes,
            requested: life.bytes,
            time_ns,
            stack: site.stack,
            call: (calls.entry((life.site, thread))).or_insert_with(|| site.call(thread_of(threads, thread))),
        });
    }
    gathered.finish()
}

impl Boundary {
    /// `mark:asleep, the last of 3`.
    pub fn title(&self) -> String {
        let which = match (self.number, self.count) {
            (_, 1) => "the only one".to_owned(),
            (number, count) if number == count => format!("the last of {count}"),
            (number, count) => format!("number {number} of {count}"),
        };
        format!(
            "mark:{}, {which}, {} after the start",
            self.mark,
            words::duration(self.time_ns)
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kind::Kind;
    use crate::sample::leaky;
    use crate::snapshot::Mark;
    use crate::timeline::{Event, Op, Site};

    const UNIT_NS: u64 = 8;
    type Key = (u64, u32);

    fn sites() -> Vec<Site> {
        let site = |stack| Site {
            stack: Some(stack),
            kind: Kind::Device,
            device: Some(0),
            domain: None,
            api: "cudaMalloc".to_owned(),
        };
        vec![site(0), site(1)]
    }

    fn with_marks(names: &[(&str, u64)]) -> Snapshot {
        let mut snapshot = leaky();
        snapshot.allocations = Allocations::default();
        snapshot.marks = names
            .iter()
            .map(|&(name, time_ns)| Mark {
                time_ns,
                name: name.to_owned(),
                thread: 0,
            })
            .collect();
        snapshot
    }

    #[test]
    fn the_last_mark_is_compared_with_the_one_before() {
        let snapshot = with_marks(&[("asleep", 10), ("awake", 20), ("asleep", 30), ("asleep", 50)]);
        let boundary = last(&snapshot, "asleep").unwrap();
        assert_eq!(
            (boundary.time_ns, boundary.previous_ns, boundary.count),
            (50, Some(30), 3)
        );
        let missing = last(&snapshot, "idle").unwrap_err();
        assert_eq!(missing, r#"the program set no mark "idle"; it set "asleep", "awake""#);
        assert!(last(&snapshot, "awake").unwrap_err().contains("only once"));
        assert!(last(&with_marks(&[]), "x").unwrap_err().contains("and no others"));
    }

    #[test]
    fn a_free_that_fails_did_not_happen_however_many_others_happen_meanwhile() {
        let event = |time, op, address, bytes, lifetime| Event {
            time_ns: time * UNIT_NS,
            op,
            address,
            bytes,
            site: 0,
            lifetime_ns: lifetime * UNIT_NS,
            thread: None,
        };
        let mut events = vec![event(1, Op::Allocated, 1, 500, 0), event(3, Op::Freed, 1, 500, 2)];
        for other in 100..300 {
            events.extend([event(2, Op::Allocated, other, 7, 0), event(4, Op::Freed, other, 7, 2)]);
        }
        events.push(event(6, Op::Restored, 1, 500, 0));
        let mut snapshot = with_marks(&[]);
        snapshot.allocations.push(Allocation {
            address: 1,
            bytes: 500,
            requested: 500,
            time_ns: UNIT_NS,
            stack: Some(0),
            call: &sites()[0].call(0),
        });
        let held = |since: u64, at: u64| {
            let (since_ns, at_ns) = (since * UNIT_NS, at * UNIT_NS);
            let kept = events.iter().copied().filter(|event| event.time_ns >= since_ns);
            let timeline = Timeline::new(since_ns, 9 * UNIT_NS, sites(), kept);
            let mut held = 0;
            states(&snapshot, &timeline, &[at_ns], |_, state| {
                held = state.allocations.iter().map(|row| row.bytes).sum();
            });
            held
        };
        assert_eq!([held(0, 2), held(0, 5), held(0, 8)], [500 + 200 * 7, 500, 500]);
        // The log begins after the free, or after all but its failure.
        assert_eq!([held(4, 5), held(4, 8), held(6, 8)], [500; 3]);
    }

    proptest! {
        /// A log that lacks its oldest events gives the states of the whole log.
        #[test]
        fn states_are_what_the_events_left(
            steps in prop::collection::vec((0u64..5, 0u64..6, 1u64..100, 0u32..2, any::<bool>()), 1..60),
            times in prop::collection::vec(0u64..250, 1..5),
            since in 0u64..100,
        ) {
            let mut snapshot = with_marks(&[]);
            let (mut live, mut all, mut time) = (HashMap::default(), Vec::new(), 0);
            type State = Vec<(u64, u64, u64)>;
            let mut states: Vec<(u64, State)> = Vec::new();
            let in_order = |live: &HashMap<Key, (u64, u64)>| {
                let mut rows: Vec<_> = live.iter().map(|(key, &(bytes, time))| (key.0, bytes, time)).collect();
                rows.sort_unstable();
                rows
            };
            for (pause, address, bytes, site, fails) in steps {
                time += pause * UNIT_NS;
                let key = (address, site);
                let event = |op, bytes, lifetime_ns| Event { time_ns: time, op, address, bytes, site, lifetime_ns, thread: None };
                match live.remove(&key) {
                    Some((bytes, since)) => {
                        all.push(event(Op::Freed, bytes, time - since));
                        if fails {
                            all.push(event(Op::Restored, bytes, 0));
                            live.insert(key, (bytes, since));
                        }
                    }
                    None => {
                        all.push(event(Op::Allocated, bytes, 0));
                        live.insert(key, (bytes, time));
                    }
                }
                states.push((time, in_order(&live)));
            }
            let call = Call {
                kind: Kind::Device, domain: None, api: "cudaMalloc".to_owned(), device: Some(0), context: None, stream: None,
                pool: None, thread: 0, sample_bytes: None, references: 0, mappings: 0, nodes: None, shared: None, kernel: None,
            };
            let mut gathered = Gathering::default();
            for (&(address, site), &(bytes, time_ns)) in &live {
                let stack = Some(site as usize);
                gathered.add(Allocation { address, bytes, requested: bytes, time_ns, stack, call: &call });
            }
            snapshot.allocations = gathered.finish();
            let mut times: Vec<u64> = times.iter().map(|time| time * UNIT_NS).collect();
            times.sort_unstable();
            let since_ns = since * UNIT_NS;
            let kept = all.into_iter().filter(|event| event.time_ns >= since_ns);
            let timeline = Timeline::new(since_ns, time, sites(), kept);
            let mut seen = Vec::new();
            super::states(&snapshot, &timeline, &times, |number, state| {
                seen.push(number);
                let expected = states.iter().rev().find(|(at, _)| *at <= times[number]);
                let expected = expected.map_or(Vec::new(), |(_, rows)| rows.clone());
                let mut found: Vec<_> = state.allocations.iter().map(|row| (row.address, row.bytes, row.time_ns)).collect();
                found.sort_unstable();
                assert_eq!(found, expected, "at {}", times[number]);
                state.validate().unwrap();
            });
            let expected: Vec<usize> = (0..times.len()).filter(|&number| times[number] >= since_ns).collect();
            prop_assert_eq!(seen, expected);
        }
    }
}
