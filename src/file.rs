//! The growing file behind a recording, from the side that writes it.
//!
//! The watched program owns its file descriptors: it may close all of them, or run out. So none is kept. The file is
//! opened again for every extent (a few dozen times in a process's life), checked to be the same inode, allocated on
//! disk *before* anything is touched (a full disk then costs records, never a SIGBUS), mapped, and closed.
//!
//! Everything here is safe in signal handlers and needs no heap: system calls, atomics and fixed arrays.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::layout::{DIRECTORY_CAPACITY, DIRECTORY_OFFSET, Extent, HEADER_BYTES, Header, Section};

pub const PATH_MAX: usize = 4096;

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// While it lives, `pthread_cancel` waits: `open` and the like are cancellation points, and the watched program does
/// not expect any inside its call.
pub struct Uncancelled(libc::c_int);

impl Uncancelled {
    pub fn new() -> Uncancelled {
        const DISABLE: libc::c_int = 1;
        let mut before = 0;
        // SAFETY: changes the calling thread's own state; `before` is valid.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Uncancelled(before)
    }
}

impl Default for Uncancelled {
    fn default() -> Uncancelled {
        Uncancelled::new()
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// An errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub fn last() -> Errno {
        // SAFETY: __errno_location is always valid in the calling thread.
        Errno(unsafe { *libc::__errno_location() })
    }
}

/// A created recording. Never moved or dropped: threads may write through its mapping until the process is gone.
pub struct File {
    path: [u8; PATH_MAX],
    device: u64,
    inode: u64,
    page: u64,
    header: *const Header,
    /// Where the next extent begins.
    end: AtomicU64,
    /// Directory rows handed out.
    rows: AtomicU64,
}

// SAFETY: the header points to a shared mapping that is never unmapped, and is only changed through atomics.
unsafe impl Sync for File {}

impl File {
    /// Creates `path` exclusively (mode 0600, never through a symlink) and maps its header, zeroed.
    ///
    /// # Errors
    /// The errno of the call that failed; `EEXIST` when the name is taken. Nothing is left behind on other errors.
    pub fn create(path: &CStr) -> Result<File, Errno> {
        let bytes = path.to_bytes_with_nul();
        if bytes.len() > PATH_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        // SAFETY: `path` is a C string; flags and mode are constants.
        let fd = unsafe {
            libc::open(
                path.as_ptr(),
                libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC,
                0o600 as libc::c_uint,
            )
        };
        if fd < 0 {
            return Err(Errno::last());
        }
        let result = File::begin(fd, bytes);
        // SAFETY: `fd` was opened above and is ours.
        unsafe { libc::close(fd) };
        if result.is_err() {
            // SAFETY: `path` is a C string; the file was created by us just now.
            unsafe { libc::unlink(path.as_ptr()) };
        }
        result
    }

    fn begin(fd: i32, path: &[u8]) -> Result<File, Errno> {
        // SAFETY: plain integers: all zeros is a value of `stat`, and `fd` is open.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        if unsafe { libc::fstat(fd, &mut status) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let end = (HEADER_BYTES as u64).next_multiple_of(page);
        let header = map(fd, 0, end)?;
        let mut file = File {
            path: [0; PATH_MAX],
            device: status.st_dev,
            inode: status.st_ino,
            page,
            header: header.cast(),
            end: AtomicU64::new(end),
            rows: AtomicU64::new(0),
        };
        file.path[..path.len()].copy_from_slice(path);
        Ok(file)
    }

    pub fn path(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.path).unwrap_or(c"")
    }

    pub fn header(&self) -> &Header {
        // SAFETY: mapped for HEADER_BYTES in `begin`, never unmapped; fields that change are atomics.
        unsafe { &*self.header }
    }

    /// For the one thread that fills in the header before anybody knows of it.
    pub fn header_mut(&mut self) -> &mut Header {
        // SAFETY: as in `header`; `&mut self` proves that nobody else has the file yet.
        unsafe { &mut *self.header.cast_mut() }
    }

    fn directory(&self) -> &[Extent] {
        // SAFETY: the directory lies in the mapped header (HEADER_BYTES covers it) and consists of atomics.
        unsafe {
            let first = self.header.cast::<u8>().add(DIRECTORY_OFFSET).cast::<Extent>();
            std::slice::from_raw_parts(first, DIRECTORY_CAPACITY)
        }
    }

    /// Adds `bytes` of zeros to the file and maps them. [`File::announce`] makes them known to readers.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EFBIG` …: the file is full; `ESTALE`: another file has taken its place.
    pub fn extend(&self, bytes: usize) -> Result<NewExtent, Errno> {
        let _uncancelled = Uncancelled::new();
        let bytes = (bytes as u64).next_multiple_of(self.page);
        // SAFETY: `path` is a C string.
        let fd = unsafe { libc::open(self.path().as_ptr(), libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(Errno::last());
        }
        let result = self.extend_open(fd, bytes);
        // SAFETY: `fd` was opened above and is ours.
        unsafe { libc::close(fd) };
        result
    }

    /// The file, opened for reading.
    ///
    /// # Errors
    /// `ESTALE`: another file has taken its place; otherwise as `open`.
    pub fn reopen(&self) -> Result<i32, Errno> {
        // SAFETY: `path` is a C string.
        let fd = unsafe {
            libc::open(
                self.path().as_ptr(),
                libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: plain integers: all zeros is a value of `stat`, and `fd` is open.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let known = unsafe { libc::fstat(fd, &mut status) } == 0;
        if known && (status.st_dev, status.st_ino) == (self.device, self.inode) {
            return Ok(fd);
        }
        // SAFETY: opened above and ours.
        unsafe { libc::close(fd) };
        Err(Errno(libc::ESTALE))
    }

    fn extend_open(&self, fd: i32, bytes: u64) -> Result<NewExtent, Errno> {
        // SAFETY: plain integers: all zeros is a value of `stat`, and `fd` is open.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        if unsafe { libc::fstat(fd, &mut status) } != 0 {
            return Err(Errno::last());
        }
        if (status.st_dev, status.st_ino) != (self.device, self.inode) {
            return Err(Errno(libc::ESTALE));
        }
        // Relaxed: only the number matters; what lies there is published by `announce`.
        let offset = self.end.fetch_add(bytes, Relaxed);
        match map(fd, offset, bytes) {
            Ok(address) => Ok(NewExtent { address, offset, bytes }),
            Err(error) => {
                // Give the space back if nobody came after us, so that a full disk leaves no growing hole.
                let _ = self.end.compare_exchange(offset + bytes, offset, Relaxed, Relaxed);
                Err(error)
            }
        }
    }

    /// Enters an extent in the directory.
    ///
    /// # Errors
    /// `EFBIG` when the directory is full.
    pub fn announce(
        &self,
        extent: &NewExtent,
        section: Section,
        number: u32,
        element: usize,
    ) -> Result<&Extent, Errno> {
        let row = self.rows.fetch_add(1, Relaxed) as usize;
        let Some(row) = self.directory().get(row) else {
            return Err(Errno(libc::EFBIG));
        };
        row.number.store(number, Relaxed);
        row.element_bytes.store(element as u32, Relaxed);
        row.offset.store(extent.offset, Relaxed);
        row.bytes.store(extent.bytes, Relaxed);
        // Release: pairs with the reader, who looks at the other fields only when the section is not 0.
        row.section.store(section as u32, Release);
        Ok(row)
    }
}

/// Fresh zeros at the end of the file.
pub struct NewExtent {
    pub address: *mut u8,
    pub offset: u64,
    pub bytes: u64,
}

impl NewExtent {
    /// For the loser of a race to add the same extent: nobody has seen it.
    pub fn unmap(self) {
        // SAFETY: mapped by `map` with this length, and no reference to it exists.
        unsafe { libc::munmap(self.address.cast(), self.bytes as usize) };
    }
}

/// Allocates `bytes` at `offset` on disk, then maps them shared.
fn map(fd: i32, offset: u64, bytes: u64) -> Result<*mut u8, Errno> {
    // A write past the file-size limit would raise SIGXFSZ, which kills: ask first.
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0
        && limit.rlim_cur != libc::RLIM_INFINITY
        && offset + bytes > limit.rlim_cur
    {
        return Err(Errno(libc::EFBIG));
    }
    loop {
        // SAFETY: `fd` is open; offset and length are in range of off_t (extents are small).
        match unsafe { libc::posix_fallocate(fd, offset as libc::off_t, bytes as libc::off_t) } {
            0 => break,
            libc::EINTR => continue,
            error => return Err(Errno(error)),
        }
    }
    // SAFETY: a new mapping at an address of the kernel's choice; the range was allocated above.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            offset as libc::off_t,
        )
    };
    if address == libc::MAP_FAILED {
        Err(Errno::last())
    } else {
        Ok(address.cast())
    }
}

/// Miri knows no such flag, and needs none.
const RESERVE_NOTHING: i32 = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };

/// Zeroed private memory that is never given back, without the heap.
///
/// # Errors
/// `ENOMEM` when the address space is used up.
pub fn anonymous(bytes: usize) -> Result<*mut u8, Errno> {
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | RESERVE_NOTHING,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        Err(Errno::last())
    } else {
        Ok(address.cast())
    }
}
