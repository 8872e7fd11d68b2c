//! `culeak help`: the options of a command, and guides.
//!
//! The guides are the pages of the folder `docs`, rendered for a terminal, and their list is the table of its README. A
//! command that has a guide of the same name is shown with it. Deliberately absent: manual pages of the guides.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;

use crate::errors::Failure;
use crate::text::markdown;
use crate::text::parts::{BOLD, Styled};
use crate::text::{self, columns};

/// Show the options of a command, or a guide: `culeak help` lists the guides
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  culeak help quickstart
  culeak help check
  culeak help python --no-pager | grep -i jax")]
pub struct HelpArgs {
    /// A command or a guide
    #[arg(value_name = "COMMAND|GUIDE")]
    pub subject: Option<String>,
}

/// A page of the documentation.
struct Guide {
    name: &'static str,
    /// In the folder `docs`; behind a `#`, the only section that is shown.
    link: &'static str,
    page: &'static str,
}

macro_rules! guides {
    ($($name:literal = $file:literal $(, $section:literal)?;)*) => {
        const GUIDES: &[Guide] = &[$(Guide {
            name: $name,
            link: concat!($file $(, "#", $section)?),
            page: include_str!(concat!("../../help/", $file)),
        }),*];
    };
}

guides! {
    "quickstart" = "quickstart.md";
    "install" = "install.md";
    "reports" = "reports.md";
    "jobs" = "job.md";
    "why" = "why.md";
    "categories" = "categories.md";
    "sampling" = "sampling.md";
    "points" = "points.md";
    "snapshots" = "snapshots.md";
    "live" = "live.md";
    "timeline" = "timeline.md";
    "phases" = "phases.md";
    "trend" = "trend.md";
    "metrics" = "metrics.md";
    "watch" = "watch.md";
    "ci" = "ci.md";
    "exit-codes" = "ci.md", "exit-codes";
    "pytest" = "pytest.md";
    "python" = "frameworks.md";
    "adapters" = "adapters.md";
    "formats" = "formats.md";
    "push" = "push.md";
    "datasets" = "dataset.md";
    "json" = "json.md";
    "config" = "config.md";
    "environment" = "environment.md";
    "file-systems" = "file-systems.md";
    "reach" = "reach.md";
    "limits" = "limits.md";
    "aarch64" = "aarch64.md";
    "costs" = "measurements.md";
}

/// The names of the guides.
pub fn guides() -> impl Iterator<Item = &'static str> {
    GUIDES.iter().map(|guide| guide.name)
}

/// Its table lists the pages, each with its task.
const INDEX: &str = include_str!("../../help/README.md");

/// Prints the help; `whole` is the command line that it describes.
pub fn execute(args: &HelpArgs, mut whole: clap::Command) -> Result<ExitCode, Failure> {
    // Gives every command its full name, as in usage lines.
    whole.build();
    let Some(subject) = &args.subject else {
        let help = whole.render_help();
        text::print(|out| {
            write!(out, "{}", help.ansi())?;
            write_list(out)
        })?;
        return Ok(ExitCode::SUCCESS);
    };
    let options = whole.find_subcommand_mut(subject).map(clap::Command::render_long_help);
    let guide = GUIDES.iter().find(|guide| guide.name == subject);
    if options.is_none() && guide.is_none() {
        let guides: Vec<&str> = guides().collect();
        return Err(Failure::new(format!(
            "{subject}: neither a command nor a guide; the guides are {}; culeak --help lists the commands",
            guides.join(", ")
        )));
    }
    text::print(|out| {
        if let Some(options) = &options {
            write!(out, "{}", options.ansi())?;
        }
        // The options list the variables; their page has the same list.
        let guide = guide.filter(|guide| options.is_none() || guide.name != "environment");
        let Some(guide) = guide else { return Ok(()) };
        if options.is_some() {
            writeln!(out)?;
        }
        markdown::write(&guide.text(), out)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn write_list(out: &mut dyn Write) -> io::Result<()> {
    let widest = GUIDES.iter().map(|guide| guide.name.len()).max().unwrap_or_default();
    writeln!(out, "\n{}", Styled(BOLD, "Guides:"))?;
    for guide in GUIDES {
        let line = format!("  {:widest$}  {}", guide.name, guide.task());
        writeln!(
            out,
            "{}",
            text::wrap::wrapped(&line, columns::available().unwrap_or(usize::MAX))
        )?;
    }
    Ok(())
}

impl Guide {
    /// The page or its section.
    fn text(&self) -> String {
        match self.link.split_once('#') {
            Some((_, section)) => section_of(self.page, section),
            None => self.page.to_owned(),
        }
    }

    /// What the page is for, from the index.
    fn task(&self) -> String {
        let link = format!("({})", self.link);
        let row = INDEX
            .lines()
            .find(|line| line.starts_with("| [") && line.contains(&link));
        let cell = row.and_then(|row| row.trim_end_matches([' ', '|']).rsplit(" | ").next());
        markdown::plain(cell.unwrap_or_default())
    }
}

/// The section with this anchor: its heading, and everything up to the next heading of its level.
fn section_of(page: &str, anchor: &str) -> String {
    let is_heading = |line: &str| line.starts_with("## ");
    let is_it = |line: &&str| is_heading(line) && line[3..].to_lowercase().replace(' ', "-") == anchor;
    let mut lines = page.lines().skip_while(|line| !is_it(line));
    let heading = lines.next().unwrap_or_default();
    let rest = lines.take_while(|line| !is_heading(line));
    std::iter::once(heading).chain(rest).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_the_index_is_a_guide_with_a_task_and_a_text() {
        // Development, and pages of launchers, which link to each other.
        const OTHERS: [&str; 2] = ["proofs.md", "launchers/README.md"];
        for line in INDEX.lines().filter(|line| line.starts_with("| [")) {
            let link = line.split(['(', ')']).nth(1).expect("a link");
            let known = GUIDES.iter().any(|guide| guide.link == link) || OTHERS.contains(&link);
            assert!(known, "{link} is in docs/README.md, and no guide");
        }
        for guide in GUIDES {
            assert!(!guide.task().is_empty(), "{} is not in docs/README.md", guide.link);
            let mut text = Vec::new();
            markdown::write(&guide.text(), &mut text).expect("memory is writable");
            assert!(text.len() > 300, "{}: {}", guide.name, String::from_utf8_lossy(&text));
        }
    }
}
