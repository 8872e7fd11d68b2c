//! Sentences about what was not searched, for answers with lost blocks.

use std::time::Duration;

use culeak::analysis::words;
use culeak::snapshot::Stop;

use crate::budget::LeftOut;
use crate::copy::Image;
use crate::source::Thread;

/// The search of a copy stopped: why, and what it did not search. `None`: another sentence says it.
pub fn stopped_early(why: Stop, left_out: LeftOut, limit: Duration) -> Option<String> {
    let mut parts = Vec::new();
    if left_out.bytes > 0 {
        parts.push(format!("{} of native memory", words::bytes(left_out.bytes)));
    }
    if left_out.objects > 0 {
        parts.push(words::plural(left_out.objects, "object", "objects"));
    }
    let parts = match parts.is_empty() {
        true => String::new(),
        false => format!(", with {} left", parts.join(" and ")),
    };
    let unknown = "what holds the blocks without an answer is not known";
    match why {
        Stop::Time => Some(format!(
            "the search stopped after {}{parts}; {unknown}; allow more with culeak why --limit TIME, or culeak run \
             --why-search-limit TIME",
            words::duration(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
        )),
        Stop::Size => Some(format!(
            "the search stopped because objects refer to more than fits into the memory of the process, so they are damaged{parts}; \
             {unknown}"
        )),
        Stop::Stack => None,
    }
}

/// What was not searched and may hold blocks that are lost otherwise: bytes of shared memory, and threads that ran. `is_live`: of
/// a process that can be read again.
pub fn what_may_hold(left_out: u64, running: usize, is_live: bool) -> Vec<String> {
    let mut limits = Vec::new();
    if left_out > 0 {
        limits.push(format!(
            "{} of memory shared with other processes were not searched: a block that only it points to counts as lost",
            words::bytes(left_out)
        ));
    }
    if running > 0 {
        let (threads, whose) = match running {
            1 => ("1 thread was".to_owned(), "its"),
            _ => (format!("{running} threads were"), "their"),
        };
        let advice = if is_live { "; --pause reads them" } else { "" };
        limits.push(format!(
            "{threads} running, and {whose} registers were not read: a block that only these point to counts as lost{advice}"
        ));
    }
    limits
}

/// Threads that ran while the memory was copied.
pub fn threads_running(copy: &Image) -> usize {
    let runs = |thread: &&Thread| thread.stack_pointer.is_none() && thread.registers.is_empty();
    copy.threads().iter().filter(runs).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_hold_lost_blocks_is_said() {
        assert!(what_may_hold(0, 0, true).is_empty());
        let both = what_may_hold(3 << 30, 2, true);
        assert!(
            both[0].starts_with("3 GiB of memory shared with other processes"),
            "{both:?}"
        );
        assert!(
            both[1].starts_with("2 threads were running, and their registers"),
            "{both:?}"
        );
        assert!(both[1].ends_with("; --pause reads them"), "{both:?}");
        assert!(
            what_may_hold(0, 1, false)[0].ends_with("counts as lost"),
            "a recording is not read again"
        );
    }
}
