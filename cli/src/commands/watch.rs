//! `culeak watch`: one agent for all recorded processes of a machine, which serves figures and keeps snapshots.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use culeak_metrics::agent::Agent;
use culeak_metrics::keep::{Keeper, Policy};
use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_NOFOLLOW;

use crate::errors::Failure;
use crate::monitor::{self, PORT, Reading, SeriesArgs};
use crate::options::NameArgs;
use crate::options::again::parse_interval;
use crate::output::Overwrite;
use crate::text::units;

/// Watch all recordings of a machine: serve their figures to Prometheus, and keep snapshots
#[derive(Debug, Args)]
#[command(after_help = "\
Runs until SIGTERM or Ctrl-C. Subfolders are searched too, and recordings that appear later are found. The recorded processes are \
not touched. Without --listen and --textfile it serves http://127.0.0.1:9477/metrics. docs/watch.md describes a systemd unit.

Exit code: 0 after a signal; 2 if the agent cannot start.

Examples:
  culeak watch /var/lib/culeak/recordings
  culeak watch runs/ --textfile /var/lib/prometheus/node-exporter/culeak.prom --no-snapshots
  culeak trend ~/.local/state/culeak/snapshots               growth over the snapshots that were kept")]
pub struct WatchArgs {
    /// Folders of recordings [default: the folder of CULEAK_OUTPUT, or the current one]
    #[arg(value_name = "FOLDER")]
    pub folders: Vec<OsString>,
    #[command(flatten)]
    pub series: SeriesArgs,
    /// The label job_id of all series
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Look for changes at this interval, from 100ms to 1d
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_interval)]
    pub every: Duration,
    /// Leave out processes that ended longer ago
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::parse_duration)]
    pub forget: Duration,
    /// Keep snapshots in DIR/snapshots [default: $STATE_DIRECTORY, $XDG_STATE_HOME/culeak or ~/.local/state/culeak]
    #[arg(long, value_name = "DIR", conflicts_with = "no_snapshots")]
    pub state: Option<PathBuf>,
    /// Keep no snapshots
    #[arg(long)]
    pub no_snapshots: bool,
    /// Take a snapshot of each running process that has changed, at this interval
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::parse_duration)]
    pub snapshot_every: Duration,
    /// Keep the last N snapshots of each process
    #[arg(long, value_name = "N", default_value = "24", value_parser = clap::value_parser!(u16).range(1..))]
    pub keep: u16,
    /// Keep at most SIZE of snapshots; the oldest are removed
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = units::parse_size)]
    pub keep_bytes: u64,
    /// Remove older snapshots
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = units::parse_duration)]
    pub keep_for: Duration,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

pub fn execute(args: &WatchArgs) -> Result<ExitCode, Failure> {
    let mut series = args.series.clone();
    if series.listen.is_none() && series.textfile.is_none() {
        series.listen = Some(([127, 0, 0, 1], PORT).into());
    }
    series.check(args.overwrite)?;
    let mut settings = series.settings(args.job.as_deref(), Some(args.every));
    settings.forget = Some(args.forget);
    settings.folders = match args.folders.as_slice() {
        [] => vec![default_folder()],
        folders => folders.iter().map(PathBuf::from).collect(),
    };
    if let Some(file) = settings.folders.iter().find(|folder| folder.is_file()) {
        return Err(Failure::new(format!(
            "{}: is a file; name its folder, or use culeak metrics",
            file.display()
        )));
    }
    let (keeper, _lock) = match args.no_snapshots {
        true => (None, None),
        false => {
            let (keeper, lock) = keeper(args)?;
            (Some(keeper), Some(lock))
        }
    };
    let agent = Agent::new(settings, keeper);
    let reading = Reading::new(args.names.clone());
    monitor::run(agent, reading, Some(args.every), || series.outlets(args.overwrite))?;
    Ok(ExitCode::SUCCESS)
}

/// The folder in which programs record by default.
fn default_folder() -> PathBuf {
    let output = env::var_os("CULEAK_OUTPUT").filter(|output| !output.is_empty());
    let folder = output.map(PathBuf::from).and_then(|output| match output.is_dir() {
        true => Some(output),
        false => output.parent().map(Path::to_path_buf),
    });
    folder
        .filter(|folder| !folder.as_os_str().is_empty() && !folder.to_string_lossy().contains('%'))
        .unwrap_or_else(|| PathBuf::from("."))
}

/// The snapshots on disk, and a lock on them until the process ends.
fn keeper(args: &WatchArgs) -> Result<(Keeper, Flock<File>), Failure> {
    let state = args.state.clone().or_else(default_state).ok_or_else(|| {
        Failure::new(
            "no folder for snapshots is known: HOME is not set; name one with --state DIR, or use --no-snapshots",
        )
    })?;
    let folder = state.join("snapshots");
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(format!(
            "{}: {what}: {error}; name another folder with --state DIR, or use --no-snapshots",
            folder.display()
        ))
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| failed("cannot be created", &error))?;
    let lock = open_lock(&state.join("lock")).map_err(|error| failed("cannot be locked", &error))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => failed("is used by another culeak watch", &error),
        _ => failed("cannot be locked", &error),
    })?;
    let policy = Policy {
        folder: folder.clone(),
        every: args.snapshot_every,
        per_process: args.keep.into(),
        bytes: args.keep_bytes,
        age: args.keep_for,
    };
    let keeper = Keeper::open(policy).map_err(|error| failed("cannot be listed", &error))?;
    Ok((keeper, lock))
}

/// Opens the lock file. A symbolic link, and a file of another user, are errors.
fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(O_NOFOLLOW).open(path)?;
    let metadata = file.metadata()?;
    let is_ours = metadata.is_file() && metadata.uid() == nix::unistd::geteuid().as_raw();
    let other = || {
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the file lock is not a file of this user",
        )
    };
    is_ours.then_some(file).ok_or_else(other)
}

fn default_state() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // Systemd separates several folders with colons.
    let by_systemd = variable("STATE_DIRECTORY").filter(|folder| !folder.to_string_lossy().contains(':'));
    by_systemd
        .or_else(|| Some(variable("XDG_STATE_HOME")?.join("culeak")))
        .or_else(|| Some(variable("HOME")?.join(".local/state/culeak")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_follows_no_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("precious"), folder.path().join("lock"));
        fs::write(&target, "text").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        assert!(open_lock(&link).is_err());
        assert_eq!(fs::read(&target).expect("readable"), b"text");
        fs::remove_file(&link).expect("removed");
        assert!(open_lock(&link).is_ok() && open_lock(&link).is_ok());
        assert!(open_lock(Path::new("/dev/null")).is_err());
    }
}
