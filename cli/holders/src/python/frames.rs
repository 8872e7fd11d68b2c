//! Frames and generators: variables, the value stack, and the current line.
//!
//! Up to 3.10 a frame is an object. From 3.11 on it is a structure: on a thread's stack of frames, within a generator, or,
//! when its function has returned and something still refers to its frame object, within that.
//!
//! While a frame executes, the depth of its value stack is only in a register; what its slots hold may then be stale. From
//! 3.14 on the low bits of a slot say whether it counts as a reference.

use culeak::reader::{BEFORE_FIRST, python_line};

use crate::Set;
use crate::copy::Image;
use crate::graph::{Edge, EdgeKind};
use crate::python::containers::is_present;
use crate::python::references::{is_address, refer};
use crate::python::text::{MOST_CHARACTERS, plain};
use crate::python::types::{Kind, Sort};
use crate::python::{Python, Reference};
use culeak::cpython::ABSENT;

/// More than a frame has.
const MOST_SLOTS: u64 = 1 << 20;
/// Longer tables of lines are cut.
const MOST_LINE_BYTES: u64 = 1 << 20;

/// Low bits of a slot, 3.14 and later.
const TAGS: u64 = 3;
const NUMBER: u64 = 3;
const BORROWED: u64 = 1;

/// Where a frame keeps its variables.
#[derive(Debug, Clone, Copy)]
struct Slots {
    first: u64,
    /// Variables, then the value stack.
    variables: u64,
    stack: u64,
    /// How much of the value stack is in use; `None` while the frame executes.
    depth: Option<u64>,
}

/// The fields of a frame that is not an object, in the order of [`FRAME_FIELDS`].
pub const FRAME_FIELDS: [&str; 4] = ["f_code", "function", "f_locals", "frame object"];

impl Python {
    fn untagged(&self, word: u64) -> u64 {
        if self.minor() >= 14 { word & !TAGS } else { word }
    }

    pub(super) fn is_code(&self, copy: &Image, address: u64) -> bool {
        is_address(address) && copy.has(address) && copy.word(address + self.head() - 8) == self.code_type
    }

    /// The code of a frame that is not an object; `None` if it runs none.
    pub(super) fn frame_code(&self, copy: &Image, frame: u64) -> Option<u64> {
        let code = self.untagged(copy.word(frame.checked_add(self.offsets.frame_code)?));
        self.is_code(copy, code).then_some(code)
    }

    /// The number of variables of a code object, those of enclosing functions and for inner ones included.
    pub(super) fn variables(&self, copy: &Image, code: u64) -> u64 {
        let o = &self.offsets;
        let mut count = u64::from(copy.half(code + o.code_variables));
        if o.code_cell_names != ABSENT {
            for names in [o.code_cell_names, o.code_free_names] {
                count = count.saturating_add(copy.word(copy.word(code + names).wrapping_add(self.head())));
            }
        }
        count
    }

    fn slots(&self, copy: &Image, code: u64, first: u64) -> Option<Slots> {
        let (variables, stack) = (
            self.variables(copy, code),
            copy.half(code + self.offsets.code_stack_slots).into(),
        );
        let slots = Slots {
            first,
            variables,
            stack,
            depth: None,
        };
        let fits = variables < MOST_SLOTS && stack < MOST_SLOTS;
        (fits && is_present(copy, &(first..first + variables * 8))).then_some(slots)
    }

    /// The slots of a frame that is not an object.
    fn frame_slots_of(&self, copy: &Image, frame: u64) -> Option<Slots> {
        let o = &self.offsets;
        let mut slots = self.slots(copy, self.frame_code(copy, frame)?, frame + o.frame_locals)?;
        let top = match o.frame_stack_pointer {
            ABSENT => u64::from(copy.half(frame + o.frame_stack_top)),
            at => copy.word(frame + at).wrapping_sub(slots.first) / 8,
        };
        slots.depth = top.checked_sub(slots.variables).filter(|&depth| depth <= slots.stack);
        Some(slots)
    }

    /// The slots of a frame object before 3.11.
    fn frame_object_slots(&self, copy: &Image, frame: u64) -> Option<Slots> {
        let o = &self.offsets;
        let code = copy.word(frame + o.frame_object_code);
        if !self.is_code(copy, code) {
            return None;
        }
        let mut slots = self.slots(copy, code, frame + o.frame_object_locals)?;
        let depth = match o.frame_object_stack_top {
            ABSENT => u64::from(copy.half(frame + o.frame_object_stack_depth)),
            at => match copy.word(frame + at) {
                0 => u64::MAX,
                top => top.wrapping_sub(copy.word(frame + o.frame_object_value_stack)) / 8,
            },
        };
        slots.depth = Some(depth).filter(|&depth| depth <= slots.stack);
        Some(slots)
    }

    /// Slots for variables and values of a frame object or generator, from 3.11 on.
    pub(super) fn frame_slots(&self, copy: &Image, address: u64, kind: Kind) -> u64 {
        let frame = match kind {
            Kind::Generator => Some(address + self.offsets.generator_frame),
            _ => self.own_frame(copy, address),
        };
        let slots = frame.and_then(|frame| self.frame_slots_of(copy, frame));
        slots.map_or(0, |slots| slots.variables + slots.stack)
    }

    /// The frame within a frame object, from 3.11 on.
    fn own_frame(&self, copy: &Image, object: u64) -> Option<u64> {
        let own = object + self.offsets.frame_object_data;
        (copy.word(object + self.offsets.frame_object_frame) == own).then_some(own)
    }

    fn slot_references(&self, copy: &Image, slots: Slots, found: &mut Vec<Reference>) {
        let stack = match slots.depth {
            Some(depth) => depth,
            None => slots.stack,
        };
        for index in 0..slots.variables + stack {
            let word = copy.word(slots.first + index * 8);
            let tag = if self.minor() >= 14 { word & TAGS } else { 0 };
            let target = self.untagged(word);
            if tag == NUMBER {
                continue;
            }
            let (kind, index) = match index.checked_sub(slots.variables) {
                None => (EdgeKind::Local, index),
                Some(index) => (EdgeKind::Stack, index),
            };
            let is_sure = kind == EdgeKind::Local || slots.depth.is_some() && tag != BORROWED;
            let sort = if is_sure { Sort::Named } else { Sort::Possible };
            refer(found, Edge::new(kind, index), target, sort);
        }
    }

    /// As [`Python::references`], for an `_PyInterpreterFrame`.
    pub fn frame_references(&self, copy: &Image, frame: u64, found: &mut Vec<Reference>) {
        let o = &self.offsets;
        let Some(slots) = self.frame_slots_of(copy, frame) else {
            return;
        };
        self.slot_references(copy, slots, found);
        let fields = [o.frame_code, o.frame_function, o.frame_names, o.frame_object];
        for (index, at) in fields.into_iter().enumerate() {
            let word = copy.word(frame + at);
            let is_borrowed = self.minor() >= 14 && word & BORROWED != 0;
            let sort = if is_borrowed { Sort::Possible } else { Sort::Context };
            let edge = Edge::new(EdgeKind::Field, FRAME_FIELD + index as u64);
            refer(found, edge, self.untagged(word), sort);
        }
    }

    pub(super) fn frame_object_references(&self, copy: &Image, object: u64, found: &mut Vec<Reference>) {
        if self.minor() >= 11 {
            // The frames of a thread and of a generator do not belong to their objects.
            if let Some(frame) = self.own_frame(copy, object) {
                self.frame_references(copy, frame, found);
            }
        } else if let Some(slots) = self.frame_object_slots(copy, object) {
            self.slot_references(copy, slots, found);
        }
    }

    pub(super) fn generator_references(&self, copy: &Image, generator: u64, found: &mut Vec<Reference>) {
        if let Some(frame) = self.generator_frame(copy, generator) {
            self.frame_references(copy, frame, found);
        } else if self.minor() >= 12 {
            // One that has ended keeps its code.
            let target = self.untagged(copy.word(generator + self.offsets.generator_frame + self.offsets.frame_code));
            if self.is_code(copy, target) {
                refer(found, Edge::new(EdgeKind::Field, FRAME_FIELD), target, Sort::Context);
            }
        }
    }

    /// The frame within a generator that has not ended, from 3.11 on.
    fn generator_frame(&self, copy: &Image, generator: u64) -> Option<u64> {
        let o = &self.offsets;
        if o.generator_frame == ABSENT {
            return None;
        }
        // 3.15 renumbered the states.
        const CLEARED: u8 = 5;
        let state = copy.byte(generator + o.generator_state);
        let has_frame = if self.minor() >= 15 {
            state < CLEARED
        } else {
            state as i8 <= 0
        };
        has_frame.then_some(generator + o.generator_frame)
    }

    /// The code and current instruction of a frame, frame object or generator.
    fn position(&self, copy: &Image, address: u64, kind: Option<Kind>) -> Option<(u64, u32)> {
        let o = &self.offsets;
        if self.minor() < 11 {
            let frame = match kind {
                Some(Kind::Generator) => copy.word(address + o.generator_frame_object),
                _ => address,
            };
            if !is_address(frame) {
                return None;
            }
            let code = copy.word(frame + o.frame_object_code);
            let last = copy.half(frame + o.frame_object_instruction);
            let offset = match self.minor() {
                _ if last == u32::MAX => BEFORE_FIRST,
                10 => last.saturating_mul(2),
                _ => last,
            };
            return self.is_code(copy, code).then_some((code, offset));
        }
        let frame = match kind {
            Some(Kind::Generator) => address + o.generator_frame,
            Some(_) => copy.word(address + o.frame_object_frame),
            None => address,
        };
        let code = self.frame_code(copy, frame)?;
        let instruction = copy.word(frame + o.frame_instruction);
        let first = match o.code_copies {
            ABSENT => code + o.code_instructions,
            // Free-threaded: each thread has its own copy, in a list behind its length.
            at => {
                let number = u64::from(copy.half(frame + o.frame_copy));
                copy.word(copy.word(code + at).wrapping_add(8 + number * 8))
            }
        };
        let offset = instruction.checked_sub(first);
        let offset = offset.and_then(|offset| u32::try_from(offset).ok());
        Some((code, offset.unwrap_or(BEFORE_FIRST)))
    }

    /// `gen, train.py:62`.
    pub(super) fn place(&mut self, copy: &Image, address: u64, kind: Option<Kind>) -> Option<String> {
        let (code, offset) = self.position(copy, address, kind)?;
        let o = self.offsets;
        let name = self.short_text(copy, copy.word(code + o.code_name));
        let file = self.text(copy, copy.word(code + o.code_file), 4096).unwrap_or_default();
        let file = file.rsplit('/').next().unwrap_or_default();
        let file = plain(&file.chars().take(MOST_CHARACTERS as usize).collect::<String>());
        let table = self.byte_string(copy, copy.word(code + o.code_lines), MOST_LINE_BYTES);
        let first = copy.half(code + o.code_first_line);
        Some(
            match python_line(self.minor(), &table.unwrap_or_default(), first, offset) {
                Some(line) => format!("{name}, {file}:{line}"),
                None => format!("{name}, {file}"),
            },
        )
    }

    /// The name of a variable.
    pub(super) fn variable(&mut self, copy: &Image, address: u64, kind: Option<Kind>, index: u64) -> Option<String> {
        let (code, _) = self.position(copy, address, kind)?;
        let name = self.name_of_variable(copy, code, index)?;
        Some(self.short_text(copy, name))
    }

    /// Where the name of a variable of a code object is. Variables of enclosing functions come last.
    pub(super) fn name_of_variable(&self, copy: &Image, code: u64, index: u64) -> Option<u64> {
        let o = &self.offsets;
        let tables = match o.code_cell_names {
            ABSENT => vec![o.code_variable_names],
            cells => vec![o.code_variable_names, cells, o.code_free_names],
        };
        let mut index = index;
        for table in tables {
            let tuple = Some(copy.word(code + table)).filter(|tuple| is_address(*tuple))?;
            let names = self.elements(copy, tuple.wrapping_add(o.tuple_items), tuple)?;
            let count = (names.end - names.start) / 8;
            if index < count {
                return Some(copy.word(names.start + index * 8));
            }
            index -= count;
        }
        None
    }

    /// The frames of a thread, innermost first: objects before 3.11.
    pub(super) fn thread_frames(&self, copy: &Image, thread: u64) -> Vec<u64> {
        let o = &self.offsets;
        let mut frame = match o.c_frame_current {
            ABSENT => copy.word(thread + o.thread_frame),
            at => copy.word(copy.word(thread + o.thread_c_frame).wrapping_add(at)),
        };
        let previous = if self.minor() < 11 {
            o.frame_object_back
        } else {
            o.frame_previous
        };
        let mut frames = Vec::new();
        let mut seen = Set::default();
        while is_address(frame) && frame & 7 == 0 && copy.has(frame) && seen.insert(frame) {
            // Some of 3.12 and later mark calls from C and run no code.
            if self.minor() < 11 || self.frame_code(copy, frame).is_some() {
                frames.push(frame);
            }
            frame = copy.word(frame + previous);
        }
        frames
    }
}

/// The index of the first of [`FRAME_FIELDS`] among the fields of frame objects and generators.
pub const FRAME_FIELD: u64 = 100;
