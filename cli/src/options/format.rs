//! The formats of a verdict, for `check`.

use std::io::{self, Write};
use std::path::Path;

use clap::ValueEnum;
use culeak::analysis::check::Verdict;

use crate::text;
use crate::verdict::{self, SourceRoot};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for a terminal
    Text,
    /// JSON with every field, described by `culeak help json`
    Json,
    /// JUnit test report with one test per call site
    Junit,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// GitHub workflow commands that annotate the leaking lines
    Github,
    /// Markdown summary for a pull request or a job page
    Markdown,
}

/// Writes all verdicts as one document; `root` is the root of the source tree if the user named it.
pub fn write(format: Format, verdicts: &[(&str, Verdict)], root: Option<&Path>, out: &mut dyn Write) -> io::Result<()> {
    let root = || SourceRoot::find(root);
    match format {
        Format::Json => match verdicts {
            [(_, one)] => text::write_json(one, out),
            several => text::write_json(&several.iter().map(|(_, verdict)| verdict).collect::<Vec<_>>(), out),
        },
        Format::Text => text::check::page_of(verdicts).text(out),
        Format::Junit => verdict::junit::write(verdicts, out),
        Format::Sarif => text::write_json(&verdict::sarif::log(verdicts, &root()), out),
        Format::Github => verdict::github::write(verdicts, &root(), out),
        Format::Markdown => text::check::page_of(verdicts).markdown(out),
    }
}
