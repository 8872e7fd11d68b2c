//! `culeak setup man`: manual pages, generated from the definition of the command line.
//!
//! One page for the program and one for each command, as in git: culeak(1), culeak-run(1), … Deliberately absent:
//! installing the pages; that is the job of packages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{Resettable, StyledStr};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::errors::Failure;
use crate::output::{self, Overwrite};
use crate::text;

/// Print a manual page, or write all pages to a folder
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  culeak setup man run | man -l -
  culeak setup man --out ~/.local/share/man/man1")]
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
    if let Some(folder) = &args.out {
        let files = pages.iter().map(|page| (format!("{}.1", page.name), &*page.text));
        output::replace_own(
            folder,
            "manual pages",
            MANUAL,
            args.overwrite,
            &files.collect::<Vec<_>>(),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args
        .page
        .as_ref()
        .map_or("culeak".to_owned(), |page| format!("culeak-{page}"));
    let page = pages.iter().find(|page| page.name == name).ok_or_else(|| {
        let names = pages.iter().filter_map(|page| page.name.strip_prefix("culeak-"));
        let names = names.collect::<Vec<_>>().join(", ");
        Failure::new(format!("{name}: no such page; there are pages for {names}"))
    })?;
    text::print(|out| out.write_all(&page.text))?;
    Ok(ExitCode::SUCCESS)
}

/// At the top of every page; identifies pages that this program wrote.
const MANUAL: &str = "culeak manual";

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
    // Its lines are tables and examples, which the viewer must not fill: clap_mangen's own section would.
    let notes = command
        .get_after_help()
        .map(|notes| notes.to_string())
        .unwrap_or_default();
    let mut section = Roff::new();
    section.control("SH", ["NOTES"]).control("nf", []);
    for line in notes
        .lines()
        .chain(["", "Environment variables: culeak help environment"])
    {
        section.text([roman(line)]);
    }
    section.control("fi", []);
    let man = Man::new(command.after_help(Resettable::<StyledStr>::Reset))
        .title(name.to_uppercase())
        .manual(MANUAL)
        .source(concat!("culeak ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    // Writing to a vector cannot fail.
    man.render(&mut text).unwrap_or_default();
    text.extend(section.to_roff().bytes());
    Page { name, text }
}
