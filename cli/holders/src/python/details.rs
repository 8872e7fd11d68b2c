//! What paths are described with besides names: closures, context variables, the collector.

use crate::copy::Image;
use crate::python::Python;
use crate::python::text::{MOST_CHARACTERS, plain};
use culeak::cpython::ABSENT;

impl Python {
    /// The variable of the enclosing function that is in this cell of a function's closure.
    pub(crate) fn free_variable(&mut self, copy: &Image, function: u64, index: u64) -> Option<String> {
        let code = Some(copy.word(function + self.offsets.function_code)).filter(|code| self.is_code(copy, *code))?;
        let closure = copy.word(function + self.offsets.function_closure);
        let cells = copy.word(closure.wrapping_add(self.head()));
        let index = self.variables(copy, code).checked_sub(cells)?.checked_add(index)?;
        let name = self.name_of_variable(copy, code, index)?;
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
}
