//! A server that requests are sent to: the protocol, credentials and limits of time.
//!
//! No option takes a secret itself, because other users of the machine see command lines.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::text::units;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Profiles of live memory, for Pyroscope
    Pyroscope,
    /// Profiles of live memory, for OpenTelemetry receivers; the protocol is in development
    OtlpProfiles,
    /// The metrics of `culeak metrics`, for OpenTelemetry receivers
    OtlpMetrics,
}

#[derive(Debug, Clone, Args)]
#[cfg_attr(not(feature = "push"), allow(dead_code))]
pub struct ServerArgs {
    /// Give up after T without success
    #[arg(long, value_name = "T", default_value = "1m", value_parser = units::parse_duration)]
    pub retry_for: Duration,
    /// Time limit of one attempt
    #[arg(long, value_name = "T", default_value = "30s", value_parser = units::parse_duration)]
    pub timeout: Duration,
    /// Trust these certificates (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// File of headers with credentials, one `Name: value` each line, as for curl -H @FILE
    #[arg(long, value_name = "FILE", conflicts_with = "header_env")]
    pub header_file: Option<PathBuf>,
    /// Environment variable that contains such lines
    #[arg(long, value_name = "VARIABLE")]
    pub header_env: Option<String>,
    /// Send credentials unencrypted over http to other machines
    #[arg(long)]
    pub allow_plain_credentials: bool,
}
