//! Memory over time for the page: the spans and curves of [`culeak::analysis::over_time`], with names.
//!
//! The page draws what it likes from the spans: the memory at each boundary, by any property of their classes, and the stacks
//! of what was allocated between two boundaries and is live at the second. A class is a stack, a kind, a place, a layer and
//! the properties that memory can be stacked by.

use culeak::analysis::categories::{Request, Sorter};
use culeak::analysis::lives::{self, Logged};
use culeak::analysis::over_time::{Classes, Curve, Detail, OverTime};
use culeak::analysis::report::{Options, place_name};
use culeak::analysis::site::{CallStack, CallStacks};
use culeak::analysis::words;
use culeak::kind::Place;
use culeak::snapshot::{EndOf, Snapshot};
use culeak::table;
use culeak::timeline::{Site, Timeline};
use serde::Serialize;

use super::data::Data;
use super::graph::{Item, number_of};
use super::stacks::Stacks;
use crate::escape::Escaped;
use crate::names::{self, Distinct};

/// The most boundaries and spans: 1.5 million spans are about 10 MB of the page.
const DETAIL: Detail = Detail {
    boundaries: 2048,
    spans: 1_500_000,
};
/// The most marks and the most phases; the longest phases are kept.
const NAMED: usize = 1000;
/// The most marks and phases that get a boundary.
const EXACT: usize = 256;

/// How memory counts: a framework's block, memory that such blocks lie in, and all other memory, which counts at both levels.
const BLOCK: u64 = 0;
const BEHIND: u64 = 1;
const OTHER: u64 = 2;

/// The properties that memory can be stacked by: the title of each, and its value.
type Grouping = (&'static str, fn(&Naming, &Requested) -> String);
const GROUPINGS: [Grouping; 4] = table! {
    "call site", |naming, requested| names::site(naming.stacks.get(requested.site.stack));
    "category", |naming, requested| naming.category(requested);
    "kind", |_, requested| requested.site.kind.name().to_owned();
    "library", |naming, requested| {
        let owner = owner(naming.stacks.get(requested.site.stack));
        owner.unwrap_or("the program itself").to_owned()
    };
};

/// What names are made of.
struct Naming<'n, 'a> {
    stacks: &'n CallStacks<'a>,
    sorter: Sorter<'n>,
}

/// Memory of one site.
struct Requested<'r> {
    site: &'r Site,
    /// The thread of the first allocation whose thread is known.
    thread: Option<usize>,
}

impl Naming<'_, '_> {
    fn category(&self, requested: &Requested) -> String {
        let site = requested.site;
        let request = Request {
            kind: site.kind,
            domain: site.domain.as_deref(),
            thread: requested.thread,
        };
        self.sorter.category(site.stack, request, self.stacks).name().to_owned()
    }
}

fn owner(stack: &CallStack) -> Option<&'static str> {
    stack.library.or(stack.allocator)
}

/// Everything that is not a column.
#[derive(Serialize)]
pub struct Shown {
    since_ns: u64,
    until_ns: u64,
    /// What the log lacks, as sentences.
    lacks: Vec<String>,
    places: Vec<String>,
    /// The titles of the properties that memory can be stacked by, each of which has a column.
    groupings: Vec<&'static str>,
    curves: Vec<Curve>,
    marks: Vec<Mark>,
    phases: Vec<Phase>,
    failed: Vec<Mark>,
}

#[derive(Serialize)]
struct Mark {
    time_ns: u64,
    text: String,
}

#[derive(Serialize)]
struct Phase {
    begin_ns: u64,
    end_ns: u64,
    text: String,
    /// The number of enclosing phases.
    depth: usize,
}

/// Memory that the page does not distinguish.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Class {
    /// Numbered as in [`Stacks`].
    stack: usize,
    kind: u64,
    owner: u64,
    place: u32,
    layer: u64,
    /// By grouping, the number of a string.
    names: Vec<u64>,
}

/// A timeline whose stacks have been added to those of the page.
pub struct Prepared {
    shown: Shown,
    over_time: OverTime,
    classes: Vec<Class>,
}

impl Prepared {
    pub fn of<'a>(data: &mut Data<'a>, stacks: &mut Stacks, item: &Item<'a>, logged: &Logged) -> Prepared {
        let snapshot = item.snapshot;
        let call_stacks = CallStacks::of(snapshot);
        let timeline = &logged.timeline;
        let lives = lives::of(snapshot, &logged.last, timeline, &call_stacks);
        let mut classing = Classing {
            data,
            stacks,
            classes: Distinct::default(),
            places: Distinct::default(),
            full: item.full_stacks,
        };
        let naming = Naming {
            stacks: &call_stacks,
            sorter: Sorter::new(&item.options.categories, snapshot),
        };
        let threads = lives.threads(&timeline.memory, &logged.last);
        let Options {
            filter, suppressions, ..
        } = &item.options;
        let wanted = lives::wanted(&lives, snapshot, &call_stacks, filter, suppressions, &threads);
        let mut of_sites = Classes::default();
        for (nth, (site, levels)) in lives.sites.iter().zip(lives::levels(&lives)).enumerate() {
            let requested = Requested {
                site,
                thread: threads[nth],
            };
            let place = classing.places.number(place_name(snapshot, site.kind, site.device)) as u32;
            let wanted = wanted[nth] && site.kind.place() != Place::Nowhere;
            let mut classes = [None; 2];
            for behind in [true, false] {
                if wanted && levels[usize::from(behind)] {
                    let layer = match (site.kind.place(), behind) {
                        (Place::Within, _) => BLOCK,
                        (_, true) => BEHIND,
                        (_, false) => OTHER,
                    };
                    classes[usize::from(behind)] = Some(classing.class(&naming, &requested, layer, place));
                }
            }
            of_sites.classes.push(classes);
            of_sites.places.push(place);
        }
        let (marks, phases, failed) = (marks(snapshot), phases(snapshot, timeline), failed(snapshot));
        let ends = phases
            .iter()
            .take(EXACT)
            .flat_map(|phase| [phase.begin_ns, phase.end_ns]);
        let times: Vec<u64> = marks.iter().take(EXACT).map(|mark| mark.time_ns).chain(ends).collect();
        let over_time = OverTime::of(timeline, &lives, &of_sites, &times, DETAIL);
        let Classing { classes, places, .. } = classing;
        Prepared {
            shown: Shown {
                since_ns: timeline.since_ns,
                until_ns: over_time.boundaries.last().map_or(0, |last| last.time_ns),
                lacks: lacks(timeline),
                places: places.items.iter().map(|place| Escaped(place).to_string()).collect(),
                groupings: GROUPINGS.iter().map(|(title, _)| *title).collect(),
                curves: over_time.curves.clone(),
                marks,
                phases,
                failed,
            },
            classes: classes.items,
            over_time,
        }
    }

    /// Writes the columns. `moved`: the new number of each stack.
    pub fn write(self, data: &mut Data, prefix: &str, moved: &[u64]) -> Shown {
        let Prepared {
            shown,
            over_time,
            classes,
        } = self;
        let mut add = |name: &str, numbers: &mut dyn Iterator<Item = u64>| {
            data.columns.add(format!("{prefix}.{name}"), numbers);
        };
        let mut order: Vec<usize> = (0..classes.len()).collect();
        order.sort_by_key(|&class| moved[classes[class].stack]);
        let mut column = |name: &str, number: &dyn Fn(&Class) -> u64| {
            add(name, &mut order.iter().map(|&class| number(&classes[class])));
        };
        column("samples.stack", &|class| moved[class.stack]);
        column("samples.kind", &|class| class.kind);
        column("samples.owner", &|class| class.owner);
        column("samples.place", &|class| class.place.into());
        column("samples.layer", &|class| class.layer);
        for (nth, _) in GROUPINGS.iter().enumerate() {
            column(&format!("group.{nth}"), &|class| class.names[nth]);
        }
        let mut place_of = vec![0; classes.len()];
        for (place, &class) in order.iter().enumerate() {
            place_of[class] = place as u64;
        }
        // In the order of classes, so that those of one class are a range.
        let mut spans = over_time.spans;
        spans.sort_unstable_by_key(|span| (place_of[span.class as usize], span.from, span.to));
        let mut counts = vec![0; classes.len()];
        spans
            .iter()
            .for_each(|span| counts[place_of[span.class as usize] as usize] += 1);
        add("spans.of_class", &mut counts.into_iter());
        // Numbers that change little compress well.
        let (mut class, mut before) = (0, 0);
        let from = spans.iter().map(|span| {
            if span.class != class {
                (class, before) = (span.class, 0);
            }
            let more = u64::from(span.from) - before;
            before = span.from.into();
            more
        });
        add("spans.from", &mut from.collect::<Vec<_>>().into_iter());
        // 0: live at the last boundary.
        let last = over_time.boundaries.len() as u32;
        let length = |to: u32, from: u32| if to == last { 0 } else { u64::from(to - from) };
        add("spans.length", &mut spans.iter().map(|span| length(span.to, span.from)));
        add("spans.bytes", &mut spans.iter().map(|span| span.bytes));
        add("spans.count", &mut spans.iter().map(|span| span.count));
        let mut time = shown.since_ns;
        let times = over_time.boundaries.iter().map(|boundary| {
            let more = boundary.time_ns - time;
            time = boundary.time_ns;
            more
        });
        add("times", &mut times.collect::<Vec<_>>().into_iter());
        for (nth, curve) in over_time.curves.iter().enumerate() {
            add(&format!("high.{nth}"), &mut curve.high.iter().copied());
        }
        shown
    }
}

/// Numbers classes and places.
struct Classing<'d, 'a> {
    data: &'d mut Data<'a>,
    stacks: &'d mut Stacks,
    classes: Distinct<Class>,
    places: Distinct<String>,
    full: bool,
}

impl<'a> Classing<'_, 'a> {
    fn class(&mut self, naming: &Naming<'_, 'a>, requested: &Requested, layer: u64, place: u32) -> u32 {
        let stack = naming.stacks.get(requested.site.stack);
        let class = Class {
            stack: self.stacks.add_call_stack(self.data, stack, self.full),
            kind: number_of(requested.site.kind),
            owner: self.data.text(owner(stack).unwrap_or_default()),
            place,
            layer,
            names: GROUPINGS
                .iter()
                .map(|(_, name)| self.data.text(&name(naming, requested)))
                .collect(),
        };
        self.classes.number(class) as u32
    }
}

fn lacks(timeline: &Timeline) -> Vec<String> {
    let mut lacks = Vec::new();
    if timeline.since_ns > 0 {
        lacks.push(format!(
            "The log has the events since {}; what was allocated and freed before is unknown.",
            words::duration(timeline.since_ns)
        ));
    }
    if timeline.lost > 0 {
        lacks.push(format!(
            "{} events could not be logged, so sums may differ from the recording's.",
            words::count(timeline.lost)
        ));
    }
    lacks
}

fn marks(snapshot: &Snapshot) -> Vec<Mark> {
    let named = snapshot.marks.iter().take(NAMED).map(|mark| Mark {
        time_ns: mark.time_ns,
        text: Escaped(&mark.name).to_string(),
    });
    let end = snapshot.end.map(|end| Mark {
        time_ns: end.time_ns,
        text: match end.of {
            EndOf::Script => "(end of the script)",
            EndOf::Main => "(end of main)",
        }
        .to_owned(),
    });
    let mut marks: Vec<Mark> = named.chain(end).collect();
    marks.sort_by_key(|mark| mark.time_ns);
    marks
}

/// The longest phases, in order of their begin.
fn phases(snapshot: &Snapshot, timeline: &Timeline) -> Vec<Phase> {
    let mut depths: Vec<usize> = Vec::with_capacity(snapshot.phases.len());
    for phase in &snapshot.phases {
        // A parent comes before its phases.
        depths.push(
            phase
                .parent
                .and_then(|parent| depths.get(parent))
                .map_or(0, |depth| depth + 1),
        );
    }
    let mut phases: Vec<Phase> = snapshot
        .phases
        .iter()
        .zip(depths)
        .map(|(phase, depth)| Phase {
            begin_ns: phase.begin_ns,
            end_ns: phase.end_ns.unwrap_or(timeline.until_ns).max(phase.begin_ns),
            text: match &phase.domain {
                Some(domain) => format!("{}: {}", Escaped(domain), Escaped(&phase.name)),
                None => Escaped(&phase.name).to_string(),
            },
            depth,
        })
        .collect();
    phases.sort_by_key(|phase| std::cmp::Reverse(phase.end_ns - phase.begin_ns));
    phases.truncate(NAMED);
    phases.sort_by_key(|phase| (phase.begin_ns, phase.depth));
    phases
}

fn failed(snapshot: &Snapshot) -> Vec<Mark> {
    let mut failed = Vec::new();
    for row in snapshot.failed.iter().take(NAMED) {
        let text = format!("{} of {} failed", Escaped(&row.api), words::bytes(row.bytes));
        let at = |time_ns| Mark {
            time_ns,
            text: text.clone(),
        };
        failed.push(at(row.first_ns));
        if row.last_ns != row.first_ns {
            failed.push(at(row.last_ns));
        }
    }
    failed.sort_by_key(|mark| mark.time_ns);
    failed
}
