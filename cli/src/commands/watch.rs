//! `culeak watch`: one agent for recorded processes: it serves or writes their figures, sends them, or keeps them as a dataset.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use culeak_metrics::agent::Agent;

use super::dataset::{self, DatasetArgs, Wanted};
use super::send;
use crate::errors::Failure;
use crate::load::NameArgs;
use crate::monitor::{self, EVERY, PORT, Reading, SeriesArgs};
use crate::options::categories::CategoryArgs;
use crate::options::parse_interval;
use crate::options::server::ServerArgs;
use crate::output::Overwrite;
use crate::text::units;

/// Without `--every`, the time between two requests for a process, and between two points of a dataset.
const SEND_EVERY: Duration = Duration::from_secs(60);
const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// Read recorded processes again and again: serve their figures to Prometheus, send them to a server, or keep them as a dataset
#[derive(Debug, Args)]
#[command(after_help = "\
Runs until SIGTERM or Ctrl-C; with --to and --dataset also until the processes have ended. Subfolders are searched too, and recordings that \
appear later are found. The recorded processes are not touched. Without a destination it serves http://127.0.0.1:9477/metrics. \
docs/fleet.md describes what is written, and has a systemd unit.

Exit code: 0 after a signal, or if all was read and sent; 2 if something was not, or the agent cannot start.

Examples:
  culeak watch /var/lib/culeak/recordings
  culeak watch runs/ --textfile /var/lib/prometheus/node-exporter/culeak.prom
  culeak watch runs/ --to http://pyroscope:4040 --every 1m
  culeak watch runs/ --dataset dataset --job train-7 --every 10m")]
pub struct WatchArgs {
    /// Folders of recordings, patterns, process ids, recordings [default: the folder of CULEAK_OUTPUT, or the current one]
    #[arg(value_name = "FOLDER|PID|RECORDING")]
    pub inputs: Vec<OsString>,
    #[command(flatten)]
    pub series: SeriesArgs,
    /// Write what processes hold to this Parquet dataset, a folder, which is created if it is missing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["listen", "textfile", "to"])]
    pub dataset: Option<PathBuf>,
    /// Look for changes at this interval, from 100ms to 1d [default: 15s; --to: 1m; --dataset: 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub every: Option<Duration>,
    /// The job: the label job_id of all series, or the column of a dataset [default: --to, --dataset: what its launcher calls it]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Export series for N call sites of each process; the rest is one series, other [default: 10; --to: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=200))]
    pub top: Option<u16>,
    /// Export series for N processes; the rest is left out
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub processes: u16,
    /// Leave out processes in folders that ended longer ago
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::parse_duration)]
    pub forget: Duration,
    #[command(flatten)]
    pub table: DatasetArgs,
    #[command(flatten)]
    pub categories: CategoryArgs,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub fn execute(args: &WatchArgs) -> Result<ExitCode, Failure> {
    let default = [default_folder().into_os_string()];
    let inputs = match args.inputs.as_slice() {
        [] => &default,
        inputs => inputs,
    };
    let top = args.top.map(usize::from);
    let every = |default| Some(args.every.unwrap_or(default));
    let mut wanted = Wanted {
        inputs,
        every: every(COLLECT_EVERY),
        job: args.job.as_deref(),
        top,
        at: None,
        with_blocks: !args.table.no_blocks,
        categories: args.categories.read()?,
        names: &args.names,
    };
    if let Some(folder) = &args.dataset {
        return dataset::write(folder, wanted);
    }
    if let Some(to) = &args.server.to {
        wanted.every = every(SEND_EVERY);
        return send::execute(to, &args.server, &wanted);
    }
    serve(args, inputs, top)
}

fn serve(args: &WatchArgs, inputs: &[OsString], top: Option<usize>) -> Result<ExitCode, Failure> {
    let mut series = args.series.clone();
    if series.listen.is_none() && series.textfile.is_none() {
        series.listen = Some(([127, 0, 0, 1], PORT).into());
    }
    series.check(args.overwrite)?;
    let every = args.every.unwrap_or(EVERY);
    let mut settings = monitor::settings(args.job.as_deref(), top);
    settings.interval = every;
    settings.processes = args.processes.into();
    settings.forget = Some(args.forget);
    monitor::sort(inputs, &mut settings)?;
    let reading = Reading::new(args.names.clone());
    monitor::run(Agent::new(settings), reading, Some(every), || {
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
