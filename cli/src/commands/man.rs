//! `culeak man`: manual pages, generated from the definition of the command line.
//!
//! One page for the program and one for each command, as in git: culeak(1), culeak-run(1), … Deliberately absent:
//! installing the pages; that is the job of packages.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap_mangen::Man;
use culeak::variables;

use super::environment;
use crate::errors::Failure;
use crate::output::{self, Overwrite};
use crate::text;

/// Print a manual page, or write all pages to a folder
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  culeak man run | man -l -
  culeak man --out ~/.local/share/man/man1")]
pub struct ManArgs {
    /// Print the page of this command [default: culeak itself]
    #[arg(value_name = "COMMAND")]
    pub page: Option<String>,
    /// Write all pages to this folder instead
    #[arg(short, long, value_name = "DIR", conflicts_with = "page")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// Prints or writes pages; `whole` is the command line that they describe.
pub fn execute(args: &ManArgs, whole: clap::Command) -> Result<ExitCode, Failure> {
    let pages = pages(whole);
    match (&args.out, &args.page) {
        (Some(folder), _) => write_all(&pages, folder, args.overwrite)?,
        (None, wanted) => {
            let name = wanted
                .as_ref()
                .map_or_else(|| "culeak".to_owned(), |page| format!("culeak-{page}"));
            let page = pages.iter().find(|page| page.name == name).ok_or_else(|| {
                let names: Vec<_> = pages
                    .iter()
                    .filter_map(|page| page.name.strip_prefix("culeak-"))
                    .collect();
                Failure::new(format!(
                    "{name}: no such page; there are pages for {}",
                    names.join(", ")
                ))
            })?;
            text::print(|out| out.write_all(&page.text))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// At the top of every page; identifies pages that this program wrote.
const MANUAL: &str = "culeak manual";

/// Common variables, and their meaning here.
const COMMON_VARIABLES: [(&str, &str); 2] = [
    ("NO_COLOR", "If set and not empty: no colours, unless --color is given."),
    (
        "CLICOLOR_FORCE",
        "If set and not 0: colours also in pipes and files, unless --color is given.",
    ),
];

/// The pages that list every variable; the other pages refer to [`ENVIRONMENT`].
pub const PAGES_WITH_ALL_VARIABLES: [&str; 4] = ["culeak", "culeak-run", "culeak-live", ENVIRONMENT];
const ENVIRONMENT: &str = "culeak-environment";

pub struct Page {
    /// `culeak-run`.
    pub name: String,
    pub text: Vec<u8>,
}

/// All pages; the page of the program comes first.
pub fn pages(whole: clap::Command) -> Vec<Page> {
    let mut whole = whole.disable_help_subcommand(true);
    // Gives every command its full name, as in usage lines.
    whole.build();
    let commands = whole.get_subcommands().cloned().map(|command| {
        let name = format!("culeak-{}", command.get_name());
        page(command.display_name(&name).version(env!("CARGO_PKG_VERSION")), name)
    });
    let mut pages: Vec<Page> = commands.collect();
    pages.insert(0, page(whole, "culeak".to_owned()));
    pages
}

fn page(command: clap::Command, name: String) -> Page {
    let notes = command.get_after_help().map(|notes| notes.to_string());
    let commands = command.has_subcommands();
    let man = Man::new(command)
        .title(name.to_uppercase())
        .manual(MANUAL)
        .source(concat!("culeak ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    let mut sections = || -> io::Result<()> {
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        if commands {
            man.render_subcommands_section(&mut text)?;
        }
        text.extend(sections_of(notes.as_deref().unwrap_or_default(), &name).into_bytes());
        Ok(())
    };
    // Writing to a vector cannot fail.
    sections().unwrap_or_default();
    Page { name, text }
}

/// The sections after the options: the notes of `--help` by subject, and the environment.
fn sections_of(notes: &str, page: &str) -> String {
    let (mut exit, mut examples, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for paragraph in notes.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        let title = paragraph.split([':', '\n']).next().unwrap_or_default();
        match title {
            "Exit code" | "Exit codes" => exit.push(paragraph),
            "Examples" | "First steps" => examples.push(paragraph),
            // The section ENVIRONMENT lists them.
            "Environment variables" => {}
            _ => others.push(paragraph),
        }
    }
    if exit.is_empty() {
        exit.push("0 done, 2 wrong usage, or a file that cannot be read or written.");
    }
    let mut text = String::new();
    if !others.is_empty() {
        text.push_str(&as_written("NOTES", &others));
    }
    text.push_str(&as_written(
        "EXIT STATUS",
        &exit.iter().map(|text| untitled(text)).collect::<Vec<_>>(),
    ));
    text.push_str(&environment(page));
    if !examples.is_empty() {
        text.push_str(&as_written(
            "EXAMPLES",
            &examples.iter().map(|text| untitled(text)).collect::<Vec<_>>(),
        ));
    }
    text
}

/// The section on the environment.
fn environment(page: &str) -> String {
    let mut section = ".SH ENVIRONMENT\n".to_owned();
    let mut entry = |name: &str, text: &str| section.push_str(&format!(".TP\n\\fB{name}\\fR\n\\&{}\n", escape(text)));
    for (name, text) in COMMON_VARIABLES {
        entry(name, text);
    }
    if PAGES_WITH_ALL_VARIABLES.contains(&page) {
        for variable in variables::ALL {
            entry(variable.name(), &environment::meaning(variable));
        }
    } else {
        entry("CULEAK_*", &format!("See {ENVIRONMENT}(1)."));
    }
    section
}

/// A paragraph without its title, which the section repeats.
fn untitled(paragraph: &str) -> &str {
    match paragraph.split_once(':') {
        Some((title, rest)) if !title.contains('\n') => rest.strip_prefix('\n').unwrap_or(rest.trim_start()),
        _ => paragraph,
    }
}

fn escape(line: &str) -> String {
    line.replace('\\', "\\e").replace('-', "\\-")
}

/// A section in which examples and tables keep their lines; the viewer fills other paragraphs.
fn as_written(title: &str, paragraphs: &[&str]) -> String {
    let mut section = format!(".SH {title}\n");
    for paragraph in paragraphs {
        let is_table = paragraph.lines().any(|line| line.starts_with("  "));
        section.push_str(if is_table { ".PP\n.nf\n" } else { ".PP\n" });
        for line in paragraph.lines() {
            // A leading dot or quote would be an instruction.
            section.push_str("\\&");
            section.push_str(&escape(line));
            section.push('\n');
        }
        section.push_str(if is_table { ".fi\n" } else { "" });
    }
    section
}

fn write_all(pages: &[Page], folder: &Path, overwrite: Overwrite) -> Result<(), Failure> {
    output::create_folder(folder, "manual pages", "--out")?;
    let is_ours = |content: &[u8]| content.windows(MANUAL.len()).any(|window| window == MANUAL.as_bytes());
    let files = pages.iter().map(|page| {
        let path = folder.join(format!("{}.1", page.name));
        let overwrite = overwrite.or_ours(&path, is_ours);
        (page, path, overwrite)
    });
    let files: Vec<_> = files.collect();
    // Check all files before writing the first.
    for (_, path, overwrite) in &files {
        output::check(path, *overwrite)?;
    }
    for (page, path, overwrite) in &files {
        output::create(path, *overwrite, |out| out.write_all(&page.text))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_are_escaped() {
        let section = as_written("NOTES", &["First\nsecond.", "Table:\n  culeak run -- x\n  .hidden \\n"]);
        assert_eq!(
            section,
            ".SH NOTES\n.PP\n\\&First\n\\&second.\n.PP\n.nf\n\\&Table:\n\\&  culeak run \\-\\- x\n\\&  .hidden \\en\n.fi\n"
        );
    }
}
