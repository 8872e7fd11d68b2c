//! `culeak setup completions`: completion scripts for shells, generated from the definition of the command line.
//!
//! Deliberately absent: process ids and recordings as candidates; the script does not run this program.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap_complete::{Generator, Shell};

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::output::{self, Overwrite};
use crate::{progress, text};

/// Print a completion script for a shell, or write it to a folder
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  culeak setup completions bash --out ~/.local/share/bash-completion/completions
  culeak setup completions zsh --out ~/.zfunc                with ~/.zfunc in fpath
  culeak setup completions fish --out ~/.config/fish/completions
  culeak setup completions elvish > culeak.elv")]
pub struct CompletionsArgs {
    /// Shell to complete in
    pub shell: Shell,
    /// Write the script to this folder, created if necessary, under the name that the shell expects
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

const NAME: &str = "culeak";

/// Prints or writes the script; `whole` is the command line that it completes.
pub fn execute(args: &CompletionsArgs, mut whole: clap::Command) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole, NAME, &mut script);
    if args.shell == Shell::Fish {
        script.extend(arguments_for_fish(&whole).bytes());
    }
    let Some(folder) = &args.out else {
        text::print(|out| out.write_all(&script))?;
        return Ok(ExitCode::SUCCESS);
    };
    let name = match args.shell {
        // Every version of bash-completion loads the bare name; only some load other names.
        Shell::Bash => NAME.to_owned(),
        shell => shell.file_name(NAME),
    };
    output::replace_own(folder, "completions", NAME, args.overwrite, &[(name.clone(), &*script)])?;
    progress::note(Escaped(&folder.join(name).display().to_string()));
    Ok(ExitCode::SUCCESS)
}

/// The values of arguments that are not options, such as the guides of `culeak help`: clap's script for fish lacks them.
fn arguments_for_fish(whole: &clap::Command) -> String {
    let line = |command: &clap::Command| {
        let values = command.get_positionals().flat_map(clap::Arg::get_possible_values);
        let names: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
        let (command, names) = (command.get_name(), names.join(" "));
        // The condition is a function of clap's script.
        format!("complete -c {NAME} -n \"__fish_{NAME}_using_subcommand {command}\" -f -a \"{names}\"\n")
    };
    whole
        .get_subcommands()
        .map(line)
        .filter(|line| !line.ends_with("\"\"\n"))
        .collect()
}
