//! Checks of the machine: output folder, config file, symbols.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::{env, io};

use culeak::file::spool;
use culeak::system::Descriptor;
use nix::fcntl::posix_fallocate;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::statvfs;

use super::Finding;
use crate::options::config::{self, ConfigArgs};
use crate::text::units;

/// Free space below this gives a warning; a recording of a training run takes tens of MiB.
const COMFORTABLE: u64 = 256 << 20;

/// The current folder, in which `culeak run` writes recordings by default.
pub fn output_folder() -> Vec<Finding> {
    match env::current_dir() {
        Ok(folder) => recordings_in(&folder),
        Err(error) => vec![Finding::warn(
            SUBJECT,
            format_args!("no current folder: {error}"),
            ELSEWHERE,
        )],
    }
}

const SUBJECT: &str = "output folder";
const ELSEWHERE: &str = "use another folder: culeak run --output DIR";

/// Reserves the space of a small recording, and gives it back.
///
/// # Errors
/// The folder is missing, not writable, or full, or the user's quota is used up.
pub fn reserve(folder: &Path) -> io::Result<()> {
    tempfile::tempfile_in(folder).and_then(|file| posix_fallocate(&file, 0, 1 << 20).map_err(Into::into))
}

/// Says that recordings are elsewhere while they are written, if the recorder knows from its type that the file system cannot hold them.
/// It also finds out by trying, which this does not.
fn spooled(folder: &Path) -> Option<Finding> {
    let file = tempfile::tempfile_in(folder).ok()?;
    let is_suitable = spool::is_suitable(&Descriptor::borrowed(file.as_raw_fd()));
    (!is_suitable).then(|| {
        Finding::warn(
            SUBJECT,
            format_args!(
                "{}: its file system cannot hold a recording that is being written, so each is in a local folder until its process ends",
                folder.display()
            ),
            "use a folder on ext4, XFS or tmpfs for recordings, or name one in CULEAK_SPOOL: culeak help file-systems",
        )
    })
}

/// Whether this process can write recordings into the folder.
pub fn recordings_in(folder: &Path) -> Vec<Finding> {
    let shown = folder.display();
    if let Err(error) = reserve(folder) {
        return vec![Finding::warn(
            SUBJECT,
            format_args!("{shown}: cannot reserve space for a recording: {error}"),
            ELSEWHERE,
        )];
    }
    let mut findings: Vec<Finding> = spooled(folder).into_iter().collect();
    let free = statvfs(folder).map(|found| found.blocks_available().saturating_mul(found.fragment_size()));
    findings.push(match free {
        Ok(free) if free < COMFORTABLE => Finding::warn(
            SUBJECT,
            format_args!("{shown}: only {} free", units::bytes(free)),
            ELSEWHERE,
        ),
        Ok(free) => Finding::ok(SUBJECT, format_args!("{shown}: writable, {} free", units::bytes(free))),
        Err(_) => Finding::ok(SUBJECT, format_args!("{shown}: writable")),
    });
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_FSIZE)
        && limit != RLIM_INFINITY
    {
        let text = format_args!("files are limited to {} (ulimit -f)", units::bytes(limit));
        findings.push(Finding::warn(
            SUBJECT,
            text,
            "raise the limit with `ulimit -f unlimited`; records beyond it are lost",
        ));
    }
    findings
}

/// The config file that applies in this folder.
pub fn config_file() -> Vec<Finding> {
    let finding = match config::read(&ConfigArgs::default()) {
        Ok(defaults) => defaults.file().map(|path| Finding::ok("config file", path.display())),
        Err(failure) => Some(Finding::warn(
            "config file",
            failure,
            "correct it, or go without it: --no-config",
        )),
    };
    finding.into_iter().collect()
}

/// Separate debug files; without them, names come from the symbols of the programs.
pub fn symbols() -> Finding {
    let system = Path::new("/usr/lib/debug/.build-id");
    Finding::ok(
        "symbols",
        match system.is_dir() {
            true => "from the programs and from /usr/lib/debug",
            false => "from the programs; /usr/lib/debug has no debug files",
        },
    )
}
