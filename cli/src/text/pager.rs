//! The pager: text that is longer than the terminal is shown by `less`, or by the program that the user chose.
//!
//! `CULEAK_PAGER` wins over `PAGER`; an empty value or `cat` means no pager. A pager is used only if both standard input and
//! standard output are a terminal that can move its cursor, so scripts never wait for a key. A pager that cannot be started
//! costs nothing: the text is printed as without one. Deliberately absent: text on standard error (the report of `culeak run`),
//! which belongs to the program's own output.

use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{env, fmt};

use anstream::adapter::strip_str;
use culeak::variables::PAGER;
use nix::sys::signal::{SigHandler, Signal, signal};
use terminal_size::{Height, terminal_size_of};

use super::columns;
use crate::escape::Escaped;
use crate::progress;

static CHOSEN: AtomicBool = AtomicBool::new(false);

/// Chooses whether this process may use a pager; it may not before the first call.
pub fn choose(allowed: bool) {
    CHOSEN.store(allowed, Relaxed);
}

/// Whether text is shown in a pager if it is too long for the terminal.
pub fn may_be_used() -> bool {
    let is_dumb = env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
    CHOSEN.load(Relaxed) && !is_dumb && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Shows the text in the pager, and waits until the user leaves it. Returns false if the text fits the terminal, or if there
/// is no pager: the caller prints it.
pub fn show(text: &[u8]) -> bool {
    let rows = terminal_size_of(io::stdout()).map(|(_, Height(rows))| usize::from(rows));
    let Some(rows) = rows.filter(|&rows| rows > 0) else {
        return false;
    };
    let Some(pager) = Pager::chosen().filter(|_| rows_of(text) >= rows) else {
        return false;
    };
    progress::detail(format_args!("pager: {}", Escaped(&pager.to_string())));
    match pager.run(text) {
        Ok(()) => true,
        Err(reason) => {
            // Nobody asked for the default.
            if matches!(pager, Pager::Named(_)) {
                let words = format!(
                    "note: the pager {pager} {reason}; set {} or pass --no-pager",
                    PAGER.name()
                );
                progress::note(Escaped(&words));
            }
            false
        }
    }
}

/// The rows that the text needs on the terminal.
fn rows_of(text: &[u8]) -> usize {
    let columns = columns::available().unwrap_or(usize::MAX);
    let text = String::from_utf8_lossy(text);
    let rows = text.lines().map(|line| {
        let width = columns::width(&strip_str(line).to_string());
        width.div_ceil(columns).max(1)
    });
    rows.sum()
}

enum Pager {
    Less,
    /// A command for the shell.
    Named(String),
}

impl fmt::Display for Pager {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pager::Less => out.write_str("less"),
            Pager::Named(command) => out.write_str(command),
        }
    }
}

impl Pager {
    fn chosen() -> Option<Pager> {
        let named = env::var_os(PAGER.name()).or_else(|| env::var_os("PAGER"));
        match named.map(|name| name.to_string_lossy().trim().to_owned()) {
            None => Some(Pager::Less),
            Some(command) if command.is_empty() || command == "cat" => None,
            Some(command) => Some(Pager::Named(command)),
        }
    }

    /// Shows the text. An error says why the pager did not run.
    fn run(&self, text: &[u8]) -> Result<(), String> {
        const NOT_RUN: [Option<i32>; 2] = [Some(126), Some(127)];
        let mut command = match self {
            Pager::Less => Command::new("less"),
            Pager::Named(words) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", words]);
                shell
            }
        };
        if env::var_os("LESS").is_none() {
            // Leave if it fits one screen, show colours, keep the text on the screen.
            command.env("LESS", "FRX");
        }
        let cannot_start = |error: io::Error| format!("cannot be started: {error}");
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(cannot_start)?;
        let _ignored = Ignored::new();
        if let Some(mut input) = child.stdin.take() {
            // It may end before it has read everything.
            let _ = input.write_all(text);
        }
        let status = child.wait().map_err(|error| format!("cannot be waited for: {error}"))?;
        match NOT_RUN.contains(&status.code()) {
            true => Err("was not found, or cannot be executed".to_owned()),
            false => Ok(()),
        }
    }
}

/// While it lives, Ctrl-C and Ctrl-\ reach the pager alone, which uses them for itself.
struct Ignored([SigHandler; 2]);

const KEYS: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];

impl Ignored {
    fn new() -> Ignored {
        // SAFETY: ignoring a signal runs no handler.
        Ignored(KEYS.map(|key| unsafe { signal(key, SigHandler::SigIgn) }.unwrap_or(SigHandler::SigDfl)))
    }
}

impl Drop for Ignored {
    fn drop(&mut self) {
        for (key, before) in KEYS.into_iter().zip(self.0) {
            // SAFETY: the handler was installed for this signal before.
            let _ = unsafe { signal(key, before) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_take_several_rows_and_colours_none() {
        assert_eq!(rows_of(b"one\ntwo\n\nfour\n"), 4);
        columns::with_available(40, || {
            let line = format!("\u{1b}[1m{}\u{1b}[0m\n", "x".repeat(81));
            assert_eq!(rows_of(line.as_bytes()), 3);
        });
    }
}
