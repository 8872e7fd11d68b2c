//! Which libraries two processes have in different versions.
//!
//! A library is CPython, a package of Python, or a file of CUDA or of a framework outside packages. The program's own files are none: they
//! differ with each build. Its version is that of CPython, that of the installed package ([`Process::packages`]), or the end of its
//! file name; a process may have loaded several. A library of unknown version has another build if a file of it has another build id.
//!
//! [`Process::packages`]: crate::snapshot::Process::packages

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::analysis::site::{file_name, is_library_module, module_stem, package_of};
use crate::snapshot::Snapshot;

/// A library that differs. Without versions, it is another build of an unknown version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LibraryChange {
    /// `torch`, `CPython`, `libcublas`.
    pub name: String,
    /// `12`, or `12 and 13` if both are loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

#[derive(Default)]
struct Library {
    version: Option<String>,
    /// The ends of its files' names: of `libcublas.so.12`, `12`, which several versions may have.
    of_files: BTreeSet<String>,
    /// By name of a file without its version, its build ids.
    builds: BTreeMap<String, BTreeSet<String>>,
}

/// The libraries of both processes that differ, by name.
pub fn changes(before: &Snapshot, after: &Snapshot) -> Vec<LibraryChange> {
    let (old, mut new) = (libraries(before), libraries(after));
    let both = old
        .into_iter()
        .filter_map(|(name, old)| Some((new.remove(&name)?, name, old)));
    both.filter_map(|(new, name, old)| old.change(new, name)).collect()
}

impl Library {
    fn change(self, other: Library, name: String) -> Option<LibraryChange> {
        let is_another_build = self.has_another_build(&other);
        let named = |files: BTreeSet<String>| Vec::from_iter(files).join(" and ");
        let has_both = !self.of_files.is_empty() && !other.of_files.is_empty();
        let of_files =
            (has_both && self.of_files != other.of_files).then(|| (named(self.of_files), named(other.of_files)));
        let versions = self.version.zip(other.version);
        let differs = match &versions {
            Some((before, after)) => before != after,
            None => of_files.is_some() || is_another_build,
        };
        let (before, after) = versions.or(of_files).unzip();
        differs.then_some(LibraryChange { name, before, after })
    }

    fn has_another_build(&self, other: &Library) -> bool {
        let builds = self.builds.iter();
        // A process may have two copies of a library, of which an earlier snapshot has one.
        let mut both = builds.filter_map(|(file, builds)| Some((builds, other.builds.get(file)?)));
        both.any(|(before, after)| before.is_disjoint(after))
    }
}

fn libraries(snapshot: &Snapshot) -> BTreeMap<String, Library> {
    let mut libraries: BTreeMap<String, Library> = BTreeMap::new();
    let process = &snapshot.process;
    let python = process.python.iter().map(|python| ("CPython", &python.version));
    let packages = process.packages.iter().map(|(name, version)| (name.as_str(), version));
    for (name, version) in python.chain(packages) {
        libraries.entry(name.to_owned()).or_default().version = Some(version.clone());
    }
    for module in snapshot.modules.iter().filter(|module| is_library_module(&module.path)) {
        let file = file_name(&module.path);
        // Each folder of this package is a library.
        let package = package_of(&module.path).filter(|package| *package != "nvidia");
        let stem = module_stem(file);
        let library = libraries.entry(package.unwrap_or(stem).to_owned()).or_default();
        let version = file.split_once(".so.").map(|(_, version)| version.to_owned());
        library.of_files.extend(version.filter(|_| package.is_none()));
        if !module.build_id.is_empty() {
            let builds = library.builds.entry(stem.to_owned()).or_default();
            builds.insert(module.build_id.clone());
        }
    }
    libraries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;
    use crate::snapshot::Python;

    fn with(files: &[(&str, &str)], packages: &[(&str, &str)], python: &str) -> Snapshot {
        let mut sample = Sample::new();
        let frames: Vec<_> = files.iter().map(|(path, _)| ("f", "", *path)).collect();
        sample.stack(&frames);
        let mut snapshot = sample.finish(0, 0);
        for (path, build_id) in files {
            let named = snapshot.modules.iter_mut().filter(|module| module.path == *path);
            named.for_each(|module| (*build_id).clone_into(&mut module.build_id));
        }
        let packages = packages
            .iter()
            .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()));
        snapshot.process.packages = packages.collect();
        snapshot.process.python = Some(Python {
            version: python.to_owned(),
            no_frames: None,
        });
        snapshot
    }

    fn of(before: &Snapshot, after: &Snapshot) -> Vec<(String, Option<String>, Option<String>)> {
        let changes = changes(before, after).into_iter();
        changes
            .map(|change| (change.name, change.before, change.after))
            .collect()
    }

    #[test]
    fn versions_of_packages_of_python_and_of_files_are_told_and_the_programs_own_builds_are_not() {
        let before = with(
            &[
                ("/a/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so", "1a"),
                (
                    "/a/lib/python3.11/site-packages/nvidia/cublas/lib/libcublas.so.12",
                    "2a",
                ),
                ("/lib/libcuda.so.1", "3a"),
                ("/lib/libnccl.so.2", "4a"),
                ("/opt/app", "5a"),
            ],
            &[("torch", "2.9.0"), ("numpy", "2.0")],
            "3.11.4",
        );
        let after = with(
            &[
                ("/b/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so", "1b"),
                (
                    "/b/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.13",
                    "2b",
                ),
                ("/lib/libcuda.so.1", "3b"),
                ("/lib/libnccl.so.2", "4a"),
                ("/opt/app", "5b"),
            ],
            &[("torch", "2.10.0"), ("numpy", "2.0"), ("scipy", "1")],
            "3.12.1",
        );
        let told = |name: &str, before: &str, after: &str| {
            let version = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            (name.to_owned(), version(before), version(after))
        };
        let expected = [
            told("CPython", "3.11.4", "3.12.1"),
            told("libcublas", "12", "13"),
            told("libcuda", "", ""),
            told("torch", "2.9.0", "2.10.0"),
        ];
        assert_eq!(of(&before, &after), expected);
        assert_eq!(of(&before, &before), []);
        // Both of one process are told, in whatever order they were loaded.
        let cublas = |versions: &[&str]| {
            let files: Vec<_> = versions
                .iter()
                .map(|version| format!("/lib/libcublas.so.{version}"))
                .collect();
            let files: Vec<_> = files.iter().map(|file| (file.as_str(), "")).collect();
            with(&files, &[], "3.11.4")
        };
        let both = [told("libcublas", "12", "12 and 13")];
        assert_eq!(of(&cublas(&["12"]), &cublas(&["12", "13"])), both);
        assert_eq!(of(&cublas(&["12"]), &cublas(&["13", "12"])), both);
        assert_eq!(of(&cublas(&["12", "13"]), &cublas(&["13", "12"])), []);
        // Whose version is not known.
        let unknown = with(&[("/b/lib/python3.11/site-packages/torch/_C.so", "7")], &[], "3.11.4");
        assert_eq!(of(&before, &unknown), []);
    }
}
