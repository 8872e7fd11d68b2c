//! What `metrics`, `push` and `collect` share: inputs that are read once, or again and again.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::NameArgs;
use crate::text::units;

#[derive(Debug, Clone, Args)]
pub struct AgainArgs {
    /// Process ids, recordings, snapshots, folders of these (new ones are found), patterns; push: also - for a snapshot or a list
    #[arg(value_name = "PID|RECORDING|SNAPSHOT", required = true)]
    pub inputs: Vec<OsString>,
    /// Read again at this interval, from 100ms to 1d [default: once]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub every: Option<Duration>,
    /// The job: the label job_id, or the column of a dataset [default: push, collect: what its scheduler or launcher calls it]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    #[command(flatten)]
    pub names: NameArgs,
}

/// Parses a time between two readings.
///
/// # Errors
/// The text is no time, or one that is not allowed.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(86_400);
    (allowed.contains(&time).then_some(time)).ok_or_else(|| "expected a time from 100ms to 1d".to_owned())
}
