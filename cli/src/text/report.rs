//! A report on the screen: the request that failed, if that is why it exists; the ledger, the headline, the ranking, the
//! details, the totals, what could not be seen, what to do next.

use std::collections::HashMap;
use std::io::{self, Write};

use culeak::analysis::check::{Judged, Standing};
use culeak::analysis::report::{By, FailedRow, HOST_MEMORY, NO_DEVICE, NO_STREAM, Report, Row, Tally};
use culeak::analysis::site::Frame;
use culeak::snapshot::{Automatic, Reason};

use super::columns;
use super::ledger;
use super::parts::{self, BAD, BOLD, DIM, GOOD, Styled};
use super::units::{self, plural};
use crate::escape::Escaped;

pub mod sums;

/// Writes the report; `full_stacks` shows runtime-internal frames and those below `main` too.
pub fn write(report: &Report, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    match (&report.trigger, &report.taken.automatic) {
        (Some(failed), _) => request(failed, full_stacks, out)?,
        (None, Some(kept)) => moment(kept, out)?,
        (None, None) => {}
    }
    // The ledger is of all memory, which would contradict the lines below it.
    if !report.is_empty() && report.filter.is_none() {
        ledger::write(&report.ledger, out)?;
    }
    headline(report, out)?;
    ranking(report, out)?;
    parts::suppressions(report.suppressed, &report.suppressions, out)?;
    writeln!(out)?;
    if matches!(report.by, By::Site | By::Stack) {
        for (index, row) in report.rows.iter().enumerate() {
            details(index + 1, row, full_stacks, out)?;
        }
    }
    for (name, text) in sums::totals(report).into_iter().chain(sums::losses(report)) {
        writeln!(out, "{}  {text}", Styled(BOLD, format!("{name:9}")))?;
    }
    parts::warnings(out, &report.warnings)?;
    parts::next(out, &report.next)
}

/// Out of memory: what was asked for, where, by whom.
fn request(failed: &FailedRow, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    let line = failed.stack.python_line().or_else(|| failed.stack.site());
    let place = line
        .and_then(|line| line.short_place())
        .map(|place| format!("  {}", Escaped(&place)));
    let name = line.map_or_else(|| "(no stack)".to_owned(), |line| parts::short_name(&line.name()));
    let title = format!(
        "out of memory: {} of {} on {} failed in {name}{}",
        Escaped(failed.api),
        units::bytes(failed.bytes),
        failed.device,
        place.unwrap_or_default()
    );
    writeln!(out, "{}", Styled(BAD, title))?;
    parts::stack(out, &failed.stack, full_stacks, "  ")?;
    writeln!(out)
}

/// Why the recorder kept this snapshot.
fn moment(kept: &Automatic, out: &mut dyn Write) -> io::Result<()> {
    let why = match kept.reason {
        Reason::OutOfMemory => "when a request failed for lack of memory",
        Reason::Peak => "at a new peak",
        Reason::Mark => "at a mark of the program's",
        Reason::Requested => "because the program asked for it",
        Reason::Every => "because it was time",
    };
    let name = kept
        .name
        .as_deref()
        .map_or_else(String::new, |name| format!(": {}", Escaped(name)));
    writeln!(
        out,
        "{}",
        Styled(BOLD, format!("kept while the program ran, {why}{name}"))
    )?;
    writeln!(out)
}

/// One sentence that could stand alone.
pub fn headline(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let totals = &report.totals;
    let held = totals.held.total();
    if report.is_empty() {
        let text = if report.finished {
            "no CUDA memory was ever allocated"
        } else {
            "no CUDA memory allocated so far"
        };
        return writeln!(out, "{}", Styled(GOOD, text));
    }
    let filtered = report.filter.is_some();
    let peak = if filtered { String::new() } else { peaks(report) };
    if filtered && held.count == 0 {
        let word = if report.finished { "leaked" } else { "held" };
        let cached = cached(report);
        return writeln!(
            out,
            "{}{cached}",
            Styled(BOLD, format!("nothing {word} that passes the filter"))
        );
    }
    if held.count == 0 {
        let nothing = if report.finished {
            "nothing leaked"
        } else {
            "nothing held"
        };
        let freed = format!(
            "{}, {} freed",
            plural(totals.allocated, "allocation", "allocations"),
            units::count(totals.freed)
        );
        let cached = cached(report);
        return writeln!(out, "{}: {freed}{peak}{cached}", Styled(GOOD, nothing));
    }
    let on_device = totals.held.on_devices();
    let mut what = Vec::new();
    let live: Vec<_> = report.devices.iter().filter(|device| device.live.count > 0).collect();
    if on_device.count > 0 {
        let size = units::bytes(on_device.bytes);
        what.push(match live.as_slice() {
            [] => format!("{size} of GPU memory{peak}"),
            [one] => format!("{size} on GPU {}{peak}", one.ordinal),
            several => format!("{size} on {} GPUs{peak}", several.len()),
        });
    }
    if totals.held.host.count > 0 {
        what.push(format!("{} of host memory", units::bytes(totals.held.host.bytes)));
    }
    let verb = match (report.finished, totals.call_sites) {
        (true, 1) => "leaks",
        (true, _) => "leak",
        (false, 1) => "holds",
        (false, _) => "hold",
    };
    let sites = plural(totals.call_sites as u64, "call site", "call sites");
    let style = if report.finished { BAD } else { BOLD };
    writeln!(
        out,
        "{}{}{}",
        Styled(style, format!("{sites} {verb} {}", what.join(" and "))),
        cached(report),
        if filtered { " (filtered)" } else { "" }
    )
}

/// `; 40 MiB cached by allocators`, which is no leak.
fn cached(report: &Report) -> String {
    match report.totals.pool {
        Tally { count: 0, .. } => String::new(),
        pool if report.pools.is_empty() => format!("; {} cached by allocators", units::bytes(pool.bytes)),
        pool => format!("; pools of {}", units::bytes(pool.bytes)),
    }
}

/// ` (peak 6.4 GiB)`, or every device's.
fn peaks(report: &Report) -> String {
    let peaks: Vec<_> = report.devices.iter().filter(|device| device.peak_bytes > 0).collect();
    match peaks.as_slice() {
        [] => String::new(),
        [one] => format!(" (peak {})", units::bytes(one.peak_bytes)),
        several => {
            let each: Vec<_> = several
                .iter()
                .map(|device| format!("{} on GPU {}", units::bytes(device.peak_bytes), device.ordinal))
                .collect();
            format!(" (peak {})", each.join(", "))
        }
    }
}

fn ranking(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<_> = report.rows.iter().map(|row| Line::of(row, report.by)).collect();
    if report.by == By::Stack {
        name_callers(&report.rows, &mut lines);
    }
    write_lines(&lines, out)?;
    if report.hidden_rows > 0 {
        let rows = plural(report.hidden_rows as u64, "more row", "more rows");
        writeln!(
            out,
            "  {}",
            Styled(
                DIM,
                format!(
                    "… and {rows} with {}; {} shows all",
                    parts::amount(report.hidden),
                    parts::all_rows(report.cut)
                )
            )
        )?;
    }
    Ok(())
}

/// Several stacks may lead to one call site: each is named by its callers, up to the first that tells it from the others.
fn name_callers(rows: &[Row], lines: &mut [Line]) {
    let mut alike: HashMap<(String, String, String), Vec<usize>> = HashMap::new();
    for (nth, line) in lines.iter().enumerate() {
        let key = (line.label.clone(), line.place.clone(), line.mark.clone());
        alike.entry(key).or_default().push(nth);
    }
    for group in alike.into_values().filter(|group| group.len() > 1) {
        let callers: Vec<Vec<String>> = group.iter().map(|&nth| callers(&rows[nth])).collect();
        for (of_row, &nth) in callers.iter().zip(&group) {
            let shared = |other: &Vec<String>| of_row.iter().zip(other).take_while(|(a, b)| a == b).count();
            let others = callers.iter().filter(|other| !std::ptr::eq(*other, of_row));
            let longest = others.map(shared).max().unwrap_or(0);
            let telling = of_row.get(..=longest).unwrap_or(of_row);
            let chain = match telling {
                [] => "nothing".to_owned(),
                [first, .., last] if telling.len() > CALLERS_SHOWN => format!("{first} ← … ← {last}"),
                few => few.join(" ← "),
            };
            lines[nth].mark += &format!("  ← {chain}");
        }
    }
}

/// More are elided in the middle.
const CALLERS_SHOWN: usize = 3;

/// The shown frames outside the call site, innermost first.
fn callers(row: &Row) -> Vec<String> {
    let Some(first) = row.stacks.first() else {
        return Vec::new();
    };
    let site = first.stack.site().map(std::ptr::from_ref);
    let outside = first
        .stack
        .shown()
        .skip_while(|frame| Some(std::ptr::from_ref(*frame)) != site)
        .skip(1);
    let name = |frame: &Frame| {
        let place = frame.short_place().map(|place| format!(" {}", Escaped(&place)));
        format!("{}{}", parts::short_name(&frame.name()), place.unwrap_or_default())
    };
    outside.map(name).collect()
}

/// One row of the ranking, in columns.
pub struct Line {
    size: String,
    blocks: String,
    label: String,
    place: String,
    mark: String,
}

impl Line {
    pub fn of(row: &Row, by: By) -> Line {
        let is_code = matches!(by, By::Site | By::Stack);
        Line {
            size: units::bytes(row.bytes),
            blocks: if row.claims == row.count {
                plural(row.count, "claim ", "claims")
            } else {
                plural(row.count, "block ", "blocks")
            },
            label: if is_code {
                parts::short_name(&row.label)
            } else {
                Escaped(&row.label).to_string()
            },
            place: row
                .site()
                .filter(|_| is_code)
                .and_then(|site| site.short_place())
                .map(|place| Escaped(&place).to_string())
                .unwrap_or_default(),
            mark: parts::mark(row),
        }
    }
}

impl Line {
    /// The same for a verdict, marked with what the baseline says of it.
    pub fn of_judged(judged: &Judged) -> Line {
        let mut line = Line::of(&judged.row, By::Site);
        line.mark += match judged.standing {
            None => "",
            Some(Standing::New) => "  [new]",
            Some(Standing::Grown) => "  [grown]",
            Some(Standing::Known) => "  [known]",
        };
        line
    }
}

pub fn write_lines(lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    write_within(lines, columns::available(), out)
}

/// Labels narrower than this say nothing.
const LABEL_NEEDED: usize = 12;
const PLACE_NEEDED: usize = 10;

/// The rows, each on a line of at most this width: labels give way first, then places.
fn write_within(lines: &[Line], available: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let widest = |column: fn(&Line) -> usize| lines.iter().map(column).max().unwrap_or(0);
    let sizes = widest(|line| columns::width(&line.size));
    let blocks = widest(|line| columns::width(&line.blocks));
    let behind = widest(|line| columns::width(&line.place) + columns::width(&line.mark));
    let mut labels = widest(|line| columns::width(&line.label));
    // Between the columns.
    let room =
        available.map(|available| available.saturating_sub("  ".len() + sizes + "  in ".len() + blocks + "    ".len()));
    if let Some(room) = room {
        labels = labels.min(room.saturating_sub(behind).max(LABEL_NEEDED));
    }
    for line in lines {
        let place = match room {
            Some(room) => {
                let left = room.saturating_sub(labels + columns::width(&line.mark));
                columns::end_of(&line.place, left.max(PLACE_NEEDED))
            }
            None => line.place.clone(),
        };
        let text = format!(
            "  {}  in {:>blocks$}  {}  {place}{}",
            Styled(BOLD, format!("{:>sizes$}", line.size)),
            line.blocks,
            columns::padded(&columns::shortened(&line.label, labels), labels),
            line.mark
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

fn details(number: usize, row: &Row, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    let place = row
        .site()
        .and_then(|site| site.short_place())
        .map(|place| format!("  {}", Escaped(&place)))
        .unwrap_or_default();
    let title = format!(
        "#{number}  {}{place}{}",
        parts::short_name(&row.label),
        parts::mark(row)
    );
    writeln!(out, "{}", Styled(BOLD, title))?;
    let each = match (row.count, row.smallest == row.largest) {
        (1, _) => String::new(),
        (_, true) => format!(" of {}", units::bytes(row.smallest)),
        (_, false) => format!(" of {} to {}", units::bytes(row.smallest), units::bytes(row.largest)),
    };
    let tally = Tally {
        bytes: row.bytes,
        count: row.count,
    };
    let kinds = parts::listed(row.kinds.iter().map(|(name, tally)| (*name, *tally)));
    write!(out, "    {}{each}, {kinds}", parts::amount(tally))?;
    // The kind says that it is the host's.
    let no_device = [NO_DEVICE, HOST_MEMORY].as_slice();
    for (names, none) in [(&row.devices, no_device), (&row.streams, &[NO_STREAM])] {
        if names.len() != 1 || !none.iter().any(|none| names.contains_key(*none)) {
            write!(
                out,
                ", {}",
                parts::listed(names.iter().map(|(name, tally)| (name.as_str(), *tally)))
            )?;
        }
    }
    writeln!(out)?;
    let age = match row.count {
        1 => format!("{} old", units::duration(row.oldest_age_ns)),
        _ => format!(
            "oldest {}, newest {}",
            units::duration(row.oldest_age_ns),
            units::duration(row.newest_age_ns)
        ),
    };
    writeln!(
        out,
        "    by {}, {}, {age}",
        parts::listed(row.apis.iter().map(|(name, tally)| (*name, *tally))),
        parts::listed(row.threads.iter().map(|(name, tally)| (name.as_str(), *tally))),
    )?;
    if let Some(first) = row.stacks.first() {
        parts::stack(out, &first.stack, full_stacks, "      ")?;
    }
    if row.stacks_in_all > 1 {
        let others = row.stacks_in_all as u64 - 1;
        let text = format!(
            "and {} to this site; --by stack shows each",
            plural(others, "other way", "other ways")
        );
        writeln!(out, "      {}", Styled(DIM, text))?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, place: &str, mark: &str) -> Line {
        Line {
            size: "1.2 GiB".to_owned(),
            blocks: "128 blocks".to_owned(),
            label: label.to_owned(),
            place: place.to_owned(),
            mark: mark.to_owned(),
        }
    }

    fn shown(lines: &[Line], available: Option<usize>) -> Vec<String> {
        let mut out = Vec::new();
        write_within(lines, available, &mut out).expect("memory is writable");
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).expect("text")).to_string();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn rows_fit_the_terminal_and_are_whole_in_a_file() {
        let long = "a_function_with_a_name_that_is_forty_columns";
        let lines = [
            line(long, "a_file_with_a_long_name_of_its_own.cu:1234", "  [cuBLAS]"),
            line("short", "train.cu:7", ""),
        ];
        for available in [60, 80, 100, 200] {
            for row in shown(&lines, Some(available)) {
                assert!(columns::width(&row) <= available, "{available}: {row}");
            }
        }
        let whole = shown(&lines, None);
        assert!(
            whole[0].contains(long) && whole[0].ends_with("own.cu:1234  [cuBLAS]"),
            "{whole:?}"
        );
        assert!(
            shown(&lines, Some(80))[1].ends_with("train.cu:7"),
            "places stay readable"
        );
    }

    #[test]
    fn wide_characters_leave_the_columns_aligned() {
        let rows = shown(&[line("訓練する", "a.py:1", ""), line("step", "b.py:2", "")], None);
        let place = |row: &str, name: &str| row.find(name).map(|at| columns::width(&row[..at]));
        assert_eq!(place(&rows[0], "a.py"), place(&rows[1], "b.py"), "{rows:?}");
    }
}
