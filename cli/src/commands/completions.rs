//! `culeak completions`: completion scripts for shells, generated from the definition of the command line.
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
  culeak completions bash --out ~/.local/share/bash-completion/completions
  culeak completions zsh --out ~/.zfunc                with ~/.zfunc in fpath
  culeak completions fish --out ~/.config/fish/completions
  culeak completions elvish > culeak.elv")]
pub struct CompletionsArgs {
    /// Shell to complete in
    pub shell: Shell,
    /// Write the script to this folder, created if necessary, under the name that the shell expects
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

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
    output::create_folder(folder, "completions", "--out")?;
    let path = folder.join(file_name(args.shell));
    let is_ours = |content: &[u8]| content.windows(NAME.len()).any(|window| window == NAME.as_bytes());
    output::create(&path, args.overwrite.or_ours(&path, is_ours), |out| {
        out.write_all(&script)
    })?;
    progress::note(Escaped(&path.display().to_string()));
    Ok(ExitCode::SUCCESS)
}

const NAME: &str = "culeak";

/// The values of arguments that are not options, such as the guides of `culeak help`: clap's script for fish lacks them.
fn arguments_for_fish(whole: &clap::Command) -> String {
    let mut lines = String::new();
    for command in whole.get_subcommands() {
        let values = command.get_positionals().flat_map(clap::Arg::get_possible_values);
        let names: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
        if !names.is_empty() {
            // The condition is a function of clap's script.
            lines += &format!(
                "complete -c {NAME} -n \"__fish_{NAME}_using_subcommand {}\" -f -a \"{}\"\n",
                command.get_name(),
                names.join(" ")
            );
        }
    }
    lines
}

fn file_name(shell: Shell) -> String {
    match shell {
        // Every version of bash-completion loads the bare name; only some load other names.
        Shell::Bash => NAME.to_owned(),
        shell => shell.file_name(NAME),
    }
}
