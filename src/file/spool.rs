//! Recordings in folders whose file system cannot hold a mapped file safely.
//!
//! A write through a mapping cannot fail: if the file system has no room for the page, or has lost its server, the kernel raises
//! SIGBUS or drops the page. Local file systems that write in place keep the space that `fallocate` reserved. Network and FUSE
//! file systems need not support shared mappings or `fallocate` at all, and copy-on-write ones (btrfs, ZFS, and an overlayfs over
//! them) need new space for each write. Recordings in folders of those are *spooled*:
//!
//! ```text
//! while the process runs    destination: a note with the host and the path of the spool     spool: the recording
//! when it ends              destination: the recording (copied beside it, then renamed)     spool: removed
//! ```
//!
//! The note is written when the recording is created. So its name is taken, an unwritable folder is noticed at once, and readers
//! on this host find the recording at any time, also after SIGKILL. `culeak run` delivers what killed processes left. If a copy
//! fails, or the destination is no longer the note, everything stays as it is: the spool may be the only copy.
//!
//! Everything here is safe in signal handlers and needs no heap.

use std::ffi::CStr;
use std::fmt::{self, Write as _};

use super::{Begun, CREATE, PATH_MAX};
use crate::format::{HEADER_BYTES, recorded_bytes};
use crate::system::{Descriptor, Errno, Scratch, read_at, unix_ns, without_write_signals, write_at};

/// The folders in which a spool is tried, in this order.
pub type Folders<'a> = [Option<&'a CStr>; 4];

/// The first bytes of a note. The name of the host, the path of the spool, and a sentence for humans follow, each with a zero
/// byte.
pub const NOTE: [u8; 8] = *b"CULEAK>\n";
/// The most bytes of a note.
pub const NOTE_MAX: usize = 8192;
/// How the name of a spool begins; a number, a dot and the name of the recording follow.
pub const PREFIX: &str = "culeak-spool-";

/// The user's choice, the folder for temporary files, and the usual ones. A relative path is ignored.
pub fn folders<'a>(chosen: Option<&'a CStr>, temporary: Option<&'a CStr>) -> Folders<'a> {
    let absolute = |folder: Option<&'a CStr>| folder.filter(|folder| folder.to_bytes().starts_with(b"/"));
    [absolute(chosen), absolute(temporary), Some(c"/tmp"), Some(c"/dev/shm")]
}

/// Whether space that was allocated in this file can be written through a mapping for good. If the kernel does not answer, it can.
pub fn is_suitable(file: &Descriptor) -> bool {
    // ext2, ext3 and ext4; XFS; tmpfs; ramfs.
    const SUITABLE: [u32; 4] = [0xef53, 0x5846_5342, 0x0102_1994, 0x8584_58f6];
    const OVERLAYFS: u32 = 0x794c_7630;
    // SAFETY: integers: all zeros is a value of `statfs`.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid `statfs`; any number is accepted.
    let known = unsafe { libc::fstatfs(file.number(), &mut status) } == 0;
    match status.f_type as u32 {
        _ if !known => true,
        OVERLAYFS => !is_over_copy_on_write(&status),
        kind => SUITABLE.contains(&kind),
    }
}

/// Whether the upper folder of an overlayfs is on btrfs or ZFS.
///
/// An overlayfs hides the type of that file system. The upper folder's path in /proc/self/mountinfo does not help: in a container
/// it is outside the root. But the other numbers are those of that file system: btrfs counts no inodes, and blocks of ZFS are as
/// large as its records, 128 KiB by default. ext4 and XFS count inodes, and their blocks have 64 KiB at most; so does tmpfs, unless it is
/// mounted without a limit of inodes, when a recording is spooled without need.
fn is_over_copy_on_write(status: &libc::statfs) -> bool {
    const LARGEST_BLOCK: u64 = 64 << 10;
    status.f_files == 0 || status.f_bsize as u64 > LARGEST_BLOCK
}

/// Whether a file system answers so that does not support what a recording needs.
pub fn is_unsuitable(error: Errno) -> bool {
    let answers = [libc::ENODEV, libc::EACCES, libc::EINVAL, libc::EOPNOTSUPP];
    answers.contains(&error.0)
}

/// Creates the spool of the recording at `path`, in the first suitable folder, and writes the note to `path`. `spool` becomes the
/// path of the spool.
pub(super) fn begin(path: &CStr, folders: Folders, spool: &mut [u8; PATH_MAX]) -> Result<Begun, Errno> {
    // The prefix and the number need 30 of the 255 bytes of a name.
    let name = end_of(name_of(path), 220);
    for folder in folders.into_iter().flatten() {
        spool.fill(0);
        let mut text = Text::new(spool);
        text.push(folder.to_bytes());
        let _ = write!(text, "/{PREFIX}{:x}.", unix_ns());
        text.push(name);
        let Some(new) = text.as_c_str() else { continue };
        let Ok(opened) = Descriptor::open(new, CREATE) else {
            continue;
        };
        let begun = Begun::of(opened).map(|begun| (begun, write_note(path, new)));
        match begun {
            Ok((begun, Ok(()))) => return Ok(begun),
            Ok((_, Err(error))) => {
                remove(new);
                return Err(error);
            }
            Err(_) => remove(new),
        }
    }
    spool.fill(0);
    Err(Errno(libc::ENODEV))
}

fn write_note(path: &CStr, spool: &CStr) -> Result<(), Errno> {
    // SAFETY: bytes, of which all zeros is a value.
    let mut note = unsafe { Scratch::<[u8; NOTE_MAX]>::zeroed() }?;
    let mut text = Text::new(&mut *note);
    text.push(&NOTE);
    with_host(|host| text.push(host.to_bytes_with_nul()));
    text.push(spool.to_bytes_with_nul());
    text.push(b"\nThis recording is in the file named above until its process ends.\n\0");
    let length = text.length;
    let file = Descriptor::open(path, libc::O_WRONLY | libc::O_NOFOLLOW)?;
    without_write_signals(|| write_at(file.number(), &note[..length], 0))
}

/// Passes on the name of this host.
pub fn with_host<R>(take: impl FnOnce(&CStr) -> R) -> R {
    // SAFETY: bytes, of which all zeros is a value.
    let mut system: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: a valid utsname; its fields are C strings, empty if the call fails.
    take(unsafe {
        libc::uname(&mut system);
        CStr::from_ptr(system.nodename.as_ptr())
    })
}

fn name_of(path: &CStr) -> &[u8] {
    path.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// At most so many bytes of a name. Its end has the id of the process. UTF-8 is not split, since some file systems refuse others.
fn end_of(name: &[u8], most: usize) -> &[u8] {
    let end = &name[name.len().saturating_sub(most)..];
    let begins = end.iter().position(|byte| byte & 0xc0 != 0x80);
    if end.len() < name.len() {
        &end[begins.unwrap_or(0)..]
    } else {
        end
    }
}

/// The host and the path of the spool in a note. `None`: it is no note.
pub fn read_note(bytes: &[u8]) -> Option<(&CStr, &CStr)> {
    let rest = bytes.strip_prefix(&NOTE)?;
    let host = CStr::from_bytes_until_nul(rest).ok()?;
    let spool = CStr::from_bytes_until_nul(&rest[host.count_bytes() + 1..]).ok()?;
    // Readers open the file, and `deliver` removes it.
    let path = spool.to_bytes();
    let name = path.rsplit(|&byte| byte == b'/').next()?;
    (path.starts_with(b"/") && name.starts_with(PREFIX.as_bytes())).then_some((host, spool))
}

/// Writes the recording in `from`, which is at `spool`, to its destination, and removes the spool.
///
/// # Errors
/// The errno of the call that failed; `ESTALE` if another file has the name of the destination. `ENOENT` does not prove that the
/// user has removed the destination: its folder may have been moved or unmounted, or this process may have another root. The spool
/// is still there after any error, and so is what was at the destination.
pub fn deliver(from: &Descriptor, spool: &CStr, destination: &CStr) -> Result<(), Errno> {
    // SAFETY: bytes, of which all zeros is a value.
    let mut buffers = unsafe { Scratch::<Buffers>::zeroed() }?;
    let Buffers { bytes, part } = &mut *buffers;
    let note = Descriptor::open(destination, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK)?;
    match read_note(note.read(&mut bytes[..NOTE_MAX])) {
        Some((_, named)) if named == spool => {}
        _ => return Err(Errno(libc::ESTALE)),
    }
    // SAFETY: no preconditions.
    let part = part_of(destination, unsafe { libc::getpid() } as u32, part)?;
    let to = match Descriptor::open(part, CREATE) {
        // Left by a process that was killed while it copied.
        Err(Errno(libc::EEXIST)) => {
            remove(part);
            Descriptor::open(part, CREATE)
        }
        opened => opened,
    }?;
    let copied = without_write_signals(|| copy(from, &to, bytes));
    // A process with the same id in another container may have taken the name.
    let is_mine = is_at(&to, part);
    let result = copied.and_then(|()| match is_mine {
        true => rename(part, destination),
        false => Err(Errno(libc::ESTALE)),
    });
    if result.is_err() {
        if is_mine {
            remove(part);
        }
    } else if is_at(from, spool) {
        remove(spool);
    }
    result
}

/// The name of the copy that a process makes, until it is complete.
fn part_of<'b>(destination: &CStr, process: u32, part: &'b mut [u8]) -> Result<&'b CStr, Errno> {
    part.fill(0);
    let name = name_of(destination);
    let mut text = Text::new(part);
    text.push(&destination.to_bytes()[..destination.count_bytes() - name.len()]);
    // The number and the ending need 14 of the 255 bytes of a name.
    text.push(end_of(name, 240));
    let _ = write!(text, ".{process:x}.part");
    let fits = text.fits;
    let part = CStr::from_bytes_until_nul(part).ok();
    part.filter(|_| fits).ok_or(Errno(libc::ENAMETOOLONG))
}

/// Removes what a process left that was killed while it copied.
pub fn remove_part(destination: &CStr, process: u32) {
    // SAFETY: bytes, of which all zeros is a value.
    if let Ok(mut buffers) = unsafe { Scratch::<Buffers>::zeroed() }
        && let Ok(part) = part_of(destination, process, &mut buffers.part)
    {
        remove(part);
    }
}

/// Whether the open file is the one at this path.
fn is_at(file: &Descriptor, path: &CStr) -> bool {
    let identity = |file: &Descriptor| file.status().map(|status| (status.st_dev, status.st_ino));
    let named = Descriptor::open(path, libc::O_PATH | libc::O_NOFOLLOW).and_then(|named| identity(&named));
    named.is_ok() && named == identity(file)
}

fn rename(from: &CStr, to: &CStr) -> Result<(), Errno> {
    // SAFETY: two C strings.
    match unsafe { libc::rename(from.as_ptr(), to.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

fn remove(path: &CStr) {
    // SAFETY: a C string.
    unsafe { libc::unlink(path.as_ptr()) };
}

struct Buffers {
    bytes: [u8; 64 << 10],
    part: [u8; PATH_MAX + 16],
}

const _: () = assert!(HEADER_BYTES <= 64 << 10);

/// The header first: other threads may still extend the file, and no row of the copied directory may be beyond the copy's end.
///
/// Pages of zeros are not written: most of a young recording is unused.
fn copy(from: &Descriptor, to: &Descriptor, buffer: &mut [u8]) -> Result<(), Errno> {
    const PAGE: usize = 4096;
    read_at(from.number(), &mut buffer[..HEADER_BYTES], 0)?;
    write_at(to.number(), &buffer[..HEADER_BYTES], 0)?;
    // A file that was truncated stays as short as it is.
    let length = recorded_bytes(&buffer[..HEADER_BYTES]).min(from.status()?.st_size as u64);
    // SAFETY: any number is accepted; the length is that of a file which exists.
    if unsafe { libc::ftruncate(to.number(), length as libc::off_t) } != 0 {
        return Err(Errno::last());
    }
    let mut at = HEADER_BYTES as u64;
    while at < length {
        let bytes = (length - at).min(buffer.len() as u64) as usize;
        read_at(from.number(), &mut buffer[..bytes], at)?;
        for (number, page) in buffer[..bytes].chunks(PAGE).enumerate() {
            if page.iter().any(|&byte| byte != 0) {
                write_at(to.number(), page, at + (number * PAGE) as u64)?;
            }
        }
        at += bytes as u64;
    }
    // A server may report only now that it has no room. Some FUSE file systems lack the operation.
    // SAFETY: any number is accepted.
    match unsafe { libc::fsync(to.number()) } {
        0 => Ok(()),
        _ if matches!(Errno::last().0, libc::ENOSYS | libc::EINVAL) => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Allocates space where `fallocate` does not exist.
pub(super) fn write_zeros(file: i32, offset: u64, bytes: u64) -> Result<(), Errno> {
    static ZEROS: [u8; 4096] = [0; 4096];
    let mut done = 0;
    while done < bytes {
        let piece = (bytes - done).min(ZEROS.len() as u64) as usize;
        write_at(file, &ZEROS[..piece], offset + done)?;
        done += piece as u64;
    }
    Ok(())
}

/// Text in a buffer of zeros; one that is too long is invalid.
struct Text<'b> {
    bytes: &'b mut [u8],
    length: usize,
    fits: bool,
}

impl<'b> Text<'b> {
    fn new(bytes: &'b mut [u8]) -> Text<'b> {
        let (length, fits) = (0, true);
        Text { bytes, length, fits }
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.fits &= end < self.bytes.len();
        if self.fits {
            self.bytes[self.length..end].copy_from_slice(bytes);
            self.length = end;
        }
    }

    fn as_c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(self.bytes).ok().filter(|_| self.fits)
    }
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_the_host_and_the_spool() {
        let note = b"CULEAK>\nnode7\0/tmp/culeak-spool-1.a.culeak\0words";
        assert_eq!(read_note(note), Some((c"node7", c"/tmp/culeak-spool-1.a.culeak")));
        for other in [
            &b"CULEAK\r\nnode7\0/tmp/a\0"[..],
            b"CULEAK>\nnode7\0culeak-spool-1.a\0",
            b"CULEAK>\nnode7\0/etc/passwd\0",
            b"CULEAK>\nnode7\0/tmp/culeak-spool-1.a",
            b"CULEAK>\n",
        ] {
            assert_eq!(read_note(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_name_of_a_copy_is_never_too_long() {
        let mut buffer = [0; PATH_MAX + 16];
        let mut part = |destination: String| {
            let destination = std::ffi::CString::new(destination).expect("no zero byte");
            let part = part_of(&destination, u32::MAX, &mut buffer).map(CStr::to_owned);
            part.expect("it fits").into_string().expect("UTF-8")
        };
        assert_eq!(part("/a/b.7.culeak".into()), "/a/b.7.culeak.ffffffff.part");
        assert_eq!(part("b.culeak".into()), "b.culeak.ffffffff.part");
        let long = part(format!("/a/{}.culeak", "ä".repeat(124)));
        assert_eq!(long, format!("/a/{}.culeak.ffffffff.part", "ä".repeat(116)));
        assert!(long.len() - 3 <= 255, "{}", long.len());
    }

    #[test]
    fn only_absolute_folders_are_tried() {
        let usual = [Some(c"/tmp"), Some(c"/dev/shm")];
        assert_eq!(folders(Some(c"here"), None), [None, None, usual[0], usual[1]]);
        let chosen = folders(Some(c"/scratch"), Some(c"/var/tmp"));
        assert_eq!(chosen, [Some(c"/scratch"), Some(c"/var/tmp"), usual[0], usual[1]]);
    }
}
