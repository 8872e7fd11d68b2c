//! Links the shim, and the libraries beside it (`hold/` and `audit/`, whose build.rs is a link to this file), so that they depend on
//! libc and the loader alone.
//!
//! The standard library links with libgcc_s, a shared library that slim containers lack and that would change the order
//! in which the program's symbols are found. The same code exists as a static archive, libgcc_eh.a, which is linked in
//! its place through a symbolic link of the name that the linker searches for.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let soname = match std::env::var("CARGO_PKG_NAME").as_deref() {
        Ok("culeak-hold") => "libculeak-hold.so",
        Ok("culeak-audit") => "libculeak-audit.so",
        _ => "libculeak.so",
    };
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    // Threads may be running this library's code during any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // References to this library's own exports (the hooks that look-ups return) must not resolve to another preload.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Some(archive) = static_unwinder() {
        let link = folder.join("libgcc_s.a");
        let _ = std::fs::remove_file(&link);
        if std::os::unix::fs::symlink(&archive, &link).is_ok() {
            println!("cargo:rustc-link-search=native={}", folder.display());
        }
    } else {
        println!("cargo:warning=no libgcc_eh.a found: the shim will need libgcc_s.so.1 at run time");
    }
}

/// The archive of the first compiler for the target that has one. This machine's own compiler would name its own archive in
/// a cross build, which the linker skips with a mere warning.
fn static_unwinder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var(name).ok();
    let (target, host) = (variable("TARGET")?, variable("HOST")?);
    let usual = match target == host {
        true => "cc".into(),
        false => target.replace("-unknown-", "-") + "-gcc",
    };
    let underscored = target.replace('-', "_");
    let compilers = [variable(&format!("CC_{underscored}")), variable("CC"), Some(usual)];
    compilers
        .into_iter()
        .flatten()
        .find_map(|compiler| archive_of(&compiler))
}

fn archive_of(compiler: &str) -> Option<PathBuf> {
    let output = Command::new(compiler)
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    let path = Path::new(path.trim());
    // The compiler prints the bare name if it has no such file.
    path.is_absolute().then(|| path.to_path_buf())
}
