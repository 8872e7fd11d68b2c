//! A program prepared for recording: the options of `run` and `live`, and the command with its environment.
//!
//! The parts in the order of their use: [`preload`] examines the program, [`shim`] unpacks the library, [`environment`] and
//! [`no_pool`] compute variables, [`supervise`] runs the program, [`spooled`] copies recordings that killed processes left, [`holds`] copies the memory of processes that wait for it, and
//! [`proof`] explains a missing recording.

pub mod environment;
pub mod holds;
mod no_pool;
pub mod preload;
pub mod proof;
pub mod shim;
pub mod spooled;
pub mod supervise;

use std::collections::hash_map::RandomState;
use std::ffi::{CString, OsStr, OsString};
use std::hash::BuildHasher;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs, io};

use clap::{Args, Id};
use culeak::file::{File, spool};
use culeak::system::Errno;
use culeak::variables;

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::options::output::Form;
use crate::progress;
use crate::text::units;
use environment::{Recorded, Settings, Variable};
use preload::Program;
use proof::Proof;

/// The ids of the options of a group, for commands that do not always record.
pub fn ids<A: Args>() -> Vec<Id> {
    let options = A::augment_args(clap::Command::new(""));
    options.get_arguments().map(|option| option.get_id().clone()).collect()
}

/// What to record, and where.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Recording")]
pub struct RecordArgs {
    /// Folder for recordings, one per process that uses CUDA [default: the current folder]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Record only the program itself, not its child processes
    #[arg(long)]
    pub no_follow_children: bool,

    /// Record only processes whose executable's file name matches GLOB; * and ? are wildcards
    #[arg(long, value_name = "GLOB")]
    pub only: Option<String>,

    /// Log every allocation and free, for any point in time
    ///
    /// Phases, events and states at any point in time need it. It keeps the newest SIZE of events, 8MiB to 4GiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "1GiB",
          value_parser = environment::parse_timeline)]
    pub timeline: Option<u64>,

    /// What else to record or which frames, as a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub record: Vec<Recorded>,

    /// Automatic snapshots, as a list of oom:N, peak:SIZE, mark and every:TIME
    ///
    /// They are written beside the recording, as NAME.WHY-N.culeak-snapshot. oom:N: at most N when requests fail for lack of memory,
    /// one per stack (3 without this option). peak:SIZE: at the peak; it is replaced when the peak rises by SIZE. mark: at each mark
    /// that the program sets (culeak_mark). every:TIME: at the next allocation after each such time, e.g. 500ms, 10s, 1m
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = environment::parse_snapshot)]
    pub snapshot: Vec<Variable>,

    /// Switch off the caching allocators of frameworks, and print the cost
    #[arg(long)]
    pub no_pool: bool,

    /// Record at most N frames per stack, 1 to 256 [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub depth: Option<u32>,

    /// Take a stack once every SIZE bytes on average, e.g. 512KiB, instead of one for each block. Totals stay exact; sums of call
    /// sites become estimates
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub sample: Option<u64>,

    /// With --sample: take at most about N stacks a second in each thread. A thread above this limit uses a larger SIZE until it
    /// is below. 0: no limit [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(culeak::sampling::RATE_MAX)))]
    pub stack_rate: Option<u32>,
}

impl RecordArgs {
    pub fn records(&self, what: Recorded) -> bool {
        self.record.contains(&what)
    }
}

/// A program that is ready to be started.
pub struct Prepared {
    pub command: Command,
    /// The file that is executed; for a script, its interpreter.
    pub executable: PathBuf,
    /// Folder of the recordings, absolute.
    pub folder: PathBuf,
    /// Part of the names of its recordings.
    pub tag: String,
    /// The program cannot be recorded; a warning was printed.
    pub blind: bool,
    /// The file in which the library records facts about the run; `None` if it cannot be created.
    pub proof: Option<Proof>,
}

/// Finds the program, warns of obstacles to recording it, and prepares its environment. `why`: its processes wait at their ends
/// until their memory is copied.
///
/// # Errors
/// A `CULEAK_` variable is wrong, the program cannot be executed, or the folder cannot hold recordings.
pub fn prepare(args: &RecordArgs, words: &[OsString], why: bool) -> Result<Prepared, Failure> {
    environment::examine(env::vars_os())?;
    environment::suits_lists(args)?;
    environment::suits_sampling(args.sample, args.timeline, |name| env::var_os(name))?;
    let program = preload::examine(&words[0], &words[1..])?;
    warn_about(&program, &words[0]);
    let folder = output_folder(args.output.as_deref())?;
    let tag = run_tag();
    try_folder(&folder, &tag)?;
    let proof = match Proof::create() {
        Err(error) if why => {
            let folder = env::temp_dir();
            return Err(Failure::new(format!(
                "--why: no file can be created in {} ({error}); set TMPDIR to a folder that the program can write",
                folder.display()
            )));
        }
        created => created.ok(),
    };

    let shim = shim::locate()?;
    let hold = why.then(shim::hold_library).transpose()?;
    let audit = args.records(Recorded::Audit).then(audit_library).transpose()?;
    let settings = Settings {
        shim: &shim,
        hold: hold.as_deref(),
        audit: audit.as_deref(),
        folder: &folder,
        tag: &tag,
        record: args,
        address_sanitizer: program.address_sanitizer,
        proof: proof.as_ref().map(Proof::setting),
    };

    if let Some(reason) = environment::without_nvtx(&settings, |name| env::var_os(name)) {
        eprintln!("culeak: {}", Escaped(&reason));
    }
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    for (name, value) in environment::changes(&settings, |name| env::var_os(name)) {
        if name == "LD_PRELOAD"
            && let Some(list) = value.as_deref()
            && let Some(order) = environment::order_beside_others(list, hold.as_deref())
        {
            progress::note(format_args!("LD_PRELOAD is kept; the order is {}", Escaped(&order)));
        }
        progress::detail(match &value {
            Some(value) => format!("{name}={}", Escaped(&value.to_string_lossy())),
            None => format!("{name} is removed"),
        });
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if args.no_pool {
        let present = |name: &str| env::var_os(name);
        if !progress::is_quiet() {
            // stderr may be closed.
            let _ = no_pool::report(present, &mut io::stderr());
        }
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

/// The library that the loader asks about bindings.
fn audit_library() -> Result<PathBuf, Failure> {
    match glibc_version() {
        Some(version) if !asks_about_all_bindings(&version) => Err(Failure::new(format!(
            "--record audit needs glibc 2.35 or newer, and this is {version}: older loaders do not ask about libraries that are bound when they \
             are loaded, and make calls between libraries slower; leave it out"
        ))),
        _ => shim::audit_library(),
    }
}

fn asks_about_all_bindings(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(2), Some(35))
}

/// The version of the machine's glibc; `None` if this program is linked to another libc.
fn glibc_version() -> Option<String> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: returns a constant C string.
        let version = unsafe { std::ffi::CStr::from_ptr(nix::libc::gnu_get_libc_version()) };
        Some(version.to_string_lossy().into_owned())
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

fn warn_about(program: &Program, typed: &OsStr) {
    let shown = Path::new(typed).display();
    let through = match program.executable.file_name() == Path::new(typed).file_name() {
        true => String::new(),
        false => format!(" (run by {})", program.executable.display()),
    };
    for obstacle in &program.obstacles {
        let warning = format!("{shown}{through} {obstacle}; {}", obstacle.remedy(&program.executable));
        eprintln!("culeak: warning: {}", Escaped(&warning));
    }
}

/// The folder as an absolute path, since the program may change its own.
fn output_folder(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = given.unwrap_or(Path::new("."));
    let is_of_file = |ending: &OsStr| ending == "culeak" || Form::of(folder).is_some();
    if folder.extension().is_some_and(is_of_file) && !folder.is_dir() {
        return Err(Failure::new(format!(
            "{}: --output is the folder of the recordings, which culeak names itself; for a report, record first, then: culeak report \
             FOLDER -o FILE.html",
            folder.display()
        )));
    }
    let made = fs::create_dir_all(folder).and_then(|()| fs::canonicalize(folder));
    made.map_err(|error| {
        let shown = folder.display();
        Failure::new(format!(
            "{shown}: cannot be used as the folder for recordings: {error}; choose another with --output"
        ))
    })
}

/// The smallest useful recording has this many bytes after its header.
const FIRST_EXTENTS: usize = 1 << 20;

/// Creates a file as the library does, and removes it: a full or read-only folder is reported before the program runs, and so is
/// one whose recordings must be elsewhere while they are written.
fn try_folder(folder: &Path, tag: &str) -> Result<(), Failure> {
    let path = folder.join(format!(".culeak-probe-{tag}"));
    let variable = |name: &str| CString::new(env::var_os(name)?.into_vec()).ok();
    let (chosen, temporary) = (variable(variables::SPOOL.name()), variable("TMPDIR"));
    let mut spool = None;
    let made = CString::new(path.as_os_str().as_bytes())
        .map_err(io::Error::other)
        .and_then(|name| {
            let mut place = MaybeUninit::uninit();
            let folders = spool::folders(chosen.as_deref(), temporary.as_deref());
            let made = File::create(&mut place, &name, folders).and_then(|file| {
                spool = file
                    .spool()
                    .map(|spool| PathBuf::from(OsStr::from_bytes(spool.to_bytes())));
                file.extend(FIRST_EXTENTS)
            });
            made.map_err(|Errno(number)| io::Error::from_raw_os_error(number))
        });
    // Fails if the file could not be created.
    let _ = fs::remove_file(&path);
    if let Some(spool) = &spool {
        let _ = fs::remove_file(spool);
    }
    let shown = folder.display();
    let local = spool.as_deref().and_then(Path::parent);
    match (made, local) {
        (Ok(extent), local) => {
            extent.unmap();
            if let Some(local) = local {
                let notice = format!(
                    "{shown}: its file system cannot hold recordings that are being written; until a process ends, its recording is \
                     in {} (CULEAK_SPOOL names another local folder)",
                    local.display()
                );
                eprintln!("culeak: {}", Escaped(&notice));
            }
            Ok(())
        }
        (Err(error), _) if error.raw_os_error() == Some(nix::libc::ENODEV) => Err(Failure::new(format!(
            "{shown}: its file system cannot hold recordings that are being written, and neither can $TMPDIR, /tmp or /dev/shm; name \
             a local folder in CULEAK_SPOOL, or choose another with --output"
        ))),
        (Err(error), Some(local)) => Err(Failure::new(format!(
            "{}: cannot hold a recording for {shown}: {error}; name another local folder in CULEAK_SPOOL",
            local.display()
        ))),
        (Err(error), None) => Err(Failure::new(format!(
            "{shown}: cannot hold a recording: {error}; choose another folder with --output"
        ))),
    }
}

/// Four characters that distinguish this run's recordings from those of other runs in the same folder.
fn run_tag() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let random = RandomState::new().hash_one(process::id());
    (0..4)
        .map(|place| char::from(LETTERS[(random >> (place * 5)) as usize % LETTERS.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaders_before_2_35_are_too_old_for_an_audit() {
        for (version, suits) in [
            ("2.17", false),
            ("2.34", false),
            ("2.35", true),
            ("2.41", true),
            ("3.0", true),
        ] {
            assert_eq!(asks_about_all_bindings(version), suits, "{version}");
        }
    }
}
