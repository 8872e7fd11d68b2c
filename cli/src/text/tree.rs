//! A profile as an indented tree of call stacks, from `main` inwards, with the memory of each branch.
//!
//! A chain of frames without branches is not indented further. Where branches are hidden, a line has their number and
//! memory.

use culeak::analysis::profile::tree::{Both, Node, Step, Tree};
use culeak::analysis::profile::{Profile, Sums};
use culeak::analysis::site::{Frame, Line, Role, fold};

use super::{parts, units};
use crate::document::{self, BOLD, Branch, Cell, DIM, Document, PLAIN};
use crate::names::{self, Detail};

/// Limits the indentation; a damaged file may have endless stacks.
const WIDEST: usize = 1200;

pub fn write(profile: &Profile, tree: &Tree, detail: Detail, page: &mut Document) {
    let total = tree.root().sums.now;
    let numbers = |sums: Both| {
        let (tally, about) = (sums.now, parts::about(sums.is_estimate));
        vec![
            Cell::Number(format!("{about}{}", units::bytes(tally.bytes))),
            Cell::Number(percent(tally.bytes, total.bytes)),
            Cell::Number(format!("{about}{}", units::count(tally.count))),
        ]
    };
    page.tree(of(&profile.frames, tree, detail, vec!["bytes", "", "blocks"], &numbers));
    // The other sums of a tree without a filter are exact.
    if let Some(Sums::Estimated(errors)) = profile.sampled.as_ref().filter(|_| total.bytes > 0) {
        page.line(format!(
            "estimated: {} in all",
            parts::tally_about(total, Some(*errors))
        ));
    }
}

/// A tree of changes, with the memory after.
pub fn write_difference(frames: &[Frame], tree: &Tree, detail: Detail, page: &mut Document) {
    let numbers = |sums: Both| {
        let Both { now, before, .. } = sums;
        let about = parts::about(sums.is_estimate);
        let bytes = i128::from(now.bytes) - i128::from(before.bytes);
        let count = i128::from(now.count) - i128::from(before.count);
        vec![
            Cell::Number(format!("{about}{}", units::signed_bytes(bytes))),
            Cell::Number(format!("{about}{}", units::signed_count(count))),
            Cell::Number(format!("{about}{}", units::bytes(now.bytes))),
        ]
    };
    page.tree(of(frames, tree, detail, vec!["change", "blocks", "now"], &numbers));
}

/// `numbers`: the columns left of the tree, from a node's sums.
fn of(
    frames: &[Frame],
    tree: &Tree,
    detail: Detail,
    headings: Vec<&'static str>,
    numbers: &dyn Fn(Both) -> Vec<Cell>,
) -> document::Tree {
    enum Below {
        Node(usize),
        Hidden(usize),
    }
    let mut branches = Vec::new();
    let mut waiting = vec![(Below::Node(0), [String::new(), String::new()])];
    while let Some((below, lead)) = waiting.pop() {
        let number = match below {
            Below::Node(number) => number,
            Below::Hidden(parent) => {
                let parent = &tree.nodes[parent];
                let cells = numbers(parent.hidden);
                let text = document::more(parent.hidden_children as u64, "branch", "");
                branches.push(Branch::new(cells, lead).note(DIM, text));
                continue;
            }
        };
        let node = &tree.nodes[number];
        let then = lead[1].as_str();
        let then = if then.len() > WIDEST { "" } else { then }.to_owned();
        let cells = numbers(node.sums);
        branches.push(with_frames(Branch::new(cells, lead), frames, node, detail));
        let mut below: Vec<Below> = node.children.iter().map(|&child| Below::Node(child)).collect();
        if node.hidden_children > 0 {
            below.push(Below::Hidden(number));
        }
        let last = below.len();
        let lines = below.into_iter().zip(1..).map(|(line, nth)| match nth == last {
            true => (line, [format!("{then}└─ "), format!("{then}   ")]),
            false => (line, [format!("{then}├─ "), format!("{then}│  ")]),
        });
        waiting.extend(lines.collect::<Vec<_>>().into_iter().rev());
    }
    document::Tree {
        headings,
        branches,
        is_full: detail.signatures,
    }
}

fn with_frames(mut branch: Branch, frames: &[Frame], node: &Node, detail: Detail) -> Branch {
    match &node.step {
        Step::All => branch.note(BOLD, "all"),
        Step::Place(place) => branch.note(BOLD, place),
        Step::Cut => branch.note(PLAIN, names::CUT),
        Step::NoStack => branch.note(PLAIN, names::NO_STACK),
        Step::Frames(numbers) => {
            let chain: Vec<&Frame> = numbers.iter().map(|&number| &frames[number]).collect();
            let folds = !detail.signatures && frames.iter().any(|frame| frame.role == Role::User);
            for line in fold(&chain, folds, |frame| frame.python_library()) {
                match line {
                    Line::Frame(frame) => branch.frame(frame.role, names::function(frame, detail), frame.short_place()),
                    Line::Folded { library, frames } => {
                        branch = branch.note(DIM, document::folded(library, frames));
                    }
                }
            }
            branch
        }
    }
}

/// `93.5%`; empty if the total is 0.
fn percent(part: u64, total: u64) -> String {
    if total == 0 {
        return String::new();
    }
    format!("{:.1}%", part as f64 * 100.0 / total as f64)
}
