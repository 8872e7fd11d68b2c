//! Statistics of events as text: sums, a table of call sites, and details of the first ones.

use std::io::{self, Write};

use culeak::analysis::stats::{Lifetimes, Row, Stats, Sums};

use super::columns;
use super::parts::{self, BOLD, DIM, GOOD, Styled};
use super::units::{self, plural};
use crate::escape::Escaped;

/// Rows with details.
const DETAILED: usize = 5;

pub fn write(stats: &Stats, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    headline(stats, out)?;
    if !stats.is_empty() {
        writeln!(out)?;
        table(stats, out)?;
        writeln!(out)?;
    }
    for (number, row) in stats.rows.iter().take(DETAILED).enumerate() {
        details(number + 1, row, full_stacks, out)?;
    }
    writeln!(
        out,
        "{}  {}",
        Styled(BOLD, "process     "),
        parts::process(&stats.process)
    )?;
    let events = match (stats.since_ns, stats.lost_events) {
        (0, 0) => "all since the recording began".to_owned(),
        (since, 0) => format!("all from {} on", units::duration(since)),
        (since, lost) => format!(
            "from {} on, without {} lost ones",
            units::duration(since),
            units::count(lost)
        ),
    };
    writeln!(out, "{}  {events}", Styled(BOLD, "events      "))?;
    parts::warnings(out, &stats.warnings)?;
    match &stats.next {
        Some(command) => parts::next(out, command),
        None => Ok(()),
    }
}

fn headline(stats: &Stats, out: &mut dyn Write) -> io::Result<()> {
    let lasted = match stats.from_ns {
        0 => format!("in {}", units::duration(stats.lasted_ns())),
        from => format!("from {} to {}", units::duration(from), units::duration(stats.to_ns)),
    };
    let filtered = if stats.filter.is_some() { " (filtered)" } else { "" };
    if stats.is_empty() {
        let nothing = format!("no allocation and no free {lasted}{filtered}");
        return writeln!(out, "{}", Styled(GOOD, nothing));
    }
    for (sums, what) in [(&stats.blocks, "framework blocks"), (&stats.driver, "driver memory")] {
        if sums.allocated.count + sums.freed.count == 0 {
            continue;
        }
        let text = format!(
            "{} of {what} {lasted}: {}, {} freed{filtered}",
            plural(sums.allocated.count, "allocation", "allocations"),
            units::bytes(sums.allocated.bytes),
            units::count(sums.freed.count)
        );
        writeln!(out, "{}", Styled(BOLD, text))?;
        writeln!(
            out,
            "  {}; {} temporary, {} reused{}",
            rate(sums),
            percent(sums.temporary_fraction()),
            percent(sums.reused_fraction()),
            match sums.lifetimes.count {
                0 => String::new(),
                _ => format!("; median lifetime {}", units::duration(sums.lifetimes.median_ns)),
            }
        )?;
    }
    Ok(())
}

/// `32,115 a second, at most 40,000`.
fn rate(sums: &Sums) -> String {
    let most = units::count(sums.most_per_second);
    format!("{} a second, at most {most}", per_second(sums))
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

/// The least width of a call site.
const SITE_NEEDED: usize = 20;

fn table(stats: &Stats, out: &mut dyn Write) -> io::Result<()> {
    let mut lines = vec![
        [
            "allocations",
            "a second",
            "temporary",
            "reused",
            "lifetime",
            "bytes",
            "call site",
        ]
        .map(str::to_owned),
    ];
    for row in &stats.rows {
        let sums = &row.sums;
        lines.push([
            units::count(sums.allocated.count),
            per_second(sums),
            percent(sums.temporary_fraction()),
            percent(sums.reused_fraction()),
            match sums.lifetimes.count {
                0 => "-".to_owned(),
                _ => units::duration(sums.lifetimes.median_ns),
            },
            units::bytes(sums.allocated.bytes),
            format!(
                "{}{}  [{}]",
                parts::short_name(&row.label),
                parts::place(row.site()),
                kind(row)
            ),
        ]);
    }
    const NUMBERS: usize = 6;
    let widths: [usize; NUMBERS] = std::array::from_fn(|column| {
        lines
            .iter()
            .map(|line| columns::width(&line[column]))
            .max()
            .unwrap_or(0)
    });
    let numbers: usize = widths.iter().map(|width| width + "  ".len()).sum();
    for (number, line) in lines.iter().enumerate() {
        let mut text = String::new();
        for (column, width) in widths.iter().enumerate() {
            text.push_str(&format!("  {:>width$}", line[column]));
        }
        let mut site = line[NUMBERS].clone();
        if let Some(available) = columns::available() {
            site = columns::shortened(&site, available.saturating_sub(numbers + "  ".len()).max(SITE_NEEDED));
        }
        match number {
            0 => writeln!(out, "{}", Styled(DIM, format!("{text}  {site}")))?,
            _ => writeln!(out, "{text}  {site}")?,
        }
    }
    if stats.hidden_rows > 0 {
        let rows = plural(stats.hidden_rows as u64, "more row", "more rows");
        let allocations = plural(stats.hidden.count, "allocation", "allocations");
        writeln!(
            out,
            "  {}",
            Styled(DIM, format!("… and {rows} with {allocations}; --top 0 shows all"))
        )?;
    }
    Ok(())
}

/// `tensor`, `block of arena`, with the library that requested it.
fn kind(row: &Row) -> String {
    let domain = row.domain.filter(|_| row.kind == "block");
    let of = domain.map(|domain| format!(" of {}", Escaped(domain)));
    let by = row
        .stack
        .library
        .or(row.stack.allocator.filter(|_| row.kind != "tensor"));
    let by = by.map(|by| format!(", {by}"));
    format!("{}{}{}", row.kind, of.unwrap_or_default(), by.unwrap_or_default())
}

fn details(number: usize, row: &Row, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    let name = format!(
        "#{number}  {}{}",
        parts::short_name(&row.label),
        parts::place(row.site())
    );
    writeln!(out, "{}", Styled(BOLD, name))?;
    let sums = &row.sums;
    writeln!(
        out,
        "    {} of {}, {}, {}; {} freed",
        plural(sums.allocated.count, "allocation", "allocations"),
        units::bytes(sums.allocated.bytes),
        kind(row),
        Escaped(&row.place),
        units::count(sums.freed.count)
    )?;
    writeln!(
        out,
        "    {} ({} after the start); {} temporary, {} reused",
        rate(sums),
        units::duration(sums.most_at_ns),
        units::count(sums.temporary.count),
        units::count(sums.reused)
    )?;
    if sums.lifetimes.count > 0 {
        writeln!(out, "    {}", lifetimes(&sums.lifetimes))?;
    }
    parts::stack(out, &row.stack, full_stacks, "      ")?;
    if row.stacks_in_all > 1 {
        let others = plural(row.stacks_in_all as u64 - 1, "other stack", "other stacks");
        writeln!(
            out,
            "      {}",
            Styled(DIM, format!("and {others}; --by stack shows each"))
        )?;
    }
    writeln!(out)
}

/// `lifetimes 1 us ▁▂▅█▃▁ 33 ms, median 4 us, longest 30 ms`: one character for each doubling.
fn lifetimes(lifetimes: &Lifetimes) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let histogram = &lifetimes.histogram;
    let most = histogram.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
    let bar = |count: u64| match count {
        0 => ' ',
        count => BLOCKS[(u128::from(count) * 7 / u128::from(most)) as usize],
    };
    let bars: String = histogram.iter().map(|bucket| bar(bucket.count)).collect();
    let (first, last) = (histogram.first(), histogram.last());
    format!(
        "lifetimes {} {bars} {}, median {}, longest {}",
        units::duration(first.map_or(0, |bucket| bucket.from_ns)),
        units::duration(last.map_or(0, |bucket| bucket.to_ns)),
        units::duration(lifetimes.median_ns),
        units::duration(lifetimes.longest_ns)
    )
}
