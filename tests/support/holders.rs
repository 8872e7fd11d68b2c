//! A victim that waits for questions, and the search for what holds its blocks.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::ChildStdout;

use culeak::reader;
use culeak::snapshot::{HolderPath, Holders, Snapshot};
use culeak_holders::source::live::Process;
use culeak_holders::{Block, Options};
use tempfile::TempDir;

use super::outcome::recordings_in;
use super::process::Started;
use super::profile::{Profile, folder};

/// A running victim. It printed lines, then `READY` and its process id.
pub struct Waiting {
    pub pid: u32,
    /// What it printed before `READY`.
    pub printed: Vec<String>,
    lines: Lines<BufReader<ChildStdout>>,
    running: Started,
    folder: TempDir,
}

/// Starts a victim and waits until it is ready.
pub fn start(profile: &Profile) -> Waiting {
    let folder = folder();
    let mut running = profile.start_in(folder.path());
    let mut lines = BufReader::new(running.stdout()).lines();
    let mut printed = Vec::new();
    loop {
        let Some(Ok(line)) = lines.next() else {
            let ended = running.finish();
            panic!(
                "{:?} before it was ready; {printed:?}\n{}",
                ended.status,
                String::from_utf8_lossy(&ended.stderr)
            );
        };
        if let Some(pid) = line.strip_prefix("READY") {
            let pid = pid.trim().parse().expect("a process id");
            return Waiting {
                pid,
                printed,
                lines,
                running,
                folder,
            };
        }
        printed.push(line);
    }
}

impl Waiting {
    /// Sends one line.
    pub fn send(&mut self, line: &str) {
        let stdin = self.running.child.stdin.as_mut().expect("stdin is a pipe");
        writeln!(stdin, "{line}").expect("the victim reads its input");
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let line = self.lines.next().expect("the victim answers");
        line.expect("a line of text")
    }

    pub fn ask(&mut self, question: &serde_json::Value) -> serde_json::Value {
        self.send(&question.to_string());
        serde_json::from_str(&self.line()).expect("an answer in JSON")
    }

    /// What is live now.
    pub fn snapshot(&self) -> Snapshot {
        let recordings = recordings_in(&self.folder.path().join("out"));
        assert_eq!(recordings.len(), 1, "{recordings:?}");
        reader::read(&recordings[0]).expect("the recording of a running process")
    }

    /// Searches for the holders of everything that is live, with indices and keys in the paths.
    #[track_caller]
    pub fn search(&self) -> Result<Holders, culeak_holders::Error> {
        self.search_copies(Options::default().copies)
    }

    /// As `search`, until this many copies in succession explain no further block.
    pub fn search_copies(&self, copies: u32) -> Result<Holders, culeak_holders::Error> {
        let snapshot = self.snapshot();
        let mut blocks: Vec<Block> = snapshot
            .allocations
            .iter()
            .map(|allocation| Block {
                address: allocation.address,
                bytes: allocation.bytes,
                time_ns: allocation.time_ns,
                of_torch: false,
                is_handle: false,
            })
            .collect();
        blocks.sort_by_key(|block| block.address);
        let options = Options {
            concrete: (0..blocks.len()).collect(),
            copies,
            ..Options::default()
        };
        let live = Process::new(self.pid).expect("the process can be read");
        let holders = culeak_holders::search(&live, &blocks, &options)?;
        let found: Vec<u64> = holders.blocks.iter().map(|block| block.address).collect();
        let asked: Vec<u64> = blocks.iter().map(|block| block.address).collect();
        assert_eq!(found, asked, "each block has exactly one class");
        Ok(holders)
    }

    /// Lets it end; its exit status is part of the claim.
    pub fn quit(mut self) {
        self.send("[\"quit\"]");
        drop(self.lines);
        let ended = self.running.finish();
        assert!(
            ended.status.success(),
            "{:?}\n{}",
            ended.status,
            String::from_utf8_lossy(&ended.stderr)
        );
    }

    pub fn kill(self) {
        self.running.kill();
        drop(self.lines);
        self.running.finish();
    }
}

/// The path of the block at this address.
pub fn path_of(holders: &Holders, address: u64) -> Option<&HolderPath> {
    let block = holders.blocks.iter().find(|block| block.address == address)?;
    Some(&holders.paths[block.path])
}

/// The path in one line.
pub fn text(path: &HolderPath) -> String {
    let mut text = path.origin.clone();
    if !path.origin_type.is_empty() {
        text += &format!(" ({})", path.origin_type);
    }
    for step in &path.steps {
        text += &format!(" {} → {}", step.via, step.holder);
    }
    text
}

/// Whether the parts occur in the text in this order; `a|b` means one of them.
pub fn says(text: &str, parts: &[String]) -> bool {
    let text = without_indices(text);
    let mut rest = text.as_str();
    parts.iter().all(|part| {
        let ends = part
            .split('|')
            .filter_map(|one| rest.find(one).map(|start| start + one.len()));
        let Some(end) = ends.min() else { return false };
        rest = &rest[end..];
        true
    })
}

/// `[*]` in place of every index and key.
fn without_indices(text: &str) -> String {
    let mut result = String::new();
    let mut inside = false;
    for letter in text.chars() {
        match letter {
            '[' => {
                inside = true;
                result += "[*";
            }
            ']' if inside => {
                inside = false;
                result.push(']');
            }
            _ if inside => {}
            _ => result.push(letter),
        }
    }
    result
}
