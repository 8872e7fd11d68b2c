//! The vocabulary of the claims: a victim is compiled, run under the recorder and checked in one sentence.
//!
//! ```text
//! profile("frees").arg("elsewhere").run().expect_no_leaks();
//! │                │                │     └ outcome.rs, claims.rs: what was recorded
//! │                │                └ profile.rs, process.rs: a temporary folder, the environment, a hard timeout
//! │                └ an argument of the victim, which selects its behaviour
//! └ compile.rs: tests/victims/frees.c, compiled once per lookup
//! ```
//!
//! model.rs says what a recording of a script (script.rs, victims/script.c) means: see `tests/model.rs`.
//!
//! The preload library and the fake driver are the ones that the CLI embeds, built by `cli/build.rs` from the current sources.
//! `CULEAK_TEST_SHIM` names another library to test, for example a released one.

pub mod claims;
pub mod compile;
pub mod holders;
pub mod invariants;
pub mod model;
pub mod outcome;
pub mod process;
pub mod profile;
pub mod random;
pub mod script;
#[cfg(target_arch = "x86_64")]
pub mod traced;

pub use compile::{Lookup, library, victim};
pub use outcome::Outcome;
pub use profile::{Preload, Profile, profile, program};

use std::path::{Path, PathBuf};

/// The preload library under test.
pub fn shim() -> PathBuf {
    match std::env::var_os("CULEAK_TEST_SHIM") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CULEAK_SHIM_FILE")),
    }
}

/// The imitation of libcuda.so.1.
pub fn fake_driver() -> PathBuf {
    PathBuf::from(env!("CULEAK_FAKE_DRIVER_FILE"))
}

/// The command line tool.
pub fn culeak() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_culeak"))
}

/// The `tests` folder in the sources.
pub fn sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// Where distributions install libraries of this architecture.
pub const LIBRARY_FOLDERS: [&str; 4] = [
    if cfg!(target_arch = "aarch64") {
        "/usr/lib/aarch64-linux-gnu"
    } else {
        "/usr/lib/x86_64-linux-gnu"
    },
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// The first installed library of this name.
#[track_caller]
pub fn installed(name: &str) -> PathBuf {
    let found = LIBRARY_FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists());
    found.unwrap_or_else(|| panic!("this claim needs {name}: .ci/run installs it"))
}

/// A pid that is not that of these tests, which are process 1 if they are the first of a container.
pub fn another_pid() -> u32 {
    std::process::id() - 1
}

/// Fails unless the tests run as root, as they do in CI.
#[track_caller]
pub fn expect_root(action: &str) {
    assert!(
        is_root(),
        "this claim {action}, which needs root: run the tests as root"
    );
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
