//! The versions of the packages of Python in a snapshot, as they are installed here.
//!
//! A recording has the paths of files. Beside a package lies the folder `NAME-VERSION.dist-info`. It tells the version that the process
//! had only if it has not changed since the process started, and if the process ran on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use culeak::analysis::site::package_of;
use culeak::snapshot::{ProcessState, Snapshot};

use crate::symbolize::locate::candidates;

/// Adds the versions of all packages whose files are named in the snapshot, unless it has them. `root`: the root of the file system as
/// the process sees it.
pub fn add(snapshot: &mut Snapshot, root: Option<&Path>) {
    if snapshot.process.state == ProcessState::Unknown || !snapshot.process.packages.is_empty() {
        return;
    }
    let modules = snapshot.modules.iter().map(|module| &module.path);
    let symbols = snapshot.locations.iter().flat_map(|location| &location.symbols);
    let files = modules.chain(symbols.filter_map(|symbol| symbol.file.as_ref()));
    let mut folders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in files {
        if let Some((package, (folder, _))) = package_of(file).zip(file.rsplit_once("-packages/")) {
            folders.entry(folder).or_default().insert(package);
        }
    }
    let started_ns = i128::from(snapshot.process.started_unix_ns);
    let mut versions = BTreeMap::new();
    for (folder, packages) in folders {
        let places = candidates(&format!("{folder}-packages"), root);
        let entries = places.into_iter().find_map(|folder| std::fs::read_dir(folder).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let installed = name
                .to_str()
                .and_then(|name| name.strip_suffix(".dist-info")?.split_once('-'));
            let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ".+!-_".contains(letter);
            let is_wanted = |of: &(&str, &str)| packages.contains(of.0) && of.1.chars().all(is_plain);
            let Some((name, version)) = installed.filter(is_wanted) else {
                continue;
            };
            // Installers may keep old times of modification.
            let changed_ns =
                |file: std::fs::Metadata| i128::from(file.ctime()) * 1_000_000_000 + i128::from(file.ctime_nsec());
            if entry.metadata().is_ok_and(|file| changed_ns(file) <= started_ns) {
                versions.insert(name.to_owned(), version.to_owned());
            }
        }
    }
    snapshot.process.packages = versions;
}
