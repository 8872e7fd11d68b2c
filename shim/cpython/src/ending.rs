//! Calls a function when a script has ended: after the last `atexit` callback, and before the interpreter deletes the states of
//! threads, collects cycles or clears modules.
//!
//! ```text
//! any thread            call_at_end   Py_AddPendingCall(register): needs no GIL, and does not wait for it
//! main thread, later    register      atexit.register(exits), between two instructions of the program
//! the interpreter       exits         atexit.register(bool, capsule): it is not called any more, and is last in the list
//! finalizes             ended         the list is cleared, and with it the capsule, whose destructor calls the function
//! ```
//!
//! The interpreter calls callbacks in the reverse order of their registration, so those that the program registered earlier run
//! after `exits`. All versions clear the list when all have run, and the entry that was registered last is destroyed last.
//! So nothing that only the list held is left either. A program that calls or clears the callbacks itself does so in a Python
//! function, which the interpreter's own call is not in; then `exits` is registered again at the next request.
//!
//! This is the only part of this crate that changes the interpreter: three small objects, which refer to nothing of the program.
//! Only the interpreter's own `atexit.register` is called: a program may have put another object in its place, a test that counts
//! calls for example. Then a later request tries again. If a step fails, the function is not called and the program does not notice it. Not seen are the end of other interpreters than the
//! main one, and of a process that runs no `atexit` callbacks.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering::*};

use culeak_walker::{exported, read};

use crate::direct::GATE;
use crate::interpreter;
use crate::{Seen, walk};

type Object = *mut c_void;

/// Functions of the interpreter, and `bool`.
#[derive(Clone, Copy)]
struct Functions {
    is_initialized: unsafe extern "C" fn() -> c_int,
    add_pending_call: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int,
    current_interpreter: unsafe extern "C" fn() -> *mut c_void,
    main_interpreter: unsafe extern "C" fn() -> *mut c_void,
    modules: unsafe extern "C" fn() -> Object,
    item: unsafe extern "C" fn(Object, *const c_char) -> Object,
    import: unsafe extern "C" fn(*const c_char, Object, Object, Object, c_int) -> Object,
    type_of: unsafe extern "C" fn(Object) -> Object,
    dictionary: unsafe extern "C" fn(Object) -> Object,
    self_of_function: unsafe extern "C" fn(Object) -> Object,
    call: unsafe extern "C" fn(Object, *const c_char, ...) -> Object,
    new_function: unsafe extern "C" fn(*const Method, Object, Object) -> Object,
    new_capsule: unsafe extern "C" fn(*mut c_void, *const c_char, unsafe extern "C" fn(Object)) -> Object,
    new_value: unsafe extern "C" fn(*const c_char, ...) -> Object,
    release: unsafe extern "C" fn(Object),
    take_error: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object),
    set_error: unsafe extern "C" fn(Object, Object, Object),
    bool_type: Object,
    module_type: Object,
    function_type: Object,
    /// 3.8: the address of an `int` that is not 0 after the last pending calls; a later one prints an error.
    finishing: Option<u64>,
}

/// `PyMethodDef`.
#[repr(C)]
struct Method {
    name: *const c_char,
    function: unsafe extern "C" fn(Object, Object) -> Object,
    flags: c_int,
    doc: *const c_char,
}

// SAFETY: constants.
unsafe impl Sync for Method {}

const NO_ARGUMENTS: c_int = 4;
static EXITS: Method = Method {
    name: c"culeak_exits".as_ptr(),
    function: exits,
    flags: NO_ARGUMENTS,
    doc: std::ptr::null(),
};

/// Of `_PyRuntime.ceval.pending.finishing` in 3.8.
const FINISHING: u64 = 600;
/// A pending call may run in an interpreter other than the main one, while the program has replaced `atexit.register`, or not at all.
const MOST_TRIES: u32 = 16;

/// Written by the thread that changed `STATE` from idle to busy, read in later states.
struct Slot(UnsafeCell<MaybeUninit<Functions>>);
// SAFETY: written once, before the Release of `STATE` that lets others read it.
unsafe impl Sync for Slot {}
static SLOT: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));

static STATE: AtomicU8 = AtomicU8::new(NOT_FOUND);
/// The functions have not been looked up.
const NOT_FOUND: u8 = 0;
/// They are known, and nothing is registered.
const IDLE: u8 = 1;
/// A thread looks them up, or adds the pending call.
const BUSY: u8 = 2;
/// The pending call is added, or `exits` is registered.
const ASKED: u8 = 3;
const GIVEN_UP: u8 = 4;

/// `exits` is registered, and the interpreter has not called it. Used by the main thread of the interpreter only.
static IS_WAITING: AtomicBool = AtomicBool::new(false);
static TRIES: AtomicU32 = AtomicU32::new(0);
static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Whether a call of [`call_at_end`] may do something.
#[inline]
pub fn is_wanted() -> bool {
    STATE.load(Relaxed) < BUSY
}

/// Makes the interpreter call the function in its main thread, with the GIL, when the script has ended. Without an interpreter
/// whose frames can be read, nothing happens, and a later call tries again. May wait for the loader's short list lock, and for
/// the interpreter's lock of pending calls.
#[cold]
pub fn call_at_end(function: extern "C" fn()) {
    let Some(interpreter) = interpreter::ready() else {
        return;
    };
    let state = STATE.load(Relaxed);
    // Acquire: pairs with the Release of the state in which the functions were written.
    if state >= BUSY || STATE.compare_exchange(state, BUSY, Acquire, Relaxed).is_err() {
        return;
    }
    if state == NOT_FOUND {
        let Some(found) = Functions::find(interpreter.layout.minor) else {
            return STATE.store(GIVEN_UP, Relaxed);
        };
        // SAFETY: no other thread writes while the state is busy, or reads before it is another one.
        unsafe { (*SLOT.0.get()).write(found) };
    }
    FUNCTION.store(function as *mut c_void, Relaxed);
    let functions = functions();
    if !functions.accepts_calls() {
        return STATE.store(IDLE, Release);
    }
    if TRIES.fetch_add(1, Relaxed) >= MOST_TRIES {
        return STATE.store(GIVEN_UP, Relaxed);
    }
    // Before the call: the main thread may run it at once. Release: pairs with the Acquire above.
    STATE.store(ASKED, Release);
    // SAFETY: the interpreter is initialized, and takes calls from any thread, without the GIL too.
    if unsafe { (functions.add_pending_call)(register, null_mut()) } != 0 {
        // All places are taken.
        STATE.store(IDLE, Release);
    }
}

/// In a forked child: a thread that was in `call_at_end` does not exist here. Callbacks that are registered stay so.
pub fn forked() {
    let _ = STATE.compare_exchange(BUSY, NOT_FOUND, Relaxed, Relaxed);
}

/// Only in a state after `NOT_FOUND`, by the thread that changed it or by a function that the interpreter calls.
fn functions() -> Functions {
    // SAFETY: written before any object was registered, and never changed.
    unsafe { *(*SLOT.0.get()).assume_init_ref() }
}

impl Functions {
    #[allow(clippy::missing_transmute_annotations, reason = "the fields have the types")]
    fn find(minor: u32) -> Option<Functions> {
        let address = |name: &CStr| Some(exported(name)?.start as usize);
        let current = address(c"PyInterpreterState_Get").or_else(|| address(c"_PyInterpreterState_Get"))?;
        let finishing = match minor {
            8 => Some(address(c"_PyRuntime")? as u64 + FINISHING),
            _ => None,
        };
        // SAFETY: in all versions that `examine` accepts, the functions of these names have these types.
        unsafe {
            Some(Functions {
                is_initialized: transmute(address(c"Py_IsInitialized")?),
                add_pending_call: transmute(address(c"Py_AddPendingCall")?),
                current_interpreter: transmute(current),
                main_interpreter: transmute(address(c"PyInterpreterState_Main")?),
                modules: transmute(address(c"PyImport_GetModuleDict")?),
                item: transmute(address(c"PyDict_GetItemString")?),
                import: transmute(address(c"PyImport_ImportModuleLevel")?),
                type_of: transmute(address(c"PyObject_Type")?),
                dictionary: transmute(address(c"PyModule_GetDict")?),
                self_of_function: transmute(address(c"PyCFunction_GetSelf")?),
                call: transmute(address(c"PyObject_CallFunction")?),
                new_function: transmute(address(c"PyCFunction_NewEx")?),
                new_capsule: transmute(address(c"PyCapsule_New")?),
                new_value: transmute(address(c"Py_BuildValue")?),
                release: transmute(address(c"Py_DecRef")?),
                take_error: transmute(address(c"PyErr_Fetch")?),
                set_error: transmute(address(c"PyErr_Restore")?),
                bool_type: address(c"PyBool_Type")? as Object,
                module_type: address(c"PyModule_Type")? as Object,
                function_type: address(c"PyCFunction_Type")? as Object,
                finishing,
            })
        }
    }

    /// Whether the interpreter is initialized and takes pending calls.
    fn accepts_calls(&self) -> bool {
        let is_finishing = self.finishing.is_some_and(|address| {
            let mut word = [0];
            !read(address, &mut word) || word[0] as u32 != 0
        });
        // SAFETY: reads a variable.
        !is_finishing && unsafe { (self.is_initialized)() } != 0
    }

    /// Runs with the GIL, and leaves an exception that is being raised as it is.
    fn quietly<R>(&self, work: impl FnOnce() -> R) -> R {
        let (mut kind, mut value, mut trace) = (null_mut(), null_mut(), null_mut());
        // SAFETY: this thread has the GIL; the functions take and give back three references.
        unsafe {
            (self.take_error)(&mut kind, &mut value, &mut trace);
            let result = work();
            (self.set_error)(kind, value, trace);
            result
        }
    }

    /// An object that calls the function when it is destroyed.
    fn capsule(&self, destructor: unsafe extern "C" fn(Object)) -> Owned {
        let pointer = (&raw const EXITS).cast_mut().cast();
        // SAFETY: this thread has the GIL; the pointer is not null and never used.
        Owned(
            unsafe { (self.new_capsule)(pointer, std::ptr::null(), destructor) },
            self.release,
        )
    }

    /// `atexit.register(function)`, or with an argument. Whether it succeeded.
    fn register(&self, function: Object, argument: Option<Object>) -> bool {
        let Some(register) = self.built_in_register() else {
            return false;
        };
        if function.is_null() || argument.is_some_and(|argument| argument.is_null()) {
            return false;
        }
        // SAFETY: this thread has the GIL; the format has a letter for each object.
        let result = unsafe {
            match argument {
                None => (self.call)(register, c"(O)".as_ptr(), function),
                Some(argument) => (self.call)(register, c"(OO)".as_ptr(), function, argument),
            }
        };
        !Owned(result, self.release).0.is_null()
    }

    /// The function that the `atexit` module of the interpreter has from its start, a borrowed reference. `None` if the module or the
    /// function is another object. Runs no code of the program, unless the module must be imported first.
    fn built_in_register(&self) -> Option<Object> {
        let some = |object: Object| (!object.is_null()).then_some(object);
        let is_a = |object: Object, of: Object| {
            // SAFETY: this thread has the GIL, and the object is alive.
            let own = Owned(unsafe { (self.type_of)(object) }, self.release);
            own.0 == of
        };
        // SAFETY: this thread has the GIL. The list of modules keeps the module alive, the module its dictionary, and that the function.
        // Each object is of the type that the next function wants.
        unsafe {
            let of_modules = || some((self.item)((self.modules)(), c"atexit".as_ptr()));
            let module = of_modules().or_else(|| {
                let (name, none) = (c"atexit".as_ptr(), null_mut());
                drop(Owned((self.import)(name, none, none, none, 0), self.release));
                of_modules()
            });
            let module = module.filter(|module| is_a(*module, self.module_type))?;
            let function = some((self.item)((self.dictionary)(module), c"register".as_ptr()))?;
            (is_a(function, self.function_type) && (self.self_of_function)(function) == module).then_some(function)
        }
    }
}

/// A reference that is released with it, or null.
struct Owned(Object, unsafe extern "C" fn(Object));

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: one reference, and this thread has the GIL; null is permitted.
        unsafe { (self.1)(self.0) };
    }
}

/// The pending call.
unsafe extern "C" fn register(_: *mut c_void) -> c_int {
    let functions = functions();
    // SAFETY: this thread has the GIL; both functions read a variable.
    let is_main = unsafe { (functions.current_interpreter)() == (functions.main_interpreter)() };
    let is_registered = is_main
        && functions.quietly(|| {
            let token = functions.capsule(dropped);
            if token.0.is_null() {
                return false;
            }
            // SAFETY: as above. The method is never changed.
            let function = unsafe { (functions.new_function)(&EXITS, token.0, null_mut()) };
            functions.register(Owned(function, functions.release).0, None)
        });
    match (is_main, is_registered) {
        (true, true) => {
            IS_WAITING.store(true, Relaxed);
            GATE.permit();
        }
        // Release: pairs with the Acquire in `call_at_end`.
        (false, _) => STATE.store(IDLE, Release),
        // `dropped` has changed the state, and another thread may have asked again.
        (true, false) => {}
    }
    0
}

/// The registered function: the interpreter finalizes, or the program calls the callbacks itself.
unsafe extern "C" fn exits(_: Object, _: Object) -> Object {
    let functions = functions();
    if !is_in_function() {
        IS_WAITING.store(false, Relaxed);
        GATE.forbid();
        functions.quietly(|| {
            let capsule = functions.capsule(ended);
            functions.register(functions.bool_type, Some(capsule.0))
        });
    }
    // SAFETY: this thread has the GIL; an empty format gives `None`.
    unsafe { (functions.new_value)(c"".as_ptr()) }
}

/// The registered function is destroyed. If it was registered by one of the last callbacks, it was not called, and the list is
/// cleared because all have run.
unsafe extern "C" fn dropped(object: Object) {
    let is_end = IS_WAITING.swap(false, Relaxed);
    GATE.forbid();
    // Release: pairs with the Acquire in `call_at_end`.
    let _ = STATE.compare_exchange(ASKED, IDLE, Release, Relaxed);
    if is_end {
        // SAFETY: as for the object whose destructor this is, which `exits` would have registered.
        unsafe { ended(object) };
    }
}

/// All callbacks have run.
unsafe extern "C" fn ended(_: Object) {
    let function = FUNCTION.load(Relaxed);
    if !is_in_function() && !function.is_null() {
        // SAFETY: stored by `call_at_end`.
        let function: extern "C" fn() = unsafe { transmute(function) };
        function();
    }
}

/// Whether this thread is in a Python function.
fn is_in_function() -> bool {
    let mut is_in = false;
    walk(1, |seen| is_in |= matches!(seen, Seen::Frame(_)));
    is_in
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_interpreter_nothing_is_called() {
        extern "C" fn never() {
            panic!("nothing has ended");
        }
        call_at_end(never);
        assert!(is_wanted(), "an interpreter may come later");
    }
}
