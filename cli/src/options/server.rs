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
    /// The metrics of `culeak watch`, for OpenTelemetry receivers
    OtlpMetrics,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Servers")]
#[cfg_attr(not(feature = "push"), allow(dead_code))]
pub struct ServerArgs {
    /// Send to this server: its URL, without user name and password; the path of the protocol is added to it
    #[arg(long, value_name = "URL")]
    pub to: Option<String>,
    /// What to send
    #[arg(long = "as", value_name = "PROTOCOL", default_value = "pyroscope", requires = "to")]
    pub protocol: Protocol,
    /// Name of the service [default: OTEL_SERVICE_NAME, else the program's name]
    #[arg(long, value_name = "NAME", requires = "to")]
    pub service: Option<String>,
    /// Another label; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label, requires = "to")]
    pub label: Vec<(String, String)>,
    /// Give up after T without success
    #[arg(long, value_name = "T", default_value = "1m", value_parser = units::parse_duration, requires = "to")]
    pub retry_for: Duration,
    /// Time limit of one attempt
    #[arg(long, value_name = "T", default_value = "30s", value_parser = units::parse_duration, requires = "to")]
    pub timeout: Duration,
    /// Trust these certificates (PEM) instead of the system's
    #[arg(long, value_name = "FILE", requires = "to")]
    pub ca_file: Option<PathBuf>,
    /// File of headers with credentials, one `Name: value` each line, as for curl -H @FILE
    #[arg(long, value_name = "FILE", conflicts_with = "header_env", requires = "to")]
    pub header_file: Option<PathBuf>,
    /// Environment variable that contains such lines
    #[arg(long, value_name = "VARIABLE", requires = "to")]
    pub header_env: Option<String>,
    /// Send credentials unencrypted over http to other machines
    #[arg(long, requires = "to")]
    pub allow_plain_credentials: bool,
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
