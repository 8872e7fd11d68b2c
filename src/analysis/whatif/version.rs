//! What differs between versions of PyTorch's caching allocator.
//!
//! Found by requests to the libraries of each version's wheel; `tests/real_torch/run.sh` compares the model with each of them. What is
//! not here is the same in all: sizes of segments and pages, rounding, splitting, joining, and what is given back.

use std::fmt;

use crate::snapshot::Snapshot;

/// A version 2.N with which the model was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32);

pub const OLDEST: Version = Version(6);
pub const NEWEST: Version = Version(12);

/// It reads `PYTORCH_ALLOC_CONF` too, if `PYTORCH_CUDA_ALLOC_CONF` is not set.
pub const READS_BOTH_VARIABLES: Version = Version(10);
/// It takes `max_split_size_mb` from the size of a large segment on; before, only more than that.
pub const SPLITS_FROM_A_SEGMENT: Version = Version(10);
/// Of equal free blocks, it uses the one whose record was made first; before, the one with the lowest address.
pub const OLDEST_RECORD_FIRST: Version = Version(12);

/// Keys of settings that the oldest version does not know. A version refuses a key that it does not know.
const SINCE: [(&str, Version); 6] = [
    ("graph_capture_record_stream_reuse", Version(9)),
    ("per_process_memory_fraction", Version(10)),
    ("pinned_reserve_segment_size_mb", Version(10)),
    ("large_segment_size_mb", Version(11)),
    ("throw_on_cudamalloc_oom", Version(12)),
    ("pinned_free_catch_all", Version(12)),
];

/// The library with the allocator.
pub const LIBRARY: &str = "/libc10_cuda.so";
/// Build ids of that library in the wheels of the Python Package Index.
const BUILDS: [(&str, &str); 7] = [
    ("62f303a24cdf426b202811cbb6330f1042c7309e", "2.6"),
    ("218f521d29622902bad3e2a00232838b389dad90", "2.7"),
    ("192fc47ce2317000875a575d144d18dcd039a5df", "2.8"),
    ("d9bfdd5a168655341fb2595f9dd763c9be969281", "2.9"),
    ("ed342957ebf42fe100d91c9fe156e246a7e21aed", "2.10"),
    ("29dec3cf84422903fd1ea8ba24fa01f7c3de4214", "2.11"),
    ("683ff1848b9f759fdb6049374ce8083f5d124a78", "2.12"),
];

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "2.{}", self.0)
    }
}

impl Version {
    /// The nearest one to a version of PyTorch (`2.11.0+cu130`), and whether it is that one; `None`: the text is no version.
    pub fn nearest(text: &str) -> Option<(Version, bool)> {
        let mut numbers = text.split(['.', '+']).map(|part| part.parse::<u32>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        let version = match major {
            2 => Version(minor),
            0 | 1 => Version(0),
            _ => Version(u32::MAX),
        };
        let nearest = version.clamp(OLDEST, NEWEST);
        Some((nearest, nearest == version))
    }

    /// Whether it knows a key of the settings, among those that any version knows.
    pub fn knows(self, key: &str) -> bool {
        SINCE.iter().all(|(name, since)| *name != key || *since <= self)
    }
}

/// The version of PyTorch whose allocator a process used, by its installed package or the build id of its library.
pub fn of_process(snapshot: &Snapshot) -> Option<&str> {
    let stated = snapshot.process.packages.get("torch").map(String::as_str);
    stated.or_else(|| {
        let library = snapshot.modules.iter().find(|module| module.path.ends_with(LIBRARY))?;
        let build = BUILDS.iter().find(|(build_id, _)| *build_id == library.build_id)?;
        Some(build.1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Module;

    #[test]
    fn a_version_outside_the_table_is_treated_as_the_nearest() {
        for (text, nearest) in [
            ("2.6.0+cu124", (OLDEST, true)),
            ("2.12", (NEWEST, true)),
            ("2.15.0a0+git1234", (NEWEST, false)),
            ("3.0.1", (NEWEST, false)),
            ("2.5.1", (OLDEST, false)),
            ("1.13.1", (OLDEST, false)),
        ] {
            assert_eq!(Version::nearest(text), Some(nearest), "{text}");
        }
        assert_eq!((Version::nearest("unknown"), Version::nearest("2")), (None, None));
    }

    #[test]
    fn the_version_is_that_of_the_package_or_of_the_build_id() {
        let mut snapshot = crate::sample::Sample::new().finish(0, 0);
        assert_eq!(of_process(&snapshot), None);
        let packages = [("torch".to_owned(), "2.9.1".to_owned())];
        snapshot.process.packages = packages.into();
        assert_eq!(of_process(&snapshot), Some("2.9.1"));
        snapshot.process.packages.clear();
        let (build_id, version) = BUILDS[5];
        let module = Module {
            path: "/venv/lib/python3.12/site-packages/torch/lib/libc10_cuda.so".to_owned(),
            build_id: build_id.to_owned(),
            bias: 0,
            start: 0,
            end: 1,
            first_seen_ns: 0,
            unloaded_ns: None,
            bare: false,
        };
        snapshot.modules.push(module);
        assert_eq!(of_process(&snapshot), Some(version));
        for (_, version) in BUILDS {
            assert!(
                Version::nearest(version).is_some_and(|(_, is_known)| is_known),
                "{version}"
            );
        }
    }
}
