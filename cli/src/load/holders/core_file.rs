//! Core files: the recording of the process that wrote one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, NT_PRPSINFO};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::errors::Failure;

/// Where `pr_pid` is in the kernel's `elf_prpsinfo` of 64-bit machines.
const PID_AT: usize = 24;

/// The recording of the process that wrote a core file: `*.PID.culeak` beside the core file, or in the current folder.
///
/// # Errors
/// The file is no core file, or there is not exactly one such recording; the message says what to name.
pub fn recording_of_core(core: &Path) -> Result<PathBuf, Failure> {
    let shown = core.display();
    let file =
        File::open(core).map_err(|error| Failure::new(format!("{shown}: the core file cannot be read ({error})")))?;
    let pid = pid_of(&file).ok_or_else(|| {
        Failure::new(format!(
            "{shown}: not a core file of a 64-bit process, or without the id of the process; name the recording too: \
             culeak why --core {shown} RECORDING"
        ))
    })?;
    let end = format!(".{pid}.culeak");
    let folder = core.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folders = [folder.unwrap_or(Path::new(".")), Path::new(".")];
    for folder in folders {
        let found = fs::read_dir(folder).into_iter().flatten().flatten();
        let found = found.filter(|entry| entry.file_name().to_string_lossy().ends_with(&end));
        let found: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
        match found.as_slice() {
            [] => {}
            [one] => return Ok(one.clone()),
            several => {
                return Err(Failure::new(format!(
                    "{shown}: {} recordings of process {pid} are in {}; name one of them",
                    several.len(),
                    folder.display()
                )));
            }
        }
    }
    Err(Failure::new(format!(
        "{shown}: no recording *{end} of process {pid} is beside the core file or in this folder; name the recording too: \
         culeak why --core {shown} RECORDING"
    )))
}

/// The process that a core file is of.
fn pid_of(file: &File) -> Option<u32> {
    let file = ReadCache::new(file);
    let header = FileHeader64::<object::Endianness>::parse(&file).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, &file).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, &file) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.n_type(endian) == NT_PRPSINFO && note.name() == b"CORE" {
                let pid = note.desc().get(PID_AT..PID_AT + 4)?;
                return Some(u32::from_ne_bytes(pid.try_into().ok()?));
            }
        }
    }
    None
}
