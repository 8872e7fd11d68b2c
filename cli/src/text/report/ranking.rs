//! The ranked rows: one line each, in columns that fit the terminal.

use std::collections::HashMap;
use std::io::{self, Write};

use culeak::analysis::check::{Judged, Standing};
use culeak::analysis::report::{By, Report, Row};
use culeak::analysis::site::Frame;
use culeak::kind::{Kind, Place};

use crate::escape::Escaped;
use crate::text::parts::{BOLD, DIM, NAME_WIDTH, Styled};
use crate::text::units::plural;
use crate::text::{columns, parts};

pub(super) fn ranking(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<_> = report.rows.iter().map(|row| RankedLine::of(row, report.by)).collect();
    if report.by == By::Stack {
        name_callers(&report.rows, &mut lines);
    }
    write_ranking(&lines, out)?;
    if report.hidden_rows > 0 {
        let rows = plural(report.hidden_rows as u64, "more row", "more rows");
        let (tally, option) = (parts::tally(report.hidden), parts::all_rows(report.cut));
        let is_estimate = report.rows.iter().any(|row| row.estimated.is_some());
        let about = if is_estimate { "≈ " } else { "" };
        let text = format!("… and {rows} with {about}{tally}; {option} shows all");
        writeln!(out, "  {}", Styled(DIM, text))?;
    }
    Ok(())
}

/// Adds callers to rows with the same call site, up to the first caller that differs.
fn name_callers(rows: &[Row], lines: &mut [RankedLine]) {
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
            let needed = of_row.get(..=longest).unwrap_or(of_row);
            let chain = match needed {
                [] => "nothing".to_owned(),
                [first, .., last] if needed.len() > CALLERS_SHOWN => format!("{first} ← … ← {last}"),
                few => few.join(" ← "),
            };
            lines[nth].mark += &format!("  ← {chain}");
        }
    }
}

/// Longer chains are shortened in the middle.
const CALLERS_SHOWN: usize = 3;

/// The visible frames that called the call site, innermost first.
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
pub struct RankedLine {
    size: String,
    blocks: String,
    label: String,
    place: String,
    mark: String,
}

/// `3 blocks`; `3 claims` for records that hold no memory; `3 segments`.
pub(super) fn counted(row: &Row) -> String {
    let kinds = || row.kinds.keys().filter_map(|kind| Kind::from_name(kind));
    let (one, many) = match row.claims == row.count {
        true => ("claim", "claims"),
        false if kinds().all(|kind| kind == Kind::Channel) => ("channel", "channels"),
        false if kinds().all(|kind| kind.place() == Place::Segment) => ("segment", "segments"),
        false => ("block", "blocks"),
    };
    let counted = plural(row.count, one, many);
    match row.estimated {
        None => counted,
        Some(_) => format!("≈ {counted}"),
    }
}

impl RankedLine {
    pub fn of(row: &Row, by: By) -> RankedLine {
        let is_code = matches!(by, By::Site | By::Stack);
        // Numbers are aligned, so the singular is as wide as the plural.
        let space = if row.count == 1 { " " } else { "" };
        RankedLine {
            size: parts::bytes(row.bytes, row.estimated),
            blocks: counted(row) + space,
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

    /// A row of a verdict, with its standing against the baseline.
    pub fn of_judged(judged: &Judged) -> RankedLine {
        let mut line = RankedLine::of(&judged.row, By::Site);
        line.mark += match judged.standing {
            None => "",
            Some(Standing::New) => "  [new]",
            Some(Standing::Grown) => "  [grown]",
            Some(Standing::Known) => "  [known]",
        };
        line
    }
}

pub fn write_ranking(lines: &[RankedLine], out: &mut dyn Write) -> io::Result<()> {
    write_within(lines, columns::available(), out)
}

/// Labels and places are not cut below these widths.
const LABEL_NEEDED: usize = 12;
const PLACE_NEEDED: usize = 10;

/// Writes each row on a line of at most this width. Labels are cut first, then places.
fn write_within(lines: &[RankedLine], available: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let widest = |column: fn(&RankedLine) -> usize| lines.iter().map(column).max().unwrap_or(0);
    let sizes = widest(|line| columns::width(&line.size));
    let blocks = widest(|line| columns::width(&line.blocks));
    let behind = widest(|line| columns::width(&line.place) + columns::width(&line.mark));
    let labels = lines.iter().map(|line| columns::width(&line.label));
    let mut labels = labels.filter(|&width| width <= NAME_WIDTH).max().unwrap_or(0);
    // What remains for label, place and mark.
    let room =
        available.map(|available| available.saturating_sub("  ".len() + sizes + "  in ".len() + blocks + "    ".len()));
    if let Some(room) = room {
        labels = labels.min(room.saturating_sub(behind).max(LABEL_NEEDED));
    }
    for line in lines {
        let (label, place) = match room {
            Some(room) => {
                let left = room.saturating_sub(labels + columns::width(&line.mark));
                let place = columns::end_of(&line.place, left.max(PLACE_NEEDED));
                (columns::shortened(&line.label, labels), place)
            }
            None => (line.label.clone(), line.place.clone()),
        };
        let text = format!(
            "  {}  in {:>blocks$}  {}  {place}{}",
            Styled(BOLD, format!("{:>sizes$}", line.size)),
            line.blocks,
            columns::padded(&label, labels),
            line.mark
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, place: &str, mark: &str) -> RankedLine {
        RankedLine {
            size: "1.2 GiB".to_owned(),
            blocks: "128 blocks".to_owned(),
            label: label.to_owned(),
            place: place.to_owned(),
            mark: mark.to_owned(),
        }
    }

    fn shown(lines: &[RankedLine], available: Option<usize>) -> Vec<String> {
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
