//! Markdown for a job summary or a comment: the verdict in one line, the reasons, and a table of call sites.
//!
//! Recorded names are untrusted, so the special characters of Markdown and HTML are escaped.

use std::io::{self, Write};

use culeak::analysis::check::{Outcome, Standing, Verdict};

use super::{Finding, Kind, findings, rank_of, summary};
use crate::escape::Escaped;
use crate::text::{parts, units};

/// Rows of the table; the report has all.
const SITES_SHOWN: usize = 20;

pub fn write(verdicts: &[(&str, Verdict)], out: &mut dyn Write) -> io::Result<()> {
    for (source, verdict) in verdicts {
        let sign = match verdict.outcome {
            Outcome::Passed => "✅",
            Outcome::Failed => "❌",
            Outcome::NoVerdict => "⚠️",
        };
        let subject = match verdict.judges_only_objects() {
            true => Kind::Objects.subject(),
            false => Kind::Limit.subject(),
        };
        writeln!(out, "### {sign} {subject}: {}\n", escape(&summary(verdict)))?;
        let rank = rank_of(verdict).filter(|_| verdicts.len() > 1);
        let rank = rank.map_or_else(String::new, |rank| format!(" ({rank})"));
        writeln!(out, "{}{rank}\n", escape(source))?;
        // The table has the other call sites.
        let in_words = |finding: &&Finding| {
            finding.stack.is_none() || matches!(finding.kind, Kind::Held(_) | Kind::Objects | Kind::Outlier)
        };
        for finding in findings(verdict).iter().filter(in_words) {
            writeln!(out, "- {}", escape(&finding.title))?;
        }
        if !verdict.rows.is_empty() && !verdict.judges_only_objects() {
            table(verdict, out)?;
        }
        if verdict.suppressed.count > 0 || verdict.suppressed_objects > 0 {
            let suppressed = parts::with_objects(verdict.suppressed, verdict.suppressed_objects);
            let is_estimate = verdict.sampling.is_some() && verdict.suppressed.count > 0;
            let about = if is_estimate { "≈ " } else { "" };
            writeln!(out, "\nSuppressed: {about}{suppressed}.")?;
        }
        for warning in &verdict.warnings {
            writeln!(out, "\n> {}", escape(warning))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn table(verdict: &Verdict, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "\n| | bytes | blocks | call site | place |\n|---|---:|---:|---|---|"
    )?;
    for judged in verdict.rows.iter().take(SITES_SHOWN) {
        let sign = match (judged.to_blame, judged.standing) {
            (_, Some(Standing::New)) => "new",
            (_, Some(Standing::Grown)) => "grown",
            (_, Some(Standing::Known)) => "known",
            (true, None) => "❌",
            (false, None) => "",
        };
        let place = judged
            .row
            .site()
            .and_then(|site| site.short_place())
            .unwrap_or_default();
        let about = if judged.row.estimated.is_some() { "≈ " } else { "" };
        writeln!(
            out,
            "| {sign} | {} | {about}{} | {} | {} |",
            parts::bytes(judged.row.bytes, judged.row.estimated),
            units::count(judged.row.count),
            escape(&parts::name(&judged.row.label)),
            escape(&place)
        )?;
    }
    if verdict.rows.len() > SITES_SHOWN {
        writeln!(out, "\n… and {} more.", verdict.rows.len() - SITES_SHOWN)?;
    }
    Ok(())
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in Escaped(text).to_string().chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '!' | '@' | '$' => {
                safe.push('\\');
                safe.push(c);
            }
            c => safe.push(c),
        }
    }
    safe
}
