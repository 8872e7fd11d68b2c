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
/// This build cannot send.
#[cfg(not(feature = "push"))]
pub fn execute(_: &str, _: &ServerArgs, _: &Wanted) -> Result<ExitCode, Failure> {
    Err(Failure::new(crate::errors::not_in_this_build("cannot send to servers")))
}

#[cfg(feature = "push")]
pub use rounds::execute;

#[cfg(feature = "push")]
mod rounds;
