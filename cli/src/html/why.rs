//! What holds memory, as a page of its own and as parts of a report's page: the holders of each call site, and a tree of what
//! would be freed with what.

use std::collections::HashMap;
use std::io::{self, Write};

use culeak::analysis::report::{Report, Tally};
use culeak::analysis::site::Fingerprint;
use culeak::analysis::why::{Options, SiteHolders, Why};
use culeak::snapshot::Snapshot;
use serde::Serialize;

use super::data::Data;
use super::page::{self, Parts};
use crate::escape::Escaped;
use crate::text;
use crate::text::parts;
use crate::text::report::sums;

/// Holders, and retainers, that a page lists at most.
pub const MOST: usize = 2000;
/// Rows of one holder, or holders of one call site, that a page lists at most.
pub const MOST_ROWS: usize = 200;

#[derive(Serialize)]
struct Page {
    what: &'static str,
    headline: String,
    holders: Vec<Holder>,
    /// What is left out, in words.
    hidden: Option<String>,
    retainers: Vec<Node>,
    totals: Vec<sums::Sum>,
    next: String,
}

/// A holder, and its rows.
#[derive(Serialize)]
struct Holder {
    text: String,
    class: &'static str,
    #[serde(flatten)]
    tally: Tally,
    rows: Vec<Row>,
    hidden_rows: usize,
}

/// Memory of one call site over one path.
#[derive(Serialize)]
struct Row {
    label: String,
    place: String,
    path: String,
    /// `also held by __main__.other`.
    also: String,
    #[serde(flatten)]
    tally: Tally,
}

/// A holder in the tree of retained memory. Nodes are in the order of the tree, and each has its depth.
#[derive(Serialize)]
pub struct Node {
    name: String,
    depth: usize,
    #[serde(flatten)]
    tally: Tally,
}

/// A holder of a call site's memory.
#[derive(Serialize)]
pub struct Line {
    text: String,
    #[serde(flatten)]
    tally: Tally,
}

fn escaped(text: &str) -> String {
    Escaped(text).to_string()
}

/// Writes the whole page.
pub fn write(why: &Why, out: &mut dyn Write) -> io::Result<()> {
    let plain = text::why::page(why).plain();
    let holders = why.origins.iter().map(|origin| Holder {
        text: escaped(&origin.text()) + &text::why::frees(origin),
        class: origin.class.name(),
        tally: origin.tally,
        rows: origin
            .holders
            .iter()
            .map(|row| Row {
                label: parts::name(&row.label),
                place: escaped(row.place.as_deref().unwrap_or_default()),
                path: text::why::path(row, origin),
                also: text::why::also_text(&row.also, row.tally).unwrap_or_default(),
                tally: row.tally,
            })
            .collect(),
        hidden_rows: origin.hidden_rows,
    });
    let content = Page {
        what: "why",
        headline: plain.lines().next().unwrap_or_default().to_owned(),
        holders: holders.collect(),
        hidden: (why.hidden_origins > 0).then(|| {
            let holders = text::units::plural(why.hidden_origins as u64, "more holder", "more holders");
            format!(
                "{holders} with {} left out by --top or --min-bytes",
                parts::tally(why.hidden)
            )
        }),
        retainers: nodes(why),
        totals: text::why::sums(why),
        next: escaped(&why.next),
    };
    let title = format!("culeak why: {}", parts::process(&why.process));
    page::write(Parts::Holders, &title, &plain, Data::new(), &content, out)
}

/// The tree, and the memory of which it is not known what frees it.
fn nodes(why: &Why) -> Vec<Node> {
    let nodes = why.retainers.iter().map(|retainer| Node {
        name: text::why::retainer_text(retainer),
        depth: retainer.depth,
        tally: retainer.tally,
    });
    let unknown = (why.unretained.count > 0 && !why.retainers.is_empty()).then(|| Node {
        name: text::why::NOT_KNOWN.to_owned(),
        depth: 0,
        tally: why.unretained,
    });
    nodes.chain(unknown).collect()
}

/// The tree for a report's page: of all memory, so there is none with a filter.
pub fn tree_of(snapshot: &Snapshot, report: &Report) -> Vec<Node> {
    if report.held_by.is_empty() || report.filter.is_some() {
        return Vec::new();
    }
    let options = Options {
        top: Some(MOST),
        rows: Some(0),
        ..Options::default()
    };
    Why::of(snapshot, &options).map_or(Vec::new(), |why| nodes(&why))
}

/// The holders of each row, whose memory has the same call site; none if they were not searched for.
pub fn of_rows(report: &Report) -> Vec<Vec<Line>> {
    if report.held_by.is_empty() {
        return Vec::new();
    }
    let sites = report.held_by.iter().map(|site| (site.site_fingerprint, site));
    let sites: HashMap<Fingerprint, &SiteHolders> = sites.collect();
    let rows = report.rows.iter().map(|row| {
        let stack = row.stacks.first();
        let site = stack.and_then(|stack| sites.get(&stack.stack.site_fingerprint));
        site.map_or(Vec::new(), |site| lines(site))
    });
    rows.collect()
}

fn lines(site: &SiteHolders) -> Vec<Line> {
    let shown = site.holders.iter().take(MOST_ROWS).map(|holder| Line {
        text: text::why::holder_text(holder),
        tally: holder.tally,
    });
    let left = site.holders.iter().skip(MOST_ROWS).map(|holder| holder.tally);
    let left = Tally::total(left.chain([site.not_searched]));
    let rest = (left.count > 0).then(|| Line {
        text: "other holders, or none found".to_owned(),
        tally: left,
    });
    shown.chain(rest).collect()
}
