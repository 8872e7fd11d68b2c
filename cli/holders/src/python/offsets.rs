//! Where CPython keeps things, by minor version.
//!
//! The tables under `offsets/` are printed by `offsets/offsets.c`, compiled with each version's own headers. They are parsed
//! when this file is compiled, so a table whose names or order differ from those of [`Offsets`] is a compile error. A test
//! compares them with the headers of the interpreters of the machine.

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
    interpreter_atexit
    interpreter_monitoring
    interpreter_monitoring_bytes
    interpreter_types
    interpreter_extension_types
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
    frame_code
    frame_previous
    frame_function
    frame_names
    frame_object
    frame_instruction
    frame_stack_top
    frame_stack_pointer
    frame_owner
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
    code_extra
    code_lines
    code_variables
    code_variable_names
    code_cell_names
    code_free_names
    code_instructions
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

/// The oldest minor version with a table.
pub const OLDEST: u32 = 8;

const TABLES: [Offsets; 8] = [
    Offsets::parse(include_str!("../../offsets/3.8.txt")),
    Offsets::parse(include_str!("../../offsets/3.9.txt")),
    Offsets::parse(include_str!("../../offsets/3.10.txt")),
    Offsets::parse(include_str!("../../offsets/3.11.txt")),
    Offsets::parse(include_str!("../../offsets/3.12.txt")),
    Offsets::parse(include_str!("../../offsets/3.13.txt")),
    Offsets::parse(include_str!("../../offsets/3.14.txt")),
    Offsets::parse(include_str!("../../offsets/3.15.txt")),
];

/// The offsets of a minor version: 12 for 3.12.
pub fn of(minor: u32) -> Option<&'static Offsets> {
    TABLES.get(minor.checked_sub(OLDEST)? as usize)
}

impl Offsets {
    /// The state of the collector has 24 bytes more at its end from 3.14.5 on, with a collector of another kind. So in the
    /// interpreter's state of older builds, everything behind it is 24 bytes nearer, of which the interpreter describes only a part. The
    /// rest is moved as well if all of that part is, and the size of the state.
    pub fn move_state(&mut self, version: u32) -> bool {
        const MORE: u64 = 24;
        let Some(table) = of(version >> 16 & 0xff).filter(|_| version >> 16 == 0x30e && version >> 8 & 0xff < 5) else {
            return false;
        };
        let are_moved = [
            (self.interpreter_modules, table.interpreter_modules),
            (self.interpreter_sysdict, table.interpreter_sysdict),
            (self.interpreter_builtins, table.interpreter_builtins),
            (self.interpreter_bytes, table.interpreter_bytes),
        ];
        let are_kept = [
            (self.interpreter_next, table.interpreter_next),
            (self.interpreter_threads, table.interpreter_threads),
            (self.interpreter_gc, table.interpreter_gc),
            (self.thread_frame, table.thread_frame),
            (self.thread_native_id, table.thread_native_id),
        ];
        let is_older = are_moved.iter().all(|(own, of_table)| own + MORE == *of_table)
            && are_kept.iter().all(|(own, of_table)| own == of_table);
        if is_older {
            for moved in [
                &mut self.interpreter_dict,
                &mut self.interpreter_importlib,
                &mut self.interpreter_codecs,
                &mut self.interpreter_fork_hooks,
                &mut self.interpreter_audit_hooks,
                &mut self.interpreter_atexit,
                &mut self.interpreter_types,
                &mut self.interpreter_extension_types,
            ] {
                *moved -= MORE;
            }
        }
        is_older
    }
}

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
    fn every_table_is_that_of_its_version() {
        let end = OLDEST + TABLES.len() as u32;
        for minor in OLDEST..end {
            let offsets = of(minor).unwrap();
            assert_eq!(offsets.version, u64::from(3 << 8 | minor));
            assert_eq!(offsets.described().count() > 0, minor >= 13, "3.{minor}");
        }
        assert!(of(OLDEST - 1).is_none() && of(end).is_none());
    }

    #[test]
    fn the_state_of_a_build_with_the_incremental_collector_is_moved_as_a_whole() {
        const OLDER: u32 = 0x030e_02f0;
        let table = *of(14).unwrap();
        let described = [
            table.described_interpreter_modules,
            table.described_interpreter_sysdict,
            table.described_interpreter_builtins,
            table.described_interpreter_bytes,
        ];
        let older = |places: &[u64]| {
            let mut own = table;
            for (place, value, _) in table.described().filter(|(place, ..)| places.contains(place)) {
                own.adopt(place, value - 24);
            }
            own
        };
        let mut own = older(&described);
        assert!(own.move_state(OLDER));
        assert_eq!(own.interpreter_atexit, table.interpreter_atexit - 24);
        assert_eq!(own.interpreter_threads, table.interpreter_threads);
        // Anything else is an unknown build.
        for (mut own, version) in [
            (older(&described), 0x030e_05f0),
            (older(&described), 0x030d_02f0),
            (older(&described[..3]), OLDER),
            (table, OLDER),
        ] {
            let before = own;
            assert!(!own.move_state(version));
            assert_eq!(own, before);
        }
    }
}
