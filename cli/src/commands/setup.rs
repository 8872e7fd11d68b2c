//! `culeak setup`: the files that a package installs beside the command: the headers of the client API, and what is generated from the
//! definition of the command line.
//!
//! There is a manual page for the program and one for each command, as in git: culeak(1), culeak-run(1), … Deliberately absent:
//! installing the files, which packages do, and process ids and recordings as candidates of completions: the scripts do not run this
//! program.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{Resettable, StyledStr};
use clap::{Args, Command, Subcommand};
use clap_complete::{Generator, Shell};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::output::{self, Overwrite};
use crate::{progress, text};

/// Print or write the completions of a shell, the manual pages, or culeak.h
#[derive(Debug, Args)]
pub struct SetupArgs {
    #[command(subcommand)]
    pub part: Part,
}

#[derive(Debug, Subcommand)]
pub enum Part {
    /// Print a completion script for a shell, or write it to a folder
    #[command(after_help = "\
Examples:
  culeak setup completions bash --out ~/.local/share/bash-completion/completions
  culeak setup completions zsh --out ~/.zfunc                with ~/.zfunc in fpath
  culeak setup completions fish --out ~/.config/fish/completions
  culeak setup completions elvish > culeak.elv")]
    Completions {
        /// Shell to complete in
        shell: Shell,
        /// Write the script to this folder, created if necessary, under the name that the shell expects
        #[arg(short, long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        overwrite: Overwrite,
    },
    /// Print a manual page, or write all pages to a folder
    #[command(after_help = "\
Examples:
  culeak setup man run | man -l -
  culeak setup man --out ~/.local/share/man/man1")]
    Man {
        /// Print the page of this command [default: culeak itself]
        #[arg(value_name = "COMMAND")]
        page: Option<String>,
        /// Write all pages to this folder instead
        #[arg(short, long, value_name = "DIR", conflicts_with = "page")]
        out: Option<PathBuf>,
        #[command(flatten)]
        overwrite: Overwrite,
    },
    /// Print culeak.h, by which a program reports what culeak cannot observe, or write it and culeak_rmm.hpp to a folder
    Header {
        /// Write both headers to this folder instead
        #[arg(short, long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        overwrite: Overwrite,
    },
}

const NAME: &str = "culeak";
/// At the top of every page; identifies pages that this program wrote.
const MANUAL: &str = "culeak manual";

const HEADERS: [(&str, &str); 2] = [
    ("culeak.h", include_str!("../../help/culeak.h")),
    ("culeak_rmm.hpp", include_str!("../../help/culeak_rmm.hpp")),
];
/// In the first line of every header.
const HEADER: &str = ": reports to culeak ";

/// A file, and the name that its readers expect.
pub type File = (String, Vec<u8>);

/// `whole`: the command line that the files describe.
///
/// # Errors
/// A file cannot be written, or the command has no page.
pub fn execute(args: &SetupArgs, mut whole: Command) -> Result<ExitCode, Failure> {
    let (files, printed, [what, mark], out, overwrite) = match &args.part {
        Part::Completions { shell, out, overwrite } => {
            let script = completions(*shell, &mut whole);
            (vec![script], 0, ["completions", NAME], out, overwrite)
        }
        Part::Man { page, out, overwrite } => {
            let pages = pages(whole);
            let printed = page_of(page.as_deref(), &pages)?;
            (pages, printed, ["manual pages", MANUAL], out, overwrite)
        }
        Part::Header { out, overwrite } => {
            let files = HEADERS.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
            (files.into(), 0, ["headers", HEADER], out, overwrite)
        }
    };
    let Some(folder) = out else {
        text::print(|out| out.write_all(&files[printed].1))?;
        return Ok(ExitCode::SUCCESS);
    };
    output::replace_own(folder, what, mark, *overwrite, &files)?;
    if let [(name, _)] = files.as_slice() {
        progress::note(Escaped(&folder.join(name).display().to_string()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The completion script of a shell.
fn completions(shell: Shell, whole: &mut Command) -> File {
    let mut script = Vec::new();
    clap_complete::generate(shell, whole, NAME, &mut script);
    let name = match shell {
        // Every version of bash-completion loads the bare name; only some load other names.
        Shell::Bash => NAME.to_owned(),
        shell => shell.file_name(NAME),
    };
    if shell == Shell::Fish {
        script.extend(arguments_for_fish(whole).bytes());
    }
    (name, script)
}

/// The values of arguments that are not options, such as the guides of `culeak help`: clap's script for fish lacks them.
fn arguments_for_fish(whole: &Command) -> String {
    let line = |command: &Command| {
        let values = command.get_positionals().flat_map(clap::Arg::get_possible_values);
        let names: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
        let (command, names) = (command.get_name(), names.join(" "));
        // The condition is a function of clap's script.
        format!("complete -c {NAME} -n \"__fish_{NAME}_using_subcommand {command}\" -f -a \"{names}\"\n")
    };
    let lines = whole.get_subcommands().map(line);
    lines.filter(|line| !line.ends_with("\"\"\n")).collect()
}

/// The index of the page of a command, or of the program for `None`.
fn page_of(command: Option<&str>, pages: &[File]) -> Result<usize, Failure> {
    let name = command.map_or(NAME.to_owned(), |command| format!("{NAME}-{command}"));
    let page = pages.iter().position(|(file, _)| *file == format!("{name}.1"));
    page.ok_or_else(|| {
        let names = pages
            .iter()
            .filter_map(|(file, _)| file.strip_prefix("culeak-")?.strip_suffix(".1"));
        let names = names.collect::<Vec<_>>().join(", ");
        Failure::new(format!("{name}: no such page; there are pages for {names}"))
    })
}

/// All manual pages; that of the program comes first.
pub fn pages(whole: Command) -> Vec<File> {
    let mut whole = whole.disable_help_subcommand(true);
    // Gives every command its full name, as in usage lines.
    whole.build();
    let commands = whole.get_subcommands().cloned().map(|command| {
        let name = format!("{NAME}-{}", command.get_name());
        page(command.display_name(&name).version(env!("CARGO_PKG_VERSION")), &name)
    });
    let mut pages: Vec<File> = commands.collect();
    pages.insert(0, page(whole, NAME));
    pages
}

fn page(command: Command, name: &str) -> File {
    // Its lines are tables and examples, which the viewer must not fill: clap_mangen's own section would.
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
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
    (format!("{name}.1"), text)
}
