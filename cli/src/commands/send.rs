//! What processes hold, sent to a server: `export --to` once, `watch --to` again and again. Each round reads the processes that have
//! changed.

use std::process::ExitCode;

use super::dataset::Wanted;
use crate::errors::Failure;
use crate::options::server::ServerArgs;

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
