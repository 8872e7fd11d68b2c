//! Where CPython keeps things, by minor version: for the walker of Python's frames (`shim/cpython`) and for `culeak why`
//! (`cli/holders`).
//!
//! The tables in the folder `cpython` are printed by its `offsets.c`, compiled with each version's own headers. They are parsed
//! when this file is compiled, so a table whose names or order differ from those of [`Offsets`] is a compile error. A test
//! (`cli/holders/tests/python/offsets.rs`) compares them with the headers of the interpreters of the machine. A new version is one
//! table and one line of [`TABLES`].

/// The value of an offset that a version does not have.
pub const ABSENT: u64 = u64::MAX;

macro_rules! offsets {
    ($($name:ident)*) => {
        /// Offsets and sizes in bytes; the prefix names the structure. [`ABSENT`] if the version has none.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Offsets {
            $(pub $name: u64,)*
        }

        impl Offsets {
            const fn parse(table: &str) -> Offsets {
                let mut rest = Lines(table.as_bytes());
                Offsets {
                    $($name: rest.value(stringify!($name)),)*
                }
            }
        }
    };
}

offsets! {
    version
    runtime_interpreters
    runtime_gc
    interpreter_next
    interpreter_threads
    interpreter_gc
    interpreter_modules
    interpreter_sysdict
    interpreter_builtins
    interpreter_dict
    interpreter_importlib
    interpreter_codecs
    interpreter_fork_hooks
    interpreter_audit_hooks
    interpreter_finalizing
    interpreter_atexit
    interpreter_monitoring
    interpreter_monitoring_bytes
    interpreter_types
    interpreter_types_bytes
    interpreter_extension_types
    interpreter_extension_types_bytes
    static_type_bytes
    static_type_dict
    static_type_subclasses
    interpreter_bytes
    gc_generations
    gc_generation_bytes
    gc_permanent
    gc_collecting
    thread_next
    thread_id
    thread_native_id
    thread_dict
    thread_context
    thread_exc_info
    thread_raised
    thread_profiler
    thread_tracer
    thread_frame
    thread_c_frame
    c_frame_current
    c_frame_previous
    thread_bytes
    exc_value
    exc_previous
    frame_object_back
    frame_object_trace
    frame_object_code
    frame_object_builtins
    frame_object_globals
    frame_object_names
    frame_object_value_stack
    frame_object_stack_top
    frame_object_stack_depth
    frame_object_instruction
    frame_object_locals
    frame_object_frame
    frame_object_data
    frame_object_extra_locals
    frame_object_locals_cache
    frame_object_overwritten
    frame_object_bytes
    frame_code
    frame_previous
    frame_function
    frame_names
    frame_object
    frame_instruction
    frame_stack_top
    frame_stack_pointer
    frame_copy
    frame_owner
    frame_is_entry
    frame_locals
    generator_frame_object
    generator_code
    generator_exception
    generator_origin
    generator_frame
    generator_state
    code_stack_slots
    code_first_line
    code_constants
    code_file
    code_name
    code_qualified_name
    code_extra
    code_lines
    code_variables
    code_variable_names
    code_cell_names
    code_free_names
    code_instructions
    code_bytes
    code_first_traceable
    code_version
    code_copies
    list_items
    tuple_items
    dict_keys
    dict_values
    dict_bytes
    keys_entries
    keys_indices
    values_first
    values_embedded
    values_valid
    set_mask
    set_table
    set_bytes
    cell_contents
    function_code
    function_globals
    function_builtins
    function_defaults
    function_keyword_defaults
    function_closure
    function_doc
    function_name
    function_dict
    function_module
    function_annotations
    function_annotate
    function_type_parameters
    method_function
    method_self
    builtin_self
    builtin_module
    builtin_class
    builtin_bytes
    module_dict
    module_state
    module_definition
    module_state_bytes
    definition_state_bytes
    module_bytes
    exception_args
    exception_notes
    exception_traceback
    exception_context
    exception_cause
    exception_bytes
    traceback_next
    traceback_frame
    weakref_callback
    weakref_bytes
    memoryview_buffer
    memoryview_bytes
    type_name
    type_basic_bytes
    type_item_bytes
    type_flags
    type_weak_list
    type_members
    type_base
    type_dict
    type_dict_offset
    type_bases
    type_mro
    type_cache
    type_subclasses
    type_qualified_name
    type_slots
    type_cached_keys
    type_module
    type_bytes
    type_static_bytes
    text_length
    text_state
    text_kind_bit
    text_ascii
    text_compact
    described_runtime_interpreters
    described_interpreter_bytes
    described_interpreter_next
    described_interpreter_threads
    described_interpreter_gc
    described_interpreter_modules
    described_interpreter_sysdict
    described_interpreter_builtins
    described_thread_bytes
    described_thread_next
    described_thread_frame
    described_thread_id
    described_thread_native_id
    described_frame_previous
    described_frame_code
    described_frame_instruction
    described_frame_locals
    described_frame_owner
    described_code_bytes
    described_code_file
    described_code_name
    described_code_lines
    described_code_first_line
    described_code_variable_names
    described_code_instructions
    described_type_name
    described_type_flags
    described_tuple_items
    described_list_items
    described_dict_keys
    described_dict_values
    described_text_length
    described_text_state
    described_text_ascii
    described_gc_collecting
}

/// The unparsed lines of a table.
struct Lines<'a>(&'a [u8]);

impl Lines<'_> {
    /// The value on the next line, which must have this name.
    const fn value(&mut self, name: &str) -> u64 {
        let (text, name) = (self.0, name.as_bytes());
        let mut at = 0;
        while at < name.len() {
            assert!(
                text[at] == name[at],
                "a table of offsets lacks a name, or has another order"
            );
            at += 1;
        }
        assert!(text[at] == b' ', "a table of offsets has another name");
        at += 1;
        let mut value = 0;
        while text[at] != b'\n' {
            match text[at] {
                b'-' => value = ABSENT,
                digit => {
                    assert!(digit.is_ascii_digit(), "an offset is a decimal number");
                    value = value * 10 + (digit - b'0') as u64;
                }
            }
            at += 1;
        }
        self.0 = self.0.split_at(at + 1).1;
        value
    }
}

/// The oldest and the newest minor version with a table.
pub const OLDEST: u32 = TABLES[0].minor();
pub const NEWEST: u32 = TABLES[TABLES.len() - 1].minor();

/// Of builds with the GIL, by minor version. Of one with several builds, the newest comes first.
pub static TABLES: [Offsets; 10] = [
    Offsets::parse(include_str!("cpython/3.8.txt")),
    Offsets::parse(include_str!("cpython/3.9.txt")),
    Offsets::parse(include_str!("cpython/3.10.txt")),
    Offsets::parse(include_str!("cpython/3.11.txt")),
    Offsets::parse(include_str!("cpython/3.12.txt")),
    Offsets::parse(include_str!("cpython/3.13.txt")),
    Offsets::parse(include_str!("cpython/3.14.txt")),
    Offsets::parse(include_str!("cpython/3.14.4.txt")),
    Offsets::parse(include_str!("cpython/3.14.0.txt")),
    Offsets::parse(include_str!("cpython/3.15.txt")),
];

/// Of free-threaded builds.
pub static FREE_THREADED: [Offsets; 2] = [
    Offsets::parse(include_str!("cpython/3.13t.txt")),
    Offsets::parse(include_str!("cpython/3.14t.txt")),
];

/// The tables of a minor version, 12 for 3.12: none if it is unknown. They differ only in the state of the interpreter and
/// of its threads.
///
/// The state of the collector has 24 bytes more from 3.14.5 on, whose collector is not incremental. 3.14.0 and 3.14.4 also
/// differ in what is behind the list of audit hooks.
pub fn of(minor: u32) -> impl Iterator<Item = &'static Offsets> {
    TABLES.iter().filter(move |table| table.minor() == minor)
}

/// The table of the newest build of a minor version that has one.
pub const fn newest(minor: u32) -> Offsets {
    let mut nth = 0;
    while TABLES[nth].minor() != minor {
        nth += 1;
    }
    TABLES[nth]
}

/// What the interpreter's description says nothing about may be elsewhere in an unknown build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Known,
    /// The part that is not described is unknown.
    Shifted,
}

impl Offsets {
    /// 12 for 3.12.
    pub const fn minor(&self) -> u32 {
        self.version as u32 & 0xff
    }

    /// Bytes of the head of each object, whose last word is its type; in objects of variable size, their size follows.
    pub const fn head(&self) -> u64 {
        self.text_length
    }

    /// The head has the thread that owns the object, and two counts.
    pub const fn is_free_threaded(&self) -> bool {
        self.head() > 16
    }

    /// The offsets of a build whose description was adopted: of its state, also those that are not described.
    pub fn with_undescribed(self) -> (Offsets, State) {
        /// What the state of a thread has behind its described part from 3.14.1 on: two addresses of a stack.
        const STACK: u64 = 16;
        let is_similar = |table: &&Offsets| {
            let mut table = **table;
            (table.interpreter_bytes, table.thread_bytes) = (self.interpreter_bytes, self.thread_bytes);
            self.described().eq(table.described())
        };
        let similar: Vec<&Offsets> = of(self.minor()).chain(&FREE_THREADED).filter(is_similar).collect();
        // The state of the first thread is the end of the interpreter's state.
        let before = |offsets: &Offsets| offsets.interpreter_bytes.wrapping_sub(offsets.thread_bytes);
        let same = match &similar[..] {
            // Some builds of a version have more at the end.
            [only] => Some(only),
            several => (several.iter().find(|table| before(&self) == before(table)))
                .or_else(|| several.last().filter(|oldest| before(&self) == before(oldest) + STACK)),
        };
        let Some(same) = same else {
            return (self, State::Shifted);
        };
        let mut own = **same;
        (own.interpreter_bytes, own.thread_bytes) = (self.interpreter_bytes, self.thread_bytes);
        (own, State::Known)
    }
}

/// Prefixes of the offsets that patch releases may change; the interpreter's description of them is adopted.
pub const STATE: [&str; 3] = ["runtime_", "interpreter_", "thread_"];

macro_rules! described {
    ($($place:ident $name:ident)*) => {
        impl Offsets {
            /// Where the interpreter describes an offset, its expected value, and its name; 3.13 and later.
            pub fn described(&self) -> impl Iterator<Item = (u64, u64, &'static str)> + use<> {
                let rows = [$((self.$place, self.$name, stringify!($name)),)*];
                rows.into_iter().filter(|(place, ..)| *place != ABSENT)
            }

            /// Replaces the offset that is described at this place.
            pub fn adopt(&mut self, place: u64, value: u64) {
                $(if self.$place == place {
                    self.$name = value;
                })*
            }
        }
    };
}

described! {
    described_runtime_interpreters runtime_interpreters
    described_interpreter_bytes interpreter_bytes
    described_interpreter_next interpreter_next
    described_interpreter_threads interpreter_threads
    described_interpreter_gc interpreter_gc
    described_interpreter_modules interpreter_modules
    described_interpreter_sysdict interpreter_sysdict
    described_interpreter_builtins interpreter_builtins
    described_thread_bytes thread_bytes
    described_thread_next thread_next
    described_thread_frame thread_frame
    described_thread_id thread_id
    described_thread_native_id thread_native_id
    described_frame_previous frame_previous
    described_frame_code frame_code
    described_frame_instruction frame_instruction
    described_frame_locals frame_locals
    described_frame_owner frame_owner
    described_code_file code_file
    described_code_name code_name
    described_code_lines code_lines
    described_code_first_line code_first_line
    described_code_variable_names code_variable_names
    described_code_instructions code_instructions
    described_type_name type_name
    described_type_flags type_flags
    described_tuple_items tuple_items
    described_list_items list_items
    described_dict_keys dict_keys
    described_dict_values dict_values
    described_text_length text_length
    described_text_state text_state
    described_text_ascii text_ascii
    described_gc_collecting gc_collecting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_with_the_gil_and_free_threaded_ones_are_told_apart() {
        assert!(
            TABLES
                .iter()
                .all(|table| table.head() == 16 && !table.is_free_threaded())
        );
        for table in &FREE_THREADED {
            assert_eq!((table.head(), table.is_free_threaded()), (32, true));
            assert_eq!(table.with_undescribed(), (*table, State::Known));
        }
    }

    fn is_state(name: &str) -> bool {
        STATE.iter().any(|state| name.starts_with(state))
    }

    #[test]
    fn every_version_has_a_table() {
        for minor in OLDEST..=NEWEST {
            assert_eq!(of(minor).count(), if minor == 14 { 3 } else { 1 }, "3.{minor}");
            for table in of(minor) {
                assert_eq!(table.described().count() > 0, minor >= 13, "3.{minor}");
            }
        }
        assert!(of(OLDEST - 1).next().is_none() && of(NEWEST + 1).next().is_none());
    }

    #[test]
    fn tables_of_one_version_differ_only_in_the_state() {
        for minor in OLDEST..=NEWEST {
            let newest = of(minor).next().unwrap();
            for table in of(minor) {
                for (ours, theirs) in newest.described().zip(table.described()) {
                    assert!(
                        ours == theirs || ours.0 == theirs.0 && is_state(ours.2),
                        "3.{minor}: {ours:?}"
                    );
                }
            }
        }
    }

    /// A build that describes its state like this table, with sizes of its own.
    fn described_as(table: &Offsets, interpreter_bytes: u64, thread_bytes: u64) -> Offsets {
        let mut own = *of(table.minor()).next().unwrap();
        for (place, value, _) in table.described() {
            own.adopt(place, value);
        }
        (own.interpreter_bytes, own.thread_bytes) = (interpreter_bytes, thread_bytes);
        own
    }

    #[test]
    fn builds_of_3_14_are_told_apart_by_their_description() {
        for table in of(14) {
            let own = described_as(table, table.interpreter_bytes, table.thread_bytes);
            assert_eq!(own.with_undescribed(), (*table, State::Known));
        }
        let oldest = of(14).last().unwrap();
        // 3.14.1: the state of a thread has two more words at its end.
        let (interpreter, thread) = (oldest.interpreter_bytes + 16, oldest.thread_bytes);
        let (found, state) = described_as(oldest, interpreter, thread).with_undescribed();
        assert_eq!(
            (found.interpreter_audit_hooks, state),
            (oldest.interpreter_audit_hooks, State::Known)
        );
        assert_eq!((found.interpreter_bytes, found.thread_bytes), (interpreter, thread));
        // Anything else is an unknown build.
        let own = described_as(oldest, interpreter + 24, thread);
        assert_eq!(own.with_undescribed(), (own, State::Shifted));
    }

    #[test]
    fn the_state_of_an_unknown_build_is_used_only_where_it_is_described() {
        for minor in 13..=NEWEST {
            let table = *of(minor).next().unwrap();
            let mut more = table;
            more.interpreter_bytes += 64;
            assert_eq!(more.with_undescribed(), (more, State::Known), "3.{minor}");
            let mut moved = table;
            moved.interpreter_modules += 8;
            assert_eq!(moved.with_undescribed(), (moved, State::Shifted), "3.{minor}");
        }
    }
}
