//! `culeak push`: profiles and metrics of processes, sent to servers that people already have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::errors::Failure;
use crate::options::NameArgs;
use crate::text::units;

/// Send profiles or metrics of processes to a server
#[derive(Debug, Args)]
#[command(after_help = "\
Secrets come from files or environment variables; no option takes one. docs/push.md describes what is sent.

Examples:
  culeak push 4711 --to http://pyroscope:4040
  culeak push runs/ --to https://pyroscope.example --user 1234 --password-file key --queue /var/lib/culeak/queue
  culeak push runs/ --to http://victoriametrics:8428/opentelemetry --as otlp-metrics --every 1m
  culeak push runs/ --to https://collector:4318 --as otlp-profiles --ca-file ca.pem --label team=vision
  culeak push --queue /var/lib/culeak/queue --to https://pyroscope.example      only what waits in the queue")]
#[cfg_attr(not(feature = "push"), allow(dead_code))]
pub struct PushArgs {
    /// Process ids, recordings, snapshots, folders of these, patterns, or -. Without inputs, only the queue is sent
    #[arg(required_unless_present = "queue", value_name = "PID|RECORDING|SNAPSHOT")]
    pub inputs: Vec<OsString>,
    /// The server's URL, without user name and password; the path of the protocol is added to it
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// What to send
    #[arg(long = "as", value_name = "PROTOCOL", default_value = "pyroscope")]
    pub protocol: ProtocolArg,
    /// Send again every T (30s, 1m) until interrupted, or until all named processes have ended
    #[arg(long, value_name = "T", value_parser = units::parse_duration)]
    pub every: Option<Duration>,
    /// Name of the service [default: OTEL_SERVICE_NAME, else the program's name]
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Label job_id [default: the launcher's name for the run]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Another label; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// otlp-metrics: call sites with metrics of their own
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Keep what cannot be sent yet in this folder, which is created; it survives a crash and may be shared by processes
    #[arg(long, value_name = "DIR")]
    pub queue: Option<PathBuf>,
    /// Keep at most SIZE in the queue; the oldest requests are dropped
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = units::parse_size)]
    pub queue_bytes: u64,
    /// Give up after T without success
    #[arg(long, value_name = "T", default_value = "1m", value_parser = units::parse_duration)]
    pub retry_for: Duration,
    /// Time limit of one attempt
    #[arg(long, value_name = "T", default_value = "30s", value_parser = units::parse_duration)]
    pub timeout: Duration,
    /// Trust these certificates (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// File that contains a bearer token
    #[arg(long, value_name = "FILE", conflicts_with_all = ["token_env", "user"])]
    pub token_file: Option<PathBuf>,
    /// Environment variable that contains a bearer token
    #[arg(long, value_name = "VARIABLE", conflicts_with = "user")]
    pub token_env: Option<String>,
    /// User name for basic authentication
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// File that contains the password of --user
    #[arg(long, value_name = "FILE", requires = "user", conflicts_with = "password_env")]
    pub password_file: Option<PathBuf>,
    /// Environment variable that contains the password of --user
    #[arg(long, value_name = "VARIABLE", requires = "user")]
    pub password_env: Option<String>,
    /// File of further headers, one `Name: value` each line
    #[arg(long, value_name = "FILE")]
    pub header_file: Option<PathBuf>,
    /// Tenant: the header X-Scope-OrgID
    #[arg(long, value_name = "ID")]
    pub tenant: Option<String>,
    /// Send credentials unencrypted over http to other machines
    #[arg(long)]
    pub allow_plain_credentials: bool,
    #[command(flatten)]
    pub names: NameArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProtocolArg {
    /// Profiles of live memory, for Pyroscope
    Pyroscope,
    /// Profiles of live memory, for OpenTelemetry receivers; the protocol is in development
    OtlpProfiles,
    /// The metrics of `culeak metrics`, for OpenTelemetry receivers
    OtlpMetrics,
}

/// `name=value` with a name that every server takes.
fn parse_label(text: &str) -> Result<(String, String), String> {
    const LONGEST: usize = 1024;
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with("__")
        && name.len() <= 128;
    if !is_name {
        return Err("the name must consist of letters, digits and _, and begin with neither a digit nor __".to_owned());
    }
    if value.is_empty() || value.len() > LONGEST || value.chars().any(char::is_control) {
        return Err(format!(
            "the value must have 1 to {LONGEST} bytes and no control characters"
        ));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(not(feature = "push"))]
pub fn execute(_: &PushArgs) -> Result<ExitCode, Failure> {
    Err(Failure::new(crate::errors::not_in_this_build("cannot push")))
}

#[cfg(feature = "push")]
pub fn execute(args: &PushArgs) -> Result<ExitCode, Failure> {
    rounds::execute(args)
}

#[cfg(feature = "push")]
mod rounds;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_name_that_every_server_takes() {
        assert_eq!(parse_label("team=a=b"), Ok(("team".to_owned(), "a=b".to_owned())));
        for bad in ["team", "=x", "1a=x", "a-b=x", "__name__=x", "a=", "a=b\nc", "ä=x"] {
            assert!(parse_label(bad).is_err(), "{bad}");
        }
    }
}
