//! Rows by forward line: what they are called, and what they are matched by in another snapshot.

use super::text::Site;
use super::{CallStack, Fingerprint, Frame, Hasher, NameDetail};

/// The row of memory that is no gradient, or of whose forward line nothing is known.
const NO_LINE: &str = "(no forward line)";

impl<'a> CallStack<'a> {
    /// The line of the forward pass that the memory is a gradient of.
    pub fn gradient(&self) -> Option<&Frame<'a>> {
        self.frames.first().filter(|frame| frame.is_gradient())
    }

    /// `Net.forward model.py:31`, or `near Net.forward model.py:31`.
    pub fn forward_label(&self) -> String {
        self.gradient().map_or_else(|| NO_LINE.to_owned(), python_line)
    }

    /// Identifies the forward line in other snapshots: with the number of its line, without it, and as CPython 3.10 has it.
    pub fn forward_fingerprints(&self) -> [Fingerprint; 3] {
        [NameDetail::WithLine, NameDetail::InFull, NameDetail::WithoutClass].map(|by| {
            let mut hasher = Hasher::new();
            match self.gradient() {
                Some(line) => hasher.frame(line, by),
                None => hasher.bytes(NO_LINE.as_bytes()),
            }
            hasher.finish()
        })
    }
}

impl Site {
    /// The forward line of a stack, in the place of its call site.
    pub fn of_forward(stack: &CallStack) -> Site {
        let line = stack.gradient();
        let mut site = Site {
            label: stack.forward_label(),
            place: None,
            file: line.and_then(|line| line.file).map(str::to_owned),
            line: line.and_then(|line| line.line),
            module: String::new(),
            allocator: None,
            library: None,
            fingerprint: stack.forward_fingerprints()[0],
            ..Site::of(stack)
        };
        site.stack.iter_mut().for_each(|frame| frame.site = false);
        site
    }
}

/// `training_step train.py:212`.
pub(in crate::analysis) fn python_line(frame: &Frame) -> String {
    let place = frame.short_place().unwrap_or_default();
    format!(
        "{} {place}",
        frame
            .function
            .unwrap_or("?")
            .trim_start_matches("gradient ")
            .trim_start_matches("of ")
    )
}
