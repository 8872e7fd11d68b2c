//! Whether a snapshot's indices are within its tables, and its stacks no larger than those of real programs.
//!
//! A file may be edited or damaged, and other code relies on its indices.

use super::{Holders, Language, Snapshot, allocations};

/// The most frames of one stack, more than any program has. Readers may spend time and memory on each frame.
const FRAMES_MAX: usize = 1 << 16;
/// The most frames of all stacks together, including inlined calls. A small file could claim a million long stacks.
pub(crate) const FRAMES_IN_ALL: usize = if cfg!(test) { 1 << 18 } else { 1 << 25 };
/// The most inlined calls per address, on average over all stacks.
const INLINED: usize = 6;
/// Below this number of frames, the average is not limited.
const FEW: usize = 1 << 18;

impl Snapshot {
    /// Checks that every index is within its table, so that other code may rely on it, and that stacks are no larger
    /// than those of real programs.
    ///
    /// # Errors
    /// The first row whose index is out of range, or what is too large.
    pub fn validate(&self) -> Result<(), String> {
        let within = |what: &str, row: usize, index: usize, len: usize| {
            if index < len {
                Ok(())
            } else {
                Err(format!("{what} of row {row} is {index}, but that table has {len} rows"))
            }
        };
        let optional = |what: &str, row: usize, index: Option<usize>, len: usize| {
            index.map_or(Ok(()), |index| within(what, row, index, len))
        };
        for (row, context) in self.contexts.iter().enumerate() {
            optional("contexts: device", row, context.device, self.devices.len())?;
        }
        for (row, location) in self.locations.iter().enumerate() {
            optional("locations: module", row, location.module, self.modules.len())?;
            let has_its_symbols = location.symbols.len() == 1 || location.is_gradient();
            if location.language == Language::Python && (location.module.is_some() || !has_its_symbols) {
                return Err(format!(
                    "locations: row {row} is a Python frame, but has a module or not exactly one symbol"
                ));
            }
        }
        let (mut total, mut addresses) = (0, 0);
        for (row, stack) in self.stacks.iter().enumerate() {
            let mut frames = 0;
            for &frame in &stack.frames {
                within("stacks: frame", row, frame, self.locations.len())?;
                frames += self.locations[frame].symbols.len().max(1);
            }
            total += frames;
            addresses += stack.frames.len();
            if frames > FRAMES_MAX {
                return Err(format!(
                    "stacks: row {row} has {frames} frames; at most {FRAMES_MAX} are supported"
                ));
            }
            if total > FRAMES_IN_ALL {
                return Err(format!("stacks: more than {FRAMES_IN_ALL} frames in total"));
            }
        }
        // An address takes a few bytes of a file, but could expand to thousands of inlined calls.
        if total > FEW + INLINED * addresses {
            return Err(format!(
                "stacks: {addresses} addresses expand to {total} frames; that is more than {INLINED} inlined calls each"
            ));
        }
        let tables = [
            &self.allocations,
            &self.freed_after_end,
            &self.objects,
            &self.objects_freed_after_end,
            &self.segments,
            &self.segments_freed_after_end,
        ];
        for allocations in tables {
            for (row, call) in allocations.calls.iter().enumerate() {
                optional("calls: device", row, call.device, self.devices.len())?;
                optional("calls: context", row, call.context, self.contexts.len())?;
                within("calls: thread", row, call.thread, self.threads.len())?;
            }
            let counted = allocations.counts.iter().try_fold(0u64, |sum, &n| sum.checked_add(n));
            if counted.is_none() {
                return Err("allocations: the sum of all counts exceeds 64 bits".to_owned());
            }
            let calls = allocations.calls.len();
            for (row, a) in allocations.rows.iter().enumerate() {
                within("allocations: call", row, a.call as usize, calls)?;
                let stack = allocations::stack_of(a.stack);
                optional("allocations: stack", row, stack, self.stacks.len())?;
            }
        }
        let left_out = self.sampling.and_then(|sampling| sampling.left_out);
        optional("sampling: left_out", 0, left_out, self.stacks.len())?;
        for (row, r) in self.failed.iter().enumerate() {
            optional("failed: device", row, r.device, self.devices.len())?;
            optional("failed: stack", row, r.stack, self.stacks.len())?;
            within("failed: thread", row, r.thread, self.threads.len())?;
        }
        for (row, c) in self.counters.iter().chain(&self.object_counters).enumerate() {
            optional("counters: device", row, c.device, self.devices.len())?;
        }
        self.validate_object_counters()?;
        for (row, a) in self.at_peaks.iter().chain(&self.segments_at_peaks).enumerate() {
            optional("at_peaks: device", row, a.device, self.devices.len())?;
            optional("at_peaks: stack", row, a.stack, self.stacks.len())?;
        }
        for (row, phase) in self.phases.iter().enumerate() {
            within("phases: thread", row, phase.thread, self.threads.len())?;
            optional("phases: parent", row, phase.parent, row)?;
        }
        for (row, t) in self.totals.iter().chain(&self.segment_totals).enumerate() {
            optional("totals: device", row, t.device, self.devices.len())?;
            optional("totals: stack", row, t.stack, self.stacks.len())?;
        }
        for (row, a) in self.allocators.iter().enumerate() {
            optional("allocators: device", row, a.device, self.devices.len())?;
        }
        for (row, usage) in self.usage.iter().flat_map(|usage| &usage.devices).enumerate() {
            within("usage: device", row, usage.device, self.devices.len())?;
        }
        for (row, mark) in self.marks.iter().enumerate() {
            within("marks: thread", row, mark.thread, self.threads.len())?;
        }
        let failed = self.taken.automatic.as_ref().and_then(|automatic| automatic.failed);
        optional("taken.automatic: failed", 0, failed, self.failed.len())?;
        for (row, p) in self.device_peaks.iter().enumerate() {
            within("device_peaks: device", row, p.device, self.devices.len())?;
        }
        self.holders.as_ref().map_or(Ok(()), Holders::validate)
    }
}

#[cfg(test)]
mod tests {
    use super::FRAMES_IN_ALL;
    use crate::sample::serving;

    #[test]
    fn more_frames_than_those_of_any_program_are_refused() {
        let mut snapshot = serving();
        let mut long = snapshot.stacks[0].clone();
        long.frames = vec![long.frames[0]; 60_000];
        snapshot.stacks = vec![long; FRAMES_IN_ALL.div_ceil(60_000) + 1];
        let error = snapshot.validate().expect_err("refused");
        assert!(error.contains("frames in total"), "{error}");
    }
}
