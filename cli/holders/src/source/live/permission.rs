//! Why a process cannot be read, and what to do.

use std::fs;
use std::io;

use culeak::proc::words;

/// The error with its reason and a remedy.
pub fn explained(pid: u32, error: io::Error) -> io::Error {
    if !fs::exists(format!("/proc/{pid}")).unwrap_or(true) {
        return io::Error::new(io::ErrorKind::NotFound, "no such process");
    }
    let is_refused = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
    if !is_refused {
        return error;
    }
    let status = |of: &str| fs::read_to_string(format!("/proc/{of}/status")).unwrap_or_default();
    let (ours, theirs) = (status("self"), status(&pid.to_string()));
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let reason = reason(&ours, &theirs, scope.trim());
    io::Error::new(io::ErrorKind::PermissionDenied, format!("access is refused: {reason}"))
}

const CAP_SYS_PTRACE: u64 = 1 << 19;

/// From the two `status` files and Yama's setting.
fn reason(ours: &str, theirs: &str, scope: &str) -> String {
    // The second user id is the effective one.
    let field = |status: &str, name: &str| -> Option<String> {
        let mut words = words(status, name)?;
        words.nth(usize::from(name == "Uid:")).map(str::to_owned)
    };
    let (our_user, their_user) = (field(ours, "Uid:"), field(theirs, "Uid:"));
    let capabilities = field(ours, "CapEff:").and_then(|text| u64::from_str_radix(&text, 16).ok());
    let may_trace = capabilities.unwrap_or(0) & CAP_SYS_PTRACE != 0;
    let tracer = field(theirs, "TracerPid:").filter(|tracer| tracer != "0");
    if let Some(tracer) = tracer {
        return format!("process {tracer} traces it (a debugger?); end that process, or run without --pause");
    }
    if scope == "3" {
        return "kernel.yama.ptrace_scope is 3, which forbids it to all until the next boot; use a core file"
            .to_owned();
    }
    if may_trace {
        return "it belongs to another container or is protected by a security module; run culeak where the process runs"
            .to_owned();
    }
    if our_user.as_deref() == Some("0") {
        return "root lacks CAP_SYS_PTRACE here, as in most containers; start the container with --cap-add=SYS_PTRACE, or \
                use a core file"
            .to_owned();
    }
    if our_user != their_user {
        let user = their_user.unwrap_or_else(|| "another user".to_owned());
        return format!("it belongs to user {user}; run culeak as that user or as root");
    }
    match scope {
        "1" => "kernel.yama.ptrace_scope is 1, so only its parent may; run culeak as root, or set it to 0 \
                (sysctl kernel.yama.ptrace_scope=0)"
            .to_owned(),
        "2" => "kernel.yama.ptrace_scope is 2, so only root may; run culeak as root".to_owned(),
        _ => "the kernel protects it (a set-user-ID program, a program with capabilities, or another container); run \
              culeak as root"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_fits_the_system() {
        let user =
            |id: u32| format!("Name:\tx\nTracerPid:\t0\nUid:\t{id}\t{id}\t{id}\t{id}\nCapEff:\t0000000000000000\n");
        let root = "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n";
        let real_root = "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n";
        let traced = user(5).replace("TracerPid:\t0", "TracerPid:\t77");
        for (ours, theirs, scope, expected) in [
            (user(5), user(6), "0", "user 6"),
            (user(5), user(5), "1", "ptrace_scope=0"),
            (user(5), user(5), "2", "is 2"),
            (user(5), user(5), "3", "core file"),
            (user(5), user(5), "", "set-user-ID"),
            (user(5), traced, "0", "process 77"),
            (root.to_owned(), user(6), "1", "--cap-add=SYS_PTRACE"),
            (real_root.to_owned(), user(6), "1", "another container"),
        ] {
            let reason = reason(&ours, &theirs, scope);
            assert!(reason.contains(expected), "{expected}: {reason}");
        }
    }
}
