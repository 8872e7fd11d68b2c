//! The recording of the process that a core file is of.

use std::fs;
use std::path::{Path, PathBuf};

use crate::errors::Failure;

/// The recording of this process: `*.PID.culeak` beside the core file, or in the current folder.
///
/// # Errors
/// There is not exactly one such recording; the message says what to name.
pub fn recording_of(pid: u32, core: &Path) -> Result<PathBuf, Failure> {
    let shown = core.display();
    let end = format!(".{pid}.culeak");
    let here = Path::new(".");
    let beside = core.parent().filter(|folder| !folder.as_os_str().is_empty());
    for folder in [beside.unwrap_or(here), here] {
        let found = fs::read_dir(folder).into_iter().flatten().flatten();
        let found = found.filter(|entry| entry.file_name().to_string_lossy().ends_with(&end));
        let mut found: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
        match found.len() {
            0 => {}
            1 => return Ok(found.remove(0)),
            several => {
                return Err(Failure::new(format!(
                    "{shown}: {several} recordings of process {pid} are in {}; name one of them: culeak why --core {shown} \
                     RECORDING",
                    folder.display()
                )));
            }
        }
    }
    Err(Failure::new(format!(
        "{shown}: no recording (*{end}) of process {pid} is beside the core file or in this folder; name it: culeak why --core \
         {shown} RECORDING"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recording_beside_a_core_file_is_that_of_its_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let core = folder.path().join("core");
        let error = |pid| recording_of(pid, &core).expect_err("no recording").message;
        assert!(
            error(7).contains("no recording (*.7.culeak) of process 7"),
            "{}",
            error(7)
        );
        for name in ["app.host.7.culeak", "app.host.17.culeak"] {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        assert_eq!(recording_of(7, &core), Ok(folder.path().join("app.host.7.culeak")));
        fs::write(folder.path().join("app.other.7.culeak"), "").expect("a file");
        assert!(error(7).contains("2 recordings of process 7"), "{}", error(7));
    }
}
