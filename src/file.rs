//! The growing file behind a recording, from the side that writes it.
//!
//! The file grows a few dozen times in a process's life. Each time it is allocated on disk *before* anything is touched
//! (a full disk then costs records, never a SIGBUS) and mapped. For that it needs a descriptor, and the descriptors are
//! the watched program's: it may close all of them, or run out. So one is kept, at 64 or above, for programs that change
//! their user, their root or the name of the folder; it is checked to be the same inode each time, and if it is not, the
//! file is opened again by its path.
//!
//! Everything here is safe in signal handlers and needs no heap: system calls, atomics and fixed arrays.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};

use crate::format::{DIRECTORY_CAPACITY, DIRECTORY_OFFSET, Extent, HEADER_BYTES, Header, Section};
use crate::system::{Descriptor, Errno, Uncancelled, without_write_signals};

pub const PATH_MAX: usize = 4096;

/// A created recording. Never moved or dropped: threads may write through its mapping until the process is gone.
pub struct File {
    path: [u8; PATH_MAX],
    device: u64,
    inode: u64,
    /// Whether the file system counts names, so that a file without one is a removed file.
    counts_links: bool,
    page: u64,
    header: *const Header,
    /// The number of a descriptor of the file, unless the program has closed it; 0: there is none.
    kept: AtomicI32,
    /// Why the file could not grow when it was last tried; 0: it could.
    trouble: AtomicI32,
    /// Where the next extent begins.
    end: AtomicU64,
    /// Directory rows handed out.
    rows: AtomicU64,
}

// SAFETY: the header points to a shared mapping that is never unmapped, and is only changed through atomics.
unsafe impl Sync for File {}

impl File {
    /// Creates `path` exclusively (mode 0600, never through a symlink) and maps its header, zeroed. Made in place: it is
    /// larger than what the stack of a thread may have left.
    ///
    /// # Errors
    /// The errno of the call that failed; `EEXIST` when the name is taken. Nothing is left behind on other errors.
    pub fn create<'a>(place: &'a mut MaybeUninit<File>, path: &CStr) -> Result<&'a mut File, Errno> {
        let _uncancelled = Uncancelled::new();
        let bytes = path.to_bytes_with_nul();
        if bytes.len() > PATH_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let opened = Descriptor::open(path, flags)?;
        let begun = opened.status().and_then(|status| {
            // SAFETY: sysconf has no preconditions.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
            let end = (HEADER_BYTES as u64).next_multiple_of(page);
            Ok((status, page, end, map(opened.number(), 0, end)?))
        });
        let (status, page, end, header) = begun.inspect_err(|_| {
            // SAFETY: `path` is a C string; the file was created by us just now.
            unsafe { libc::unlink(path.as_ptr()) };
        })?;
        let kept = if opened.is_own() { opened.keep() } else { 0 };
        let file = place.as_mut_ptr();
        // SAFETY: `file` points to room for one, of which every field is written here.
        unsafe {
            addr_of_mut!((*file).path).write_bytes(0, 1);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr_of_mut!((*file).path).cast(), bytes.len());
            addr_of_mut!((*file).device).write(status.st_dev);
            addr_of_mut!((*file).inode).write(status.st_ino);
            addr_of_mut!((*file).counts_links).write(status.st_nlink > 0);
            addr_of_mut!((*file).page).write(page);
            addr_of_mut!((*file).header).write(header.cast());
            addr_of_mut!((*file).kept).write(AtomicI32::new(kept));
            addr_of_mut!((*file).trouble).write(AtomicI32::new(0));
            addr_of_mut!((*file).end).write(AtomicU64::new(end));
            addr_of_mut!((*file).rows).write(AtomicU64::new(0));
            Ok(&mut *file)
        }
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
    /// `ENOSPC`, `EDQUOT`, `EFBIG` …: the file is full; otherwise as [`File::open`].
    pub fn extend(&self, bytes: usize) -> Result<NewExtent, Errno> {
        let _uncancelled = Uncancelled::new();
        let bytes = (bytes as u64).next_multiple_of(self.page);
        let attempt = || self.open().and_then(|file| self.extend_open(&file, bytes));
        // A program that closes every descriptor may have closed this one between two calls.
        let result = match attempt() {
            Err(Errno(libc::EBADF)) => attempt(),
            result => result,
        };
        match &result {
            Ok(_) => self.trouble.store(0, Relaxed),
            Err(error) => self.note_trouble(*error),
        }
        result
    }

    /// The file could not grow.
    pub fn note_trouble(&self, error: Errno) {
        self.trouble.store(error.0, Relaxed);
    }

    /// Why the file could not grow when it was last tried.
    pub fn trouble(&self) -> Option<Errno> {
        let trouble = self.trouble.load(Relaxed);
        (trouble != 0).then_some(Errno(trouble))
    }

    /// The file, open for reading and writing, for one piece of work.
    ///
    /// # Errors
    /// `ENOENT`: it has no name any more, so what is added could never be read; `ESTALE`: another file has taken its
    /// place; otherwise as `open`.
    pub fn open(&self) -> Result<Descriptor, Errno> {
        let kept = self.kept.load(Relaxed);
        if kept != 0 {
            // A copy, whose number only this thread knows: the program may put another file under the number that is kept.
            // There is no copy when the program has lowered its limit on descriptors.
            // Not of a file of the program's: closing any descriptor of a file gives up the process's locks on it.
            let checked = self.check(&Descriptor::borrowed(kept)).and_then(|()| {
                let file = Descriptor::copy_of(kept).unwrap_or(Descriptor::borrowed(kept));
                self.check(&file).map(|()| file)
            });
            match checked {
                Ok(file) => return Ok(file),
                Err(Errno(libc::ENOENT)) => return Err(Errno(libc::ENOENT)),
                // Closed, and the number perhaps taken, by the program.
                Err(_) => {}
            }
        }
        let file = Descriptor::open(self.path(), libc::O_RDWR | libc::O_NOFOLLOW)?;
        self.check(&file)?;
        if file.is_own()
            && let Some(copy) = Descriptor::copy_of(file.number())
            && self
                .kept
                .compare_exchange(kept, copy.number(), Relaxed, Relaxed)
                .is_ok()
        {
            copy.keep();
        }
        Ok(file)
    }

    fn check(&self, file: &Descriptor) -> Result<(), Errno> {
        let status = file.status()?;
        if (status.st_dev, status.st_ino) != (self.device, self.inode) {
            return Err(Errno(libc::ESTALE));
        }
        if status.st_nlink == 0 && self.counts_links {
            return Err(Errno(libc::ENOENT));
        }
        Ok(())
    }

    /// In a forked child: the recording is the parent's.
    pub fn forked(&self) {
        let kept = self.kept.swap(0, Relaxed);
        if kept != 0 && self.check(&Descriptor::borrowed(kept)) != Err(Errno(libc::ESTALE)) {
            // SAFETY: the child's copy of our own descriptor, or none.
            unsafe { libc::close(kept) };
        }
    }

    fn extend_open(&self, file: &Descriptor, bytes: u64) -> Result<NewExtent, Errno> {
        // Relaxed: only the number matters; what lies there is published by `announce`.
        let offset = self.end.fetch_add(bytes, Relaxed);
        match map(file.number(), offset, bytes) {
            Ok(address) => Ok(NewExtent { address, offset, bytes }),
            Err(error) => {
                // Some file systems keep what they had allocated before they ran out: the program may need it.
                let range = (offset as libc::off_t, bytes as libc::off_t);
                let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: this range of the file was handed out to this thread alone.
                unsafe { libc::fallocate(file.number(), hole, range.0, range.1) };
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
    /// For an extent that was not published.
    pub fn unmap(self) {
        // SAFETY: mapped by `map` with this length, and no reference to it exists.
        unsafe { libc::munmap(self.address.cast(), self.bytes as usize) };
    }
}

/// Allocates `bytes` at `offset` on disk, then maps them shared.
fn map(fd: i32, offset: u64, bytes: u64) -> Result<*mut u8, Errno> {
    // SAFETY: `fd` is open; offset and length are in range of off_t (extents are small).
    let allocate = || unsafe { libc::posix_fallocate(fd, offset as libc::off_t, bytes as libc::off_t) };
    loop {
        match without_write_signals(allocate) {
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
