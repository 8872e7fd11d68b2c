//! `culeak completions`: what a shell needs to complete the command line, generated from the definitions it is parsed with.
//!
//! Deliberately absent: process ids and recordings as candidates; those change, and the script does not run this program.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use crate::args;
use crate::errors::Failure;
use crate::text;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  culeak completions bash > ~/.local/share/bash-completion/completions/culeak
  culeak completions zsh > ~/.zfunc/_culeak            with ~/.zfunc in fpath
  culeak completions fish > ~/.config/fish/completions/culeak.fish")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

pub fn execute(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::public(), "culeak", &mut script);
    text::print(|out| out.write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_is_told_of_every_command_and_of_none_that_is_hidden() {
        for &shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::public(), "culeak", &mut script);
            let script = String::from_utf8(script).expect("text");
            for command in args::public().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            assert!(!script.contains("probe") && !script.contains("demo-program"), "{shell}");
        }
    }
}
