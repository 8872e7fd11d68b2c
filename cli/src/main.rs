//! `culeak`: records the GPU memory of CUDA programs and says who never gave it back.
//!
//! This file is the contents page: one line per command, each at home in `commands/`. They stand on `load` (anything
//! readable into a snapshot), `symbolize` (names for addresses), `usage` (what the driver says) and `text` (values onto the screen); `run` also on
//! `preload`, `environment`, `shim` and `supervise`, in this order.

mod args;
mod commands;
mod config;
mod demo_program;
mod driver;
mod environment;
mod errors;
mod escape;
mod export;
mod html;
mod json;
mod live;
mod load;
mod no_pool;
mod nvml;
mod output;
mod pickle;
mod preload;
mod probe;
mod progress;
mod proof;
mod shim;
mod supervise;
mod symbolize;
mod text;
mod usage;
mod verdict;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let arguments = match args::parse() {
        Ok(arguments) => arguments,
        Err(error) => return not_understood(&error),
    };
    text::choose_color(arguments.color);
    let mut command = arguments.command;
    if let Err(failure) = config::apply(&mut command) {
        progress::fail(&failure);
        return ExitCode::from(failure.exit);
    }
    // The live view has the screen to itself.
    if !matches!(command, Command::Live(_)) {
        progress::show();
    }
    let result = match command {
        Command::Run(args) => commands::run::execute(&args),
        Command::Report(args) => commands::report::execute(&args),
        Command::Snapshot(args) => commands::snapshot::execute(&args),
        Command::Live(args) => commands::live::execute(&args),
        Command::Diff(args) => commands::diff::execute(&args),
        Command::Trend(args) => commands::trend::execute(&args),
        Command::Check(args) => commands::check::execute(&args),
        Command::Export(args) => commands::export::execute(&args),
        Command::Demo(args) => commands::demo::execute(&args),
        Command::Doctor(args) => commands::doctor::execute(&args),
        Command::Environment(args) => commands::environment::execute(&args),
        Command::Completions(args) => commands::completions::execute(&args),
        Command::Man(args) => commands::man::execute(&args),
        Command::ShimPath(args) => commands::shim_path::execute(&args),
        Command::DemoProgram => demo_program::execute(),
        Command::Probe => probe::answer(),
        Command::ProbeUsage(args) => usage::answer(&args),
        Command::Symbolize => symbolize::answer(),
    };
    result.unwrap_or_else(|failure| {
        progress::fail(&failure);
        ExitCode::from(failure.exit)
    })
}

/// Wrong usage begins with the prefix of all our messages; help and version are printed as they are.
fn not_understood(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        anstream::eprint!("culeak: {}", error.render().ansi());
    } else {
        // A reader that has gone away has seen enough.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(errors::USAGE))
}
