//! The outcome of a run: how it ended, what it printed, and its recordings, read back through the library.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use culeak::reader;
use culeak::snapshot::Snapshot;
use tempfile::TempDir;

use super::process::Ended;
use super::profile::Profile;
use super::{culeak, invariants};

pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// One for each recording, in order of their paths.
    pub snapshots: Vec<Snapshot>,
    pub recordings: Vec<PathBuf>,
    /// The reader's errors about files that are not valid recordings.
    pub unreadable: Vec<String>,
    folder: TempDir,
    profile: Profile,
}

impl Outcome {
    pub fn new(ended: Ended, folder: TempDir, profile: Profile) -> Outcome {
        let recordings = recordings_in(&folder.path().join("out"));
        let mut snapshots = Vec::new();
        let mut unreadable = Vec::new();
        for path in &recordings {
            match reader::read(path) {
                Ok(snapshot) => {
                    invariants::check(&snapshot, profile.hooks_return());
                    snapshots.push(snapshot);
                }
                Err(error) => unreadable.push(error.to_string()),
            }
        }
        Outcome {
            status: ended.status,
            stdout: String::from_utf8_lossy(&ended.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
            snapshots,
            recordings,
            unreadable,
            folder,
            profile,
        }
    }

    /// The folder of this run.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The output folder for recordings.
    pub fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// What `culeak report` prints of the recordings.
    pub fn report(&self) -> String {
        let mut command = Command::new(culeak());
        let output = command.arg("report").args(recordings_in(&self.out())).output();
        String::from_utf8_lossy(&output.expect("the command runs").stdout).into_owned()
    }

    /// The working folder of the program.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub fn everything(&self) -> String {
        format!("{:?}\nstdout: {}\nstderr: {}", self.status, self.stdout, self.stderr)
    }

    /// The program ended well and there is exactly one recording.
    pub fn only_snapshot(&self) -> &Snapshot {
        assert!(self.status.success(), "{}", self.everything());
        self.only_recording()
    }

    /// There is exactly one recording, however the program ended.
    pub fn only_recording(&self) -> &Snapshot {
        let names: Vec<_> = self.recordings.iter().map(|path| path.file_name()).collect();
        assert!(
            self.unreadable.is_empty(),
            "{:?}\n{}",
            self.unreadable,
            self.everything()
        );
        assert_eq!(self.snapshots.len(), 1, "{names:?}\n{}", self.everything());
        &self.snapshots[0]
    }

    /// The recording of the process with this executable and these arguments.
    pub fn recording_of(&self, arguments: &str) -> &Snapshot {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let fits = |snapshot: &&Snapshot| snapshot.process.command_line[1..].iter().eq(words.iter());
        let fitting: Vec<&Snapshot> = self.snapshots.iter().filter(fits).collect();
        let all: Vec<_> = self
            .snapshots
            .iter()
            .map(|snapshot| &snapshot.process.command_line)
            .collect();
        assert_eq!(
            fitting.len(),
            1,
            "recordings of {arguments:?} among {all:?}\n{}",
            self.everything()
        );
        fitting[0]
    }

    #[track_caller]
    pub fn expect_success(&self) -> &Outcome {
        assert!(self.status.success(), "{}", self.everything());
        self
    }

    #[track_caller]
    pub fn expect_signal(&self, signal: i32) -> &Outcome {
        assert_eq!(self.status.signal(), Some(signal), "{}", self.everything());
        self
    }

    #[track_caller]
    pub fn expect_exit(&self, code: i32) -> &Outcome {
        assert_eq!(self.status.code(), Some(code), "{}", self.everything());
        self
    }

    /// Nothing was recorded: not even an empty file was created.
    #[track_caller]
    pub fn expect_no_file(&self) -> &Outcome {
        let left: Vec<_> = fs::read_dir(self.out())
            .expect("readable")
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert!(left.is_empty(), "{left:?}\n{}", self.everything());
        self
    }

    /// The same program without the recorder ends the same way and prints the same, apart from our own lines on stderr.
    #[track_caller]
    pub fn expect_same_output_as_bare(&self) -> &Outcome {
        let bare = self.profile.clone().bare().run();
        let result = |outcome: &Outcome| {
            (
                outcome.status.into_raw(),
                outcome.stdout.clone(),
                without_our_lines(&outcome.stderr),
            )
        };
        assert_eq!(result(self), result(&bare), "with the recorder (left) and without");
        self
    }

    /// The lines the recorder itself wrote to stderr.
    pub fn our_lines(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| is_ours(line)).collect()
    }

    /// The only recording with its stacks resolved by the CLI.
    pub fn symbolized(&self) -> Snapshot {
        self.only_recording();
        symbolize(&self.recordings[0])
    }
}

fn is_ours(line: &str) -> bool {
    line.starts_with("culeak")
}

fn without_our_lines(stderr: &str) -> Vec<String> {
    stderr
        .lines()
        .filter(|line| !is_ours(line))
        .map(str::to_owned)
        .collect()
}

pub fn recordings_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    // A claim may have created a pipe or a link of that name.
    let files = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let mut paths: Vec<PathBuf> = files
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "culeak"))
        .collect();
    paths.sort();
    paths
}

/// Reads a recording and checks the invariants of every one.
pub fn read(path: &Path) -> Snapshot {
    let snapshot = reader::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    invariants::check(&snapshot, true);
    snapshot
}

/// `culeak snapshot FILE -o …`: the recording with names, as the CLI writes it.
pub fn symbolize(recording: &Path) -> Snapshot {
    let json = recording.with_extension("json");
    let result = Command::new(culeak())
        .env("CULEAK_CACHE_DIR", "")
        .arg("snapshot")
        .arg(recording)
        .arg("-o")
        .arg(&json)
        .output();
    let result = result.expect("the CLI starts");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    let text = fs::read(&json).expect("the snapshot was written");
    serde_json::from_slice(&text).expect("the snapshot is valid JSON of this version")
}
