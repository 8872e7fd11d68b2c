//! Workflow commands for GitHub's runners: annotations at the leaking lines.
//!
//! A command is one line, `::error file=…,line=…,title=…::message`. The runner executes any line of this form, so all
//! recorded text is escaped by the rules in its documentation.

use std::io::{self, Write};

use culeak::analysis::check::Verdict;

use super::{SourceRoot, findings, rank_of, stack_text, summary};
use crate::escape::Escaped;

/// Writes all findings. The runner shows the first ten errors of a step; the others are in the log.
pub fn write(verdicts: &[(&str, Verdict)], root: &SourceRoot, out: &mut dyn Write) -> io::Result<()> {
    for (source, verdict) in verdicts {
        let rank = rank_of(verdict).filter(|_| verdicts.len() > 1);
        let rank = rank.map_or_else(String::new, |rank| format!("{rank}: "));
        for finding in findings(verdict) {
            let mut properties = Vec::new();
            if let Some((file, frame)) = finding.line_in(root) {
                properties.push(format!("file={}", property(&file)));
                properties.extend(frame.line.map(|line| format!("line={line}")));
            }
            properties.push(format!("title={}", finding.kind.subject()));
            let stack = finding
                .stack
                .map(|stack| format!("\n{}", stack_text(stack)))
                .unwrap_or_default();
            let message = format!("{rank}{}{}", finding.title, stack.trim_end());
            writeln!(out, "::error {}::{}", properties.join(","), data(&message))?;
        }
        let text = format!("{source}: {rank}{}", summary(verdict));
        match verdict.passed() {
            true => writeln!(out, "::notice title=culeak check::{}", data(&text))?,
            // The annotations have the details; this line is for the log, where the runner also interprets `##[`.
            false => writeln!(
                out,
                "culeak check: {}",
                Escaped(&text).to_string().replace("##[", "##\\[")
            )?,
        }
    }
    Ok(())
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
