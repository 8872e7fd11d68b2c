//! `culeak snapshot`: the state of a process as a JSON file, which can be read without the process and its binaries.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::document::counted;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::load::NameArgs;
use crate::output::{self, Overwrite};
use crate::{json, load, progress, usage};

/// Write a snapshot of a process to a JSON file, without stopping the process
#[derive(Debug, Args)]
#[command(after_help = "\
docs/snapshot.schema.json describes the format. As with a recording, only its owner can read the file.

Examples:
  culeak snapshot --list                 list the processes that use CUDA
  culeak snapshot 4711 -o before.json
  culeak snapshot 4711 --why -o why.json    with what holds the memory: culeak why why.json
  culeak snapshot 4711 --why --host -o a.json    with its host memory, too: culeak diff a.json b.json
  culeak snapshot --all -o before        all recorded processes, one file each in the folder before
  culeak snapshot 4711 -o - | ssh desk culeak report -")]
pub struct SnapshotArgs {
    /// Process id, recording or snapshot
    #[arg(value_name = "PID|RECORDING", required_unless_present_any = ["list", "all"])]
    pub input: Option<OsString>,
    /// Output file; -: standard output; with --all: a folder, created if necessary
    #[arg(short, long, value_name = "FILE.json", required_unless_present = "list")]
    pub output: Option<PathBuf>,
    /// Also store what holds the memory (culeak why); the process must be running
    #[arg(long, conflicts_with_all = ["no_symbols", "list"])]
    pub why: bool,
    /// With --why, also store what the host memory of the process is used for, for culeak why --host and culeak diff --host
    #[arg(long, requires = "why")]
    pub host: bool,
    /// Write addresses without names; they can be looked up later where the binaries are
    #[arg(long)]
    pub no_symbols: bool,
    #[command(flatten)]
    pub names: NameArgs,
    /// List the processes of this user that use CUDA, recorded or not
    #[arg(long, conflicts_with_all = ["input", "output"])]
    pub list: bool,
    /// Take a snapshot of every recorded process of this user
    #[arg(long, conflicts_with_all = ["input", "list"])]
    pub all: bool,
    /// Print the list as JSON
    #[arg(long, requires = "list")]
    pub json: bool,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

pub fn execute(args: &SnapshotArgs) -> Result<ExitCode, Failure> {
    let Some(path) = &args.output else {
        return super::list::execute(args.json);
    };
    let Some(input) = &args.input else {
        return all(args, path);
    };
    output::check(path, args.overwrite)?;
    take(args, input, path)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes one file per process; an unreadable process makes the exit code 2.
fn all(args: &SnapshotArgs, folder: &Path) -> Result<ExitCode, Failure> {
    let shown = folder.display().to_string();
    if output::is_standard_output(folder) {
        return Err(Failure::new(format!(
            "{shown}: --all writes one file per process; name a folder"
        )));
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
            // The process has ended.
            Err(_) if !load::process_lives(pid) => {}
            Err(failure) => {
                progress::fail(&failure);
                failed = true;
            }
        }
    }
    let snapshots = counted(taken as u64, "snapshot");
    progress::note(format_args!("{snapshots} in {}", Escaped(&shown)));
    Ok(ExitCode::from(if failed || taken == 0 { USAGE } else { 0 }))
}

/// `app.4711.json`. The process id is added if the recording's name lacks it: recordings in two folders, or in one folder
/// used by two containers, may have the same name.
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
    let place = load::single(input)?;
    let mut loaded = load::holders::read(&place, args.host, load::Place::load_with_totals)?;
    usage::ask_driver(&mut loaded);
    if !args.no_symbols {
        args.names.name_frames(&mut loaded);
    }
    if args.why {
        load::holders::of_place(&mut loaded, &place, args.host)?;
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
    fn processes_with_equally_named_recordings_get_different_files() {
        let name = |recording: &str, pid| file_name(Path::new(recording), pid);
        assert_eq!(name("/a/job.culeak", 7), "job.7.json");
        assert_eq!(name("/b/job.culeak", 8), "job.8.json");
        assert_eq!(name("/a/job.k3f9.host.7.culeak", 7), "job.k3f9.host.7.json");
        // Each in its own pid namespace, where both are number 7.
        assert_ne!(name("/a/job.host.7.culeak", 107), name("/b/job.host.7.culeak", 108));
    }
}
