//! Phases as tables: one line for each name, indented by nesting, or one for each phase of a name.

use culeak::analysis::phases::{Chosen, Figures, Layer, Phases, Row, Series, Stat, Stats};
use culeak::analysis::report::shell_word;

use super::parts;
use crate::document::{Cell, Document, Rows, dim, short_name};

/// Call sites listed below a phase.
pub const SITES_SHOWN: usize = 3;
/// Deeper rows are not indented further.
const INDENTED: usize = 8;

const NO_FIGURES: &str =
    "times only: what phases held and allocated needs the event log; record with: culeak run --timeline -- PROGRAM";

/// All phases by name, at most `top` lines. `source`: the input as the user named it.
pub fn page(phases: &Phases, top: Option<usize>, source: &str) -> Document {
    let mut page = Document::default();
    page.line(parts::process(&phases.process));
    if phases.count == 0 {
        page.line("no phases: the program named none, or NVTX was not recorded");
        page.warnings(&phases.warnings);
        page.next("culeak run --timeline -- PROGRAM");
        return page;
    }
    let shown = &phases.rows[..phases.rows.len().min(top.unwrap_or(usize::MAX))];
    let (has_log, process) = (phases.log.is_some(), phases.process_series());
    let most = |series: usize, of: fn(&Stats) -> Stat| {
        move |row: &&Row| size(row.figures.get(series).map(|stats| of(stats).max))
    };
    let mean = |of: fn(&Stats) -> Stat| move |row: &&Row| size(row.figures.first().map(|stats| of(stats).mean));
    let rows = Rows::of(shown)
        .column("phase", |row| row_name(row))
        .flexible()
        .column("n", |row| Cell::Count(row.count))
        .column("mean time", |row| Cell::Time(row.duration_ns.mean))
        .expendable(1)
        .column("longest", |row| Cell::Time(row.duration_ns.max))
        .expendable(4)
        .column_if(has_log, "high-water mark", most(0, |stats| stats.high_water))
        .column_if(
            has_log && process.is_some(),
            PROCESS,
            most(process.unwrap_or(0), |stats| stats.high_water),
        )
        .rank(PROCESS, 6)
        .column_if(has_log, "allocated", mean(|stats| stats.allocated))
        .rank("allocated", 2)
        .column_if(has_log, "freed within", mean(|stats| stats.freed_within))
        .rank("freed within", 3)
        .column_if(has_log, "left behind", mean(|stats| stats.left_behind))
        .column_if(has_log, "at most", most(0, |stats| stats.left_behind))
        .rank("at most", 5);
    page.table(rows);
    page.more(phases.rows.len() - shown.len(), "line", "; --top 0 shows all");
    let process = match process {
        Some(_) => format!("; {PROCESS}: what the driver had given to the process, as NVML counts it"),
        None => String::new(),
    };
    let means = "allocated, freed within, left behind: means for one phase; high-water mark: the highest";
    match has_log {
        true => page.line(dim(format!("{means}{process}"))),
        false => page.line(NO_FIGURES),
    }
    page.warnings(&phases.warnings);
    let left_behind = |row: &&Row| row.figures.first().map_or(0, |stats| stats.left_behind.max);
    if let Some(row) = phases.rows.iter().rev().max_by_key(left_behind).filter(|_| has_log) {
        let view = format!("phases:{}", row.name);
        page.next(format!(
            "culeak report {} --view {}",
            shell_word(source),
            shell_word(&view)
        ));
    }
    page
}

const PROCESS: &str = "process at most";

fn size(bytes: Option<u64>) -> Cell {
    bytes.map_or_else(|| Cell::Number("-".to_owned()), Cell::Size)
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

/// `domain:name`.
fn name(name: &str, domain: Option<&str>) -> String {
    let name = if name.is_empty() { "(no name)" } else { name };
    domain.map_or_else(|| name.to_owned(), |domain| format!("{domain}:{name}"))
}

/// Each phase of a name, at most `top`, and what it left behind: most first.
pub fn page_of_chosen(phases: &Phases, top: Option<usize>) -> Document {
    let mut page = Document::default();
    page.line(parts::process(&phases.process));
    let mut shown: Vec<&Chosen> = phases.chosen.iter().collect();
    shown.sort_by_key(|chosen| std::cmp::Reverse(chosen.figures.first().map(|figures| figures.left_behind.bytes)));
    shown.truncate(top.unwrap_or(usize::MAX));
    let hidden = phases.chosen.len() - shown.len();
    let lasted = |chosen: &&Chosen| match chosen.end_ns {
        Some(end) => Cell::Time(end - chosen.begin_ns),
        None => Cell::Number("not ended".to_owned()),
    };
    let figure = |of: fn(&Figures) -> u64| move |chosen: &&Chosen| size(chosen.figures.first().map(of));
    let rows = Rows::of(shown)
        .column("phase", |chosen| chosen_name(chosen))
        .flexible()
        .column("begin", |chosen| {
            Cell::Number(format!("{:.6}s", chosen.begin_ns as f64 / 1e9))
        })
        .column("time", lasted)
        .expendable(1);
    page.table(figures(rows, phases.log.is_some(), figure).below(|chosen, page| left_behind(chosen, page)));
    page.more(hidden, "phase", "; --top 0 shows all");
    match phases.log {
        Some(_) => series(phases, &mut page),
        None => page.line(NO_FIGURES),
    }
    phases.sites_are_cut().into_iter().for_each(|cut| page.line(cut));
    page.warnings(&phases.warnings);
    page
}

/// The columns of figures.
fn figures<T, F: Fn(&T) -> Cell>(rows: Rows<T>, has_log: bool, figure: impl Fn(fn(&Figures) -> u64) -> F) -> Rows<T> {
    rows.column_if(has_log, "held at begin", figure(|figures| figures.held_at_begin))
        .rank("held at begin", 3)
        .column_if(has_log, "high-water mark", figure(|figures| figures.high_water))
        .column_if(has_log, "allocated", figure(|figures| figures.allocated.bytes))
        .rank("allocated", 2)
        .column_if(has_log, "freed within", figure(|figures| figures.freed_within.bytes))
        .rank("freed within", 4)
        .column_if(has_log, "left behind", figure(|figures| figures.left_behind.bytes))
}

fn chosen_name(chosen: &Chosen) -> String {
    let within: String = chosen.within.iter().map(|name| format!("{name} > ")).collect();
    format!("{within}{}", name(chosen.name, chosen.domain))
}

fn left_behind(chosen: &Chosen, page: &mut Document) {
    for site in &chosen.left_behind {
        let tally = parts::tally(site.tally);
        let place = site.place.iter().map(|place| format!("  {place}")).collect::<String>();
        page.indented(4, dim(format!("{tally}  {}{place}", short_name(&site.label))));
    }
    page.more_at(4, chosen.more_sites, "call site", "; --json lists them");
}

/// The figures of all phases of the name, for each GPU and each level of allocators.
fn series(phases: &Phases, page: &mut Document) {
    let with: Vec<&Chosen> = phases
        .chosen
        .iter()
        .filter(|chosen| !chosen.figures.is_empty())
        .collect();
    if with.is_empty() || phases.series.len() < 2 {
        return;
    }
    page.blank();
    let mean = |of: fn(&Figures) -> u64| {
        let with = &with;
        move |&(nth, _): &(usize, &Series)| {
            let sum: u128 = with.iter().map(|chosen| u128::from(of(&chosen.figures[nth]))).sum();
            Cell::Size((sum / with.len() as u128) as u64)
        }
    };
    let rows = Rows::of(phases.series.iter().enumerate())
        .column("mean of these phases", |(_, series)| series_name(series))
        .flexible();
    page.table(figures(rows, true, mean));
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
