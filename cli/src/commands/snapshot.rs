//! `culeak snapshot`: one instant of a process as a JSON file that needs neither the process nor its binaries.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::NameArgs;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::output::{self, Overwrite};
use crate::text::units;
use crate::{json, load, progress, usage};

/// Write what a process holds right now to a JSON file, without stopping it
#[derive(Debug, Args)]
#[command(after_help = "\
The format is described by docs/snapshot.schema.json. Like a recording, the file can be read by its owner alone.

Examples:
  culeak snapshot --list                 which processes can be looked at
  culeak snapshot 4711 -o before.json
  culeak snapshot --all -o before        all of them, one file each in the folder before
  culeak snapshot 4711 -o - | ssh desk culeak report -")]
pub struct SnapshotArgs {
    /// Process id, recording or snapshot
    #[arg(value_name = "PID|RECORDING", required_unless_present_any = ["list", "all"])]
    pub input: Option<OsString>,
    /// Where to write; - for standard output; with --all a folder, which is made
    #[arg(short, long, value_name = "FILE.json", required_unless_present = "list")]
    pub output: Option<PathBuf>,
    /// Keep addresses only; names can be looked up later where the binaries are
    #[arg(long)]
    pub no_symbols: bool,
    #[command(flatten)]
    pub names: NameArgs,
    /// List the processes of this user that are being recorded
    #[arg(long, conflicts_with_all = ["input", "output"])]
    pub list: bool,
    /// Take a snapshot of every process of this user that is being recorded
    #[arg(long, conflicts_with_all = ["input", "list"])]
    pub all: bool,
    /// Print the list as JSON
    #[arg(long, requires = "list")]
    pub json: bool,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

pub fn execute(args: &SnapshotArgs) -> Result<ExitCode, Failure> {
    let path = match &args.output {
        Some(path) => path,
        None => return super::list::execute(args.json),
    };
    let Some(input) = &args.input else {
        return all(args, path);
    };
    output::check(path, args.overwrite)?;
    take(args, input, path)?;
    Ok(ExitCode::SUCCESS)
}

/// One file for each process; one that cannot be read makes the exit code 2.
fn all(args: &SnapshotArgs, folder: &Path) -> Result<ExitCode, Failure> {
    let shown = folder.display().to_string();
    if output::is_standard_output(folder) {
        return Err(Failure::new("-: --all writes a file for each process; name a folder"));
    }
    let processes = super::list::recorded()?;
    if processes.is_empty() {
        return Err(Failure::new(
            "no process of this user is being recorded; start one with `culeak run -- PROGRAM`",
        ));
    }
    output::create_folder(folder, "snapshots", "--output")?;
    let (mut taken, mut failed) = (0, false);
    for pid in processes {
        let recording = load::recording_of(pid).map(|(recording, _)| recording);
        let result = recording.and_then(|recording| {
            take(
                args,
                OsStr::new(&pid.to_string()),
                &folder.join(file_name(&recording, pid)),
            )
        });
        match result {
            Ok(()) => taken += 1,
            // It ended meanwhile.
            Err(_) if !load::process_lives(pid) => {}
            Err(failure) => {
                progress::fail(&failure);
                failed = true;
            }
        }
    }
    progress::say(format_args!(
        "{} in {}",
        units::plural(taken, "snapshot", "snapshots"),
        Escaped(&shown)
    ));
    Ok(ExitCode::from(if failed || taken == 0 { USAGE } else { 0 }))
}

/// `app.4711.json`, also where the process's id is no part of its recording's name: recordings in two folders, or of one
/// folder in two containers, may be called the same.
fn file_name(recording: &Path, pid: u32) -> OsString {
    let mut name = recording.file_stem().unwrap_or_default().to_owned();
    let pid = format!(".{pid}");
    if !name.to_string_lossy().ends_with(&pid) {
        name.push(pid);
    }
    name.push(".json");
    name
}

fn take(args: &SnapshotArgs, input: &OsStr, path: &Path) -> Result<(), Failure> {
    let mut loaded = load::one_with_totals(input)?;
    usage::ask_driver(&mut loaded);
    if !args.no_symbols {
        args.names.name_frames(&mut loaded);
    }
    output::create_private(path, args.overwrite, |out| {
        json::write(&mut *out, &loaded.snapshot)?;
        writeln!(out)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_whose_recordings_are_called_the_same_have_files_of_their_own() {
        let name = |recording: &str, pid| file_name(Path::new(recording), pid);
        assert_eq!(name("/a/job.culeak", 7), "job.7.json");
        assert_eq!(name("/b/job.culeak", 8), "job.8.json");
        assert_eq!(name("/a/job.k3f9.host.7.culeak", 7), "job.k3f9.host.7.json");
        // Each in its own pid namespace, where both are number 7.
        assert_ne!(name("/a/job.host.7.culeak", 107), name("/b/job.host.7.culeak", 108));
    }
}
