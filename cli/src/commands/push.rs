//! `culeak push`: profiles and metrics of processes, sent to servers that people already have.

use std::process::ExitCode;

use clap::Args;

use crate::errors::Failure;
use crate::options::again::AgainArgs;
use crate::options::server::{Protocol, ServerArgs};

/// Send profiles or metrics of processes to a server
#[derive(Debug, Args)]
#[command(after_help = "\
Credentials are headers from a file or an environment variable; no option takes a secret itself. docs/push.md describes what is sent.

Examples:
  culeak push 4711 --to http://pyroscope:4040
  culeak push runs/ --to https://pyroscope.example --header-file headers
  culeak push runs/ --to http://victoriametrics:8428/opentelemetry --as otlp-metrics --every 1m
  culeak push runs/ --to https://collector:4318 --as otlp-profiles --ca-file ca.pem --label team=vision")]
#[cfg_attr(not(feature = "push"), allow(dead_code))]
pub struct PushArgs {
    #[command(flatten)]
    pub again: AgainArgs,
    /// The server's URL, without user name and password; the path of the protocol is added to it
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// What to send
    #[arg(long = "as", value_name = "PROTOCOL", default_value = "pyroscope")]
    pub protocol: Protocol,
    /// Name of the service [default: OTEL_SERVICE_NAME, else the program's name]
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Another label; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// otlp-metrics: call sites with metrics of their own
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    #[command(flatten)]
    pub server: ServerArgs,
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
