//! `culeak help`: the options of a command, and guides.
//!
//! The guides are the pages of the folder `docs`, rendered for a terminal, and their list is the table of its README. A
//! command that has a guide of the same name is shown with it. Deliberately absent: manual pages of the guides.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::categories::BUILT_IN;

use crate::document::{Document, columns, wrap};
use crate::errors::Failure;
use crate::text;
use crate::text::markdown;
use crate::text::parts::BOLD;
use crate::text::units::when;

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
    "ten-steps" = "ten-steps.md";
    "symptoms" = "symptoms.md";
    "alternatives" = "alternatives.md";
    "roles" = "roles.md";
    "glossary" = "glossary.md";
    "reports" = "reports.md";
    "jobs" = "job.md";
    "launchers" = "launchers.md";
    "torchrun" = "launchers.md", "torchrun";
    "mpirun" = "launchers.md", "mpirun";
    "slurm" = "launchers.md", "slurm";
    "ray" = "launchers.md", "ray";
    "dask" = "launchers.md", "dask";
    "spark" = "launchers.md", "spark";
    "kubernetes" = "launchers.md", "kubernetes";
    "containers" = "launchers.md", "containers";
    "systemd" = "launchers.md", "systemd";
    "jupyter" = "launchers.md", "jupyter";
    "why" = "why.md";
    "attach" = "why.md", "attach";
    "by-category" = "categories.md";
    "sampling" = "sampling.md";
    "time" = "time.md";
    "points" = "time.md", "points";
    "snapshots" = "time.md", "snapshots";
    "timeline" = "time.md", "timeline";
    "phases" = "time.md", "phases";
    "live" = "time.md", "live";
    "fragmentation" = "fragmentation.md";
    "trend" = "trend.md";
    "fleet" = "fleet.md";
    "metrics" = "fleet.md", "metrics";
    "watch" = "fleet.md", "watch";
    "push" = "fleet.md", "push";
    "datasets" = "fleet.md", "dataset";
    "columns" = "dataset.schema.md";
    "ci" = "ci.md";
    "exit-codes" = "ci.md", "exit-codes";
    "pytest" = "ci.md", "pytest";
    "agents" = "agents.md";
    "python" = "frameworks.md";
    "adapters" = "frameworks.md", "adapters";
    "formats" = "formats.md";
    "json" = "formats.md", "json";
    "configuration" = "configuration.md";
    "environment" = "configuration.md", "environment";
    "config" = "configuration.md", "config";
    "messages" = "messages.md";
    "errors" = "errors.md";
    "limits" = "limits.md";
    "reach" = "limits.md", "reach";
    "file-systems" = "limits.md", "file-systems";
    "aarch64" = "limits.md", "aarch64";
    "holders" = "internals/holders.md";
    "decisions" = "internals/decisions.md";
    "costs" = "measurements.md";
    "testing" = "testing.md";
    "proofs" = "internals/proofs.md";
}

/// The page that is a file: the built-in rules for categories, to copy and change.
const RULES: &str = "categories";

/// The names of the guides.
pub fn guides() -> impl Iterator<Item = &'static str> {
    GUIDES.iter().map(|guide| guide.name).chain([RULES])
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
    if subject == RULES {
        text::print(|out| write!(out, "{BUILT_IN}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = whole.find_subcommand_mut(subject).map(clap::Command::render_long_help);
    let guide = GUIDES.iter().find(|guide| guide.is_called(subject));
    if options.is_none() && guide.is_none() {
        let commands = whole.get_subcommands().map(|command| command.get_name().to_owned());
        let names: Vec<String> = commands.chain(guides().map(str::to_owned)).collect();
        let near = nearest(subject, names.iter().map(String::as_str));
        let near = when(!near.is_empty(), || format!("did you mean {}? ", near.join(" or ")));
        return Err(Failure::new(format!(
            "{subject}: neither a command nor a guide; {near}culeak help lists all"
        )));
    }
    text::print(|out| {
        if let Some(options) = &options {
            write!(out, "{}", options.ansi())?;
        }
        let Some(guide) = guide else { return Ok(()) };
        if options.is_some() {
            writeln!(out)?;
        }
        guide.document().text(out)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The names that are most like this word, the nearest first.
pub fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    const SHOWN: usize = 3;
    const ALIKE: f64 = 0.8;
    let mut near: Vec<(f64, &str)> = names.map(|name| (strsim::jaro_winkler(word, name), name)).collect();
    near.retain(|(likeness, _)| *likeness >= ALIKE);
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    near.dedup_by_key(|(_, name)| *name);
    near.into_iter().take(SHOWN).map(|(_, name)| name).collect()
}

fn write_list(out: &mut dyn Write) -> io::Result<()> {
    let widest = GUIDES.iter().map(|guide| guide.name.len()).max().unwrap_or_default();
    writeln!(out, "\n{BOLD}Guides:{BOLD:#}")?;
    let tasks = GUIDES.iter().filter(|guide| !guide.link.contains('#')).map(|guide| {
        let sections = GUIDES
            .iter()
            .filter(|other| other.link.starts_with(&format!("{}#", guide.link)));
        let sections: Vec<&str> = sections.map(|section| section.name).collect();
        match sections.is_empty() {
            true => (guide.name, guide.task()),
            false => (
                guide.name,
                format!("{} (sections: {})", guide.task(), sections.join(", ")),
            ),
        }
    });
    let rules = (RULES, "the rules for categories, as a file to change".to_owned());
    for (name, task) in tasks.chain([rules]) {
        let line = format!("  {name:widest$}  {task}");
        writeln!(
            out,
            "{}",
            wrap::wrapped(&line, columns::available().unwrap_or(usize::MAX))
        )?;
    }
    Ok(())
}

impl Guide {
    /// Whether this is its name, or that of its file, as pages and messages may call it.
    fn is_called(&self, name: &str) -> bool {
        let is_file = |name: &str| self.link == name || self.link.strip_suffix(".md") == Some(name);
        self.name == name || is_file(name.strip_prefix("docs/").unwrap_or(name))
    }

    /// The command that shows the page with this path from here, if it is another one.
    fn command(&self, target: &str) -> Option<String> {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let folder = self.link.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = match path.strip_prefix("../") {
            Some(above) if !folder.is_empty() => above.to_owned(),
            _ if folder.is_empty() => path.to_owned(),
            _ => format!("{folder}/{path}"),
        };
        if path == "README.md" {
            return Some("culeak help".to_owned());
        }
        let section = format!("{path}#{anchor}");
        let named = |link: &str| GUIDES.iter().find(|guide| guide.link == link);
        let other = named(&section).or_else(|| named(&path))?;
        (other.name != self.name).then(|| format!("culeak help {}", other.name))
    }

    /// The page or its section.
    fn text(&self) -> String {
        match self.link.split_once('#') {
            Some((_, section)) => section_of(self.page, section),
            None => self.page.to_owned(),
        }
    }

    fn document(&self) -> Document {
        markdown::document(&self.text(), &|target| self.command(target))
    }

    /// What the page is for, from the index. A section without a row of its own has its page's.
    fn task(&self) -> String {
        let link = format!("({})", self.link.split('#').next().unwrap_or_default());
        let row = INDEX
            .lines()
            .find(|line| line.starts_with("| [") && line.contains(&link));
        let cell = row.and_then(|row| row.trim_end_matches([' ', '|']).rsplit(" | ").next());
        cell.map_or_else(String::new, markdown::plain)
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
pub mod tests;
