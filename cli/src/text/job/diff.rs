//! Changes of a job: the call sites that changed, each with who changed by how much, then the processes.

use culeak::analysis::facts::Instant;
use culeak::analysis::job::diff::{By, JobDiff, Pair, SiteChange};
use culeak::analysis::report::shell_word;
use culeak::tally::Tally;

use super::{bad_if, members, part, stands_out, subject, unreadable};
use crate::document::{Cell, Document, Rows, WARN, counted, dim, styled};
use crate::text::diff::{changed, style_of, versions};
use crate::text::{parts, units};

/// Processes of one side alone that are named.
const LONE: usize = 8;

/// At most `top` processes; the call sites were cut before. `selected`: the options that select the memory, for the next command; `filter`:
/// those of them that are not of one side.
pub fn page(diff: &JobDiff, top: Option<usize>, selected: &str, filter: &str) -> Document {
    let mut page = Document::default();
    headline(diff, &mut page);
    versions(&diff.libraries, None, &mut page);
    if !is_unchanged(diff) {
        sites(diff, &mut page);
        page.blank();
        processes(diff, top, &mut page);
    }
    for (side, title) in [(&diff.before, "not read before"), (&diff.after, "not read after")] {
        if !side.unreadable.is_empty() {
            unreadable(title, &side.unreadable, &mut page);
        }
    }
    let recordings = diff.pairs.iter().flat_map(|pair| [&pair.before, &pair.after]);
    let recordings = recordings.map(|of| (of.is_complete, &*of.source));
    parts::completeness(recordings, "recording", &mut page);
    page.warnings(&diff.warnings);
    let mut apart = diff
        .sites
        .iter()
        .filter_map(|row| row.stands_out.as_ref()?.processes.first());
    let apart = apart.next();
    let apart = apart.and_then(|out| diff.pairs.iter().find(|pair| pair.after.source == out.process.source));
    let most = diff.pairs.iter().max_by_key(|pair| pair.change().unsigned_abs());
    let most = most.filter(|_| !is_unchanged(diff));
    let lone = diff
        .only_after
        .iter()
        .chain(&diff.only_before)
        .max_by_key(|row| row.held.bytes);
    if let (Some(lone), true) = (lone, is_unchanged(diff)) {
        page.next(format!("culeak report {}{filter}", shell_word(&lone.source)));
    } else if let Some(Pair { before, after, .. }) = apart.or(most) {
        page.next(format!(
            "culeak diff {} {}{selected} --view stacks",
            shell_word(&before.source),
            shell_word(&after.source)
        ));
    }
    page
}

/// No memory and no peak changed.
fn is_unchanged(diff: &JobDiff) -> bool {
    let is_same = |pair: &Pair| (pair.change(), pair.peak_change()) == (0, 0);
    diff.sites.is_empty() && diff.hidden_sites == 0 && diff.pairs.iter().all(is_same)
}

/// `8 processes of train on 1 host: +30 MiB between two runs, from 256 MiB to 286 MiB`.
fn headline(diff: &JobDiff, page: &mut Document) {
    let delta = i128::from(diff.held_after.bytes) - i128::from(diff.held_before.bytes);
    let what = if is_unchanged(diff) {
        "no change".to_owned()
    } else {
        changed(diff.same_processes, delta)
    };
    let kinds = match diff.kinds.as_slice() {
        [] => String::new(),
        kinds => format!(", {} memory", kinds.join(" and ")),
    };
    let (before, after) = (
        units::bytes(diff.held_before.bytes),
        units::bytes(diff.held_after.bytes),
    );
    let subject = subject(diff.pairs.len(), &diff.programs, diff.hosts) + format!("{kinds}: ");
    let alone = [(&diff.only_before, "before"), (&diff.only_after, "after")];
    let alone = alone.iter().filter(|(rows, _)| !rows.is_empty());
    let alone: String = alone
        .map(|(rows, word)| format!("; {} only {word}", side(rows)))
        .collect();
    page.line(subject + styled(style_of(delta), what) + format!(", from {before} to {after}{alone}"));
    parts::opaque_pools(page, &diff.opaque_pools);
    for (rows, word) in [(&diff.only_before, "before"), (&diff.only_after, "after")] {
        if !rows.is_empty() {
            page.line(styled(WARN, lone(rows, word)));
        }
    }
    for (side, word) in [(&diff.before, "before"), (&diff.after, "after")] {
        if side.earlier_snapshots > 0 {
            let earlier = counted(side.earlier_snapshots, "earlier snapshot");
            page.line(dim(format!("{word}: {earlier} of the same processes left out")));
        }
    }
}

/// `only before: 2 processes with 64 MiB, not compared: rank 6, rank 7`.
fn lone(rows: &[Instant], word: &str) -> String {
    let names = rows.iter().take(LONE).map(|row| match row.member.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("{}:{}", row.member.host, row.member.pid),
    });
    let mut names: Vec<String> = names.collect();
    if rows.len() > LONE {
        names.push(format!("{} more", units::count((rows.len() - LONE) as u64)));
    }
    format!("only {word}: {}, not compared: {}", side(rows), names.join(", "))
}

/// `2 processes with 64 MiB`.
fn side(rows: &[Instant]) -> String {
    let held = units::bytes(Tally::total(rows.iter().map(|row| row.held)).bytes);
    format!("{} with {held}", counted(rows.len(), "process"))
}

fn sites(diff: &JobDiff, page: &mut Document) {
    if diff.sites.is_empty() && diff.hidden_sites == 0 {
        return page.line("no call site changed");
    }
    let is_bad = |row: &&SiteChange| row.stands_out.is_some() && row.range.sum >= 0;
    let rows = Rows::of(&diff.sites)
        .column("change", |row| Cell::Delta(row.range.sum, None))
        .column("median", |row| Cell::Delta(row.range.median.into(), None))
        .column("min", |row| Cell::Delta(row.range.min.into(), None))
        .column("max", |row| Cell::Delta(row.range.max.into(), None))
        .column("processes", |row| {
            part(row.range.above + row.range.below, row.range.of_processes)
        })
        .column("call site", |row| parts::cell(&row.site))
        .column("", |row| row.sentence.clone())
        .style(|row| bad_if(is_bad(row)))
        .below(|row, page| parts::callers_of(&row.site, page));
    page.table(rows);
    page.more(
        diff.hidden_sites,
        "call site",
        " that changed; --top 0 --min-bytes 0 shows all",
    );
    if diff.unchanged_sites > 0 {
        page.item(dim(format!(
            "{} did not change",
            counted(diff.unchanged_sites, "call site")
        )));
    }
}

/// The processes that changed, those unlike the others first, then by change.
fn processes(diff: &JobDiff, top: Option<usize>, page: &mut Document) {
    // Peaks are of all kinds.
    let with_peaks = diff.kinds.is_empty();
    let peak_change = |pair: &Pair| if with_peaks { pair.peak_change() } else { 0 };
    let is_same = |pair: &&Pair| pair.change() == 0 && peak_change(pair) == 0 && !pair.stands_out;
    let (same, mut changed): (Vec<&Pair>, Vec<&Pair>) = diff.pairs.iter().partition(is_same);
    changed.sort_by_key(|pair| std::cmp::Reverse((pair.stands_out, pair.change().unsigned_abs())));
    let hidden = changed.len().saturating_sub(top.unwrap_or(usize::MAX));
    changed.truncate(changed.len() - hidden);
    let by_name = changed.iter().any(|pair| pair.by == By::Name);
    if !changed.is_empty() {
        let rows = members(changed, |pair| &pair.after.member)
            .column("before", |pair| Cell::Size(pair.before.held.bytes))
            .column("after", |pair| Cell::Size(pair.after.held.bytes))
            .column("change", |pair| Cell::Delta(pair.change(), None))
            .column_if(with_peaks, "peak", |pair| Cell::Delta(pair.peak_change(), None))
            .column_if(by_name, "recording", |pair| pair.after.source.clone())
            .column("", |pair| stands_out(pair.stands_out))
            .style(|pair| bad_if(pair.stands_out));
        page.table(rows);
    }
    page.more(hidden, "process", " that changed; --top 0 shows all");
    if !same.is_empty() {
        page.item(dim(format!("{} did not change in sum", counted(same.len(), "process"))));
    }
}
