//! How a program is recorded: the options of `run` and `live`, and the command line with its environment.

use std::collections::hash_map::RandomState;
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::hash::BuildHasher;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use clap::Args;
use culeak::file::File;
use culeak::system::Errno;

use crate::environment::{self, Settings};
use crate::errors::Failure;
use crate::escape::Escaped;
use crate::preload::{self, Program};
use crate::proof::Proof;
use crate::text::units;
use crate::{no_pool, shim};

/// Everything in [`RecordArgs`], for commands that do not always record.
pub const RECORD_OPTIONS: [&str; 12] = [
    "output",
    "follow_children",
    "no_follow_children",
    "only",
    "depth",
    "no_pool",
    "jax_buffers",
    "nvtx",
    "oom_snapshots",
    "snapshot_at_peak",
    "snapshot_at_mark",
    "snapshot_every",
];

#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Folder for the recordings, one per process that uses CUDA [default: the current folder]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Also record the processes it starts (the default)
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

    /// Switch off the caching allocators of frameworks, and print what that costs
    #[arg(long)]
    pub no_pool: bool,

    /// Record XLA's buffers one by one (JAX); waits for each until its memory exists
    #[arg(long)]
    pub jax_buffers: bool,

    /// Record the blocks that programs report through NVTX's memory extension
    #[arg(long)]
    pub nvtx: bool,

    #[command(flatten)]
    pub auto_snapshots: AutoSnapshotArgs,
}

/// Automatic snapshots of the running program, kept beside its recording, named NAME.WHY-N.culeak-snapshot
#[derive(Debug, Args)]
pub struct AutoSnapshotArgs {
    /// Keep at most N snapshots when requests fail for lack of memory, one per stack [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub oom_snapshots: Option<u32>,

    /// Keep a snapshot of the highest peak; a new one when it is higher by SIZE
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub snapshot_at_peak: Option<u64>,

    /// Keep a snapshot at each mark that the program sets with culeak_mark
    #[arg(long)]
    pub snapshot_at_mark: bool,

    /// Keep a snapshot at the first allocation after each such time, e.g. 500ms, 10s, 1m
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub snapshot_every: Option<Duration>,
}

/// A program that is ready to be started.
pub struct Prepared {
    pub command: Command,
    /// Where it is found.
    pub executable: PathBuf,
    /// Absolute.
    pub folder: PathBuf,
    /// Stands in the names of its recordings.
    pub tag: String,
    /// It will not be recorded, which was said.
    pub blind: bool,
    /// What the library leaves for us; `None` when no file can be made for it.
    pub proof: Option<Proof>,
}

/// Looks for the program, says what stands in the way of recording it, and prepares its environment.
///
/// # Errors
/// There is no such program, or no folder for its recordings.
pub fn prepare(args: &RecordArgs, words: &[OsString]) -> Result<Prepared, Failure> {
    environment::examine(env::vars_os())?;
    let program = preload::examine(&words[0])?;
    warn_of(&program, &words[0]);
    let folder = output_folder(args.output.as_deref())?;
    let tag = run_tag();
    try_folder(&folder, &tag)?;
    let proof = Proof::make().ok();

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
        auto_snapshots: &args.auto_snapshots,
        proof: proof.as_ref().map(Proof::setting),
    };

    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    for (name, value) in environment::changes(&settings, |name| env::var_os(name)) {
        if name == "LD_PRELOAD"
            && let Some(order) = value.as_deref().and_then(environment::order_beside_others)
        {
            eprintln!("culeak: LD_PRELOAD is kept; the order is {}", Escaped(&order));
        }
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
    Ok(Prepared {
        command,
        executable: program.executable,
        folder,
        tag,
        blind: !program.obstacles.is_empty(),
        proof,
    })
}

fn warn_of(program: &Program, typed: &OsStr) {
    let shown = Path::new(typed).display();
    let through = match program.executable.file_name() == Path::new(typed).file_name() {
        true => String::new(),
        false => format!(" (run by {})", program.executable.display()),
    };
    for obstacle in &program.obstacles {
        let warning = format!("{shown}{through} {obstacle}");
        eprintln!("culeak: warning: {}", Escaped(&warning));
    }
}

/// The folder as an absolute path, since the program may change its own.
fn output_folder(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = given.unwrap_or(Path::new("."));
    let made = fs::create_dir_all(folder).and_then(|()| fs::canonicalize(folder));
    made.map_err(|error| {
        let shown = folder.display();
        Failure::new(format!(
            "{shown}: cannot be used as the folder for recordings: {error}; choose another with --output"
        ))
    })
}

/// The smallest recording that is of any use has this much behind its header.
const FIRST_EXTENTS: usize = 1 << 20;

/// Makes a file as the library does and removes it again: better now than after hours.
fn try_folder(folder: &Path, tag: &str) -> Result<(), Failure> {
    let path = folder.join(format!(".culeak-probe-{tag}"));
    let made = CString::new(path.as_os_str().as_bytes())
        .map_err(io::Error::other)
        .and_then(|name| {
            let mut place = MaybeUninit::uninit();
            let made = File::create(&mut place, &name).and_then(|file| file.extend(FIRST_EXTENTS));
            made.map_err(|Errno(number)| io::Error::from_raw_os_error(number))
        });
    // Not there if it could not be created.
    let _ = fs::remove_file(&path);
    made.map_err(|error| {
        Failure::new(format!(
            "{}: cannot hold a recording: {error}; name another folder with --output",
            folder.display()
        ))
    })?
    .unmap();
    Ok(())
}

/// Four characters that tell this run's recordings from those of others in the same folder.
fn run_tag() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let random = RandomState::new().hash_one(process::id());
    (0..4)
        .map(|place| char::from(LETTERS[(random >> (place * 5)) as usize % LETTERS.len()]))
        .collect()
}
