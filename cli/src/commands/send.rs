//! What processes hold, sent to a server: `export --to` once, `watch --to` again and again. Each round reads the processes that have
//! changed.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use crate::errors::Failure;
use crate::options::NameArgs;
use crate::options::server::ServerArgs;

/// What is sent.
#[cfg_attr(not(feature = "push"), allow(dead_code, reason = "such a build refuses to send"))]
pub struct Wanted<'a> {
    pub inputs: &'a [OsString],
    /// Again and again, until all processes have ended.
    pub every: Option<Duration>,
    pub job: Option<&'a str>,
    /// Call sites with metrics of their own.
    pub top: Option<usize>,
    pub names: &'a NameArgs,
}

/// # Errors
/// The server cannot be used, or this build cannot send.
#[cfg_attr(not(feature = "push"), allow(unused_variables))]
pub fn execute(to: &str, server: &ServerArgs, wanted: &Wanted) -> Result<ExitCode, Failure> {
    #[cfg(feature = "push")]
    return rounds::execute(to, server, wanted);
    #[cfg(not(feature = "push"))]
    Err(Failure::new(crate::errors::not_in_this_build("cannot send to servers")))
}

#[cfg(feature = "push")]
mod rounds;
