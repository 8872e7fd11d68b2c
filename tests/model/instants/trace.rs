//! Stops a process after each of its stores, and keeps what its recording was then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use culeak::reader::{self, ReadError};
use nix::libc::{self, c_long};

use crate::model::{Mode, program};
use crate::support::profile::folder;
use crate::support::script::{Answer, Script};
use crate::support::traced::{self, Calls, Event};

/// How a recording differs from that of the instant before.
pub(super) struct Instant {
    /// How many lines the process had answered.
    pub(super) answered: usize,
    pub(super) length: u64,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// The recording of a process, as it has been seen so far.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) path: Option<PathBuf>,
    pub(super) answered: usize,
    /// Stores in the line that it runs.
    pub(super) stores: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) instants: VecDeque<Instant>,
    /// Instants at which it had no complete header.
    pub(super) unfinished: usize,
}

impl Seen {
    /// The process has stored something. A segment of the log that is used again is emptied by 8,184 equal stores: of so many, some.
    fn stored(&mut self) {
        const ALL: usize = 400;
        self.stores += 1;
        if self.stores < ALL || self.instants.is_empty() || self.stores.is_multiple_of(331) {
            self.look();
        }
    }

    /// The process is stopped.
    fn look(&mut self) {
        let bytes = match self.path.as_ref().map(fs::read) {
            Some(Ok(bytes)) if bytes != self.bytes => bytes,
            _ => return,
        };
        let was_complete = !self.instants.is_empty();
        if !reader::is_recording(&bytes) {
            let refused = reader::read(self.path.as_ref().expect("known")).expect_err("it has no header");
            let is_said = matches!(refused, ReadError::Unfinished(_) | ReadError::Empty(_));
            assert!(is_said && !was_complete, "{refused}");
            self.unfinished += 1;
            self.bytes = bytes;
            return;
        }
        let old = if was_complete { &self.bytes[..] } else { &[] };
        let changed = changed(old, &bytes);
        self.instants.push_back(Instant {
            answered: self.answered,
            length: bytes.len() as u64,
            offset: changed.start as u64,
            bytes: bytes[changed].to_vec(),
        });
        self.bytes = bytes;
    }
}

/// From the first byte that differs to the last one. The older file ends with zeros.
fn changed(old: &[u8], new: &[u8]) -> Range<usize> {
    const PIECE: usize = 4096;
    let old_piece = |at: usize| &old[at.min(old.len())..(at + PIECE).min(old.len())];
    let differs = |at: &usize| {
        let (old, new) = (old_piece(*at), &new[*at..(at + PIECE).min(new.len())]);
        !new.starts_with(old) || new[old.len()..].iter().any(|byte| *byte != 0)
    };
    let pieces: Vec<usize> = (0..new.len()).step_by(PIECE).filter(differs).collect();
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
        return 0..0;
    };
    let byte_differs = |at: &usize| new[*at] != old.get(*at).copied().unwrap_or(0);
    let start = (*first..new.len()).find(byte_differs).expect("the piece differs");
    let end = (*last..(last + PIECE).min(new.len())).rev().find(byte_differs);
    start..end.expect("the piece differs") + 1
}

/// What was seen of a script.
pub(super) struct Trace {
    pub(super) answers: Vec<Answer>,
    pub(super) seen: BTreeMap<u32, Seen>,
    /// Lines during which a recording grew.
    pub(super) grew: BTreeSet<u64>,
    /// Automatic snapshots after each write: how many were refused as unfinished, and how many were read.
    pub(super) snapshots: [usize; 2],
    /// There was no room for another extent.
    pub(super) is_full: bool,
}

/// Those that map files, change them or end a line.
pub(super) const CALLS: [c_long; 8] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_pwrite64,
    libc::SYS_write,
    libc::SYS_rename,
    libc::SYS_unlink,
];

pub(super) fn is_recording(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "culeak")
}

/// Runs a script. The process is stopped after each store while it runs lines that are `watched`; 0: all before its first answer.
pub(super) fn trace(script: &Script, mode: Mode, watched: impl Fn(u64) -> bool) -> Trace {
    trace_with(script, mode, watched, false)
}

/// `is_full`: once a line was answered, there is no space for a recording to grow.
pub(super) fn trace_with(script: &Script, mode: Mode, watched: impl Fn(u64) -> bool, is_full: bool) -> Trace {
    let folder = folder();
    let program = program(script, mode, folder.path()).setting("CULEAK_QUIET", "1");
    let transcript = folder.path().join("transcript");
    let mut seen: BTreeMap<u32, Seen> = BTreeMap::new();
    let (mut grew, mut snapshots) = (BTreeSet::new(), [0; 2]);
    let mut last = 0;
    let status = traced::run(
        &mut program.command(folder.path()),
        Calls::Only(&CALLS),
        is_recording,
        |at, event| {
            let of_process = seen.entry(at.pid).or_default();
            at.watch(watched(if of_process.answered == 0 { 0 } else { last + 1 }));
            match event {
                Event::Entered(call) => {
                    let grows = [libc::SYS_fallocate, libc::SYS_ftruncate].contains(&call.number);
                    if is_full && of_process.answered > 0 && grows {
                        call.result = Some(-i64::from(libc::ENOSPC));
                    }
                }
                Event::Stored(path) => {
                    assert_eq!(
                        of_process.path.as_deref(),
                        Some(path),
                        "the recording of another process"
                    );
                    of_process.stored();
                }
                Event::Left(call) if call.number == libc::SYS_write => {
                    if at.file(call.arguments[0]).as_ref() != Some(&transcript) {
                        return;
                    }
                    of_process.answered += 1;
                    of_process.stores = 0;
                    let text = fs::read_to_string(&transcript).expect("a transcript");
                    let line = text.lines().next_back().and_then(|line| line.split(' ').nth(1));
                    last = line.and_then(|id| id.parse().ok()).expect("the number of a line");
                    at.watch(watched(last + 1));
                }
                Event::Left(call) => {
                    let descriptor = match call.number {
                        libc::SYS_fallocate | libc::SYS_ftruncate | libc::SYS_pwrite64 => call.arguments[0],
                        libc::SYS_mmap => call.arguments[4],
                        _ => return,
                    };
                    let Some(path) = at.file(descriptor) else { return };
                    if path.extension().is_some_and(|ending| ending == "culeak-snapshot") {
                        match reader::read(&path) {
                            Ok(_) => snapshots[1] += 1,
                            Err(ReadError::Unfinished(_) | ReadError::Empty(_)) => snapshots[0] += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    if !is_recording(&path) {
                        return;
                    }
                    if call.number == libc::SYS_fallocate && of_process.answered > 0 {
                        grew.insert(last + 1);
                    }
                    of_process.path = Some(path);
                    if at.is_watched() {
                        of_process.look();
                    }
                }
            }
        },
    );
    assert!(status.success() || status.signal() == Some(libc::SIGKILL), "{status}");
    let answers = Answer::all(&fs::read_to_string(&transcript).unwrap_or_default());
    Trace {
        answers,
        seen,
        grew,
        snapshots,
        is_full,
    }
}
