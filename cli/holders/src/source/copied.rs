//! The memory of a process as it was while the process was held: the process goes on, and the search reads the copy.
//!
//! Private writable memory is copied, and read-only memory that the loader may have changed (virtual tables), and as much of
//! shared memory as is copied in a moment. Other read-only memory is read from its files.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::{Region, Source, Thread};
use crate::copy::apart::Apart;
use crate::copy::selection::{append, containing, is_anonymous, without};
use crate::source::PAGE;

/// The longest piece that is copied at once.
const PIECE: u64 = 64 << 20;
/// Longer read-only mappings are constants and code, which are as in the file.
const RELOCATED: u64 = 32 << 20;
/// The most shared memory that is copied, in bytes.
const SHARED: u64 = 512 << 20;

/// Copied memory.
pub struct MemoryCopy {
    regions: Vec<Region>,
    threads: Vec<Thread>,
    limits: Vec<String>,
    /// By address, without overlaps.
    pieces: Vec<Piece>,
    /// Pages of read-only mappings of files that are not as in the file, by address.
    written: Vec<Range<u64>>,
    /// Shared memory that was not copied: mappings, and bytes that exist in each.
    left_out: Vec<(Range<u64>, u64)>,
    /// The root of the file system as the process sees it, if it differs from this process's.
    root: Option<File>,
}

struct Piece {
    start: u64,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl MemoryCopy {
    /// Copies the memory outside the excluded ranges, which are sorted and do not overlap.
    ///
    /// # Errors
    /// The mappings cannot be read, or no memory can be copied.
    pub fn of(source: &dyn Source, excluded: &[Range<u64>]) -> io::Result<MemoryCopy> {
        MemoryCopy::with_shared(source, excluded, SHARED)
    }

    /// `most`: bytes of shared memory.
    fn with_shared(source: &dyn Source, excluded: &[Range<u64>], most: u64) -> io::Result<MemoryCopy> {
        let regions = source.regions()?;
        let (mut pieces, mut written) = (Vec::new(), Vec::new());
        for region in regions.iter().filter(|region| is_copied(region)) {
            for part in without(&region.range, excluded) {
                if !region.writable && !is_anonymous(region) {
                    written.extend(source.written(part.clone()));
                }
                for run in source.present(part) {
                    copy(source, run, &mut pieces)?;
                }
            }
        }
        if pieces.is_empty() {
            return Err(io::Error::other("no page of it can be read"));
        }
        let apart = Apart::find(source, &regions, excluded, most);
        for run in apart.areas.iter().flat_map(|area| &area.present) {
            copy(source, run.clone(), &mut pieces)?;
        }
        pieces.sort_by_key(|piece| piece.start);
        Ok(MemoryCopy {
            written,
            left_out: apart.left_out,
            threads: source.threads(),
            limits: source.limits(),
            root: source.pid().and_then(other_root),
            regions,
            pieces,
        })
    }

    /// Where this process finds the files of the other one; `None`: under the same paths.
    pub fn root(&self) -> Option<PathBuf> {
        let root = self.root.as_ref()?;
        Some(PathBuf::from(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            root.as_raw_fd()
        )))
    }

    pub fn copied_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }

    /// The pieces that touch this range.
    fn pieces(&self, range: &Range<u64>) -> &[Piece] {
        let first = self.pieces.partition_point(|piece| piece.end() <= range.start);
        let after = self.pieces.partition_point(|piece| piece.start < range.end);
        &self.pieces[first..after.max(first)]
    }

    fn read_piece(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Some(piece) = containing(&self.pieces, address, |piece| piece.start..piece.end()) else {
            return 0;
        };
        let from = &piece.bytes[(address - piece.start) as usize..];
        let count = from.len().min(buffer.len());
        buffer[..count].copy_from_slice(&from[..count]);
        count
    }

    /// Reads memory that was not copied, up to the next piece, from the file that is mapped there.
    fn read_file(&self, address: u64, buffer: &mut [u8]) -> usize {
        let region = containing(&self.regions, address, |region| region.range.clone());
        let Some(region) = region.filter(|region| is_constant(region)) else {
            return 0;
        };
        let next = self.pieces.partition_point(|piece| piece.start <= address);
        let next = self.pieces.get(next).map_or(u64::MAX, |piece| piece.start);
        let end = next.min(region.range.end);
        let count = buffer.len().min((end - address) as usize);
        let offset = region.offset.saturating_add(address - region.range.start);
        let file = File::open(self.file(Path::new(&region.name)));
        file.and_then(|file| file.read_at(&mut buffer[..count], offset))
            .unwrap_or(0)
    }
}

fn is_copied(region: &Region) -> bool {
    let is_memory = region.readable
        && !region.shared
        && (!region.name.starts_with("/dev/") || region.name.starts_with("/dev/zero"));
    let is_kernels = matches!(
        region.name.as_str(),
        "[vvar]" | "[vvar_vclock]" | "[vdso]" | "[vsyscall]"
    );
    let is_relocated = !region.executable && region.range.end - region.range.start <= RELOCATED;
    is_memory && !is_kernels && (region.writable || is_relocated)
}

/// Whether the memory is as in its file, unless it was copied. Pages of data that the process never touched are, too.
fn is_constant(region: &Region) -> bool {
    region.readable && !region.shared && region.name.starts_with('/') && !region.name.starts_with("/dev/")
}

/// Copies a range, without the pages that cannot be read. After one of these, pieces begin with a page: more of them may follow.
fn copy(source: &dyn Source, range: Range<u64>, pieces: &mut Vec<Piece>) -> io::Result<()> {
    let (mut at, mut longest) = (range.start, PIECE);
    while at < range.end {
        let wanted = (range.end - at).min(longest);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(wanted as usize).map_err(io::Error::other)?;
        bytes.resize(wanted as usize, 0);
        let count = source.read(&[at..at + wanted], &mut bytes);
        bytes.truncate(count);
        if count > 0 {
            pieces.push(Piece { start: at, bytes });
        }
        at += count as u64;
        if count as u64 == wanted {
            longest = (longest * 2).min(PIECE);
            continue;
        }
        if longest > PAGE && source.regions().map_or(true, |regions| regions.is_empty()) {
            return Err(io::Error::other("it ended meanwhile"));
        }
        (at, longest) = ((at / PAGE + 1) * PAGE, PAGE);
    }
    Ok(())
}

/// The root of a process that sees another file system than this one. It stays open when the process has ended.
fn other_root(pid: u32) -> Option<File> {
    let root = File::open(format!("/proc/{pid}/root")).ok()?;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let own = std::fs::metadata("/").ok()?;
    (identity(root.metadata().ok()?) != identity(own)).then_some(root)
}

impl Source for MemoryCopy {
    fn regions(&self) -> io::Result<Vec<Region>> {
        Ok(self.regions.clone())
    }

    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        for piece in self.pieces(&range) {
            append(&mut parts, piece.start.max(range.start)..piece.end().min(range.end));
        }
        parts
    }

    fn written(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let first = self.written.partition_point(|run| run.end <= range.start);
        let clipped = |run: &Range<u64>| run.start.max(range.start)..run.end.min(range.end);
        let runs = self.written[first..].iter().map(clipped);
        runs.take_while(|run| run.start < run.end).collect()
    }

    fn left_out(&self, range: &Range<u64>) -> u64 {
        let is_inside = |(area, _): &&(Range<u64>, u64)| range.start <= area.start && area.start < range.end;
        let inside = self.left_out.iter().filter(is_inside);
        inside.map(|(_, bytes)| bytes).sum()
    }

    fn read_part(&self, address: u64, buffer: &mut [u8]) -> usize {
        match self.read_piece(address, buffer) {
            0 => self.read_file(address, buffer),
            read => read,
        }
    }

    fn threads(&self) -> Vec<Thread> {
        self.threads.clone()
    }

    fn file(&self, path: &Path) -> PathBuf {
        match self.root() {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_path_buf(),
        }
    }

    fn limits(&self) -> Vec<String> {
        self.limits.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// A process whose byte at each address is the low byte of the address divided by 16, except absent pages.
    struct Made {
        regions: Vec<Region>,
        absent: Vec<Range<u64>>,
    }

    impl Source for Made {
        fn pid(&self) -> Option<u32> {
            None
        }
        fn regions(&self) -> io::Result<Vec<Region>> {
            Ok(self.regions.clone())
        }
        fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
            vec![range]
        }
        fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
            let mut done = 0;
            for address in ranges.iter().cloned().flatten() {
                if self.absent.iter().any(|hole| hole.contains(&address)) || done == buffer.len() {
                    break;
                }
                buffer[done] = (address / 16) as u8;
                done += 1;
            }
            done
        }
        fn threads(&self) -> Vec<Thread> {
            Vec::new()
        }
        fn file(&self, path: &Path) -> PathBuf {
            path.to_path_buf()
        }
        fn is_running(&self) -> bool {
            true
        }
    }

    fn region(range: Range<u64>, flags: &str, name: &str) -> Region {
        Region {
            range,
            readable: flags.contains('r'),
            writable: flags.contains('w'),
            executable: flags.contains('x'),
            shared: flags.contains('s'),
            offset: 0,
            name: name.to_owned(),
        }
    }

    #[test]
    fn private_memory_is_copied_without_holes_and_excluded_ranges() {
        let made = Made {
            regions: vec![
                region(0x1_0000..0x1_8000, "rw", ""),
                region(0x2_0000..0x2_4000, "rws", "/dev/shm/x"),
                region(0x3_0000..0x3_4000, "", ""),
            ],
            absent: vec![0x1_3000..0x1_4000],
        };
        let excluded = [0x1_6000..0x1_7000, 0x2_0000..0x9_0000];
        let taken = MemoryCopy::of(&made, &excluded).expect("copied");
        let present = taken.present(0..u64::MAX);
        assert_eq!(present, [0x1_0000..0x1_3000, 0x1_4000..0x1_6000, 0x1_7000..0x1_8000]);
        assert_eq!(taken.copied_bytes(), 0x6000);
        let mut buffer = [0xff; 0x100];
        assert_eq!(
            taken.read(&[0x1_2ff0..0x1_3010], &mut buffer),
            16,
            "up to the absent page"
        );
        assert_eq!(taken.read(&[0x1_0020..0x1_0021, 0x1_7010..0x1_7011], &mut buffer), 2);
        assert_eq!(buffer[..2], [0x02, 0x01]);
        assert_eq!(taken.read(&[0x2_0000..0x2_0010], &mut buffer), 0, "shared");
    }

    #[test]
    fn shared_memory_is_copied_as_far_as_there_is_room() {
        let made = Made {
            regions: vec![
                region(0x1_0000..0x1_1000, "rw", ""),
                region(0x2_0000..0x2_4000, "rws", "/memfd:cache (deleted)"),
                region(0x3_0000..0x4_0000, "rws", "/dev/zero (deleted)"),
                region(0x5_0000..0x5_4000, "rws", "/dev/nvidia0"),
            ],
            absent: Vec::new(),
        };
        let taken = MemoryCopy::with_shared(&made, &[], 0xc000).expect("copied");
        assert_eq!(
            taken.present(0..u64::MAX),
            [0x1_0000..0x1_1000, 0x2_0000..0x2_4000, 0x3_0000..0x3_8000]
        );
        assert_eq!(taken.left_out(&(0x2_0000..0x2_4000)), 0);
        assert_eq!(taken.left_out(&(0x3_0000..0x4_0000)), 0x8000);
    }

    #[test]
    fn constants_are_read_from_their_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lib.so");
        std::fs::write(&path, [7; 0x3000]).expect("written");
        let made = Made {
            regions: vec![
                region(0x1_0000..0x1_2000, "rx", path.to_str().expect("text")),
                region(0x1_2000..0x1_3000, "r", path.to_str().expect("text")),
            ],
            absent: Vec::new(),
        };
        let taken = MemoryCopy::of(&made, &[]).expect("copied");
        let mut buffer = [0; 0x20];
        assert_eq!(taken.read(&[0x1_1ff0..0x1_2010], &mut buffer), 0x20);
        assert_eq!(buffer[..16], [7; 16], "code is as in the file");
        assert_eq!(buffer[16..], [0; 16], "what the loader changed is copied");
    }

    /// A process that ends when its memory has been read this number of times.
    struct Dies {
        reads: AtomicUsize,
        after: usize,
    }

    impl Source for Dies {
        fn pid(&self) -> Option<u32> {
            None
        }
        fn regions(&self) -> io::Result<Vec<Region>> {
            let is_over = self.reads.load(Relaxed) > self.after;
            let all = vec![region(1 << 30..1 << 40, "rw", "")];
            Ok(if is_over { Vec::new() } else { all })
        }
        fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
            vec![range]
        }
        fn read(&self, _ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
            let is_over = self.reads.fetch_add(1, Relaxed) >= self.after;
            if is_over { 0 } else { buffer.len() }
        }
        fn threads(&self) -> Vec<Thread> {
            Vec::new()
        }
        fn file(&self, path: &Path) -> PathBuf {
            path.to_path_buf()
        }
        fn is_running(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_copy_of_a_process_that_ends_meanwhile_ends_too() {
        let dies = Dies {
            reads: AtomicUsize::new(0),
            after: 2,
        };
        let reason = MemoryCopy::of(&dies, &[]).err().expect("it ended").to_string();
        assert_eq!(reason, "it ended meanwhile");
        assert_eq!(dies.reads.load(Relaxed), 3);
    }

    #[test]
    fn a_process_without_readable_memory_is_an_error() {
        let made = Made {
            regions: vec![region(0x1_0000..0x1_1000, "rw", "")],
            absent: vec![0..u64::MAX],
        };
        assert!(MemoryCopy::of(&made, &[]).is_err());
    }
}
