//! `culeak run`: a program under the preload library, then the report of what it left behind.
//!
//! Everything the program sees stays as it was (stdin, stdout, stderr, signals, terminal); it gets two more things in
//! its environment, `LD_PRELOAD` and the `CULEAK_…` settings, and so do its children. Our own words go to stderr, so
//! that the program's output can still be piped. Deliberately absent: changes to our own environment.

use std::collections::hash_map::RandomState;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode};

use clap::Args;

use super::after_run::{self, AfterArgs};
use crate::environment::{self, Settings};
use crate::errors::Failure;
use crate::preload::{self, Program};
use crate::text::{inert::Inert, units};
use crate::{no_pool, shim, supervise};

/// Run a program, record its GPU memory, and report what is left when it ends
#[derive(Debug, Args)]
#[command(after_help = "\
The recordings are named PROGRAM.RUN.HOST.PID.culeak, with four random characters for RUN. \
They are complete at every instant, whatever ends the process.

Exit code: the program's own, or 128+N when signal N ended it; 126 when it cannot be executed, 127 when there is no such \
program. If it succeeded: 1 when --check found a leak, 2 when culeak itself failed.

Examples:
  culeak run -- python train.py
  culeak run -o runs --only 'python*' -- ./pipeline.sh
  culeak run --check --max-leaked 1MiB --report-file leaks.txt -- ./tests")]
pub struct RunArgs {
    /// Folder for the recordings, one per process that uses CUDA [default: the current folder]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Record the processes it starts, too; this is the default
    #[arg(long, overrides_with = "no_follow_children")]
    pub follow_children: bool,

    /// Record only the program itself, not the processes it starts
    #[arg(long, overrides_with = "follow_children")]
    pub no_follow_children: bool,

    /// Record only processes whose executable's file name matches; * and ? are wildcards
    #[arg(long, value_name = "GLOB")]
    pub only: Option<String>,

    /// Frames to keep per stack, 1 to 256 [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub depth: Option<u32>,

    /// Make frameworks give up their caching allocators, and say what that costs
    #[arg(long)]
    pub no_pool: bool,

    /// Record XLA's buffers, one by one (JAX); each is waited for until it has its memory
    #[arg(long)]
    pub jax_buffers: bool,

    /// Be the tool that programs find which tell of their memory through NVTX
    #[arg(long)]
    pub nvtx: bool,

    #[command(flatten)]
    pub pictures: PictureArgs,

    #[command(flatten)]
    pub after: AfterArgs,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Pictures of the running program that are kept beside its recording, named NAME.WHY-N.culeak-kept
#[derive(Debug, Args)]
pub struct PictureArgs {
    /// Keep at most N pictures when requests fail for lack of memory, one per stack [default: 3]
    #[arg(long, value_name = "N")]
    pub oom_snapshots: Option<u32>,

    /// Keep a picture of the highest peak; a new one when it is higher by SIZE
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub snapshot_at_peak: Option<u64>,

    /// Keep a picture at each moment the program names with culeak_mark
    #[arg(long)]
    pub snapshot_at_mark: bool,

    /// Keep a picture every SECONDS, at the next allocation
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub snapshot_every: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|&number| number > 0.0 && number < 1e9);
    number.ok_or_else(|| format!("{text}: not a number of seconds above 0"))
}

pub fn execute(args: &RunArgs) -> Result<ExitCode, Failure> {
    args.after.examine()?;
    let program = preload::examine(&args.command[0])?;
    warn_of(&program, &args.command[0]);
    let folder = output_folder(args.output.as_deref())?;
    let tag = run_tag();

    let shim = shim::locate()?;
    let settings = Settings {
        shim: &shim,
        folder: &folder,
        tag: &tag,
        depth: args.depth,
        only: args.only.as_deref(),
        only_child_of: args.no_follow_children.then(process::id),
        address_sanitizer: program.address_sanitizer,
        jax_buffers: args.jax_buffers,
        nvtx: args.nvtx,
        pictures: &args.pictures,
    };

    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    for (name, value) in environment::changes(&settings, |name| env::var_os(name)) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if args.no_pool {
        let present = |name: &str| env::var_os(name);
        // Nobody can be told where there is no stderr.
        let _ = no_pool::tell(present, &mut io::stderr());
        command.envs(no_pool::changes(present));
    }
    let status = supervise::run(&mut command).map_err(|error| {
        let shown = program.executable.display();
        Failure::with_exit(format!("{shown}: cannot be executed: {error}"), preload::NOT_EXECUTABLE)
    })?;
    let code = supervise::shell_code(status);
    let verdict = after_run::look(
        &args.after,
        &folder,
        args.output.as_deref(),
        &tag,
        !program.obstacles.is_empty(),
    );
    tell_of_pictures(&folder, &tag);
    match verdict {
        // What the program says about itself comes first.
        _ if code != 0 => {
            verdict.inspect_err(|failure| eprintln!("culeak: {failure}")).ok();
            Ok(ExitCode::from(code))
        }
        verdict => verdict.map(ExitCode::from),
    }
}

/// Pictures kept while the program ran are no recordings of a process, so they are named and not reported.
fn tell_of_pictures(folder: &Path, tag: &str) {
    let mark = environment::mark(tag);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.contains(&mark) && name.ends_with(".culeak-kept"))
        .collect();
    names.sort();
    if let Some(first) = names.first() {
        let shown = folder.display();
        let pictures = units::plural(names.len() as u64, "picture", "pictures");
        eprintln!(
            "culeak: {pictures} kept in {shown}; see: culeak report {shown}/{}",
            Inert(first)
        );
    }
}

fn warn_of(program: &Program, typed: &OsStr) {
    let shown = Path::new(typed).display();
    let through = match program.executable.file_name() == Path::new(typed).file_name() {
        true => String::new(),
        false => format!(" (run by {})", program.executable.display()),
    };
    for obstacle in &program.obstacles {
        eprintln!("culeak: warning: {shown}{through} {obstacle}");
    }
}

/// The folder as an absolute path, since the program may change its own.
fn output_folder(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = given.unwrap_or(Path::new("."));
    let made = fs::create_dir_all(folder).and_then(|()| fs::canonicalize(folder));
    made.map_err(|error| {
        let shown = folder.display();
        Failure::new(format!(
            "{shown}: cannot be the folder for recordings: {error}; name another with --output"
        ))
    })
}

/// Four characters that tell this run's recordings from those of others in the same folder.
fn run_tag() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let random = RandomState::new().hash_one(process::id());
    (0..4)
        .map(|place| char::from(LETTERS[(random >> (place * 5)) as usize % LETTERS.len()]))
        .collect()
}
