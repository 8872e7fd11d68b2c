//! Requests that wait to be sent, oldest first: in a folder, or in memory.
//!
//! A folder has one file for each request, `00000000000000000042.request`. A new request is written under another name, synced
//! and renamed, so a crash loses at most the request that is being written. Several processes may use one folder: each change
//! takes the lock on the file `lock`, and a process that sends holds the lock on `sending.lock`, so a request is sent by one
//! process only.
//!
//! The queue is bounded. If there is no room, the oldest requests are dropped and counted in `counts.json`. If the disk is full,
//! the same happens until the new request fits.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::{O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};
use serde::{Deserialize, Serialize};

use crate::request::{LARGEST_MESSAGE, Protocol, Request};

/// The most requests that wait: each change lists the folder.
pub const MOST_REQUESTS: usize = 10_000;
/// The longest wait for another process that changes the folder.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// What happened to requests that were not sent, since the queue was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Dropped for newer ones.
    pub dropped: u64,
    pub dropped_bytes: u64,
    /// Refused by the receiver.
    pub refused: u64,
    /// Files that could not be read.
    pub damaged: u64,
}

/// A request's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(u64);

#[derive(Debug)]
pub enum Queue {
    Folder(Folder),
    Memory(Memory),
}

impl Queue {
    /// A queue in memory. `bytes`: the most that wait.
    pub fn in_memory(bytes: u64) -> Queue {
        Queue::Memory(Memory {
            bytes,
            ..Memory::default()
        })
    }

    /// A queue in a folder, which is created if it does not exist. `bytes`: the most that wait.
    ///
    /// # Errors
    /// The folder cannot be created, or others can write to it.
    pub fn in_folder(path: &Path, bytes: u64) -> io::Result<Queue> {
        Folder::open(path, bytes).map(Queue::Folder)
    }

    /// Adds a request, and drops the oldest ones if there is no room. Returns the number of dropped ones.
    ///
    /// # Errors
    /// The request is larger than the queue, or cannot be written.
    pub fn put(&mut self, request: &Request) -> io::Result<u64> {
        match self {
            Queue::Folder(folder) => folder.put(request),
            Queue::Memory(memory) => memory.put(request),
        }
    }

    /// The oldest request of a protocol that comes after `after`.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn next(&mut self, after: Option<Number>, protocol: Protocol) -> io::Result<Option<(Number, Request)>> {
        match self {
            Queue::Folder(folder) => folder.next(after, protocol),
            Queue::Memory(memory) => Ok(memory.next(after, protocol)),
        }
    }

    /// Removes a request that was sent, or that was refused, which is counted.
    ///
    /// # Errors
    /// The folder cannot be changed.
    pub fn remove(&mut self, number: Number, refused: bool) -> io::Result<()> {
        match self {
            Queue::Folder(folder) => folder.remove(number, refused),
            Queue::Memory(memory) => {
                memory.waiting.retain(|(waiting, _)| *waiting != number);
                memory.counts.refused += u64::from(refused);
                Ok(())
            }
        }
    }

    /// How many requests wait, and their bytes.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn waiting(&self) -> io::Result<(usize, u64)> {
        match self {
            Queue::Folder(folder) => {
                let files = folder.list()?;
                Ok((files.len(), files.iter().map(|file| file.bytes).sum()))
            }
            Queue::Memory(memory) => Ok((memory.waiting.len(), memory.sum())),
        }
    }

    pub fn counts(&self) -> Counts {
        match self {
            Queue::Folder(folder) => folder.counts(),
            Queue::Memory(memory) => memory.counts,
        }
    }

    /// The right to send, until the value is dropped. `None`: another process sends.
    ///
    /// # Errors
    /// The lock's file cannot be opened.
    pub fn begin_sending(&self) -> io::Result<Option<Sending>> {
        match self {
            Queue::Folder(folder) => {
                let lock = try_lock(folder.open_lock("sending.lock")?)?;
                Ok(lock.ok().map(|lock| Sending { _lock: Some(lock) }))
            }
            Queue::Memory(_) => Ok(Some(Sending { _lock: None })),
        }
    }
}

/// The right to send from a queue.
#[derive(Debug)]
pub struct Sending {
    _lock: Option<Flock<File>>,
}

#[derive(Debug, Default)]
pub struct Memory {
    bytes: u64,
    last: u64,
    waiting: VecDeque<(Number, Request)>,
    counts: Counts,
}

impl Memory {
    fn sum(&self) -> u64 {
        self.waiting.iter().map(|(_, request)| request.body.len() as u64).sum()
    }

    fn put(&mut self, request: &Request) -> io::Result<u64> {
        let size = request.body.len() as u64;
        refuse_larger(size, self.bytes)?;
        let mut dropped = 0;
        while self.sum() + size > self.bytes || self.waiting.len() >= MOST_REQUESTS {
            let Some((_, oldest)) = self.waiting.pop_front() else {
                break;
            };
            dropped += 1;
            self.counts.dropped += 1;
            self.counts.dropped_bytes += oldest.body.len() as u64;
        }
        self.last += 1;
        self.waiting.push_back((Number(self.last), request.clone()));
        Ok(dropped)
    }

    fn next(&self, after: Option<Number>, protocol: Protocol) -> Option<(Number, Request)> {
        let suits = |(number, request): &&(Number, Request)| Some(*number) > after && request.protocol == protocol;
        self.waiting.iter().find(suits).cloned()
    }
}

fn refuse_larger(size: u64, bytes: u64) -> io::Result<()> {
    match size > bytes {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "the request has {size} bytes, more than the whole queue may have ({bytes}); allow more with --queue-bytes"
            ),
        )),
        false => Ok(()),
    }
}

#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    number: Number,
    bytes: u64,
}

impl Folder {
    fn open(path: &Path, bytes: u64) -> io::Result<Folder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let metadata = fs::metadata(path)?;
        let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned()));
        if metadata.uid() != nix::unistd::geteuid().as_raw() {
            return refuse(
                "it belongs to another user, who could add requests; name a folder in it, which is then created",
            );
        }
        if metadata.mode() & 0o022 != 0 {
            return refuse(
                "other users can write to it; use chmod go-w, or name a folder in it, which is then created",
            );
        }
        let folder = Folder {
            path: path.to_path_buf(),
            bytes,
        };
        if !path.join("counts.json").exists() {
            let _lock = folder.lock()?;
            folder.store(folder.counts());
        }
        Ok(folder)
    }

    fn open_lock(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(NO_WAIT)
            .open(self.path.join(name))
    }

    /// The lock for changes. Another process holds it for as long as it writes one request.
    fn lock(&self) -> io::Result<Flock<File>> {
        let until = Instant::now() + LOCK_WAIT;
        let mut file = self.open_lock("lock")?;
        loop {
            match try_lock(file)? {
                Ok(lock) => return Ok(lock),
                Err(same) if Instant::now() < until => file = same,
                Err(_) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!(
                            "another process has locked it for {} s; is it stopped?",
                            LOCK_WAIT.as_secs()
                        ),
                    ));
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn file_of(&self, number: Number) -> PathBuf {
        self.path.join(format!("{:020}.request", number.0))
    }

    /// The waiting requests, oldest first. Other files are ignored.
    fn numbers(&self) -> io::Result<Vec<Number>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let digits = name.to_str().and_then(|name| name.strip_suffix(".request"));
            let digits = digits.filter(|digits| digits.len() == 20);
            numbers.extend(digits.and_then(|digits| digits.parse().ok()).map(Number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// As [`Folder::numbers`], with their bytes.
    fn list(&self) -> io::Result<Vec<Waiting>> {
        let sized = |number| {
            // A file that another process has removed meanwhile has no size.
            let bytes = fs::symlink_metadata(self.file_of(number)).ok()?.len();
            Some(Waiting { number, bytes })
        };
        Ok(self.numbers()?.into_iter().filter_map(sized).collect())
    }

    fn put(&self, request: &Request) -> io::Result<u64> {
        let file = request.to_file();
        let size = file.len() as u64;
        refuse_larger(size, self.bytes)?;
        let _lock = self.lock()?;
        let mut waiting = VecDeque::from(self.list()?);
        // Numbers begin at the time, so that none is used again when the folder was empty in between.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(0);
        let newest = waiting.back().map_or(0, |last| last.number.0).max(now);
        let number = Number(
            newest
                .checked_add(1)
                .ok_or_else(|| io::Error::other("its last file has no successor"))?,
        );
        let mut sum: u64 = waiting.iter().map(|file| file.bytes).sum();
        let mut dropped = Counts::default();
        let written = loop {
            let has_room = sum + size <= self.bytes && waiting.len() < MOST_REQUESTS;
            match has_room.then(|| self.write(&self.file_of(number), &file)) {
                Some(Err(error)) if waiting.is_empty() || !is_full(&error) => break Err(error),
                Some(Ok(())) => break Ok(()),
                Some(Err(_)) | None => {}
            }
            let Some(oldest) = waiting.pop_front() else {
                break Err(io::Error::from(io::ErrorKind::StorageFull));
            };
            remove_if_there(&self.file_of(oldest.number))?;
            sum -= oldest.bytes;
            dropped.dropped += 1;
            dropped.dropped_bytes += oldest.bytes;
        };
        if dropped.dropped > 0 {
            self.count(dropped);
        }
        written.map(|()| dropped.dropped)
    }

    /// Writes a file completely or not at all. The caller holds the lock, so a temporary file that exists is left over.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.join("new.tmp");
        let written = remove_if_there(&temporary).and_then(|()| {
            let options = &mut OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, path)?;
            File::open(&self.path)?.sync_all()
        });
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn next(&self, after: Option<Number>, protocol: Protocol) -> io::Result<Option<(Number, Request)>> {
        for number in self.numbers()? {
            if Some(number) <= after {
                continue;
            }
            match self.read(number) {
                Ok(request) if request.protocol == protocol => return Ok(Some((number, request))),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let _lock = self.lock()?;
                    remove_if_there(&self.file_of(number))?;
                    self.count(Counts {
                        damaged: 1,
                        ..Counts::default()
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn read(&self, number: Number) -> io::Result<Request> {
        const MOST: u64 = LARGEST_MESSAGE as u64 + (1 << 20);
        Request::from_file(&read_file(&self.file_of(number), MOST)?)
    }

    fn remove(&self, number: Number, refused: bool) -> io::Result<()> {
        let _lock = self.lock()?;
        remove_if_there(&self.file_of(number))?;
        if refused {
            self.count(Counts {
                refused: 1,
                ..Counts::default()
            });
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        let text = read_file(&self.path.join("counts.json"), 1 << 20).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Writes the counts. The caller holds the lock. A disk without room for a second file takes them in place of the old ones.
    fn store(&self, counts: Counts) {
        let path = self.path.join("counts.json");
        let mut text = serde_json::to_vec(&counts).unwrap_or_default();
        text.push(b'\n');
        if self.write(&path, &text).is_err() {
            let options = &mut OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).custom_flags(NO_WAIT);
            let _ = options.open(&path).and_then(|mut file| file.write_all(&text));
        }
    }

    /// Adds to the counts. The caller holds the lock.
    fn count(&self, more: Counts) {
        let known = self.counts();
        let sum = Counts {
            dropped: known.dropped.saturating_add(more.dropped),
            dropped_bytes: known.dropped_bytes.saturating_add(more.dropped_bytes),
            refused: known.refused.saturating_add(more.refused),
            damaged: known.damaged.saturating_add(more.damaged),
        };
        self.store(sum);
    }
}

/// No name in the folder makes `open` wait or leads to another folder.
const NO_WAIT: i32 = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

/// Reads up to `most` bytes. What is not a file is damage: a link, a FIFO, a socket, a device.
fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let must_be_file = |metadata: fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a file")),
    };
    // Opening a device may have an effect. Another file may take the name afterwards.
    must_be_file(fs::symlink_metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(NO_WAIT).open(path)?;
    must_be_file(file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Takes a lock, or returns the file if another process has it.
fn try_lock(file: File) -> io::Result<Result<Flock<File>, File>> {
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Ok(lock)),
        Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(Err(file)),
        Err((_, error)) => Err(error.into()),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
