//! `culeak`: records the GPU memory of CUDA programs and says who never gave it back.
//!
//! This file is the contents page: one line per command, each at home in `commands/`.

mod args;
mod commands;
mod environment;
mod errors;
mod preload;
mod shim;
mod supervise;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(args) => commands::run::execute(&args),
        Command::ShimPath(args) => commands::shim_path::execute(&args),
    };
    result.unwrap_or_else(|failure| {
        eprintln!("culeak: {failure}");
        ExitCode::from(failure.exit)
    })
}
