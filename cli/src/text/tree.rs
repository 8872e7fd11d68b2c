//! A profile as an indented tree of call stacks, from `main` inwards, with the memory of each branch.
//!
//! A chain of frames without branches is not indented further. Where branches are hidden, a line has their number and
//! memory.

use std::io::{self, Write};

use culeak::analysis::profile::tree::{Node, Step, Tree};
use culeak::analysis::profile::{Profile, Sums};
use culeak::analysis::report::Tally;
use culeak::analysis::site::{Frame, Role};

use super::names::{self, Detail};
use super::parts::{BOLD, DIM, PLAIN, Styled};
use super::units::{self, plural};
use super::{columns, parts};
use crate::escape::Escaped;

/// The prefixes of a node's first line and of its other lines.
struct Lead {
    first: String,
    then: String,
}

/// Limits the indentation; a damaged file may have endless stacks.
const WIDEST: usize = 1200;

impl Lead {
    /// The prefix; on a terminal, at most half of the room: its end.
    fn shown(prefix: &str, room: Option<usize>) -> String {
        room.map_or_else(|| prefix.to_owned(), |room| columns::end_of(prefix, room / 2))
    }

    fn below(&self, last: bool) -> Lead {
        let then = if self.then.len() > WIDEST { "" } else { &self.then };
        Lead {
            first: format!("{then}{}", if last { "└─ " } else { "├─ " }),
            then: format!("{then}{}", if last { "   " } else { "│  " }),
        }
    }
}

/// With less room than this, a frame whose name and place do not fit is shown without its place.
const PLACE_FITS: usize = 36;

enum Line {
    Node(usize),
    Hidden(usize),
}

pub fn write(profile: &Profile, tree: &Tree, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let total = tree.root().tally;
    let wide = if profile.sampled.is_some() {
        ABOUT.chars().count()
    } else {
        0
    };
    let (bytes, blocks) = (9 + wide, 9 + wide);
    let numbers = |tally: Tally, _, is_estimate| {
        let about = about(is_estimate);
        format!(
            "{:>bytes$} {:>6} {:>blocks$}",
            format!("{about}{}", units::bytes(tally.bytes)),
            percent(tally.bytes, total.bytes),
            format!("{about}{}", units::count(tally.count))
        )
    };
    let heading = format!("{:>bytes$} {:>6} {:>blocks$}", "bytes", "", "blocks");
    write_with(&profile.frames, tree, detail, &heading, &numbers, out)?;
    // The other sums of a tree without a filter are exact.
    match &profile.sampled {
        Some(Sums::Estimated(errors)) if total.bytes > 0 => {
            writeln!(out, "estimated: {} in all", parts::tally_about(total, Some(*errors)))
        }
        _ => Ok(()),
    }
}

/// Marks an estimate.
const ABOUT: &str = "≈ ";

fn about(is_estimate: bool) -> &'static str {
    if is_estimate { ABOUT } else { "" }
}

/// Writes a tree of changes, with the memory after.
pub fn write_difference(frames: &[Frame], tree: &Tree, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let is_sampled = tree
        .nodes
        .iter()
        .any(|node| node.is_estimate || node.hidden_is_estimate);
    let wide = if is_sampled { ABOUT.chars().count() } else { 0 };
    let (change, other) = (10 + wide, 9 + wide);
    let numbers = |now: Tally, before: Tally, is_estimate| {
        let about = about(is_estimate);
        let bytes = i128::from(now.bytes) - i128::from(before.bytes);
        let count = i128::from(now.count) - i128::from(before.count);
        format!(
            "{:>change$} {:>other$} {:>other$}",
            format!("{about}{}", units::signed_bytes(bytes)),
            format!("{about}{}", units::signed_count(count)),
            format!("{about}{}", units::bytes(now.bytes))
        )
    };
    let heading = format!("{:>change$} {:>other$} {:>other$}", "change", "blocks", "now");
    write_with(frames, tree, detail, &heading, &numbers, out)
}

/// `numbers`: the columns left of the tree, from a node's tallies after and before, and whether they are estimates.
fn write_with(
    frames: &[Frame],
    tree: &Tree,
    detail: Detail,
    heading: &str,
    numbers: &dyn Fn(Tally, Tally, bool) -> String,
    out: &mut dyn Write,
) -> io::Result<()> {
    let blank = " ".repeat(heading.len());
    // What remains of a line of the terminal for the indentation and the frame.
    let room = columns::available().map(|available| available.saturating_sub(heading.len() + "  ".len()));
    writeln!(out, "{}", Styled(DIM, heading))?;
    let top = Lead {
        first: String::new(),
        then: String::new(),
    };
    let mut waiting = vec![(Line::Node(0), top)];
    while let Some((line, lead)) = waiting.pop() {
        let number = match line {
            Line::Node(number) => number,
            Line::Hidden(parent) => {
                let parent = &tree.nodes[parent];
                let text = plural(parent.hidden_children as u64, "more branch", "more branches");
                let text = Styled(DIM, format!("… {text}"));
                writeln!(
                    out,
                    "{}  {}{text}",
                    numbers(parent.hidden, parent.hidden_before, parent.hidden_is_estimate),
                    Lead::shown(&lead.first, room)
                )?;
                continue;
            }
        };
        let node = &tree.nodes[number];
        let (first, then) = (Lead::shown(&lead.first, room), Lead::shown(&lead.then, room));
        let left = room
            .filter(|_| !detail.signatures)
            .map(|room| room.saturating_sub(columns::width(&first)));
        for (nth, text) in texts(frames, node, detail, left).into_iter().enumerate() {
            if nth == 0 {
                let numbers = numbers(node.tally, node.before, node.is_estimate);
                writeln!(out, "{numbers}  {first}{text}")?;
            } else {
                writeln!(out, "{blank}  {then}{text}")?;
            }
        }
        let mut below: Vec<Line> = node.children.iter().map(|&child| Line::Node(child)).collect();
        if node.hidden_children > 0 {
            below.push(Line::Hidden(number));
        }
        let last = below.len();
        let lines = below
            .into_iter()
            .zip(1..)
            .map(|(line, nth)| (line, lead.below(nth == last)));
        let lines: Vec<_> = lines.collect();
        waiting.extend(lines.into_iter().rev());
    }
    Ok(())
}

fn texts(all: &[Frame], node: &Node, detail: Detail, room: Option<usize>) -> Vec<String> {
    let plain = |text: &str| vec![text.to_owned()];
    match &node.step {
        Step::All => vec![Styled(BOLD, "all").to_string()],
        Step::Place(place) => vec![Styled(BOLD, place).to_string()],
        Step::Cut => plain(names::CUT),
        Step::NoStack => plain(names::NO_STACK),
        Step::Frames(frames) => frames.iter().map(|&number| frame(&all[number], detail, room)).collect(),
    }
}

fn frame(frame: &Frame, detail: Detail, room: Option<usize>) -> String {
    let style = if frame.role == Role::User { PLAIN } else { DIM };
    let name = names::function(frame, detail);
    let place = frame.short_place().map(|place| Escaped(&place).to_string());
    let fits = |place: &String| {
        let both = columns::width(&name) + "  ".len() + columns::width(place);
        room.is_none_or(|room| room >= PLACE_FITS.min(both))
    };
    let place = place.filter(fits).unwrap_or_default();
    let (name, place) = parts::beside(&name, &place, 0, room);
    match place.as_str() {
        "" => Styled(style, name).to_string(),
        place => format!("{}  {}", Styled(style, name), Styled(DIM, place)),
    }
}

/// `93.5%`; empty if the total is 0.
fn percent(part: u64, total: u64) -> String {
    if total == 0 {
        return String::new();
    }
    format!("{:.1}%", part as f64 * 100.0 / total as f64)
}
