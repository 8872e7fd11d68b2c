//! `culeak shim-path`: the path of the preload library, for programs that are not started with `culeak run`.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;

use crate::errors::Failure;
use crate::launch::shim;

/// Unpack the preload library and print its path
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  LD_PRELOAD=$(culeak shim-path) ./server
  LD_LIBRARY_PATH=$(culeak shim-path --fake-driver) culeak run -- ./tests    without a GPU")]
pub struct ShimPathArgs {
    /// Print the folder of the built-in fake driver instead, for LD_LIBRARY_PATH
    #[arg(long)]
    pub fake_driver: bool,
}

pub fn execute(args: &ShimPathArgs) -> Result<ExitCode, Failure> {
    let path = if args.fake_driver {
        shim::fake_driver_folder()?
    } else {
        shim::locate()?
    };
    let mut line = path.as_os_str().as_bytes().to_vec();
    line.push(b'\n');
    let written = io::stdout().write_all(&line);
    written
        .map_err(|error| format!("cannot print the path of the preload library: {error}; write it to another place"))?;
    Ok(ExitCode::SUCCESS)
}
