//! Copies the memory of a process that runs on.

use std::fs;
use std::time::{Duration, Instant};

use crate::copy::Image;
use crate::source::Source;
use crate::{Error, Options, Stopped};

/// Copies the memory, and says whether all of it is of the same instant.
pub fn copied<'s>(source: &'s dyn Source, options: &Options) -> Result<(Stopped<'s>, bool), Error> {
    let (began, before) = (Instant::now(), activity(source));
    let copy = Image::take(source, &options.excluded)?;
    let is_consistent = !source.is_running() || before.is_some() && before == activity(source);
    let copied = Stopped {
        copy,
        copied: began.elapsed(),
        paused: Duration::ZERO,
    };
    Ok((copied, is_consistent))
}

/// The time that the threads of a live process have run, and their number; `None` if one runs, or if this is not known. If
/// it is the same before and after a copy, the copy is consistent.
fn activity(source: &dyn Source) -> Option<(usize, u64)> {
    let mut sum = (0, 0);
    for thread in fs::read_dir(format!("/proc/{}/task", source.pid()?)).ok()? {
        let folder = thread.ok()?.path();
        if culeak::proc::stat(&folder)?.state == 'R' {
            return None;
        }
        sum.0 += 1;
        sum.1 += time_run(&fs::read_to_string(folder.join("schedstat")).ok()?)?;
    }
    Some(sum)
}

/// The nanoseconds that a thread has run, of its `schedstat`. A kernel without these statistics writes zeros, although each
/// thread has run for a while.
fn time_run(times: &str) -> Option<u64> {
    let time = times.split_whitespace().next()?.parse().ok()?;
    (time > 0).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_statistics_does_not_say_that_no_thread_ran() {
        assert_eq!(time_run("0 0 0\n"), None);
        assert_eq!(time_run("1234 5 6\n"), Some(1234));
    }
}
