//! A verdict on the screen: passed or not, why, which sites are to blame, and what to do about it.

use std::io::{self, Write};

use culeak::check::{Breach, Verdict};
use culeak::report::{By, shell_word};

use super::parts::{self, BAD, DIM, GOOD, Styled};
use super::report::{Line, write_lines};
use super::units::{self, plural};

/// Sites listed in a verdict; the report has them all.
const SITES_SHOWN: usize = 10;

/// Writes the verdict; `source` is how the user named the input.
pub fn write(verdict: &Verdict, source: &str, out: &mut dyn Write) -> io::Result<()> {
    let word = if verdict.finished { "leaked" } else { "held" };
    let judged = parts::amount(verdict.judged);
    if verdict.passed {
        writeln!(out, "{} {judged} {word}, {}", Styled(GOOD, "passed:"), limits(verdict))?;
    } else {
        writeln!(out, "{} {judged} {word}, {}", Styled(BAD, "failed:"), limits(verdict))?;
        for breach in &verdict.breaches {
            writeln!(out, "  {}", reason(*breach, word))?;
        }
    }
    if !verdict.passed {
        let lines: Vec<_> = verdict
            .rows
            .iter()
            .take(SITES_SHOWN)
            .map(|row| Line::of(row, By::Site))
            .collect();
        write_lines(&lines, out)?;
        if verdict.rows.len() > SITES_SHOWN {
            let more = plural(
                (verdict.rows.len() - SITES_SHOWN) as u64,
                "more call site",
                "more call sites",
            );
            writeln!(out, "  {}", Styled(DIM, format!("… and {more}")))?;
        }
    }
    if verdict.ignored.count > 0 {
        writeln!(
            out,
            "not judged: {} (of other kinds, or cached by allocators; --judge-pools)",
            parts::amount(verdict.ignored)
        )?;
    }
    parts::warnings(out, &verdict.warnings)?;
    match verdict.passed {
        true => Ok(()),
        false => parts::next(out, &format!("culeak report {}", shell_word(source))),
    }
}

fn limits(verdict: &Verdict) -> String {
    let (bytes, count) = verdict.limits.effective();
    let mut parts = Vec::new();
    parts.extend(bytes.map(units::bytes));
    parts.extend(count.map(|count| plural(count, "block", "blocks")));
    format!("allowed {}", parts.join(" and "))
}

fn reason(breach: Breach, word: &str) -> String {
    match breach {
        Breach::Bytes { limit, found } => {
            format!(
                "{} {word} is {} over the limit of {}",
                units::bytes(found),
                units::bytes(found - limit),
                units::bytes(limit)
            )
        }
        Breach::Count { limit, found } => {
            format!(
                "{} {word} is {} over the limit of {}",
                plural(found, "block", "blocks"),
                units::count(found - limit),
                units::count(limit)
            )
        }
        Breach::LostAllocations { count } => format!(
            "{} could not be recorded, so nothing here is proof of a clean run; make room for the recording, or pass \
             --allow-losses",
            plural(count, "allocation", "allocations")
        ),
    }
}
