//! `culeak environment`: the environment variables of the preload library and of this program.
//!
//! `culeak help environment` and the manual page list the same; the source of all is `culeak::variables`.

use std::process::ExitCode;

use clap::Args;
use culeak::variables::{ALL, Variable};

use crate::errors::Failure;
use crate::text;

/// List the environment variables that culeak reads, with their values and defaults
#[derive(Debug, Args)]
#[command(after_help = format!("{}\n\nExamples:\n  culeak environment | grep -A1 SNAPSHOT", list()))]
pub struct EnvironmentArgs {}

pub fn execute(_args: &EnvironmentArgs) -> Result<ExitCode, Failure> {
    text::print(|out| writeln!(out, "{}", list()))?;
    Ok(ExitCode::SUCCESS)
}

/// Each variable with its values, meaning and default.
pub fn list() -> String {
    let mut list = "Environment variables:".to_owned();
    for variable in ALL {
        list.push_str(&format!("\n  {}\n      {}", variable.name(), meaning(variable)));
    }
    list.push_str(
        "\n\n`culeak run` refuses wrong values and unknown names. Without `culeak run`, the preload library reports them on standard \
         error and ignores them.\nSizes: 4096, 64MiB (powers of 1024), 64MB (powers of 1000). Times: 500ms, 10s, 1m, 2h; a \
         bare number means seconds.",
    );
    list
}

/// The meaning and the default of a variable, as plain text.
pub fn meaning(variable: &Variable) -> String {
    let default = match variable.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    // The backticks are Markdown, for docs/environment.md.
    format!("{}{default}", variable.meaning).replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_same_table() {
        let page = include_str!("../../../docs/environment.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `CULEAK_")).collect();
        let expected: Vec<String> = ALL
            .iter()
            .map(|variable| {
                let default = if variable.default.is_empty() {
                    " ".to_owned()
                } else {
                    format!(" {} ", variable.default)
                };
                format!("| `{}` | {} |{default}|", variable.name(), variable.meaning)
            })
            .collect();
        assert_eq!(
            rows,
            expected,
            "the table of docs/environment.md:\n{}",
            expected.join("\n")
        );
    }

    #[test]
    fn every_variable_is_listed() {
        let list = list();
        for variable in ALL {
            assert!(list.contains(&format!("\n  {}\n", variable.name())), "{list}");
        }
    }
}
