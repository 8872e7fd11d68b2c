//! Where the walk begins in Python, best names first: modules, then each thread's frames and what else it holds, then what
//! the interpreter keeps for itself.

use std::ops::Range;

use crate::Set;
use crate::copy::Image;
use crate::graph::{PythonRoot, ThreadPart};
use crate::python::references::is_address;
use crate::python::types::Sort;
use crate::python::{Python, Rooted};
use culeak::cpython::{ABSENT, OLDEST};

const MOST_EXCEPTIONS: usize = 1000;
const MOST_CALLBACKS: u64 = 1 << 20;
/// The id of the thread in glibc's `struct pthread`.
const PTHREAD_ID: u64 = 720;

/// A thread's state, and how it is named.
#[derive(Clone, Copy)]
pub(super) struct ThreadState {
    pub(super) address: u64,
    pub(super) id: u64,
    is_main: bool,
}

impl Python {
    /// Calls `see` with everything that the roots lead to, best roots first.
    pub fn roots(&mut self, copy: &Image, see: &mut dyn FnMut(&PythonRoot, Rooted)) {
        let o = self.offsets;
        let interpreters = self.interpreters(copy);
        let interpreter_roots = |roots: &[(u64, &'static str)], see: &mut dyn FnMut(&PythonRoot, Rooted)| {
            for interpreter in &interpreters {
                for (at, name) in roots {
                    object(see, &PythonRoot::Interpreter(name), copy.word(interpreter + at));
                }
            }
        };
        let modules = [
            (o.interpreter_modules, "sys.modules"),
            (o.interpreter_sysdict, "sys"),
            (o.interpreter_builtins, "builtins"),
        ];
        interpreter_roots(&modules, see);
        for thread in self.threads(copy, &interpreters) {
            self.thread_roots(copy, thread, see);
        }
        for &interpreter in &interpreters {
            self.atexit_callbacks(copy, interpreter, see);
        }
        for (signal, handler) in self.handlers(copy) {
            object(see, &PythonRoot::Signal(signal), handler);
        }
        if self.is_state_shifted {
            return;
        }
        let state = [
            (o.interpreter_dict, "interpreter's dictionary"),
            (o.interpreter_importlib, "importlib"),
            (o.interpreter_codecs, "codecs"),
            (o.interpreter_codecs + 8, "codecs"),
            (o.interpreter_codecs + 16, "codecs"),
            (o.interpreter_fork_hooks, "fork hook"),
            (o.interpreter_fork_hooks + 8, "fork hook"),
            (o.interpreter_fork_hooks + 16, "fork hook"),
            (o.interpreter_audit_hooks, "audit hook"),
        ];
        interpreter_roots(&state, see);
        if o.interpreter_monitoring != ABSENT {
            let root = PythonRoot::Interpreter("monitoring callback");
            for interpreter in &interpreters {
                for at in (0..o.interpreter_monitoring_bytes).step_by(8) {
                    object(see, &root, copy.word(interpreter + o.interpreter_monitoring + at));
                }
            }
        }
        for &interpreter in &interpreters {
            self.static_types(copy, interpreter, see);
        }
    }

    /// The states of all threads, whose words are roots: nothing else leads on through them.
    pub(crate) fn thread_states(&self, copy: &Image) -> Vec<Range<u64>> {
        let interpreters = self.interpreters(copy);
        let state = |thread: ThreadState| thread.address..thread.address.saturating_add(self.offsets.thread_bytes);
        self.threads(copy, &interpreters).into_iter().map(state).collect()
    }

    /// The threads of these interpreters, oldest last.
    pub(super) fn threads(&self, copy: &Image, interpreters: &[u64]) -> Vec<ThreadState> {
        let o = &self.offsets;
        let system_threads = copy.source().threads();
        let pid = copy.source().pid();
        let mut found = Vec::new();
        let mut seen = Set::default();
        for (number, interpreter) in interpreters.iter().enumerate() {
            let mut address = copy.word(interpreter + o.interpreter_threads);
            while is_address(address) && copy.has(address) && seen.insert(address) {
                let pthread = copy.word(address + o.thread_id);
                let id = match o.thread_native_id {
                    ABSENT => u64::from(copy.half(pthread.saturating_add(PTHREAD_ID))),
                    at => copy.word(address + at),
                };
                let is_known = system_threads.iter().any(|thread| u64::from(thread.id) == id);
                let next = copy.word(address + o.thread_next);
                // New threads and interpreters are put in front of older ones.
                let is_oldest = next == 0 && number + 1 == interpreters.len();
                found.push(ThreadState {
                    address,
                    id: if is_known { id } else { pthread },
                    is_main: match pid {
                        Some(pid) if is_known => u64::from(pid) == id,
                        _ => is_oldest,
                    },
                });
                address = next;
            }
        }
        found
    }

    fn thread_roots(&mut self, copy: &Image, state: ThreadState, see: &mut dyn FnMut(&PythonRoot, Rooted)) {
        let o = self.offsets;
        let (thread, main) = (state.id, state.is_main);
        let root = |part| PythonRoot::Thread { thread, main, part };
        let word = |at: u64| copy.word(state.address + at);
        let is_frame = self.minor() >= 11;
        for target in self.thread_frames(copy, state.address) {
            let sort = Sort::Named;
            see(&root(ThreadPart::Frame), Rooted { target, is_frame, sort });
        }
        // The traceback of an exception is behind it.
        let traceback = if self.minor() < 12 {
            o.thread_raised + 8
        } else {
            o.thread_raised
        };
        let mut named: Vec<(u64, ThreadPart)> = [
            (o.thread_dict, ThreadPart::Locals),
            (o.thread_context, ThreadPart::Context),
            (o.thread_raised, ThreadPart::Exception),
            (traceback, ThreadPart::Exception),
        ]
        .map(|(at, part)| (state.address + at, part))
        .to_vec();
        named.dedup();
        let mut handled = word(o.thread_exc_info);
        for _ in 0..MOST_EXCEPTIONS {
            if !is_address(handled) || !copy.has(handled) {
                break;
            }
            named.push((handled + o.exc_value, ThreadPart::Exception));
            if self.minor() < 11 {
                named.push((handled + o.exc_value + 8, ThreadPart::Exception));
            }
            handled = copy.word(handled + o.exc_previous);
        }
        for (at, name) in [
            (o.thread_profiler, "profile function"),
            (o.thread_tracer, "trace function"),
        ] {
            named.push((state.address + at, ThreadPart::Hook(name)));
        }
        for (at, part) in &named {
            object(see, &root(*part), copy.word(*at));
        }
        for at in (0..o.thread_bytes).step_by(8) {
            let target = word(at);
            // Its links to other states, and to its own frame.
            let is_named = named.iter().any(|(named, _)| *named == state.address + at);
            if is_address(target) && !is_named && self.object(copy, target).is_some() {
                see(&root(ThreadPart::State), Rooted::to(target, Sort::Word));
            }
        }
    }

    /// A list from 3.14 on. Before, an array of pointers to {function, arguments, keyword arguments}: in the interpreter's
    /// state, or in that of the module until 3.9.
    fn atexit_callbacks(&mut self, copy: &Image, interpreter: u64, see: &mut dyn FnMut(&PythonRoot, Rooted)) {
        let root = PythonRoot::Interpreter("atexit");
        let o = self.offsets;
        let state = match o.interpreter_atexit {
            ABSENT => {
                let modules = copy.word(interpreter + o.interpreter_modules);
                let module = self.value_of(copy, modules, "atexit");
                let state = module.and_then(|module| self.module_state(copy, module));
                state.map(|state| state.start)
            }
            _ if self.is_state_shifted => None,
            at => Some(interpreter + at),
        };
        let Some(state) = state else { return };
        if self.minor() >= 14 {
            object(see, &root, copy.word(state));
            return;
        }
        let (callbacks, count) = (copy.word(state), copy.half(state + 8));
        for number in 0..u64::from(count).min(MOST_CALLBACKS) {
            let callback = copy.word(callbacks.wrapping_add(number * 8));
            if !is_address(callback) || !copy.has(callback) {
                break;
            }
            for at in [0, 8, 16] {
                object(see, &root, copy.word(callback + at));
            }
        }
    }

    /// From 3.12 on each interpreter has its own dictionaries and lists of subclasses for the types that interpreters share.
    fn static_types(&mut self, copy: &Image, interpreter: u64, see: &mut dyn FnMut(&PythonRoot, Rooted)) {
        let o = self.offsets;
        for (first, bytes) in [
            (o.interpreter_types, o.interpreter_types_bytes),
            (o.interpreter_extension_types, o.interpreter_extension_types_bytes),
        ] {
            if first == ABSENT {
                continue;
            }
            for entry in (first..first + bytes).step_by(o.static_type_bytes as usize) {
                for at in [o.static_type_dict, o.static_type_subclasses] {
                    let target = copy.word(interpreter + entry + at);
                    if is_address(target) {
                        see(
                            &PythonRoot::Interpreter("static types"),
                            Rooted::to(target, Sort::Context),
                        );
                    }
                }
            }
        }
    }

    /// The address of what a module has under this name.
    pub fn attribute_of_module(&mut self, copy: &Image, module: &str, name: &str) -> Option<u64> {
        let modules = self.offsets.interpreter_modules;
        let mut all = self.interpreters(copy).into_iter();
        let module = all.find_map(|state| self.value_of(copy, copy.word(state + modules), module))?;
        let dict = copy.word(module + self.offsets.module_dict);
        self.value_of(copy, dict, name)
    }

    /// The value of a text in a dictionary.
    pub(super) fn value_of(&mut self, copy: &Image, dict: u64, name: &str) -> Option<u64> {
        let of = self.object(copy, dict)?;
        let mut values = self.is_dict(of).then(|| self.values_by_name(copy, dict))?.into_iter();
        values.find_map(|(key, value)| (key == name).then_some(value))
    }
}

fn object(see: &mut dyn FnMut(&PythonRoot, Rooted), root: &PythonRoot, target: u64) {
    if is_address(target) {
        see(root, Rooted::to(target, Sort::Named));
    }
}

const _: () = assert!(
    OLDEST >= 7,
    "before, exceptions in hand were fields of the thread's state"
);
