//! What `/proc` says of processes: their mappings, states, parents and ids.
//!
//! A process may end at any time, and only its owner may read most of its files: whatever cannot be read is absent.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The names in a folder that are numbers: the processes in `/proc`, the threads in `/proc/PID/task`.
///
/// # Errors
/// The folder cannot be read.
pub fn numbers(folder: &str) -> io::Result<impl Iterator<Item = u32> + use<>> {
    let entries = fs::read_dir(folder)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// A line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<u64>,
    /// As text: `rw-s`.
    pub permissions: [u8; 4],
    /// Offset in the file.
    pub offset: u64,
    pub inode: u64,
    /// The path of the file, with ` (deleted)` behind it if it was; `[heap]`, `[stack]`; empty if anonymous.
    pub name: Vec<u8>,
}

impl Mapping {
    /// The path of the mapped file.
    pub fn file(&self) -> Option<&Path> {
        let name = self.name.strip_suffix(b" (deleted)").unwrap_or(&self.name);
        name.starts_with(b"/").then(|| Path::new(OsStr::from_bytes(name)))
    }

    fn parse(line: &[u8]) -> Option<Mapping> {
        // 7f6d18400000-7f6d18428000 r--p 00000000 fe:00 1585   /usr/lib/libc.so.6
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = text()?.split_once('-')?;
        let permissions = text()?.as_bytes().try_into().ok()?;
        let (offset, _device, inode) = (hex(text()?)?, text()?, text()?.parse().ok()?);
        Some(Mapping {
            range: hex(start)?..hex(end)?,
            permissions,
            offset,
            inode,
            name: with_line_breaks(fields.next().unwrap_or_default().trim_ascii_start()),
        })
    }
}

/// A mapping, and how much of it is resident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    pub mapping: Mapping,
    pub bytes: u64,
    /// It is memory of a device: `VM_IO` or `VM_PFNMAP`.
    pub is_of_device: bool,
}

/// The mappings of a process by address, with what is resident of them.
///
/// # Errors
/// `/proc/PID/smaps` cannot be read.
pub fn resident(pid: u32) -> io::Result<Vec<Resident>> {
    Ok(parsed_resident(&fs::read(format!("/proc/{pid}/smaps"))?))
}

fn parsed_resident(text: &[u8]) -> Vec<Resident> {
    let mut found: Vec<Resident> = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        if let Some(mapping) = Mapping::parse(line) {
            found.push(Resident {
                mapping,
                bytes: 0,
                is_of_device: false,
            });
            continue;
        }
        let line = String::from_utf8_lossy(line);
        let Some((last, (key, value))) = found.last_mut().zip(line.split_once(':')) else {
            continue;
        };
        match key {
            "Rss" => {
                let kib = value.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok());
                last.bytes = kib.unwrap_or(0).saturating_mul(1024);
            }
            "VmFlags" => last.is_of_device = value.split(' ').any(|flag| matches!(flag, "io" | "pf")),
            _ => {}
        }
    }
    found
}

/// The kernel writes a line break in a path as `\012`.
fn with_line_breaks(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        let escaped = rest.strip_prefix(b"\\012");
        plain.push(if escaped.is_some() { b'\n' } else { *first });
        rest = escaped.unwrap_or(behind);
    }
    plain
}

/// The mappings of a process, by address.
///
/// # Errors
/// They cannot be read.
pub fn mappings(pid: u32) -> io::Result<Vec<Mapping>> {
    Ok(parsed(&fs::read(format!("/proc/{pid}/maps"))?))
}

/// The mappings in the text of `/proc/PID/maps`. The kernel writes it in pieces, so a mapping that changes meanwhile may occur
/// twice; its first part counts.
pub fn parsed(text: &[u8]) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for mut mapping in text.split(|&byte| byte == b'\n').filter_map(Mapping::parse) {
        if let Some(last) = mappings.last() {
            let missing = last.range.end.saturating_sub(mapping.range.start);
            mapping.range.start += missing;
            mapping.offset += missing;
        }
        if mapping.range.start < mapping.range.end {
            mappings.push(mapping);
        }
    }
    mappings
}

/// How a process uses culeak and CUDA, from the files that it maps.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Its recordings: that of a process that forked, too.
    pub recordings: Vec<PathBuf>,
    /// The CUDA driver.
    pub driver: Option<PathBuf>,
    /// culeak's preload library.
    pub has_library: bool,
}

impl Files {
    pub fn of(mappings: &[Mapping]) -> Files {
        let mut files = Files::default();
        for file in mappings.iter().filter_map(Mapping::file) {
            if file.as_os_str().as_bytes().ends_with(b".culeak") {
                if !files.recordings.iter().any(|known| known == file) {
                    files.recordings.push(file.to_owned());
                }
            } else if file_name(file).starts_with(b"libcuda.so") {
                files.driver.get_or_insert_with(|| file.to_owned());
            }
            files.has_library |= is_preload_library(file);
        }
        files
    }

    /// The recording that is named after this process id, else any.
    pub fn recording(&self, pid: u32) -> Option<&Path> {
        let own = format!(".{pid}.culeak");
        let is_own = |path: &&PathBuf| path.as_os_str().as_bytes().ends_with(own.as_bytes());
        let own = self.recordings.iter().find(is_own).or(self.recordings.first());
        own.map(PathBuf::as_path)
    }
}

/// Whether the path is that of culeak's preload library, as far as its name shows.
pub fn is_preload_library(path: &Path) -> bool {
    let name = file_name(path);
    let is_other = |other: &[u8]| name.windows(other.len()).any(|part| part == other);
    name.starts_with(b"libculeak") && name.ends_with(b".so") && !is_other(b"hold") && !is_other(b"fake_driver")
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().map_or(&[], OsStr::as_bytes)
}

/// Fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `R`: it runs; `Z`, `X`: it has ended.
    pub state: char,
    pub parent: u32,
    /// `PF_…` of the kernel.
    pub flags: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// The state of the process or thread with this folder in `/proc`; `None` if it has ended.
pub fn stat(folder: impl AsRef<Path>) -> Option<Stat> {
    let text = fs::read(folder.as_ref().join("stat")).ok()?;
    // The name in parentheses may contain anything, so fields are counted from its end, where the third one follows.
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&text[end + 1..]).ok()?.split_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        flags: fields.nth(4)?.parse().ok()?,
        start_ticks: fields.nth(12)?.parse().ok()?,
    })
}

/// As [`stat`], by process id.
pub fn stat_of(pid: u32) -> Option<Stat> {
    stat(format!("/proc/{pid}"))
}

/// When a process started, in clock ticks since boot.
pub fn start_ticks(pid: u32) -> Option<u64> {
    Some(stat_of(pid)?.start_ticks)
}

/// The words behind a name such as `Uid:`, at the begin of a line of `/proc/PID/status`, `/proc/PID/limits` or `/proc/meminfo`.
pub fn words<'t>(text: &'t str, name: &str) -> Option<impl Iterator<Item = &'t str>> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace())
}

/// The ids of a process, from this pid namespace down to its own.
pub fn nested_pids(pid: u32) -> Option<Vec<u32>> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    words(&status, "NSpid:")?.map(|word| word.parse().ok()).collect()
}

/// The id of a process in its own pid namespace, given its id here.
pub fn own_pid(pid: u32) -> Option<u32> {
    nested_pids(pid)?.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_with_their_resident_bytes_and_whether_a_device_has_them() {
        let text = b"7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \n\
            Size:                 64 kB\nRss:                  12 kB\nVmFlags: rd wr mr mw me ac \n\
            7f1000000000-7f1000010000 rw-s 00000000 00:05 7                          /dev/nvidiactl\n\
            Rss:                   0 kB\nVmFlags: rd wr sh mr mw me ms pf io dc de dd \n";
        let found = parsed_resident(text);
        let told: Vec<_> = found
            .iter()
            .map(|of| (of.mapping.range.start, of.bytes, of.is_of_device))
            .collect();
        assert_eq!(told, [(0x7f00_0000_0000, 12 << 10, false), (0x7f10_0000_0000, 0, true)]);
    }

    #[test]
    fn a_line_becomes_a_mapping() {
        let text = b"7f00-8000 rw-s 00001000 fe:00 15                         /a b/c\\012d (deleted)\n\
                     8000-9000 ---p 00000000 00:00 0 \n\
                     9000-a000 r-xp 00000000 00:00 0                          [vdso]\n";
        let mappings = parsed(text);
        assert_eq!(mappings.len(), 3);
        let first = &mappings[0];
        assert_eq!(
            (first.range.clone(), first.offset, first.inode),
            (0x7f00..0x8000, 0x1000, 15)
        );
        assert_eq!(
            (&first.permissions, &*first.name),
            (b"rw-s", &b"/a b/c\nd (deleted)"[..])
        );
        assert_eq!(first.file(), Some(Path::new("/a b/c\nd")));
        assert!(mappings[1].name.is_empty() && mappings[2].name == b"[vdso]" && mappings[2].file().is_none());
    }

    #[test]
    fn a_mapping_that_was_written_twice_counts_once() {
        let text = b"1000-4000 rw-p 0 0:0 0\n1000-4000 rw-p 0 0:0 0\n2000-6000 rw-p 10 0:0 0 /x\n\nnonsense\n";
        let ranges: Vec<_> = parsed(text)
            .into_iter()
            .map(|mapping| (mapping.range, mapping.offset))
            .collect();
        assert_eq!(ranges, [(0x1000..0x4000, 0), (0x4000..0x6000, 0x2010)]);
    }

    #[test]
    fn a_mapped_recording_and_the_driver_are_found() {
        let of = |text: &str| Files::of(&parsed(text.as_bytes()));
        let driver = "7f00-7f10 r-xp 00000000 08:01 42  /usr/lib/libcuda.so.580.65.06\n";
        let recorded = of(&format!(
            "{driver}7f20-7f30 rw-s 00000000 08:01 43  /tmp/my app.k3f9.host.7.culeak (deleted)\n\
             7f30-7f40 rw-s 00000000 08:01 44  /tmp/other.8.culeak\n"
        ));
        assert_eq!(recorded.recordings.len(), 2);
        assert_eq!(recorded.recording(8), Some(Path::new("/tmp/other.8.culeak")));
        assert_eq!(recorded.recording(9), Some(Path::new("/tmp/my app.k3f9.host.7.culeak")));
        assert_eq!(
            recorded.driver.as_deref(),
            Some(Path::new("/usr/lib/libcuda.so.580.65.06"))
        );
        let odd = Files::of(&parsed(b"7f02-7f03 rw-s 0 fe:01 14  /tmp/\xff\\012x.culeak (deleted)"));
        assert_eq!(odd.recordings[0].as_os_str().as_bytes(), b"/tmp/\xff\nx.culeak");
        assert_eq!(Files::of(&parsed(b"\xff\xfe garbage")), Files::default());
        let other = of("7f00-7f10 r-xp 00000000 08:01 42  /usr/lib/libcudart.so.13\n7f10-7f20 rw-p 0 0:0 0 [heap]\n");
        assert_eq!(other, Files::default());
    }

    #[test]
    fn the_library_is_recognized_by_its_name() {
        let is_library = |path| is_preload_library(Path::new(path));
        assert!(is_library("/root/.cache/culeak/0.1.0-abc/libculeak.so") && is_library("/culeak/libculeak.so"));
        assert!(!is_library("/root/.cache/culeak/0.1.0-abc/libculeak-hold.so") && !is_library("/lib/libc.so.6"));
    }

    #[test]
    fn this_process_runs_below_its_parent() {
        let own = stat_of(std::process::id()).expect("this process");
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(own.start_ticks > 0 && !"ZX".contains(own.state));
        assert_eq!(own_pid(std::process::id()), Some(std::process::id()));
    }
}
