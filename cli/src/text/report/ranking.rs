//! The ranked rows: one line each.

use std::collections::HashMap;

use culeak::analysis::check::{Judged, Standing};
use culeak::analysis::report::{By, Report, Row};
use culeak::analysis::site::Frame;
use culeak::analysis::words::of_kind;
use culeak::kind::{Kind, Place};

use super::brief::Cost;
use crate::document::{self, Cell, Document, Rows, Site};
use crate::text::{parts, units};

/// A row of memory, or of objects, with its call site in the table.
pub struct Ranked<'r, 'a> {
    pub row: &'r Row<'a>,
    pub site: Site,
    /// What the driver took for objects.
    bytes: u64,
}

/// The rows, and `costs` among those of memory that the program itself requested. `change` adds columns and what stands below the
/// rows; `rest`: where the rows are that were cut.
pub fn ranking<'r, 'a>(
    report: &'r Report<'a>,
    costs: &[Cost<'r, 'a>],
    rest: &str,
    change: impl FnOnce(Rows<Ranked<'r, 'a>>) -> Rows<Ranked<'r, 'a>>,
    page: &mut Document,
) {
    let is_code = matches!(report.by, By::Site | By::Stack);
    let site = |row: &Row| match is_code {
        true => Site::of(&row.label, row.site(), parts::mark(row)),
        false => Site {
            name: row.label.clone(),
            place: String::new(),
            mark: parts::mark(row),
        },
    };
    let rows = with_costs(report, costs);
    let mut sites: Vec<Site> = rows.iter().map(|(row, _)| site(row)).collect();
    parts::tell_apart(&mut sites, rows.iter().map(|(row, _)| row.label.as_str()));
    if report.by == By::Stack {
        for ((row, _), site) in rows.iter().zip(&mut sites) {
            let gradient = row.stacks.first().and_then(|stack| stack.stack.gradient());
            site.mark += &gradient.map_or_else(String::new, |line| format!("  {}", with_place(line)));
        }
        name_callers(&rows, &mut sites);
    }
    page.table(change(ranked(rows.into_iter().zip(sites))));
    let about = parts::about(report.rows.iter().any(|row| row.estimated.is_some()));
    let hidden = match report.hidden.bytes {
        0 => "out memory".to_owned(),
        _ => format!(" {about}{}", parts::tally(report.hidden)),
    };
    let noun = if report.by == By::Site { "call site" } else { "row" };
    page.more(report.hidden_rows, noun, format!(" with{hidden}; {rest}"));
}

/// The rows and the objects, each with its memory.
fn with_costs<'r, 'a>(report: &'r Report<'a>, costs: &[Cost<'r, 'a>]) -> Vec<(&'r Row<'a>, u64)> {
    let mut rows: Vec<_> = report.rows.iter().map(|row| (row, row.bytes)).collect();
    // In another order they follow the program's own rows.
    let is_by_size = rows[..report.own_rows].is_sorted_by(|(_, one), (_, next)| one >= next);
    for (own, cost) in (report.own_rows..).zip(costs) {
        let mut shown = rows[..own].iter().filter(|_| is_by_size);
        let smaller = shown.position(|(_, bytes)| *bytes < cost.bytes);
        rows.insert(smaller.unwrap_or(own), (cost.row, cost.bytes));
    }
    rows
}

/// Rows with their memory, in this order.
pub fn ranked<'r, 'a: 'r>(rows: impl Iterator<Item = ((&'r Row<'a>, u64), Site)>) -> Rows<Ranked<'r, 'a>> {
    let count = |Ranked { row, .. }: &Ranked| match row.kind_of_objects() {
        Some(kind) => Cell::Things(row.count, of_kind(row.count, kind.name())),
        None => {
            let (count, noun) = things(row);
            document::things_about(parts::about(row.estimated.is_some()), count, noun)
        }
    };
    Rows::of(rows.map(|((row, bytes), site)| Ranked { row, site, bytes }))
        .bare()
        .tally(|ranked| Cell::Estimate(ranked.bytes, ranked.row.estimated), count)
        .column("call site", |ranked| ranked.site.clone())
}

/// The call site of a row of a verdict, with its standing against the baseline.
pub fn judged(judged: &Judged) -> Site {
    let standing = match judged.standing {
        None => String::new(),
        Some(Standing::New) => "  [new]".to_owned(),
        Some(Standing::Grown) => {
            let known = judged.known.map_or(0, |known| known.bytes);
            match judged.row.bytes.saturating_sub(known) {
                0 => "  [grown]".to_owned(),
                more => format!("  [grown +{}]", units::bytes(more)),
            }
        }
        Some(Standing::Known) => "  [known]".to_owned(),
    };
    Site::of(
        &judged.row.label,
        judged.row.site(),
        parts::mark(&judged.row) + &standing,
    )
}

/// Adds callers to rows with the same call site, up to the first caller that differs.
fn name_callers(rows: &[(&Row, u64)], sites: &mut [Site]) {
    let mut alike: HashMap<Site, Vec<usize>> = HashMap::new();
    for (nth, site) in sites.iter().enumerate() {
        alike.entry(site.clone()).or_default().push(nth);
    }
    for group in alike.into_values().filter(|group| group.len() > 1) {
        let callers: Vec<Vec<String>> = group.iter().map(|&nth| callers(rows[nth].0)).collect();
        for (of_row, &nth) in callers.iter().zip(&group) {
            let shared = |other: &Vec<String>| of_row.iter().zip(other).take_while(|(a, b)| a == b).count();
            let others = callers.iter().filter(|other| !std::ptr::eq(*other, of_row));
            let longest = others.map(shared).max().unwrap_or(0);
            let needed = of_row.get(..=longest).unwrap_or(of_row);
            let chain = match needed {
                [] => "nothing".to_owned(),
                [first, .., last] if needed.len() > CALLERS_SHOWN => format!("{first} ← … ← {last}"),
                few => few.join(" ← "),
            };
            sites[nth].mark += &format!("  ← {chain}");
        }
    }
}

/// Longer chains are shortened in the middle.
const CALLERS_SHOWN: usize = 3;

/// The visible frames that called the call site, innermost first.
fn callers(row: &Row) -> Vec<String> {
    let stack = row.stacks.first().map(|first| &first.stack);
    stack.iter().flat_map(|stack| stack.callers()).map(with_place).collect()
}

fn with_place(frame: &Frame) -> String {
    parts::with_place(&Site::of(&frame.name(), Some(frame), ""))
}

/// `3 blocks`; `3 claims` for records that hold no memory; `3 segments`.
pub(super) fn counted(row: &Row) -> String {
    let about = parts::about(row.estimated.is_some());
    let (count, noun) = things(row);
    format!("{about}{}", document::counted(count, noun))
}

/// Claims count in rows of claims alone: they are no blocks.
fn things(row: &Row) -> (u64, &'static str) {
    let kinds = || row.kinds.keys().filter_map(|kind| Kind::from_name(kind));
    match row.claims == row.count {
        true => (row.count, "claim"),
        false if kinds().all(|kind| kind == Kind::Channel) => (row.count, "channel"),
        false if kinds().all(|kind| kind.place() == Place::Segment) => (row.count, "segment"),
        false => (row.count - row.claims, "block"),
    }
}
