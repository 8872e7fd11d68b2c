//! Phases as tables: one line for each name, indented by nesting, or one for each phase of a name.

use std::io::{self, Write};

use culeak::analysis::phases::{Chosen, Figures, Layer, Phases, Row, Series, Stat};

use super::columns;
use super::parts::{self, BOLD, DIM, Styled};
use super::units::{self, plural};
use crate::escape::Escaped;

/// Call sites listed below a phase.
pub const SITES_SHOWN: usize = 3;
/// Deeper rows are not indented further.
const INDENTED: usize = 8;
/// The least room for the first column.
const NAME_WIDTH: usize = 14;
/// Columns are left out until the first column has this room.
const NAME_WANTED: usize = 24;
const NAME_WIDEST: usize = 40;
const GAP: &str = "  ";

/// A table with a column of names and columns of numbers, of which the least important are left out on a narrow terminal.
struct Table {
    title: &'static str,
    names: Vec<String>,
    columns: Vec<Column>,
}

struct Column {
    title: &'static str,
    /// Columns of a higher number are left out first; 0: never.
    expendable: u8,
    cells: Vec<String>,
}

impl Table {
    fn new(title: &'static str, names: Vec<String>) -> Table {
        Table {
            title,
            names,
            columns: Vec::new(),
        }
    }

    fn column(&mut self, expendable: u8, title: &'static str, cells: impl Iterator<Item = String>) {
        self.columns.push(Column {
            title,
            expendable,
            cells: cells.collect(),
        });
    }

    /// Calls `after` with the number of each line after it was written. Returns the titles of the columns that had room.
    fn write(
        mut self,
        out: &mut dyn Write,
        mut after: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<Vec<&'static str>> {
        let width = |column: &Column| {
            let cells = column.cells.iter().map(|cell| columns::width(cell));
            cells.chain([columns::width(column.title)]).max().unwrap_or(0)
        };
        let widest = self.names.iter().map(|name| columns::width(name)).max().unwrap_or(0);
        let mut name_width = widest.max(columns::width(self.title));
        if let Some(available) = columns::available() {
            let needed = |columns: &[Column]| -> usize { columns.iter().map(|column| GAP.len() + width(column)).sum() };
            while needed(&self.columns) + name_width.min(NAME_WANTED) > available {
                let columns = self.columns.iter().enumerate();
                let last = columns
                    .filter(|(_, column)| column.expendable > 0)
                    .max_by_key(|(_, column)| column.expendable);
                let Some((place, _)) = last else { break };
                self.columns.remove(place);
            }
            let room = available.saturating_sub(needed(&self.columns)).max(NAME_WIDTH);
            name_width = name_width.min(room).min(NAME_WIDEST.max(room / 2));
        }
        let widths: Vec<usize> = self.columns.iter().map(width).collect();
        let mut title = columns::padded(self.title, name_width);
        for (column, &width) in self.columns.iter().zip(&widths) {
            let space = " ".repeat(width - columns::width(column.title));
            title.push_str(&format!("{GAP}{space}{}", column.title));
        }
        writeln!(out, "{}", Styled(BOLD, title))?;
        for (number, name) in self.names.iter().enumerate() {
            let name = columns::shortened(name, name_width);
            write!(out, "{}", columns::padded(&name, name_width))?;
            for (column, &width) in self.columns.iter().zip(&widths) {
                let cell = &column.cells[number];
                let space = " ".repeat(width - columns::width(cell));
                write!(out, "{GAP}{space}{cell}")?;
            }
            writeln!(out)?;
            after(number, out)?;
        }
        Ok(self.columns.iter().map(|column| column.title).collect())
    }
}

/// Writes all phases by name, at most `top` lines.
pub fn write(phases: &Phases, top: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", parts::process(&phases.process))?;
    if phases.count == 0 {
        writeln!(out, "no phases: the program named none, or NVTX was not recorded")?;
        parts::warnings(out, &phases.warnings)?;
        return parts::next(out, "culeak run --timeline -- PROGRAM");
    }
    let shown = &phases.rows[..phases.rows.len().min(top.unwrap_or(usize::MAX))];
    let each = |of: &dyn Fn(&Row) -> String| shown.iter().map(of).collect::<Vec<_>>().into_iter();
    let names = shown.iter().map(|row| row_name(row)).collect();
    let mut table = Table::new("phase", names);
    table.column(0, "n", each(&|row| units::count(row.count)));
    table.column(1, "mean time", each(&|row| units::duration(row.duration_ns.mean)));
    table.column(4, "longest", each(&|row| units::duration(row.duration_ns.max)));
    if phases.log.is_some() {
        let bytes = |of: fn(&culeak::analysis::phases::Stats) -> Stat, highest: bool| {
            let cell = move |row: &Row| match row.figures.first() {
                Some(stats) if highest => units::bytes(of(stats).max),
                Some(stats) => units::bytes(of(stats).mean),
                None => "-".to_owned(),
            };
            shown.iter().map(cell).collect::<Vec<_>>().into_iter()
        };
        table.column(0, "high-water mark", bytes(|stats| stats.high_water, true));
        if let Some(process) = phases.process_series() {
            let cell = |row: &Row| match row.figures.get(process) {
                Some(stats) => units::bytes(stats.high_water.max),
                None => "-".to_owned(),
            };
            table.column(6, "process at most", each(&cell));
        }
        table.column(2, "allocated", bytes(|stats| stats.allocated, false));
        table.column(3, "freed within", bytes(|stats| stats.freed_within, false));
        table.column(0, "left behind", bytes(|stats| stats.left_behind, false));
        table.column(5, "at most", bytes(|stats| stats.left_behind, true));
    }
    let titles = table.write(out, |_, _| Ok(()))?;
    let hidden = (phases.rows.len() - shown.len()) as u64;
    if hidden > 0 {
        let more = plural(hidden, "more line", "more lines");
        writeln!(out, "{}", Styled(DIM, format!("… {more}; --top 0 shows all")))?;
    }
    match phases.log {
        Some(_) => writeln!(out, "{}", Styled(DIM, meaning(&titles)))?,
        None => no_figures(out)?,
    }
    parts::warnings(out, &phases.warnings)?;
    match phases.log {
        Some(_) => parts::next(
            out,
            "culeak report --phases=NAME …, for each phase of a name and what it left behind",
        ),
        None => Ok(()),
    }
}

/// What the figures of the shown columns are.
fn meaning(titles: &[&str]) -> String {
    let means = ["allocated", "freed within", "left behind"];
    let means: Vec<&str> = means.into_iter().filter(|title| titles.contains(title)).collect();
    let process = match titles.contains(&"process at most") {
        true => "; process at most: what the driver had given to the process, as NVML counts it",
        false => "",
    };
    format!(
        "{}: means for one phase; high-water mark: the highest{process}",
        means.join(", ")
    )
}

fn no_figures(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "times only: what phases held and allocated needs the event log; record with: culeak run --timeline -- PROGRAM"
    )
}

fn row_name(row: &Row) -> String {
    let indent = "  ".repeat(row.depth.min(INDENTED));
    let open = match row.open {
        0 => String::new(),
        open if open == row.count => " (not ended)".to_owned(),
        open => format!(" ({open} not ended)"),
    };
    format!("{indent}{}{open}", name(&row.name, row.domain))
}

/// `domain:name`, safe to print.
fn name(name: &str, domain: Option<&str>) -> String {
    let name = match name {
        "" => "(no name)".to_owned(),
        name => Escaped(name).to_string(),
    };
    match domain {
        Some(domain) => format!("{}:{name}", Escaped(domain)),
        None => name,
    }
}

/// Writes each phase of a name, at most `top`, and what it left behind.
pub fn write_chosen(phases: &Phases, top: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", parts::process(&phases.process))?;
    let all = &phases.chosen;
    let shown = &all[..all.len().min(top.unwrap_or(usize::MAX))];
    let mut table = Table::new("phase", shown.iter().map(chosen_name).collect());
    table.column(
        0,
        "begin",
        shown
            .iter()
            .map(|chosen| format!("{:.3}s", chosen.begin_ns as f64 / 1e9)),
    );
    let lasted = |chosen: &Chosen| match chosen.end_ns {
        Some(end) => units::duration(end - chosen.begin_ns),
        None => "not ended".to_owned(),
    };
    table.column(1, "time", shown.iter().map(lasted));
    if phases.log.is_some() {
        let bytes = |of: fn(&Figures) -> u64| {
            let cell = move |chosen: &Chosen| {
                chosen
                    .figures
                    .first()
                    .map_or("-".to_owned(), |first| units::bytes(of(first)))
            };
            shown.iter().map(cell).collect::<Vec<_>>().into_iter()
        };
        table.column(3, "held at begin", bytes(|figures| figures.held_at_begin));
        table.column(0, "high-water mark", bytes(|figures| figures.high_water));
        table.column(2, "allocated", bytes(|figures| figures.allocated.bytes));
        table.column(4, "freed within", bytes(|figures| figures.freed_within.bytes));
        table.column(0, "left behind", bytes(|figures| figures.left_behind.bytes));
    }
    table.write(out, |number, out| write_left(&shown[number], out))?;
    let hidden = (all.len() - shown.len()) as u64;
    if hidden > 0 {
        let more = plural(hidden, "more phase", "more phases");
        writeln!(out, "{}", Styled(DIM, format!("… {more}; --top 0 shows all")))?;
    }
    match phases.log {
        Some(_) => write_series(phases, out)?,
        None => no_figures(out)?,
    }
    if let Some(cut) = phases.sites_are_cut() {
        writeln!(out, "{cut}")?;
    }
    parts::warnings(out, &phases.warnings)
}

fn chosen_name(chosen: &Chosen) -> String {
    let within: Vec<String> = chosen.within.iter().map(|name| Escaped(name).to_string()).collect();
    let place = match within.is_empty() {
        true => String::new(),
        false => format!("{} > ", within.join(" > ")),
    };
    format!("{place}{}", name(chosen.name, chosen.domain))
}

fn write_left(chosen: &Chosen, out: &mut dyn Write) -> io::Result<()> {
    for site in &chosen.left_behind {
        let tally = parts::tally(culeak::analysis::report::Tally {
            bytes: site.bytes,
            count: site.count,
        });
        let place = site
            .place
            .as_deref()
            .map_or_else(String::new, |place| format!("  {}", Escaped(place)));
        let line = format!("  {tally}  {}{place}", parts::short_name(&site.label));
        writeln!(out, "{}", Styled(DIM, line))?;
    }
    if chosen.more_sites > 0 {
        let more = plural(chosen.more_sites as u64, "more call site", "more call sites");
        writeln!(out, "{}", Styled(DIM, format!("  … and {more}; --json lists them")))?;
    }
    Ok(())
}

/// The figures of all phases of the name, for each GPU and each level of allocators.
fn write_series(phases: &Phases, out: &mut dyn Write) -> io::Result<()> {
    let with: Vec<&Chosen> = phases
        .chosen
        .iter()
        .filter(|chosen| !chosen.figures.is_empty())
        .collect();
    if with.is_empty() || phases.series.len() < 2 {
        return Ok(());
    }
    writeln!(out)?;
    let count = phases.series.len();
    let mut table = Table::new("mean of these phases", phases.series.iter().map(series_name).collect());
    let mean = |of: fn(&Figures) -> u64| {
        let sum = |series: usize| {
            with.iter()
                .map(|chosen| u128::from(of(&chosen.figures[series])))
                .sum::<u128>()
        };
        let cell = |series: usize| units::bytes((sum(series) / with.len() as u128) as u64);
        (0..count).map(cell).collect::<Vec<_>>().into_iter()
    };
    table.column(3, "held at begin", mean(|figures| figures.held_at_begin));
    table.column(0, "high-water mark", mean(|figures| figures.high_water));
    table.column(2, "allocated", mean(|figures| figures.allocated.bytes));
    table.column(4, "freed within", mean(|figures| figures.freed_within.bytes));
    table.column(0, "left behind", mean(|figures| figures.left_behind.bytes));
    table.write(out, |_, _| Ok(()))?;
    Ok(())
}

/// `held on GPU 0`; `tensors and blocks on GPU 0`; `from the driver on GPU 0`.
fn series_name(series: &Series) -> String {
    let layer = match series.layer {
        Layer::Held => "held",
        Layer::Blocks => "tensors and blocks",
        Layer::Driver => "from the driver",
        Layer::Process => "the process, as NVML counts it,",
    };
    match series.location {
        None => format!("{layer}, everywhere"),
        Some(location) => match location.to_string().as_str() {
            "host" => format!("{layer} on the host"),
            gpu => format!("{layer} on {gpu}"),
        },
    }
}
