//! What paths are described with besides names: closures, context variables, the collector, and where roots are read from.

use std::ops::Range;

use crate::copy::Image;
use crate::python::Python;
use crate::python::references::is_address;
use crate::python::text::{MOST_CHARACTERS, plain};
use culeak::cpython::ABSENT;

/// Bytes of a frame's head that are read again, and the fewest of its variables.
const FRAME_BYTES: u64 = 512;

impl Python {
    /// The variable of the enclosing function that is in this cell of a function's closure.
    pub(crate) fn free_variable(&mut self, copy: &Image, function: u64, index: u64) -> Option<String> {
        let o = self.offsets;
        let code = copy.word(function + o.function_code);
        let cells = copy.word(copy.word(function + o.function_closure) + self.head());
        let (names, index) = match o.code_free_names {
            // The last of all variables are those of enclosing functions.
            ABSENT => {
                let all = u64::from(copy.half(code + o.code_variables));
                (
                    copy.word(code + o.code_variable_names),
                    all.checked_sub(cells)?.checked_add(index)?,
                )
            }
            at => (copy.word(code + at), index),
        };
        if index >= copy.word(names + self.head()) {
            return None;
        }
        let name = copy.word(names + o.tuple_items + index * 8);
        self.text(copy, name, MOST_CHARACTERS).map(|name| plain(&name))
    }

    /// The name of a context variable; `None` if the object is of another type.
    pub(crate) fn context_variable(&mut self, copy: &Image, address: u64) -> Option<String> {
        let of = self.object(copy, address)?;
        if self.type_name(of) != "ContextVar" {
            return None;
        }
        let name = self.text(copy, copy.word(address + self.head()), MOST_CHARACTERS);
        name.map(|name| plain(&name))
    }

    /// Whether the collector runs by itself; `None` if that is not known.
    pub(crate) fn is_collector_enabled(&self, copy: &Image) -> Option<bool> {
        let o = &self.offsets;
        let collector = match o.runtime_gc {
            ABSENT => *self.interpreters(copy).first()? + o.interpreter_gc,
            at => self.runtime + at,
        };
        // Two numbers, of which this is the first, precede the generations; they are aligned to 8 bytes.
        let at = match o.gc_generations {
            24 => 12,
            8 => 0,
            _ => return None,
        };
        match copy.half(collector + at) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// What [`Python::roots`] reads.
    pub(crate) fn root_ranges(&self, copy: &Image) -> Vec<Range<u64>> {
        let o = &self.offsets;
        let mut ranges = Vec::new();
        let interpreters = self.interpreters(copy);
        for interpreter in &interpreters {
            for at in [
                o.interpreter_modules,
                o.interpreter_sysdict,
                o.interpreter_builtins,
                o.interpreter_threads,
            ] {
                ranges.push(interpreter + at..interpreter + at + 8);
            }
        }
        for thread in self.threads(copy, &interpreters) {
            ranges.push(thread.address..thread.address + o.thread_bytes);
            if o.c_frame_current != ABSENT {
                let at = copy.word(thread.address + o.thread_c_frame) + o.c_frame_current;
                ranges.push(at..at + 8);
            }
            let handled = copy.word(thread.address + o.thread_exc_info);
            if is_address(handled) {
                ranges.push(handled..handled + 64);
            }
            for frame in self.thread_frames(copy, thread.address) {
                ranges.push(frame..frame + FRAME_BYTES);
            }
        }
        ranges
    }
}
