//! Statistics of events as text: sums, a table of call sites, and details of the first ones.

use std::io::{self, Write};

use culeak::analysis::stats::{Lifetimes, Row, Sort, Stats, Sums};
use culeak::point::Point;

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
    if let Some(end_ns) = stats.end_ns {
        writeln!(
            out,
            "{}  counted too, from {} on; without it: --between {} end",
            Styled(BOLD, "shutdown    "),
            units::duration(end_ns),
            match stats.from_ns {
                0 => "start".to_owned(),
                from_ns => Point::Time(from_ns).to_string(),
            }
        )?;
    }
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
            "{} and {} of {what} {lasted}; {} allocated{filtered}",
            plural(sums.allocated.count, "allocation", "allocations"),
            plural(sums.freed.count, "free", "frees"),
            units::bytes(sums.allocated.bytes)
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

/// `32,115 a second, at most 40,000 in the second from 3 s`.
fn rate(sums: &Sums) -> String {
    let average = format!("{} a second", per_second(sums));
    match (sums.most_per_second, sums.most_at_ns) {
        (Some(most), Some(at_ns)) => format!(
            "{average}, at most {} in the second from {}",
            units::count(most),
            units::duration(at_ns)
        ),
        _ => average,
    }
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

/// A terminal leaves at least this room for call sites, or columns are left out.
const SITE_NEEDED: usize = 24;
/// The least room of a function's name before its place.
const NAME_NEEDED: usize = 8;
const NUMBERS: usize = 6;
const HEADINGS: [&str; NUMBERS] = ["allocations", "a second", "temporary", "reused", "lifetime", "bytes"];
/// On a narrow terminal.
const SHORT_HEADINGS: [&str; NUMBERS] = ["allocs", "a sec", "temp", "reused", "life", "bytes"];
/// The columns that a narrow terminal leaves out, first the least important one; never the one that sorts the rows.
const LEFT_OUT: [(usize, Option<Sort>); 4] = [
    (3, None),
    (1, None),
    (4, Some(Sort::Lifetime)),
    (2, Some(Sort::Temporary)),
];

fn table(stats: &Stats, out: &mut dyn Write) -> io::Result<()> {
    let numbers: Vec<[String; NUMBERS]> = stats.rows.iter().map(numbers).collect();
    let width = |headings: &[&str; NUMBERS], column: usize| {
        let widths = numbers.iter().map(|row| columns::width(&row[column]));
        widths.max().unwrap_or(0).max(columns::width(headings[column]))
    };
    let (mut headings, mut shown) = (&HEADINGS, Vec::from_iter(0..NUMBERS));
    let room = |headings, shown: &[usize]| {
        let taken: usize = shown.iter().map(|&column| width(headings, column) + "  ".len()).sum();
        columns::available().map(|available| available.saturating_sub(taken + "  ".len()))
    };
    let is_narrow = |room: Option<usize>| room.is_some_and(|room| room < SITE_NEEDED);
    if is_narrow(room(headings, &shown)) {
        headings = &SHORT_HEADINGS;
    }
    for (column, sort) in LEFT_OUT {
        if is_narrow(room(headings, &shown)) && sort != Some(stats.sort) {
            shown.retain(|&other| other != column);
        }
    }
    let room = room(headings, &shown);
    let line = |cell: &dyn Fn(usize) -> String| -> String {
        let cells = shown.iter().map(|&column| {
            let width = width(headings, column);
            format!("  {:>width$}", cell(column))
        });
        cells.collect()
    };
    let heading = line(&|column| headings[column].to_owned());
    writeln!(out, "{}", Styled(DIM, format!("{heading}  call site")))?;
    for (row, numbers) in stats.rows.iter().zip(&numbers) {
        writeln!(
            out,
            "{}  {}",
            line(&|column| numbers[column].clone()),
            call_site(row, room)
        )?;
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

fn numbers(row: &Row) -> [String; NUMBERS] {
    let sums = &row.sums;
    [
        units::count(sums.allocated.count),
        per_second(sums),
        percent(sums.temporary_fraction()),
        percent(sums.reused_fraction()),
        match sums.lifetimes.count {
            0 => "-".to_owned(),
            _ => units::duration(sums.lifetimes.median_ns),
        },
        units::bytes(sums.allocated.bytes),
    ]
}

/// `workspace  gemm.cu:40  [device]`. If this does not fit, the name is shortened, then the kind is left out: file and line
/// stay.
fn call_site(row: &Row, room: Option<usize>) -> String {
    let (name, place) = (parts::name(&row.label), parts::place(row.site()));
    let kind = format!("  [{}]", kind(row));
    let Some(room) = room else {
        return format!("{name}{place}{kind}");
    };
    let left = |taken: usize| {
        room.checked_sub(taken)
            .filter(|&left| left >= NAME_NEEDED.min(columns::width(&name)))
    };
    let place_width = columns::width(&place);
    if let Some(left) = left(place_width + columns::width(&kind)) {
        return format!("{}{place}{kind}", columns::shortened(&name, left));
    }
    match left(place_width) {
        Some(left) => format!("{}{place}", columns::shortened(&name, left)),
        None => columns::end_of(place.trim_start(), room),
    }
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
        "    {} and {}, {} allocated; {}, {}",
        plural(sums.allocated.count, "allocation", "allocations"),
        plural(sums.freed.count, "free", "frees"),
        units::bytes(sums.allocated.bytes),
        kind(row),
        Escaped(&row.place)
    )?;
    writeln!(
        out,
        "    {}; {} temporary, {} reused",
        rate(sums),
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
