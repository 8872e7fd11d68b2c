//! Checks of preloading: whether the library loads into a program, and whether the environment interferes.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use culeak::variables::{DISABLE, Value};

use super::Finding;
use crate::errors::INSTALL;
use crate::launch::{environment, shim};
use crate::probe;

const LIMIT: Duration = Duration::from_secs(10);

/// Unpacks the library and starts a program with it.
pub fn library() -> Vec<Finding> {
    const SUBJECT: &str = "preload library";
    let path = match shim::locate() {
        Ok(path) => path,
        Err(failure) => {
            return vec![Finding::fail(
                SUBJECT,
                failure,
                "set XDG_CACHE_HOME to a folder that only you can write",
            )];
        }
    };
    let mut findings = Vec::new();
    // A shell is dynamically linked on glibc systems. It looks for the library in its own memory.
    let script = "while read -r line; do case $line in *\"$0\"*) exit 0;; esac; done </proc/$$/maps; exit 9";
    let tried = probe::ask(
        Command::new("/bin/sh")
            .args(["-c", script])
            .arg(&path)
            .env("LD_PRELOAD", &path),
        LIMIT,
    );
    findings.push(match tried {
        Ok(answer) if answer.status.success() && answer.stderr.is_empty() => Finding::ok(SUBJECT, path.display()),
        Ok(answer) if answer.status.code() == Some(9) && answer.stderr.is_empty() => Finding::fail(
            SUBJECT,
            "the loader ignores LD_PRELOAD: /bin/sh starts without it",
            "record a dynamically linked program on a glibc system; for one program: culeak doctor -- PROGRAM",
        ),
        Ok(answer) => Finding::fail(
            SUBJECT,
            format_args!(
                "{} does not load: {} ({})",
                path.display(),
                answer.stderr.trim(),
                answer.status
            ),
            format_args!("build culeak on this machine ({INSTALL}), or on one with this glibc or an older one"),
        ),
        Err(error) => Finding::fail(
            SUBJECT,
            format_args!("cannot run /bin/sh with it: {error}"),
            "run: LD_PRELOAD= culeak doctor",
        ),
    });
    findings.extend(glibc(&path));
    if !cfg!(target_arch = "x86_64") {
        let text = format_args!("{}: tested in an emulator only, without a GPU", env::consts::ARCH);
        findings.push(Finding::warn(
            "architecture",
            text,
            "verify reports against known leaks: culeak demo",
        ));
    }
    findings
}

/// The oldest glibc that the library runs on, which matters for recording in another container.
fn glibc(library: &Path) -> Option<Finding> {
    let (major, minor) = newest_glibc_symbol(&fs::read(library).ok()?)?;
    Some(Finding::ok(
        "glibc",
        format_args!("the preload library needs glibc {major}.{minor} or newer"),
    ))
}

/// The highest `GLIBC_x.y` version name in a library.
fn newest_glibc_symbol(bytes: &[u8]) -> Option<(u32, u32)> {
    let text = String::from_utf8_lossy(bytes);
    let versions = text.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let mut numbers = version.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

/// Variables and files that affect preloading.
pub fn environment() -> Vec<Finding> {
    const SUBJECT: &str = "environment";
    let mut findings = Vec::new();
    if let Some(present) = env::var_os("LD_PRELOAD").filter(|present| !present.is_empty()) {
        let text = format!(
            "LD_PRELOAD is already {}; culeak keeps it",
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
        let text = "CULEAK_DISABLE is set, so a preloaded library records nothing";
        findings.push(Finding::warn(
            SUBJECT,
            text,
            "unset CULEAK_DISABLE; culeak run does this itself",
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
