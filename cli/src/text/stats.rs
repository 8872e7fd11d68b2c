//! Statistics of events: sums, a table of call sites, and details of the first ones.

use culeak::analysis::stats::{Lifetimes, Row, Sort, Stats, Sums};
use culeak::point::Point;

use super::report::other_stacks;
use super::{parts, units};
use crate::document::chart::character;
use crate::document::{Cell, Document, GOOD, Rows, Site, bold, counted, short_name, styled};

/// Rows with details.
const DETAILED: usize = 5;

pub fn page(stats: &Stats, full_stacks: bool) -> Document {
    let mut page = Document::default();
    headline(stats, &mut page);
    if !stats.is_empty() {
        page.blank();
        table(stats, &mut page);
        page.blank();
    }
    for (number, row) in stats.rows.iter().take(DETAILED).enumerate() {
        details(number + 1, row, full_stacks, &mut page);
    }
    page.field("process", parts::process(&stats.process));
    let since = units::duration(stats.since_ns);
    page.field(
        "events",
        match (stats.since_ns, stats.lost_events) {
            (0, 0) => "all since the recording began".to_owned(),
            (_, 0) => format!("all from {since} on"),
            (_, lost) => format!("from {since} on, without {} lost ones", units::count(lost)),
        },
    );
    if let Some(end_ns) = stats.end_ns {
        let from = match stats.from_ns {
            0 => "start".to_owned(),
            from_ns => Point::Time(from_ns).to_string(),
        };
        let end = units::duration(end_ns);
        let text = format!("counted too, from {end} on; without it: --between {from} end");
        page.field("shutdown", text);
    }
    page.warnings(&stats.warnings);
    stats.next.iter().for_each(|command| page.next(command));
    page
}

fn headline(stats: &Stats, page: &mut Document) {
    let lasted = match stats.from_ns {
        0 => format!("in {}", units::duration(stats.lasted_ns())),
        from => format!("from {} to {}", units::duration(from), units::duration(stats.to_ns)),
    };
    let filtered = if stats.filter.is_some() { " (filtered)" } else { "" };
    if stats.is_empty() {
        return page.line(styled(GOOD, format!("no allocation and no free {lasted}{filtered}")));
    }
    for (sums, what) in [(&stats.blocks, "framework blocks"), (&stats.driver, "driver memory")] {
        if sums.allocated.count + sums.freed.count == 0 {
            continue;
        }
        let bytes = units::bytes(sums.allocated.bytes);
        page.line(bold(format!(
            "{} of {what} {lasted}; {bytes} allocated{filtered}",
            calls(sums)
        )));
        let lifetime = match sums.lifetimes.count {
            0 => String::new(),
            _ => format!("; median lifetime {}", units::duration(sums.lifetimes.median_ns)),
        };
        let (temporary, reused) = (percent(sums.temporary_fraction()), percent(sums.reused_fraction()));
        page.item(format!(
            "{}; {temporary} temporary, {reused} reused{lifetime}",
            rate(sums)
        ));
    }
}

/// `1,020 allocations and 1,000 frees`.
fn calls(sums: &Sums) -> String {
    let allocations = counted(sums.allocated.count, "allocation");
    format!("{allocations} and {}", counted(sums.freed.count, "free"))
}

/// `32,115 a second, at most 40,000 in the second from 3 s`.
fn rate(sums: &Sums) -> String {
    let average = format!("{} a second", per_second(sums));
    let (Some(most), Some(at_ns)) = (sums.most_per_second, sums.most_at_ns) else {
        return average;
    };
    let (most, at) = (units::count(most), units::duration(at_ns));
    format!("{average}, at most {most} in the second from {at}")
}

fn per_second(sums: &Sums) -> String {
    match sums.per_second {
        few if few < 10.0 => format!("{few:.1}"),
        many => units::count(many as u64),
    }
}

fn percent(fraction: f64) -> String {
    // Neither all nor nothing if it is only almost.
    match (fraction * 100.0).round() as u64 {
        100 if fraction < 1.0 => "99 %".to_owned(),
        0 if fraction > 0.0 => "<1 %".to_owned(),
        percent => format!("{percent} %"),
    }
}

fn table(stats: &Stats, page: &mut Document) {
    // The column that sorts the rows always stays.
    let unless = |sort, rank| if stats.sort == sort { 0 } else { rank };
    let lifetime = |row: &&Row| match row.sums.lifetimes.count {
        0 => Cell::Number("-".to_owned()),
        _ => Cell::Time(row.sums.lifetimes.median_ns),
    };
    let rows = Rows::of(&stats.rows)
        .column("allocations", |row| Cell::Count(row.sums.allocated.count))
        .short("allocs")
        .column("a second", |row| Cell::Number(per_second(&row.sums)))
        .short("a sec")
        .expendable(3)
        .column("temporary", |row| Cell::Number(percent(row.sums.temporary_fraction())))
        .short("temp")
        .expendable(unless(Sort::Temporary, 1))
        .column("reused", |row| Cell::Number(percent(row.sums.reused_fraction())))
        .expendable(4)
        .column("lifetime", lifetime)
        .short("life")
        .expendable(unless(Sort::Lifetime, 2))
        .column("bytes", |row| Cell::Size(row.sums.allocated.bytes))
        .column("kind", |row| kind(row))
        .expendable(5)
        .column("call site", |row| Site::of(&row.label, row.site(), ""));
    page.table(rows);
    let allocations = counted(stats.hidden.count, "allocation");
    page.more(
        stats.hidden_rows,
        "row",
        format!(" with {allocations}; --top 0 shows all"),
    );
}

/// `tensor`, `block of arena`, with the library that requested it.
fn kind(row: &Row) -> String {
    let domain = row.domain.filter(|_| row.kind == "block");
    let of = domain.map_or_else(String::new, |domain| format!(" of {domain}"));
    let allocator = row.stack.allocator.filter(|_| row.kind != "tensor");
    let by = row.stack.library.or(allocator);
    format!(
        "{}{of}{}",
        row.kind,
        by.map_or_else(String::new, |by| format!(", {by}"))
    )
}

fn details(number: usize, row: &Row, full_stacks: bool, page: &mut Document) {
    let name = short_name(&row.label);
    page.line(bold(format!("#{number}  {name}{}", parts::place(row.site()))));
    let sums = &row.sums;
    let (calls, bytes) = (calls(sums), units::bytes(sums.allocated.bytes));
    page.indented(4, format!("{calls}, {bytes} allocated; {}, {}", kind(row), row.place));
    let (temporary, reused) = (units::count(sums.temporary.count), units::count(sums.reused));
    page.indented(4, format!("{}; {temporary} temporary, {reused} reused", rate(sums)));
    if sums.lifetimes.count > 0 {
        page.indented(4, lifetimes(&sums.lifetimes));
    }
    page.stack(&row.stack, full_stacks, 6);
    other_stacks(row.stacks_in_all, 1, page);
    page.blank();
}

/// `lifetimes 1 us ▁▂▅█▃▁ 33 ms, median 4 us, longest 30 ms`: one character for each doubling.
fn lifetimes(lifetimes: &Lifetimes) -> String {
    let histogram = &lifetimes.histogram;
    let most = histogram.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    let bar = |count: u64| if count == 0 { ' ' } else { character(count, most) };
    let bars: String = histogram.iter().map(|bucket| bar(bucket.count)).collect();
    format!(
        "lifetimes {} {bars} {}, median {}, longest {}",
        units::duration(histogram.first().map_or(0, |bucket| bucket.from_ns)),
        units::duration(histogram.last().map_or(0, |bucket| bucket.to_ns)),
        units::duration(lifetimes.median_ns),
        units::duration(lifetimes.longest_ns)
    )
}
