//! Opens files whose names come from others, for reading and without blocking.
//!
//! A path in an input, or any name in a folder, may belong to a FIFO, where `open` waits for a writer, or to a device, where
//! `open` alone may have an effect. So the type of the file is checked before it is opened, and again afterwards.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file; refuses any other.
///
/// # Errors
/// Those of `open`; `IsADirectory`; `InvalidInput` for FIFOs, sockets and devices.
pub fn open_regular(path: &Path) -> io::Result<File> {
    opened(path, &fs::metadata(path)?, 0)
}

/// As [`open_regular`]; refuses links too, which another user may have put at a name that is known beforehand.
///
/// # Errors
/// As [`open_regular`].
pub fn open_no_link(path: &Path) -> io::Result<File> {
    opened(path, &fs::symlink_metadata(path)?, libc::O_NOFOLLOW)
}

fn opened(path: &Path, named: &Metadata, flags: i32) -> io::Result<File> {
    regular(named)?;
    // O_NONBLOCK: another file may have taken the name since the check.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags)
        .open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

fn regular(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn a_fifo_a_device_and_a_folder_are_not_opened() {
        let name = format!("culeak-fifo-{}", std::process::id());
        let fifo = std::env::temp_dir().join(name);
        let path = CString::new(fifo.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: `path` is a C string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let kind = |path: &Path| open_regular(path).map(drop).map_err(|error| error.kind());
        assert_eq!(kind(&fifo), Err(io::ErrorKind::InvalidInput));
        fs::remove_file(&fifo).expect("removed");
        assert_eq!(kind(Path::new("/dev/zero")), Err(io::ErrorKind::InvalidInput));
        assert_eq!(kind(Path::new("/")), Err(io::ErrorKind::IsADirectory));
        assert_eq!(kind(&fifo), Err(io::ErrorKind::NotFound));
        assert_eq!(kind(&std::env::current_exe().expect("this test")), Ok(()));
    }
}
