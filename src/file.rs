//! The growing file behind a recording, from the writer's side.
//!
//! The file grows a few dozen times in a process's life. Each time it is allocated on disk *before* it is touched (a full
//! disk then costs records, never a SIGBUS) and mapped. That needs a descriptor, and descriptors belong to the watched
//! program: it may close all of them, or use them up. So one descriptor is held, at 64 or above, for programs that change
//! their user, their root or the name of the folder. Each time it is verified to be the same inode; if it is not, the file is
//! opened again by its path.
//!
//! Not every file system keeps the promise that allocated space can be written through a mapping ([`spool`]). On others the
//! mapped file is in a local folder, and is copied to its destination when the process ends.
//!
//! Everything here is safe in signal handlers and needs no heap: system calls, atomics and fixed arrays.

pub mod spool;

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};

use crate::format::{DIRECTORY_CAPACITY, DIRECTORY_OFFSET, Extent, HEADER_BYTES, Header, Section};
use crate::system::{Descriptor, Errno, Uncancelled, read_at, without_write_signals};

pub const PATH_MAX: usize = 4096;

/// A created recording. Never moved or dropped: threads may write through its mapping until the process ends.
pub struct File {
    /// Where users find the recording.
    path: [u8; PATH_MAX],
    /// The mapped file, if it is another one; empty otherwise.
    spool: [u8; PATH_MAX],
    device: u64,
    inode: u64,
    /// Whether the file system counts links, so that a count of 0 means that the file was removed.
    counts_links: bool,
    page: u64,
    header: *const Header,
    /// The number of a descriptor of the file, unless the program has closed it; 0: none.
    descriptor: AtomicI32,
    /// The errno of the last attempt to extend the file; 0: it succeeded.
    trouble: AtomicI32,
    /// Offset of the next extent.
    end: AtomicU64,
    /// Directory rows in use.
    rows: AtomicU64,
}

// SAFETY: the header points to a shared mapping that is never unmapped, and is only changed through atomics.
unsafe impl Sync for File {}

impl File {
    /// Creates `path` exclusively (mode 0600, never through a symlink) and maps its header, zeroed. If the file system of `path`
    /// is unsuitable, the mapped file is created in the first suitable one of `spools`. The `File` is initialized in place, since
    /// it may be larger than the rest of the thread's stack.
    ///
    /// # Errors
    /// The errno of the call that failed; `EEXIST` if the name is taken, `ENODEV` if neither `path` nor a spool is suitable. After
    /// any other error than `EEXIST` the file does not exist.
    pub fn create<'a>(
        place: &'a mut MaybeUninit<File>,
        path: &CStr,
        spools: spool::Folders,
    ) -> Result<&'a mut File, Errno> {
        let _uncancelled = Uncancelled::begin();
        let bytes = path.to_bytes_with_nul();
        if bytes.len() > PATH_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let file = place.as_mut_ptr();
        // SAFETY: `file` points to room for one; the two arrays are initialized here, the other fields below.
        let spool = unsafe {
            addr_of_mut!((*file).path).write_bytes(0, 1);
            addr_of_mut!((*file).spool).write_bytes(0, 1);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr_of_mut!((*file).path).cast(), bytes.len());
            &mut *addr_of_mut!((*file).spool)
        };
        let named = Descriptor::open(path, CREATE)?;
        let opened = match Begun::of(named) {
            Err(error) if spool::is_unsuitable(error) => spool::begin(path, spools, spool),
            result => result,
        };
        let Begun {
            file: opened,
            status,
            page,
            end,
            header,
        } = opened.inspect_err(|_| {
            // SAFETY: `path` is a C string; this call created the file.
            unsafe { libc::unlink(path.as_ptr()) };
        })?;
        let descriptor = if opened.is_own() { opened.keep() } else { 0 };
        // SAFETY: as above; every other field is written here.
        unsafe {
            addr_of_mut!((*file).device).write(status.st_dev);
            addr_of_mut!((*file).inode).write(status.st_ino);
            addr_of_mut!((*file).counts_links).write(status.st_nlink > 0);
            addr_of_mut!((*file).page).write(page);
            addr_of_mut!((*file).header).write(header);
            addr_of_mut!((*file).descriptor).write(AtomicI32::new(descriptor));
            addr_of_mut!((*file).trouble).write(AtomicI32::new(0));
            addr_of_mut!((*file).end).write(AtomicU64::new(end));
            addr_of_mut!((*file).rows).write(AtomicU64::new(0));
            Ok(&mut *file)
        }
    }

    /// Where users find the recording.
    pub fn path(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.path).unwrap_or(c"")
    }

    /// The mapped file, if it is not the one at [`File::path`].
    pub fn spool(&self) -> Option<&CStr> {
        let spool = CStr::from_bytes_until_nul(&self.spool).ok();
        spool.filter(|spool| !spool.is_empty())
    }

    /// The mapped file.
    pub fn mapped_path(&self) -> &CStr {
        self.spool().unwrap_or(self.path())
    }

    /// Copies a spooled recording to its destination, at the end of the process.
    ///
    /// # Errors
    /// As [`spool::deliver`]; the spooled file is still there.
    pub fn deliver(&self) -> Result<(), Errno> {
        let Some(spool) = self.spool() else { return Ok(()) };
        let _uncancelled = Uncancelled::begin();
        spool::deliver(&self.open()?, spool, self.path())
    }

    /// Whether the mapped file is there and can be read.
    pub fn is_readable(&self) -> bool {
        let _uncancelled = Uncancelled::begin();
        let read = self.open().and_then(|file| read_at(file.number(), &mut [0; 8], 0));
        read.is_ok()
    }

    pub fn header(&self) -> &Header {
        // SAFETY: mapped for HEADER_BYTES in `create`, never unmapped; fields that change are atomics.
        unsafe { &*self.header }
    }

    /// For the thread that fills in the header before it shares the file.
    pub fn header_mut(&mut self) -> &mut Header {
        // SAFETY: as in `header`; `&mut self` proves that no other thread has the file yet.
        unsafe { &mut *self.header.cast_mut() }
    }

    fn directory(&self) -> &[Extent] {
        // SAFETY: the directory lies in the mapped header (HEADER_BYTES covers it) and consists of atomics.
        unsafe {
            let first = self.header.cast::<u8>().add(DIRECTORY_OFFSET).cast::<Extent>();
            std::slice::from_raw_parts(first, DIRECTORY_CAPACITY)
        }
    }

    /// Appends at least `bytes` zeros to the file and maps them. [`File::announce`] adds them to the directory.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EFBIG` …: the file is full; otherwise as [`File::open`].
    pub fn extend(&self, bytes: usize) -> Result<NewExtent, Errno> {
        let _uncancelled = Uncancelled::begin();
        let bytes = (bytes as u64).next_multiple_of(self.page);
        // An extent without a row in the directory would be lost, and its space on the disk.
        let has_row = || (self.rows.load(Relaxed) as usize) < DIRECTORY_CAPACITY;
        let attempt = || match has_row() {
            true => self.open().and_then(|file| self.extend_open(&file, bytes)),
            false => Err(Errno(libc::EFBIG)),
        };
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

    /// Stores why the file could not be extended.
    pub fn note_trouble(&self, error: Errno) {
        self.trouble.store(error.0, Relaxed);
    }

    /// The error of the last attempt to extend the file, if it failed.
    pub fn trouble(&self) -> Option<Errno> {
        let trouble = self.trouble.load(Relaxed);
        (trouble != 0).then_some(Errno(trouble))
    }

    /// Opens the file for reading and writing.
    ///
    /// # Errors
    /// `ENOENT`: the file was removed, so added data could never be read; `ESTALE`: another file has taken its name;
    /// otherwise as `open`.
    pub fn open(&self) -> Result<Descriptor, Errno> {
        let held = self.descriptor.load(Relaxed);
        if held != 0 {
            // A duplicate, whose number only this thread knows: the program may put another file under `held` at any time.
            // Without a duplicate, since the program has lowered its limit on descriptors, `held` itself is used. The
            // duplicate is made after the check: closing a descriptor of one of the program's files would release the
            // process's locks on that file.
            let checked = self.check(&Descriptor::borrowed(held)).and_then(|()| {
                let file = Descriptor::copy_of(held).unwrap_or(Descriptor::borrowed(held));
                self.check(&file).map(|()| file)
            });
            match checked {
                Ok(file) => return Ok(file),
                Err(Errno(libc::ENOENT)) => return Err(Errno(libc::ENOENT)),
                // The program closed it, and may have reused the number.
                Err(_) => {}
            }
        }
        let file = Descriptor::open(self.mapped_path(), libc::O_RDWR | libc::O_NOFOLLOW)?;
        self.check(&file)?;
        if file.is_own()
            && let Some(copy) = Descriptor::copy_of(file.number())
            && self
                .descriptor
                .compare_exchange(held, copy.number(), Relaxed, Relaxed)
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

    /// Called in a forked child, which must not extend the parent's recording.
    pub fn forked(&self) {
        let held = self.descriptor.swap(0, Relaxed);
        if held != 0 && self.check(&Descriptor::borrowed(held)) != Err(Errno(libc::ESTALE)) {
            // SAFETY: the child's copy of this file's descriptor, or a closed number.
            unsafe { libc::close(held) };
        }
    }

    fn extend_open(&self, file: &Descriptor, bytes: u64) -> Result<NewExtent, Errno> {
        // Relaxed: only the number matters; what lies there is published by `announce`.
        let offset = self.end.fetch_add(bytes, Relaxed);
        match map(file.number(), offset, bytes) {
            Ok(address) => Ok(NewExtent { address, offset, bytes }),
            Err(error) => {
                // Some file systems keep the part that they allocated before they ran out of space: release it.
                let range = (offset as libc::off_t, bytes as libc::off_t);
                let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: this range of the file belongs to this thread alone.
                unsafe { libc::fallocate(file.number(), hole, range.0, range.1) };
                // Undo the addition unless another thread extended the file since: otherwise a hole would grow while the
                // disk is full.
                let _ = self.end.compare_exchange(offset + bytes, offset, Relaxed, Relaxed);
                Err(error)
            }
        }
    }

    /// Adds an extent to the directory.
    ///
    /// # Errors
    /// `EFBIG` if the directory is full.
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
        // Release: pairs with readers, which use the other fields only if the section is not 0.
        row.section.store(section as u32, Release);
        Ok(row)
    }
}

/// The flags with which recordings are created.
const CREATE: libc::c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;

/// A new file with a mapped header.
struct Begun {
    file: Descriptor,
    status: libc::stat,
    page: u64,
    /// The length of the header, in whole pages.
    end: u64,
    header: *const Header,
}

impl Begun {
    fn of(file: Descriptor) -> Result<Begun, Errno> {
        if !spool::is_suitable(&file) {
            return Err(Errno(libc::ENODEV));
        }
        let status = file.status()?;
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let end = (HEADER_BYTES as u64).next_multiple_of(page);
        let header = map(file.number(), 0, end)?.cast_const().cast();
        Ok(Begun {
            file,
            status,
            page,
            end,
            header,
        })
    }
}

/// A new extent of zeros at the end of the file.
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
            // glibc writes zeros itself for EOPNOTSUPP. Old kernels and sandboxes answer ENOSYS.
            libc::ENOSYS => {
                without_write_signals(|| spool::write_zeros(fd, offset, bytes))?;
                break;
            }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_file_whose_directory_is_full_takes_no_more_space() {
        let path = std::env::temp_dir().join(format!("culeak-full-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let name = CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
        let mut place = Box::new(MaybeUninit::uninit());
        let file = File::create(&mut place, &name, [None; 4]).expect("created");
        for number in 0..DIRECTORY_CAPACITY {
            let extent = file.extend(1).expect("room");
            file.announce(&extent, Section::Text, number as u32, 1).expect("a row");
        }
        let full = std::fs::metadata(&path).expect("there").len();
        for _ in 0..2 {
            assert_eq!(file.extend(1).err(), Some(Errno(libc::EFBIG)));
        }
        assert_eq!(std::fs::metadata(&path).expect("there").len(), full);
        assert_eq!(file.trouble(), Some(Errno(libc::EFBIG)));
        std::fs::remove_file(&path).expect("removed");
    }
}
