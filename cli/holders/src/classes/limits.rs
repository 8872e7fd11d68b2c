//! Sentences about what was not searched, for answers with lost blocks.

use culeak::analysis::words;

use crate::copy::Copy;
use crate::source::Thread;

/// What was not searched and may hold blocks that are lost otherwise: bytes of shared memory, and threads that ran.
pub fn what_may_hold(left_out: u64, running: usize) -> Vec<String> {
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
        limits.push(format!(
            "{threads} running, and {whose} registers were not read: a block that only these point to counts as lost; --pause \
             reads them"
        ));
    }
    limits
}

/// Threads that ran while the memory was copied.
pub fn threads_running(copy: &Copy) -> usize {
    let runs = |thread: &&Thread| thread.stack_pointer.is_none() && thread.registers.is_empty();
    copy.threads().iter().filter(runs).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_hold_lost_blocks_is_said() {
        assert!(what_may_hold(0, 0).is_empty());
        let both = what_may_hold(3 << 30, 2);
        assert!(
            both[0].starts_with("3 GiB of memory shared with other processes"),
            "{both:?}"
        );
        assert!(
            both[1].starts_with("2 threads were running, and their registers"),
            "{both:?}"
        );
    }
}
