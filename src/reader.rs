//! Reads a recording into a [`Snapshot`], also while its process goes on writing.
//!
//! The file is copied with `pread` and decoded from the copy: no mapping, so a file that is cut short under our hands
//! is an error and not a SIGBUS, and no trust, so lengths and references out of range are errors or "none".
//!
//! A consistent picture without stopping anybody: the records are read twice. One that was live with the same
//! generation both times was not touched in between, so its fields belong together and it was live during the whole
//! read. If no event happened meanwhile the picture is exact; on a busy process the read is repeated a few times, and
//! then the rows are those that were live throughout ([`Taken::events_during_read`] says so).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::cuda_functions::Api;
use crate::growing::extent_capacity;
use crate::kind::Kind;
use crate::layout::{VERSION, *};
use crate::snapshot::{self, *};
use crate::table::{Record, State, Status, What};

/// Reads of a process that keeps changing before the rows live throughout are taken.
const ATTEMPTS: u32 = 5;
/// Longer chains of frames than this are not stacks.
const FRAMES_MAX: usize = 4096;

/// Why a file could not be read as a recording: what was tried, on which file, and what to do next.
#[derive(Debug)]
pub enum ReadError {
    Io(PathBuf, std::io::Error),
    Empty(PathBuf),
    /// The magic is missing.
    Foreign(PathBuf),
    /// The process died while it created the file.
    Unfinished(PathBuf),
    OtherByteOrder(PathBuf),
    Newer(PathBuf, u32),
    /// Something that is needed lies past the end of the file.
    Truncated(PathBuf, String),
    /// Impossible lengths or numbers.
    Damaged(PathBuf, String),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            ReadError::Io(path, error) => {
                let remedy = match error.kind() {
                    std::io::ErrorKind::NotFound => "check the name; recordings end in .culeak",
                    std::io::ErrorKind::PermissionDenied => {
                        "recordings belong to the user who ran the program: read it as that user"
                    }
                    std::io::ErrorKind::IsADirectory => "name a recording in it",
                    _ => "copy it to a local disk and read the copy",
                };
                write!(f, "{}: cannot be read: {error}; {remedy}", path.display())
            }
            ReadError::Empty(path) => {
                write!(
                    f,
                    "{}: empty; the disk was full when recording began, record again elsewhere (-o DIR)",
                    path.display()
                )
            }
            ReadError::Foreign(path) => {
                write!(
                    f,
                    "{}: not a culeak recording; make one with: culeak run -- PROGRAM",
                    path.display()
                )
            }
            ReadError::Unfinished(path) => write!(
                f,
                "{}: the process ended while it created this recording, so it holds nothing; record again",
                path.display()
            ),
            ReadError::OtherByteOrder(path) => {
                write!(
                    f,
                    "{}: recorded on a machine of the other byte order; make a snapshot there and read that",
                    path.display()
                )
            }
            ReadError::Newer(path, version) => write!(
                f,
                "{}: written by format {version}, this build reads format {VERSION}; use the newer culeak or record again",
                path.display()
            ),
            ReadError::Truncated(path, what) => {
                write!(f, "{}: truncated: {what}; copy the file again", path.display())
            }
            ReadError::Damaged(path, what) => {
                write!(
                    f,
                    "{}: damaged: {what}; copy the file again or record again",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io(_, error) => Some(error),
            _ => None,
        }
    }
}

/// Reads the recording at `path` as it is at this moment. Nothing is symbolized.
///
/// # Errors
/// [`ReadError`], whose text is one line fit for a user.
pub fn read(path: &Path) -> Result<Snapshot, ReadError> {
    let source = Source::open(path)?;
    let mut picture = source.picture()?;
    for _ in 1..ATTEMPTS {
        if picture.events_during_read == 0 {
            break;
        }
        picture = source.picture()?;
    }
    picture.into_snapshot(path)
}

/// Whether the file begins like a recording.
pub fn is_recording(beginning: &[u8]) -> bool {
    beginning.starts_with(&MAGIC)
}

struct Source<'a> {
    path: &'a Path,
    file: File,
}

/// All sections as they were read, and what the header said before and after.
struct Picture {
    header: Bytes,
    sections: HashMap<u32, Bytes>,
    /// State words of the records on the second reading.
    states: Vec<u64>,
    sequence_before: u64,
    events_during_read: u64,
}

/// A copy of a piece of the file: an array of equal elements.
struct Bytes {
    bytes: Vec<u8>,
    element: usize,
}

impl Bytes {
    fn len(&self) -> usize {
        self.bytes.len().checked_div(self.element).unwrap_or(0)
    }

    /// Word `word` of element `element`; 0 outside, which everywhere means "nothing there".
    fn word(&self, element: usize, word: usize) -> u64 {
        let at = element * self.element + word * 8;
        self.bytes
            .get(at..at + 8)
            .map_or(0, |eight| u64::from_le_bytes(eight.try_into().unwrap_or_default()))
    }

    fn half(&self, at: usize) -> u32 {
        self.bytes
            .get(at..at + 4)
            .map_or(0, |four| u32::from_le_bytes(four.try_into().unwrap_or_default()))
    }
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Source<'a>, ReadError> {
        let io = |error| ReadError::Io(path.to_path_buf(), error);
        // Without waiting: the name may be that of a FIFO.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if metadata.is_dir() {
            return Err(io(std::io::Error::from_raw_os_error(libc::EISDIR)));
        }
        if !metadata.is_file() {
            return Err(ReadError::Foreign(path.to_path_buf()));
        }
        Ok(Source { path, file })
    }

    fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, ReadError> {
        let mut buffer = vec![0; bytes];
        self.file
            .read_exact_at(&mut buffer, offset)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => ReadError::Truncated(
                    self.path.to_path_buf(),
                    format!("it ends before byte {}", offset + bytes as u64),
                ),
                _ => ReadError::Io(self.path.to_path_buf(), error),
            })?;
        Ok(buffer)
    }

    fn size(&self) -> Result<u64, ReadError> {
        self.file
            .metadata()
            .map(|m| m.size())
            .map_err(|error| ReadError::Io(self.path.to_path_buf(), error))
    }

    fn header(&self) -> Result<Bytes, ReadError> {
        let path = || self.path.to_path_buf();
        let size = self.size()?;
        if size == 0 {
            return Err(ReadError::Empty(path()));
        }
        let start = self.read(0, size.min(24) as usize)?;
        if !is_recording(&start) {
            // Zeros: allocated by us, but the magic, written last, never came.
            let ours = start.iter().take(8).all(|&byte| byte == 0) && size >= HEADER_BYTES as u64;
            return Err(if ours {
                ReadError::Unfinished(path())
            } else {
                ReadError::Foreign(path())
            });
        }
        let start = Bytes {
            bytes: start,
            element: 1,
        };
        let (version, order) = (start.half(8), start.half(12));
        if order == BYTE_ORDER.swap_bytes() {
            return Err(ReadError::OtherByteOrder(path()));
        }
        if version > VERSION {
            return Err(ReadError::Newer(path(), version));
        }
        if order != BYTE_ORDER || version == 0 || start.half(16) as usize != HEADER_BYTES {
            return Err(ReadError::Damaged(path(), "its header makes no sense".into()));
        }
        Ok(Bytes {
            bytes: self.read(0, HEADER_BYTES)?,
            element: 1,
        })
    }

    fn picture(&self) -> Result<Picture, ReadError> {
        let header = self.header()?;
        let sequence = |header: &Bytes| header_word(header, std::mem::offset_of!(Header, sequence));
        let sequence_before = sequence(&header);
        let mut sections = HashMap::new();
        for section in [
            Section::Records,
            Section::Text,
            Section::Devices,
            Section::Contexts,
            Section::Threads,
            Section::Modules,
            Section::Frames,
            Section::Refusals,
            Section::Counters,
            Section::Apis,
            Section::Unhooked,
        ] {
            // The directory is read anew for what records may refer to: it only grows.
            let directory = if section == Section::Records {
                None
            } else {
                Some(self.header()?)
            };
            sections.insert(
                section as u32,
                self.section(directory.as_ref().unwrap_or(&header), section)?,
            );
        }
        let again = self.section(&header, Section::Records)?;
        let states = (0..again.len()).map(|record| again.word(record, 0)).collect();
        let after = self.header()?;
        Ok(Picture {
            events_during_read: sequence(&after).wrapping_sub(sequence_before),
            header: after,
            sections,
            states,
            sequence_before,
        })
    }

    /// Copies the elements of a section that are in use according to `header`.
    fn section(&self, header: &Bytes, section: Section) -> Result<Bytes, ReadError> {
        let damaged = |what: String| ReadError::Damaged(self.path.to_path_buf(), what);
        let (first, limit) = extent_sizes(section);
        let counts = std::mem::offset_of!(Header, counts);
        let count = header_word(header, counts + section as usize * 8);
        let size = self.size()?;
        let known = known_element_bytes(section);
        let mut extents: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
        for row in 0..DIRECTORY_CAPACITY {
            let at = DIRECTORY_OFFSET + row * size_of::<Extent>();
            if header.half(at) != section as u32 {
                continue;
            }
            let (number, element) = (header.half(at + 4), header.half(at + 8) as usize);
            let (offset, bytes) = (header_word(header, at + 16), header_word(header, at + 24));
            let needed =
                (extent_capacity(number.min(100_000) as usize, first, limit) as u64).checked_mul(element as u64);
            if element < known || element > 4096 || needed.is_none_or(|needed| needed > bytes) {
                return Err(damaged(format!("directory row {row} has impossible sizes")));
            }
            if offset.checked_add(bytes).is_none_or(|end| end > size) {
                let what = format!(
                    "directory row {row} ends at byte {}, the file at {size}",
                    offset.saturating_add(bytes)
                );
                return Err(ReadError::Truncated(self.path.to_path_buf(), what));
            }
            extents.entry(number).or_default().push((element, offset));
        }
        let mut all = Bytes {
            bytes: Vec::new(),
            element: known,
        };
        let mut left = count;
        for number in 0.. {
            if left == 0 {
                break;
            }
            // A missing extent: its rows were never written (the disk was full), nor were any after it.
            let Some(candidates) = extents.get(&number) else { break };
            let capacity = extent_capacity(number as usize, first, limit) as u64;
            let wanted = left.min(capacity) as usize;
            let mut chosen: Option<Vec<u8>> = None;
            for &(element, offset) in candidates {
                let copy = self.read(offset, wanted * element)?;
                // Of two extents with one number, one lost the race to be used and holds zeros only.
                if chosen.is_none() || copy.iter().any(|&byte| byte != 0) {
                    chosen = Some(
                        copy.chunks(element)
                            .flat_map(|chunk| chunk[..known].iter().copied())
                            .collect(),
                    );
                }
            }
            all.bytes.extend(chosen.unwrap_or_default());
            left -= wanted as u64;
        }
        Ok(all)
    }
}

fn header_word(header: &Bytes, at: usize) -> u64 {
    header
        .bytes
        .get(at..at + 8)
        .map_or(0, |eight| u64::from_le_bytes(eight.try_into().unwrap_or_default()))
}

/// Size of the part of an element that this version knows.
fn known_element_bytes(section: Section) -> usize {
    match section {
        Section::Text => 1,
        Section::Devices => size_of::<DeviceRow>(),
        Section::Contexts => size_of::<ContextRow>(),
        Section::Threads => size_of::<ThreadRow>(),
        Section::Modules => size_of::<ModuleRow>(),
        Section::Frames => size_of::<FrameRow>(),
        Section::Records => size_of::<Record>(),
        Section::Refusals => size_of::<RefusalRow>(),
        Section::Counters => size_of::<CounterRow>(),
        Section::Apis | Section::Unhooked => size_of::<NameRow>(),
    }
}

/// Old row number → row number in the snapshot, for sections whose unpublished rows are left out.
type Renumbered = HashMap<u32, usize>;

impl Picture {
    fn rows(&self, section: Section) -> &Bytes {
        &self.sections[&(section as u32)]
    }

    fn text(&self, word: u64) -> String {
        let (offset, bytes) = halves(word);
        let text = self.rows(Section::Text);
        let bytes = text
            .bytes
            .get(offset as usize..offset as usize + bytes as usize)
            .unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn loss(&self, loss: Loss) -> u64 {
        header_word(&self.header, std::mem::offset_of!(Header, losses) + loss as usize * 8)
    }

    fn header_text(&self, at: usize) -> Option<String> {
        let word = header_word(&self.header, at);
        (halves(word).1 != NONE).then(|| self.text(word))
    }

    fn into_snapshot(self, path: &Path) -> Result<Snapshot, ReadError> {
        let (devices, device_numbers) = self.devices();
        let (contexts, context_numbers) = self.contexts(&device_numbers);
        let (mut threads, thread_numbers) = self.threads();
        let (modules, module_numbers) = self.modules();
        let mut stacks = Stacks::new(&self, &module_numbers);
        let mut unknown_thread = None;
        let mut thread_of = |number: u32| {
            thread_numbers.get(&number).copied().unwrap_or_else(|| {
                *unknown_thread.get_or_insert_with(|| {
                    threads.push(Thread {
                        tid: 0,
                        name: "?".into(),
                        first_seen_ns: 0,
                    });
                    threads.len() - 1
                })
            })
        };

        let mut allocations = Vec::new();
        let mut in_flight = 0;
        let records = self.rows(Section::Records);
        for record in 0..records.len() {
            let word = |index| records.word(record, index);
            let state = State::of(word(0));
            match state.map(|state| state.status) {
                Some(Status::Live) => {}
                Some(Status::Withdrawn) => {
                    in_flight += 1;
                    continue;
                }
                _ => continue,
            }
            // Changed meanwhile, or begun after we started to look: not live during the whole read.
            if self.states.get(record) != Some(&word(0))
                || word(5) >= self.sequence_before.max(1) && self.events_during_read > 0
            {
                continue;
            }
            let (kind, _, flags, device, api, context) = What::parts(word(9));
            let Some(kind) = Kind::from_number(kind) else { continue };
            let (stack, thread) = halves(word(8));
            let (references, mappings) = if flags & What::COUNTS != 0 {
                halves(word(6))
            } else {
                (0, 0)
            };
            allocations.push(Allocation {
                address: word(1),
                bytes: word(2),
                requested: word(3),
                kind,
                api: self.api(api),
                device: device_numbers.get(&device.into()).copied(),
                context: context_numbers.get(&context.into()).copied(),
                stream: (flags & What::HAS_STREAM != 0).then(|| stream(word(6))),
                pool: (flags & What::HAS_POOL != 0).then(|| word(7)),
                thread: thread_of(thread),
                time_ns: word(4),
                sequence: word(5),
                stack: stacks.of(stack),
                references,
                mappings,
            });
        }
        allocations.sort_by_key(|allocation| allocation.sequence);

        let rows = self.rows(Section::Refusals);
        let mut refused = Vec::new();
        for row in 0..rows.len() {
            let word = |index| rows.word(row, index);
            let (kind, _, _, device, api, _) = What::parts(word(4));
            let (Some(kind), true) = (Kind::from_number(kind), word(1) > 0) else {
                continue;
            };
            let (stack, thread) = halves(word(5));
            refused.push(Refused {
                bytes: word(0),
                count: word(1),
                kind,
                api: self.api(api),
                device: device_numbers.get(&device.into()).copied(),
                error: word(6) as u32 as i32,
                thread: thread_of(thread),
                stack: stacks.of(stack),
                first_ns: word(2),
                last_ns: word(3),
            });
        }

        let (mut counters, device_peaks) = self.counters(&device_numbers);
        // The rows are the truth: a thread that was stopped between publishing and counting leaves the sums behind.
        for counter in &mut counters {
            let live = || {
                allocations
                    .iter()
                    .filter(|a| (a.device, a.kind) == (counter.device, counter.kind))
            };
            (counter.live_count, counter.live_bytes) = (live().count() as u64, live().map(|a| a.bytes).sum());
            counter.total_count = counter
                .total_count
                .max(counter.live_count.saturating_add(counter.freed_count));
            counter.peak_bytes = counter.peak_bytes.max(counter.live_bytes);
            counter.total_bytes = counter.total_bytes.max(counter.peak_bytes);
        }
        let (locations, stacks) = (stacks.locations, stacks.stacks);
        let latest = allocations.iter().map(|a| a.time_ns).max().unwrap_or(0);
        let (process, running_for) = self.process(path);
        let ended = header_word(&self.header, std::mem::offset_of!(Header, ended_ns));
        let snapshot = Snapshot {
            format: FORMAT.into(),
            version: snapshot::VERSION,
            taken: Taken {
                by: env!("CARGO_PKG_VERSION").into(),
                at_unix_ns: unix_now(),
                at_ns: match process.state {
                    ProcessState::Running => running_for.max(latest),
                    ProcessState::Exited => ended.max(latest),
                    _ => latest.max(refused.iter().map(|r| r.last_ns).max().unwrap_or(0)),
                },
                events_during_read: self.events_during_read,
                in_flight,
            },
            honesty: self.honesty(),
            process,
            devices,
            contexts,
            threads,
            modules,
            locations,
            stacks,
            allocations,
            refused,
            counters,
            device_peaks,
        };
        snapshot
            .validate()
            .map_err(|what| ReadError::Damaged(path.to_path_buf(), what))?;
        Ok(snapshot)
    }

    fn api(&self, number: u16) -> String {
        let word = self.rows(Section::Apis).word(number.into(), 0);
        if halves(word).1 == 0 {
            format!("function {number}")
        } else {
            self.text(word)
        }
    }

    fn devices(&self) -> (Vec<Device>, Renumbered) {
        let rows = self.rows(Section::Devices);
        let (mut devices, mut numbers) = (Vec::new(), Renumbered::new());
        for row in 0..rows.len() {
            let (ordinal, uuid_kind) = halves(rows.word(row, 0));
            if ordinal == 0 {
                continue;
            }
            // Two threads may have registered one device at the same moment.
            let twin = devices
                .iter()
                .position(|device: &Device| device.ordinal == ordinal as i32 - 1);
            numbers.insert(row as u32, twin.unwrap_or(devices.len()));
            if twin.is_some() {
                continue;
            }
            let uuid: Vec<u8> = (1..3).flat_map(|word| rows.word(row, word).to_le_bytes()).collect();
            let name: Vec<u8> = (3..16).flat_map(|word| rows.word(row, word).to_le_bytes()).collect();
            devices.push(Device {
                ordinal: ordinal as i32 - 1,
                uuid: uuid_text(uuid_kind, &uuid),
                name: until_zero(&name),
            });
        }
        (devices, numbers)
    }

    fn contexts(&self, devices: &Renumbered) -> (Vec<Context>, Renumbered) {
        let rows = self.rows(Section::Contexts);
        let (mut contexts, mut numbers) = (Vec::new(), Renumbered::new());
        for row in 0..rows.len() {
            let (device, created) = halves(rows.word(row, 1));
            let Some(first_seen_ns) = rows.word(row, 2).checked_sub(1) else {
                continue;
            };
            numbers.insert(row as u32, contexts.len());
            contexts.push(Context {
                handle: rows.word(row, 0),
                device: devices.get(&device).copied(),
                primary: created == 0,
                first_seen_ns,
                destroyed_ns: rows.word(row, 3).checked_sub(1),
            });
        }
        (contexts, numbers)
    }

    fn threads(&self) -> (Vec<Thread>, Renumbered) {
        let rows = self.rows(Section::Threads);
        let (mut threads, mut numbers) = (Vec::new(), Renumbered::new());
        for row in 0..rows.len() {
            let (tid, _) = halves(rows.word(row, 0));
            if tid == 0 {
                continue;
            }
            numbers.insert(row as u32, threads.len());
            let name: Vec<u8> = (1..3).flat_map(|word| rows.word(row, word).to_le_bytes()).collect();
            threads.push(Thread {
                tid,
                name: until_zero(&name),
                first_seen_ns: rows.word(row, 3),
            });
        }
        (threads, numbers)
    }

    fn modules(&self) -> (Vec<Module>, Renumbered) {
        let rows = self.rows(Section::Modules);
        let (mut modules, mut numbers) = (Vec::new(), Renumbered::new());
        for row in 0..rows.len() {
            let Some(first_seen_ns) = rows.word(row, 0).checked_sub(1) else {
                continue;
            };
            numbers.insert(row as u32, modules.len());
            let id: Vec<u8> = (7..12).flat_map(|word| rows.word(row, word).to_le_bytes()).collect();
            let id = &id[..(rows.word(row, 6) as usize).min(BUILD_ID_MAX)];
            modules.push(Module {
                path: self.text(rows.word(row, 5)),
                build_id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
                bias: rows.word(row, 2),
                start: rows.word(row, 3),
                end: rows.word(row, 4),
                first_seen_ns,
                unloaded_ns: rows.word(row, 1).checked_sub(1),
            });
        }
        (modules, numbers)
    }

    fn counters(&self, devices: &Renumbered) -> (Vec<Counter>, Vec<DevicePeak>) {
        let rows = self.rows(Section::Counters);
        let (mut counters, mut peaks) = (Vec::new(), Vec::new());
        for row in 0..rows.len() {
            let word = |index| rows.word(row, index);
            let device = (row / COUNTER_STRIDE)
                .checked_sub(1)
                .and_then(|row| devices.get(&(row as u32)).copied());
            if word(4) == 0 && word(6) == 0 {
                continue;
            }
            match (Kind::from_number((row % COUNTER_STRIDE) as u8), device) {
                (Some(kind), device) => counters.push(Counter {
                    device,
                    kind,
                    live_bytes: word(0),
                    live_count: word(1),
                    peak_bytes: word(2),
                    total_bytes: word(3),
                    total_count: word(4),
                    freed_count: word(5),
                    refused_count: word(6),
                }),
                (None, Some(device)) => peaks.push(DevicePeak {
                    device,
                    peak_bytes: word(2),
                }),
                (None, None) => {}
            }
        }
        (counters, peaks)
    }

    fn honesty(&self) -> Honesty {
        let unhooked = self.rows(Section::Unhooked);
        Honesty {
            lost_allocations: self.loss(Loss::Allocations),
            lost_stacks: self.loss(Loss::Stacks),
            lost_details: self.loss(Loss::Details),
            unknown_frees: self.loss(Loss::UnknownFrees),
            vanished: self.loss(Loss::Vanished),
            failed_frees: self.loss(Loss::FailedFrees),
            teardown_frees: self.loss(Loss::TeardownFrees),
            implicit_frees: self.loss(Loss::ImplicitFrees),
            captured_not_launched: self
                .loss(Loss::CapturedNodes)
                .saturating_sub(self.loss(Loss::LaunchedNodes)),
            export_tables: self.loss(Loss::ExportTables),
            unhooked: (0..unhooked.len())
                .map(|row| unhooked.word(row, 0))
                .filter(|word| halves(*word).1 > 0)
                .map(|word| self.text(word))
                .collect(),
            recorder_ns: self.loss(Loss::RecorderNs),
            events: header_word(&self.header, std::mem::offset_of!(Header, sequence)),
        }
    }

    /// Who was recorded, and how long it has been running if it still is.
    fn process(&self, path: &Path) -> (Process, u64) {
        use std::mem::offset_of;
        let header = &self.header;
        let pid = header.half(offset_of!(Header, pid));
        let host = self.header_text(offset_of!(Header, host)).unwrap_or_default();
        let same_host = host_name().is_some_and(|name| name == host);
        let ended = header_word(header, offset_of!(Header, ended_ns)) != 0;
        let ticks = header_word(header, offset_of!(Header, process_start_ticks));
        let state = match (ended, same_host) {
            (true, _) => ProcessState::Exited,
            (false, true) if start_ticks(pid) == Some(ticks) => ProcessState::Running,
            (false, true) => ProcessState::Ended,
            (false, false) => ProcessState::Unknown,
        };
        let command_line = self.header_text(offset_of!(Header, command_line)).unwrap_or_default();
        let mut ranks = BTreeMap::new();
        for (index, name) in RANK_VARIABLES.iter().enumerate() {
            if let Some(value) = self.header_text(offset_of!(Header, ranks) + index * size_of::<Text>()) {
                ranks.insert((*name).to_string(), value);
            }
        }
        let process = Process {
            pid,
            parent_pid: header.half(offset_of!(Header, parent_pid)),
            executable: self.header_text(offset_of!(Header, executable)).unwrap_or_default(),
            command_line: command_line.split_terminator('\0').map(str::to_string).collect(),
            host,
            ranks,
            started_unix_ns: header_word(header, offset_of!(Header, started_unix_ns)),
            state,
            depth: header.half(offset_of!(Header, depth)),
            recording: path.display().to_string(),
        };
        let began = header_word(header, offset_of!(Header, started_monotonic_ns));
        (process, crate::recording::monotonic_ns().saturating_sub(began))
    }
}

/// Turns chains of frame rows into stacks, each once.
struct Stacks<'a> {
    picture: &'a Picture,
    modules: &'a Renumbered,
    locations: Vec<Location>,
    stacks: Vec<Stack>,
    location_of: HashMap<u32, usize>,
    stack_of: HashMap<u32, Option<usize>>,
}

impl<'a> Stacks<'a> {
    fn new(picture: &'a Picture, modules: &'a Renumbered) -> Stacks<'a> {
        Stacks {
            picture,
            modules,
            locations: Vec::new(),
            stacks: Vec::new(),
            location_of: HashMap::new(),
            stack_of: HashMap::new(),
        }
    }

    fn of(&mut self, leaf: u32) -> Option<usize> {
        if let Some(&known) = self.stack_of.get(&leaf) {
            return known;
        }
        let rows = self.picture.rows(Section::Frames);
        let mut frames = Vec::new();
        let mut row = leaf;
        let truncated = loop {
            match row {
                ROOT => break false,
                CUT => break true,
                // Rows are added after their parents: anything else is damage, and ends the stack.
                _ if row as usize >= rows.len() || frames.len() >= FRAMES_MAX => break true,
                _ => {}
            }
            let (parent, module) = halves(rows.word(row as usize, 0));
            let address = rows.word(row as usize, 1);
            if address == 0 {
                break true;
            }
            let (modules, locations) = (self.modules, &mut self.locations);
            frames.push(*self.location_of.entry(row).or_insert_with(|| {
                let module = module.checked_sub(1).and_then(|module| modules.get(&module).copied());
                locations.push(Location {
                    module,
                    address,
                    symbols: Vec::new(),
                });
                locations.len() - 1
            }));
            if parent < CUT && parent >= row {
                break true;
            }
            row = parent;
        };
        let stack = (!frames.is_empty()).then(|| {
            self.stacks.push(Stack { frames, truncated });
            self.stacks.len() - 1
        });
        self.stack_of.insert(leaf, stack);
        stack
    }
}

fn stream(word: u64) -> Stream {
    match word {
        0 | 1 => Stream::LegacyDefault,
        2 => Stream::PerThreadDefault,
        handle => Stream::Handle(handle),
    }
}

fn uuid_text(kind: u32, bytes: &[u8]) -> String {
    let prefix = match kind {
        1 => "GPU",
        2 => "MIG",
        _ => return String::new(),
    };
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{prefix}-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn unix_now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim_end().to_string())
}

/// Field 22 of /proc/PID/stat: when the process started, in clock ticks since boot.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

const _: () = assert!(Api::COUNT <= 256, "the apis section holds 256 names");

#[cfg(test)]
mod tests;
