//! Whether the numbers of objects without an address agree.
//!
//! Reports print counters beside the sums of rows. A recording's counters are corrected when it is read; a file that somebody
//! edited, or that is damaged, is refused.

use std::collections::HashMap;

use super::Snapshot;
use crate::kind::{Kind, Place};

impl Snapshot {
    /// # Errors
    /// The numbers that contradict each other.
    pub(super) fn validate_object_counters(&self) -> Result<(), String> {
        let is_object = |kind: Kind| kind.place() == Place::Object;
        let mut rows: HashMap<(Kind, Option<usize>), u64> = HashMap::new();
        for (index, object) in self.objects.iter().enumerate() {
            let count = rows.entry((object.kind, object.device)).or_default();
            *count = count.saturating_add(self.objects.count(index));
        }
        let mut live: HashMap<(Kind, Option<usize>), u64> = HashMap::new();
        for (row, c) in self.object_counters.iter().enumerate() {
            if c.live_count
                .checked_add(c.freed_count)
                .is_none_or(|sum| sum > c.total_count)
            {
                return Err(format!(
                    "object_counters: row {row} has {} live and {} destroyed, but only {} created ({})",
                    c.live_count,
                    c.freed_count,
                    c.total_count,
                    c.kind.name()
                ));
            }
            if is_object(c.kind) {
                let count = live.entry((c.kind, c.device)).or_default();
                *count = count.saturating_add(c.live_count);
            }
        }
        for ((kind, device), counted) in live.into_iter().filter(|_| self.objects_known) {
            let found = rows.get(&(kind, device)).copied().unwrap_or(0);
            if found != counted {
                return Err(format!(
                    "object_counters: {counted} live {} are counted, but the table of objects has {found}",
                    kind.name()
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::serving;
    use crate::snapshot::Counter;

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Counter), part: &str) {
        let mut snapshot = serving();
        snapshot.validate().expect("valid");
        let counters = snapshot.object_counters.iter_mut();
        let stream = counters.into_iter().find(|counter| counter.kind == Kind::Stream);
        change(stream.expect("a counter"));
        let error = snapshot.validate().expect_err("refused");
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn counters_that_contradict_each_other_or_the_rows_are_refused() {
        refused(|of| of.live_count = of.total_count + 1, "but only 19 created (stream)");
        refused(|of| of.freed_count = of.total_count + 1, "but only 19 created (stream)");
        refused(|of| of.freed_count = u64::MAX, "only 19 created");
        refused(
            |of| (of.live_count, of.total_count) = (100, 200),
            "100 live stream are counted, but the table of objects has 16",
        );
    }

    #[test]
    fn objects_that_are_not_known_contradict_nothing() {
        let mut snapshot = serving();
        snapshot.objects = Default::default();
        assert!(snapshot.validate().is_err());
        snapshot.objects_known = false;
        snapshot.validate().expect("the counters alone");
    }
}
