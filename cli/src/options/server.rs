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
}
