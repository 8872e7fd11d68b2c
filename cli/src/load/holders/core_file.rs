//! The recording of the process that a core file is of.

use std::path::{Path, PathBuf};

use culeak::snapshot::{Module, Process};
use culeak_holders::source::core::Core;

use crate::errors::Failure;
use crate::load::{Loaded, in_folder};

/// Compares the process of a core file with that of a recording.
///
/// # Errors
/// They differ; the message names both.
pub fn expect_same_process(path: &Path, core: &Core, item: &Loaded) -> Result<(), Failure> {
    let snapshot = &item.snapshot;
    let shown = path.display();
    let (dumped, command) = (core.process_id(), core.command());
    let same_id = is_id_of(&snapshot.process, dumped);
    let same_files = !core.names_files() || are_mapped(&snapshot.modules, |address| core.file_at(address));
    if same_id && same_files {
        return Ok(());
    }
    let recorded = format!(
        "{} is the recording of process {} ({})",
        item.source, snapshot.process.pid, snapshot.process.executable
    );
    let but = match same_id {
        true => ", whose libraries were at other addresses: another process had the same id",
        false => "",
    };
    Err(Failure::new(format!(
        "{shown}: is the core file of process {dumped} ({command}), but {recorded}{but}; name the recording of the process that \
         the core file is of"
    )))
}

/// A core file has the id that the process had in its own namespace, or that of the one where a debugger wrote it.
fn is_id_of(process: &Process, dumped: u32) -> bool {
    process.pid == dumped || process.pid_here == Some(dumped)
}

/// Whether one of the recorded modules at least was mapped where it was recorded. True if none was recorded.
fn are_mapped<'c>(modules: &[Module], file_at: impl Fn(u64) -> Option<&'c str>) -> bool {
    let file_name = |path: &str| {
        Path::new(path.trim_end_matches(" (deleted)"))
            .file_name()
            .map(ToOwned::to_owned)
    };
    let mut loaded = modules
        .iter()
        .filter(|module| module.unloaded_ns.is_none() && module.path.starts_with('/'))
        .peekable();
    loaded.peek().is_none()
        || loaded.any(|module| {
            let found = file_at(module.start).and_then(file_name);
            found.is_some() && found == file_name(&module.path)
        })
}

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
        let mut found = in_folder(folder, |name| name.ends_with(&end));
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
    use std::fs;

    #[test]
    fn a_core_file_of_another_process_is_recognized() {
        let process = Process {
            pid: 1,
            pid_here: Some(4711),
            ..Process::default()
        };
        assert!(is_id_of(&process, 1) && is_id_of(&process, 4711) && !is_id_of(&process, 2));
        let module = |path: &str, start| Module {
            path: path.to_owned(),
            build_id: String::new(),
            bias: start,
            start,
            end: start + 0x1000,
            first_seen_ns: 0,
            unloaded_ns: None,
            bare: false,
        };
        let modules = [module("/tmp/gone.so", 0x1000), module("/opt/app", 0x40_0000)];
        assert!(are_mapped(&modules, |at| (at == 0x40_0000).then_some("/opt/app (deleted)")));
        assert!(!are_mapped(&modules, |at| (at == 0x50_0000).then_some("/opt/app")));
        assert!(!are_mapped(&modules, |_| Some("/opt/other")));
        assert!(are_mapped(&[], |_| None));
    }

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
