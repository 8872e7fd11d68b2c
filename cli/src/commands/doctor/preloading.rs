//! Does the preload library reach a program at all, and does anything in the environment work against it?

use std::env;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use culeak::variables::{DISABLE, Value};

use super::Finding;
use crate::launch::{environment, shim};
use crate::probe;

const LIMIT: Duration = Duration::from_secs(10);

/// Unpacks the library and starts a program under it.
pub fn library() -> Vec<Finding> {
    const SUBJECT: &str = "preload library";
    let path = match shim::locate() {
        Ok(path) => path,
        Err(failure) => {
            return vec![Finding::fail(
                SUBJECT,
                failure,
                "give culeak a folder that only you can write",
            )];
        }
    };
    let mut findings = Vec::new();
    // A shell is dynamically linked wherever glibc is, and its silence proves that the loader took the library.
    let tried = probe::ask(
        Command::new("/bin/sh").args(["-c", ":"]).env("LD_PRELOAD", &path),
        LIMIT,
    );
    findings.push(match tried {
        Ok(answer) if answer.status.success() && answer.stderr.is_empty() => Finding::ok(SUBJECT, path.display()),
        Ok(answer) => Finding::fail(
            SUBJECT,
            format_args!(
                "{} does not load: {} ({})",
                path.display(),
                answer.stderr.trim(),
                answer.status
            ),
            "build culeak on this machine (cargo install --path cli), or on one with this glibc or an older one",
        ),
        Err(error) => Finding::fail(
            SUBJECT,
            format_args!("/bin/sh under it: {error}"),
            "try: LD_PRELOAD= culeak doctor",
        ),
    });
    findings.extend(glibc(&path));
    if !cfg!(target_arch = "x86_64") {
        let text = format_args!("{}: compiled, but tested on x86_64 alone", env::consts::ARCH);
        findings.push(Finding::warn(
            "architecture",
            text,
            "hold reports against known leaks first: culeak demo",
        ));
    }
    findings
}

/// The oldest glibc the library runs on, which matters when recordings are made in another container.
fn glibc(library: &Path) -> Option<Finding> {
    let (major, minor) = newest_glibc_symbol(&fs::read(library).ok()?)?;
    Some(Finding::ok(
        "glibc",
        format_args!("the preload library runs on glibc {major}.{minor} and newer"),
    ))
}

/// The highest `GLIBC_x.y` version name in a library.
fn newest_glibc_symbol(bytes: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"GLIBC_";
    let names = bytes
        .windows(PREFIX.len())
        .enumerate()
        .filter(|(_, window)| *window == PREFIX);
    let versions = names.filter_map(|(start, _)| {
        let rest = &bytes[start + PREFIX.len()..];
        let length = rest
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'.')
            .unwrap_or(rest.len());
        let mut numbers = std::str::from_utf8(&rest[..length]).ok()?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

/// Variables and files that change what a preloaded library can do.
pub fn environment() -> Vec<Finding> {
    const SUBJECT: &str = "environment";
    let mut findings = Vec::new();
    if let Some(present) = env::var_os("LD_PRELOAD").filter(|present| !present.is_empty()) {
        let text = format!(
            "LD_PRELOAD is already {}; it stays in force beside culeak",
            Path::new(&present).display()
        );
        findings.push(Finding::ok(SUBJECT, text));
    }
    if let Ok(system) = fs::read_to_string("/etc/ld.so.preload") {
        let text = format!(
            "/etc/ld.so.preload loads {} into every program",
            system.split_whitespace().collect::<Vec<_>>().join(", ")
        );
        findings.push(Finding::ok(SUBJECT, text));
    }
    if let Err(failure) = environment::examine(env::vars_os()) {
        findings.push(Finding::fail(SUBJECT, failure.message, "culeak help environment"));
    }
    let disabled = env::var_os("CULEAK_DISABLE").and_then(|value| DISABLE.values.read(value.as_bytes()));
    if disabled == Some(Value::Switch(true)) {
        let text = "CULEAK_DISABLE is set: a preloaded library records nothing";
        findings.push(Finding::warn(
            SUBJECT,
            text,
            "unset CULEAK_DISABLE; culeak run does so by itself",
        ));
    }
    if env::var_os("CULEAK_SHIM").is_some() {
        findings.push(Finding::ok(
            SUBJECT,
            "CULEAK_SHIM replaces the built-in preload library",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_version_wins() {
        let bytes = b"\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.17\0GLIBC_PRIVATE\0GLIBC_";
        assert_eq!(newest_glibc_symbol(bytes), Some((2, 34)));
        assert_eq!(newest_glibc_symbol(b"nothing"), None);
    }
}
