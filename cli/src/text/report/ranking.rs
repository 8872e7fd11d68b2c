//! The ranked rows: one line each.

use std::collections::HashMap;

use culeak::analysis::check::{Judged, Standing};
use culeak::analysis::report::{By, Report, Row};
use culeak::analysis::site::Frame;
use culeak::kind::{Kind, Place};

use crate::document::{self, Cell, Document, Rows, Site};
use crate::text::{parts, units};

/// A row, and its call site in the table.
pub type Ranked<'r, 'a> = (&'r Row<'a>, Site);

/// The rows. `change` adds columns and what stands below the rows; `rest`: where the rows are that were cut.
pub fn ranking<'r, 'a>(
    report: &'r Report<'a>,
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
    let mut sites: Vec<Site> = report.rows.iter().map(site).collect();
    parts::tell_apart(&mut sites, report.rows.iter().map(|row| row.label.as_str()));
    if report.by == By::Stack {
        for (row, site) in report.rows.iter().zip(&mut sites) {
            let gradient = row.stacks.first().and_then(|stack| stack.stack.gradient());
            site.mark += &gradient.map_or_else(String::new, |line| format!("  {}", with_place(line)));
        }
        name_callers(&report.rows, &mut sites);
    }
    page.table(change(ranked(report.rows.iter().zip(sites).collect())));
    let about = parts::about(report.rows.iter().any(|row| row.estimated.is_some()));
    let tally = parts::tally(report.hidden);
    page.more(report.hidden_rows, "row", format!(" with {about}{tally}; {rest}"));
}

/// Rows with their memory, largest first.
pub fn ranked<'r, 'a>(rows: Vec<Ranked<'r, 'a>>) -> Rows<Ranked<'r, 'a>> {
    let count = |(row, _): &Ranked| {
        let (count, noun) = things(row);
        document::things_about(parts::about(row.estimated.is_some()), count, noun)
    };
    Rows::of(rows)
        .bare()
        .tally(|(row, _)| Cell::Estimate(row.bytes, row.estimated), count)
        .column("call site", |(_, site)| site.clone())
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
fn name_callers(rows: &[Row], sites: &mut [Site]) {
    let mut alike: HashMap<Site, Vec<usize>> = HashMap::new();
    for (nth, site) in sites.iter().enumerate() {
        alike.entry(site.clone()).or_default().push(nth);
    }
    for group in alike.into_values().filter(|group| group.len() > 1) {
        let callers: Vec<Vec<String>> = group.iter().map(|&nth| callers(&rows[nth])).collect();
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
