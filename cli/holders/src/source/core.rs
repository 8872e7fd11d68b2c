//! A core file.
//!
//! ```text
//! PT_LOAD    a mapping: its dumped part is in the core file
//! NT_FILE    which mapping is of which file: what was not dumped is read there
//! NT_PRSTATUS, NT_PRPSINFO, NT_AUXV    threads, the process, and where its stack is
//! ```
//!
//! Contents are read when they are asked for. A file that differs from the one that the process had mapped is not used, and
//! that is reported. Core files have neither the names of threads nor whether a mapping is shared; a writable mapping of
//! `/dev/…`, `/memfd:…` or `/SYSV…` is taken for shared.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::{Region, Source, Thread, read_at};
use crate::copy::selection::containing;
use crate::modules::headers::{Headers, Segment};
use crate::modules::is_that;
use crate::source::PAGE;
use crate::{Error, Map, starts_with_one};

mod notes;
mod segments;

use notes::{Mapped, Notes};

/// The largest distance between a program and its heap.
const HEAP_DISTANCE: u64 = 1 << 30;

/// An opened core file.
pub struct Core {
    file: File,
    segments: Vec<Segment>,
    notes: Notes,
    regions: Vec<Region>,
    /// The mapped files that can be used.
    files: Map<String, File>,
    limits: Vec<String>,
}

impl Core {
    /// # Errors
    /// The file cannot be read, is no core file of a supported processor, is truncated or damaged, or has no memory.
    pub fn open(path: &Path) -> Result<Core, Error> {
        let shown = path.display();
        let failed = |error| Error::Read(shown.to_string(), error);
        let file = culeak::reader::open_regular(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let damaged = |reason: String| Error::Core(format!("{shown}: {reason}"));
        let (machine, segments, note_parts) = segments::read(&file, bytes).map_err(damaged)?;
        let notes = Notes::read(&file, machine, &note_parts).map_err(damaged)?;
        let mut core = Core {
            file,
            segments,
            notes,
            regions: Vec::new(),
            files: Map::default(),
            limits: Vec::new(),
        };
        core.regions = core.named_regions();
        let is_memory = |segment: &&Segment| segment.is_writable() && segment.file_bytes > 0;
        if core.segments.iter().find(is_memory).is_none() {
            return Err(damaged(
                "contains no writable memory; bits 0 and 1 of /proc/PID/coredump_filter must be set before the crash"
                    .to_owned(),
            ));
        }
        core.open_files(path);
        core.report_missing();
        Ok(core)
    }

    /// The id that the process had.
    pub fn process_id(&self) -> u32 {
        self.notes.process_id
    }

    /// The name of its program, up to 15 bytes.
    pub fn command(&self) -> &str {
        &self.notes.command
    }

    /// The file that was mapped at this address.
    pub fn file_at(&self, address: u64) -> Option<&str> {
        self.mapped_at(address).map(|mapped| mapped.name.as_str())
    }

    /// Whether the core file names mapped files.
    pub fn names_files(&self) -> bool {
        !self.notes.mapped.is_empty()
    }

    fn named_regions(&self) -> Vec<Region> {
        let mut regions: Vec<Region> = Vec::new();
        let mut mapped = self.notes.mapped.iter().peekable();
        let mut end = 0;
        for segment in self.segments.iter().map(Some).chain([None]) {
            let start = segment.map_or(u64::MAX, |segment| segment.address);
            // Mappings of files without a segment: read-only, since others are dumped.
            while let Some(next) = mapped.next_if(|next| next.range.start < start) {
                let range = next.range.start.max(end)..next.range.end.min(start);
                if range.start < range.end {
                    regions.push(Region {
                        offset: next.offset + (range.start - next.range.start),
                        range,
                        readable: true,
                        writable: false,
                        executable: true,
                        shared: false,
                        name: next.name.clone(),
                    });
                }
            }
            let Some(segment) = segment else { break };
            let file = self.mapped_at(segment.address);
            let name = file.map(|file| file.name.clone()).unwrap_or_default();
            regions.push(Region {
                range: segment.memory(0),
                readable: segment.is_readable(),
                writable: segment.is_writable(),
                executable: segment.is_executable(),
                shared: segment.is_writable() && is_shared(&name),
                offset: file.map_or(0, |file| file.offset + (segment.address - file.range.start)),
                name,
            });
            end = segment.memory(0).end;
        }
        self.name_special(&mut regions);
        regions
    }

    /// Names the stack, the heap and the kernel's code, which `/proc/PID/maps` names.
    fn name_special(&self, regions: &mut [Region]) {
        let mut name = |address: Option<u64>, name: &str| {
            let contains = |region: &&mut Region| address.is_some_and(|address| region.range.contains(&address));
            if let Some(region) = regions.iter_mut().find(contains)
                && region.name.is_empty()
            {
                region.name = name.to_owned();
            }
        };
        const AT_PHDR: u64 = 3;
        const AT_RANDOM: u64 = 25;
        const AT_SYSINFO_EHDR: u64 = 33;
        name(self.notes.auxiliary(AT_RANDOM), "[stack]");
        name(self.notes.auxiliary(AT_SYSINFO_EHDR), "[vdso]");
        let headers = self.notes.auxiliary(AT_PHDR);
        let Some(program) = headers.and_then(|address| self.mapped_at(address)) else {
            return;
        };
        let Some(end) = regions.iter().rev().find(|region| region.name == program.name) else {
            return;
        };
        // The first anonymous memory behind the program that does not touch it, unlike the end of its .bss.
        let mut end = end.range.end;
        let heap = regions.iter_mut().find(|region| {
            let is_behind = region.range.start >= end && region.name.is_empty() && region.writable;
            let touches = region.range.start == end;
            if is_behind && touches {
                end = region.range.end;
            }
            is_behind && !touches
        });
        if let Some(heap) = heap
            && heap.range.start - end <= HEAP_DISTANCE
        {
            heap.name = "[heap]".to_owned();
        }
    }

    fn mapped_at(&self, address: u64) -> Option<&Mapped> {
        containing(&self.notes.mapped, address, |mapped| mapped.range.clone())
    }

    fn segment_at(&self, address: u64) -> Option<&Segment> {
        containing(&self.segments, address, |segment| segment.memory(0))
    }

    /// Opens the mapped files, and reports those that are needed but missing.
    fn open_files(&mut self, core: &Path) {
        let written = fs::metadata(core).and_then(|found| found.modified()).ok();
        let mut usable: Map<&str, Option<File>> = Map::default();
        let mut missing = Vec::new();
        for mapped in self.notes.mapped.iter().filter(|mapped| !is_shared(&mapped.name)) {
            usable.entry(&mapped.name).or_insert_with(|| {
                let file = culeak::reader::open_regular(Path::new(&mapped.name)).ok();
                let file = file.filter(|file| self.is_same_file(mapped, file, written));
                if file.is_none() && !is_of_culeak(&mapped.name) && self.needs(&mapped.name) {
                    missing.push(mapped.name.as_str());
                }
                file
            });
        }
        let limit = match missing[..] {
            [] => None,
            [one] => Some(format!(
                "{one} is missing here or is another file than the process had mapped; its constants are unknown."
            )),
            [first, ..] => Some(format!(
                "{} files, such as {first}, are missing here or are other files than the process had mapped; their constants \
                 are unknown. Search the core file on the machine where the process ran.",
                missing.len()
            )),
        };
        self.files = usable
            .into_iter()
            .filter_map(|(name, file)| Some((name.to_owned(), file?)))
            .collect();
        self.limits.extend(limit);
    }

    /// Whether some memory of a file was not dumped.
    fn needs(&self, name: &str) -> bool {
        self.regions.iter().any(|region| {
            let segment = self.segment_at(region.range.start);
            region.name == name && region.readable && segment.is_none_or(|segment| segment.file_bytes == 0)
        })
    }

    /// Whether a file is the one that was mapped: by its headers and its build id if those were dumped, otherwise if it is
    /// older than the core file.
    fn is_same_file(&self, mapped: &Mapped, file: &File, written: Option<std::time::SystemTime>) -> bool {
        let dumped = |address: u64, buffer: &mut [u8]| self.read_dumped(address, buffer) == buffer.len();
        let start = mapped.range.start;
        let in_core = (mapped.offset == 0)
            .then(|| Headers::read(&|offset, buffer| dumped(start.wrapping_add(offset), buffer)))
            .flatten();
        let Some(headers) = in_core else {
            let modified = file.metadata().and_then(|found| found.modified()).ok();
            let times = modified.zip(written);
            return times.is_some_and(|(modified, written)| modified <= written);
        };
        let bias = headers.bias(start);
        let expected = headers.build_id(&|address, buffer| dumped(bias.wrapping_add(address), buffer));
        is_that(file, &headers, Some(&expected[..]).filter(|id| !id.is_empty()))
    }

    /// Says how much private memory was not dumped.
    fn report_missing(&mut self) {
        let is_private = |segment: &&Segment| segment.is_writable() && self.mapped_at(segment.address).is_none();
        let missing = self.segments.iter().filter(is_private);
        let missing: u64 = missing.map(|segment| segment.memory_bytes - segment.file_bytes).sum();
        if missing > 0 {
            self.limits.push(format!(
                "{} KiB of private memory are not in the core file: the program or its coredump_filter left them out.",
                missing >> 10
            ));
        }
    }

    /// Reads what the core file itself has, up to the end of a segment.
    fn read_dumped(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Some(segment) = self.segment_at(address) else {
            return 0;
        };
        let inside = address - segment.address;
        let wanted = buffer.len().min(segment.file_bytes.saturating_sub(inside) as usize);
        read_at(&self.file, &mut buffer[..wanted], segment.offset + inside)
    }

    /// Reads what was not dumped, up to the end of a mapping.
    fn read_mapped(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Some(mapped) = self.mapped_at(address) else {
            return 0;
        };
        let Some(file) = self.files.get(&mapped.name) else {
            return 0;
        };
        let wanted = buffer.len().min((mapped.range.end - address) as usize);
        let done = read_at(
            file,
            &mut buffer[..wanted],
            mapped.offset + (address - mapped.range.start),
        );
        // The rest of a file's last page is zeros.
        let end = done.next_multiple_of(PAGE as usize).min(wanted);
        buffer[done..end].fill(0);
        if done == 0 { 0 } else { end }
    }
}

/// The kernel's names of memory that processes share.
fn is_shared(name: &str) -> bool {
    starts_with_one(name, &["/dev/", "/memfd:", "/SYSV", "/drm"]) || name.ends_with(".culeak")
}

/// Whether this is the recorder's library, which holds no memory of the program. `culeak run` maps a temporary copy.
fn is_of_culeak(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.starts_with("libculeak") || name.contains("/culeak-run-")
}

impl Source for Core {
    fn regions(&self) -> io::Result<Vec<Region>> {
        Ok(self.regions.clone())
    }

    /// What was dumped and is not a hole in the core file, which the kernel leaves for pages that did not exist.
    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut address = range.start;
        while address < range.end {
            let segments = &self.segments;
            let place = segments.partition_point(|segment| segment.memory(0).end <= address);
            let Some(segment) = segments.get(place) else { break };
            let start = address.max(segment.address);
            let end = range.end.min(segment.address + segment.file_bytes);
            if start < end {
                let shift = segment.address.wrapping_sub(segment.offset);
                for data in data(&self.file, start.wrapping_sub(shift)..end.wrapping_sub(shift)) {
                    let data = data.start.wrapping_add(shift)..data.end.wrapping_add(shift);
                    let pages = (data.start & !(PAGE - 1)).max(start)..data.end.next_multiple_of(PAGE).min(end);
                    match found.last_mut() {
                        Some(last) if last.end >= pages.start => last.end = pages.end,
                        _ => found.push(pages),
                    }
                }
            }
            address = segment.memory(0).end;
        }
        found
    }

    fn left_out(&self, range: &Range<u64>) -> u64 {
        // The kernel dumps all of a mapping that exists, or nothing.
        match self.present(range.clone()).is_empty() {
            true => range.end - range.start,
            false => 0,
        }
    }

    fn read_part(&self, address: u64, buffer: &mut [u8]) -> usize {
        match self.read_dumped(address, buffer) {
            0 => self.read_mapped(address, buffer),
            read => read,
        }
    }

    fn threads(&self) -> Vec<Thread> {
        self.notes.threads.clone()
    }

    fn file(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    fn limits(&self) -> Vec<String> {
        self.limits.clone()
    }
}

/// The parts of a range of the file that are not holes; all if the file system does not say.
fn data(file: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let seek = |offset: u64, whence| {
        // SAFETY: a valid descriptor. Reads name their offset, so the position is free to change.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, whence) };
        u64::try_from(found).map_err(|_| io::Error::last_os_error())
    };
    let mut found = Vec::new();
    let mut offset = range.start;
    while offset < range.end {
        let start = match seek(offset, libc::SEEK_DATA) {
            Ok(start) => start.max(offset),
            // A hole up to the end of the file.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => break,
            Err(_) => offset,
        };
        let end = seek(start, libc::SEEK_HOLE).unwrap_or(range.end);
        let end = if end > start { end.min(range.end) } else { range.end };
        if start >= end {
            break;
        }
        found.push(start..end);
        offset = end;
    }
    found
}

#[cfg(test)]
mod tests;
