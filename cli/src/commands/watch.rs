//! `culeak watch`: one agent for all recorded processes of a machine, which serves their figures.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use culeak_metrics::agent::Agent;

use crate::errors::Failure;
use crate::monitor::{self, PORT, Reading, SeriesArgs};
use crate::options::NameArgs;
use crate::options::again::parse_interval;
use crate::output::Overwrite;
use crate::text::units;

/// Watch all recordings of a machine: serve their figures to Prometheus
#[derive(Debug, Args)]
#[command(after_help = "\
Runs until SIGTERM or Ctrl-C. Subfolders are searched too, and recordings that appear later are found. The recorded processes are \
not touched. Without --listen and --textfile it serves http://127.0.0.1:9477/metrics. docs/watch.md describes a systemd unit.

Exit code: 0 after a signal; 2 if the agent cannot start.

Examples:
  culeak watch /var/lib/culeak/recordings
  culeak watch runs/ --textfile /var/lib/prometheus/node-exporter/culeak.prom")]
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
    let reading = Reading::new(args.names.clone());
    monitor::run(Agent::new(settings), reading, Some(args.every), || {
        series.outlets(args.overwrite)
    })?;
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
