//! Builds the preload libraries and the fake driver, which are embedded in the CLI.
//!
//! A nested cargo builds them in a target directory of its own, `embedded` in the usual one, since the outer cargo locks that.
//! They are the same for all profiles, so a build for tests finds those of a release. Cargo's artifact dependencies would need
//! one line, but are unstable. The libraries are dependencies of this package if `culeak_libraries` is set, which only the nested
//! cargo does. So it finds them by name, in the workspace as in a registry or a vendor folder, in the versions of Cargo.lock, and
//! the command itself is linked to none of them. Packagers who build the libraries elsewhere (for example for an older glibc) name
//! the files in `CULEAK_PREBUILT_SHIM`, `CULEAK_PREBUILT_HOLD`, `CULEAK_PREBUILT_AUDIT` and `CULEAK_PREBUILT_FAKE_DRIVER`.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The embedded libraries: package, file, name in the CLI, variable that replaces the build.
const LIBRARIES: [(&str, &str, &str, &str); 4] = [
    ("culeak-shim", "libculeak_shim.so", "SHIM", "CULEAK_PREBUILT_SHIM"),
    ("culeak-hold", "libculeak_hold.so", "HOLD", "CULEAK_PREBUILT_HOLD"),
    ("culeak-audit", "libculeak_audit.so", "AUDIT", "CULEAK_PREBUILT_AUDIT"),
    (
        "culeak-fake-driver",
        "libculeak_fake_driver.so",
        "FAKE_DRIVER",
        "CULEAK_PREBUILT_FAKE_DRIVER",
    ),
];

/// Makes the libraries dependencies of this package: see its Cargo.toml.
const DEPENDENCIES: &str = r#"target.'cfg(all())'.rustflags=["--cfg", "culeak_libraries"]"#;

/// The sources of the libraries, relative to the workspace. Those in a registry never change.
const SOURCES: [&str; 5] = ["Cargo.toml", "Cargo.lock", "src", "shim", "tests/fake_driver"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Tests, which run debug builds, read these sections in many reports.
    if env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--compress-debug-sections=zlib");
    }
    let prebuilt: Vec<Option<PathBuf>> = LIBRARIES.iter().map(|library| prebuilt(library.3)).collect();
    let built = if prebuilt.iter().all(Option::is_some) {
        PathBuf::new()
    } else {
        build_libraries()
    };
    for ((_, file, name, _), prebuilt) in LIBRARIES.iter().zip(prebuilt) {
        embed(name, &prebuilt.unwrap_or_else(|| built.join(file)));
    }
}

fn prebuilt(variable: &str) -> Option<PathBuf> {
    println!("cargo::rerun-if-env-changed={variable}");
    let path = PathBuf::from(env::var_os(variable)?);
    println!("cargo::rerun-if-changed={}", path.display());
    Some(path)
}

/// Passes a library to `include_bytes!`, with a hash of its content that becomes part of its unpacked name.
fn embed(name: &str, path: &Path) {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    println!("cargo::rustc-env=CULEAK_{name}_FILE={}", path.display());
    println!("cargo::rustc-env=CULEAK_{name}_ID={:016x}", hasher.finish());
}

/// Runs the nested cargo and returns the folder of the built libraries.
fn build_libraries() -> PathBuf {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let workspace = package.join("..");
    if SOURCES.iter().all(|source| workspace.join(source).exists()) {
        for source in SOURCES {
            println!("cargo::rerun-if-changed={}", workspace.join(source).display());
        }
    }
    // PROFILE/build/PACKAGE/out
    let out = PathBuf::from(variable("OUT_DIR"));
    let target_dir = out.ancestors().nth(4).unwrap_or(&out).join("embedded");
    // A CLI that is linked to musl still embeds libraries for glibc programs.
    let target = variable("TARGET").replace("-musl", "-gnu");

    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(&package)
        .args(["build", "--release", "--locked", "--target", &target])
        .args(["--config", DEPENDENCIES]);
    cargo.arg("--target-dir").arg(&target_dir);
    for (package, ..) in LIBRARIES {
        cargo.args(["--package", package]);
    }
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(belongs_to_outer_build) {
            cargo.env_remove(name);
        }
    }
    // Debug information of the libraries would be most of this program's size, and reports do not show their lines.
    cargo
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        // Recording an event calls into all crates of the library; LTO makes it about 20 % faster.
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    // Panics unwind, which is the default: with panic=abort, a C++ exception that passes through a hook would abort too.
    match cargo.status() {
        Ok(status) if status.success() => target_dir.join(target).join("release"),
        Ok(status) => panic!("building the preload library failed ({status}); see the output of cargo above"),
        Err(error) => panic!("cannot start {cargo:?}: {error}"),
    }
}

/// Whether a variable describes the build of the CLI (flags, wrappers such as clippy, profile, package) and would leak into
/// the build of the libraries. Linkers, registries, network settings and the job server apply to both.
fn belongs_to_outer_build(name: &str) -> bool {
    let for_both = [
        "CARGO_HOME",
        "CARGO_MAKEFLAGS",
        "CARGO_NET_",
        "CARGO_HTTP_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
    ];
    let linker = name.starts_with("CARGO_TARGET_") && (name.ends_with("_LINKER") || name.ends_with("_AR"));
    match name {
        "RUSTFLAGS" | "RUSTDOCFLAGS" | "RUSTC_WORKSPACE_WRAPPER" | "CLIPPY_ARGS" | "LD_PRELOAD" => true,
        _ if name.starts_with("CARGO_") => !linker && !for_both.iter().any(|prefix| name.starts_with(prefix)),
        _ => false,
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}
