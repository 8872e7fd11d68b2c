//! Whether a copy fits into memory. If it did not, the kernel might end the program that is examined.

use std::{fs, io};

use culeak::proc::words;

/// Copies up to this size are not checked.
const SMALL: u64 = 64 << 20;

/// # Errors
/// Less memory is available.
pub fn check(bytes: u64) -> io::Result<()> {
    if bytes <= SMALL {
        return Ok(());
    }
    let available = of_machine().into_iter().chain(of_group()).min().unwrap_or(u64::MAX);
    if bytes <= available {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::OutOfMemory,
        format!(
            "a copy needs {} MiB, of which {} MiB are available here; free memory, or search a core file on a machine with \
             more",
            bytes >> 20,
            available >> 20
        ),
    ))
}

fn of_machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes: u64 = words(&text, "MemAvailable:")?.next()?.parse().ok()?;
    Some(kibibytes << 10)
}

/// What the limit of the control group leaves, with caches that the kernel can drop.
fn of_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = format!("/sys/fs/cgroup/{group}");
    let number =
        |file: &str| -> Option<u64> { fs::read_to_string(format!("{folder}/{file}")).ok()?.trim().parse().ok() };
    let limit = number("memory.max")?;
    let statistics = fs::read_to_string(format!("{folder}/memory.stat")).unwrap_or_default();
    let cached = words(&statistics, "inactive_file ").and_then(|mut words| words.next()?.parse::<u64>().ok());
    Some(limit.saturating_sub(number("memory.current")?.saturating_sub(cached.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_does_not_fit_is_refused_with_both_sizes() {
        check(1 << 20).expect("small");
        let error = check(1 << 60).expect_err("an exbibyte");
        assert!(error.to_string().contains("1099511627776 MiB"), "{error}");
    }
}
