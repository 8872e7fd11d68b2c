//! `culeak man`: manual pages, generated from the definitions that the command line is parsed with.
//!
//! One page for the whole and one for each command, as git has them: culeak(1), culeak-run(1), … Deliberately absent:
//! installing them; packages know where pages go.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap_mangen::Man;

use crate::args;
use crate::errors::Failure;
use crate::output::{self, Overwrite};
use crate::text;

/// Print a manual page, or write all of them into a folder
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  culeak man run | man -l -
  culeak man --out ~/.local/share/man/man1 --force")]
pub struct ManArgs {
    /// The command to print the page of [default: culeak itself]
    #[arg(value_name = "COMMAND")]
    pub page: Option<String>,
    /// Write all pages into this folder instead
    #[arg(short, long, value_name = "DIR", conflicts_with = "page")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

pub fn execute(args: &ManArgs) -> Result<ExitCode, Failure> {
    let pages = pages();
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

struct Page {
    /// `culeak-run`.
    name: String,
    text: Vec<u8>,
}

/// The page of the whole first.
fn pages() -> Vec<Page> {
    let mut whole = args::public().disable_help_subcommand(true);
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
        .manual("culeak manual")
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
        if let Some(notes) = &notes {
            text.extend(as_written(notes).into_bytes());
        }
        Ok(())
    };
    // A vector takes everything that is written to it.
    sections().unwrap_or_default();
    Page { name, text }
}

/// Paragraphs are filled by whoever shows the page; examples and tables keep their lines.
fn as_written(notes: &str) -> String {
    let mut section = ".SH NOTES\n".to_owned();
    for paragraph in notes.split("\n\n") {
        let is_table = paragraph.lines().any(|line| line.starts_with("  "));
        section.push_str(if is_table { ".PP\n.nf\n" } else { ".PP\n" });
        for line in paragraph.lines() {
            // A dot or a quote at the beginning would be an instruction.
            section.push_str("\\&");
            section.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
            section.push('\n');
        }
        section.push_str(if is_table { ".fi\n" } else { "" });
    }
    section
}

fn write_all(pages: &[Page], folder: &Path, overwrite: Overwrite) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| {
        let shown = folder.display();
        Failure::new(format!(
            "{shown}: cannot be used as the folder for manual pages: {error}; choose another with --out"
        ))
    })?;
    let paths: Vec<PathBuf> = pages
        .iter()
        .map(|page| folder.join(format!("{}.1", page.name)))
        .collect();
    // Either all of them are written or none, as far as can be known beforehand.
    for path in &paths {
        output::check(path, overwrite)?;
    }
    for (page, path) in pages.iter().zip(&paths) {
        output::create(path, overwrite, |out| out.write_all(&page.text))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(page: &Page) -> &str {
        std::str::from_utf8(&page.text).expect("text")
    }

    #[test]
    fn every_command_has_a_page_that_names_its_options() {
        let pages = pages();
        let whole = args::public();
        assert_eq!(pages.len(), whole.get_subcommands().count() + 1);
        for command in whole.get_subcommands() {
            let name = format!("culeak-{}", command.get_name());
            let page = pages.iter().find(|page| page.name == name).expect("a page");
            for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
                let spelled = format!("\\-\\-{}", option.replace('-', "\\-"));
                assert!(text(page).contains(&spelled), "{name} says nothing of --{option}");
            }
        }
    }

    #[test]
    fn no_page_tells_of_what_only_this_program_calls() {
        for page in pages() {
            assert!(
                !text(&page).contains("probe") && !text(&page).contains("demo\\-program"),
                "{}",
                page.name
            );
        }
    }

    #[test]
    fn examples_keep_their_lines_and_are_no_instructions() {
        let section = as_written("First\nsecond.\n\nExamples:\n  culeak run -- x\n  .hidden \\n");
        assert_eq!(
            section,
            ".SH NOTES\n.PP\n\\&First\n\\&second.\n.PP\n.nf\n\\&Examples:\n\\&  culeak run \\-\\- x\n\\&  .hidden \\en\n.fi\n"
        );
    }
}
