//! The formats of a verdict, for `check` and `run --check`.

use std::io::{self, Write};
use std::path::Path;

use clap::ValueEnum;
use culeak::analysis::check::Verdict;

use crate::escape::Escaped;
use crate::text;
use crate::verdict::{self, SourceRoot};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For a terminal
    Text,
    /// Everything, as docs/json.md describes it
    Json,
    /// A test report: one test per call site
    Junit,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// Annotations on the leaking lines, as GitHub's runners read them
    Github,
    /// A summary for a pull request or a job page
    Markdown,
}

/// All verdicts as one document; `root` is where the sources lie, if the user said so.
pub fn write(format: Format, verdicts: &[(&str, Verdict)], root: Option<&Path>, out: &mut dyn Write) -> io::Result<()> {
    let root = || SourceRoot::find(root);
    match format {
        Format::Json => match verdicts {
            [(_, one)] => text::write_json(one, out),
            several => text::write_json(&several.iter().map(|(_, verdict)| verdict).collect::<Vec<_>>(), out),
        },
        Format::Text => {
            for (source, verdict) in verdicts {
                if verdicts.len() > 1 {
                    writeln!(out, "== {} ==", Escaped(source))?;
                }
                text::check::write(verdict, source, out)?;
            }
            Ok(())
        }
        Format::Junit => verdict::junit::write(verdicts, out),
        Format::Sarif => text::write_json(&verdict::sarif::log(verdicts, &root()), out),
        Format::Github => verdict::github::write(verdicts, &root(), out),
        Format::Markdown => verdict::markdown::write(verdicts, out),
    }
}
