//! Calls a function when a script has ended: before the first `atexit` callback.
//!
//! ```text
//! any thread            call_at_end   Py_AddPendingCall(register): needs no GIL, and does not wait for it
//! main thread, later    register      atexit.register(exits), between two instructions of the program
//! the interpreter ends  shutting_down called by threading._shutdown: atexit.register(exits) again, so that it is last in the list
//!                       exits         calls the function
//! ```
//!
//! The interpreter calls callbacks in the reverse order of their registration. The second registration makes `exits` the first one,
//! unless a thread that the interpreter waits for registers another. It needs `threading._threading_atexits` (3.9 and newer, if the
//! program has imported `threading`), to which `register` appends `shutting_down`. Otherwise `exits` is called after the callbacks that
//! the program registered later. If one of the last callbacks registers `exits`, the interpreter does not call it, but destroys it with
//! the list when all callbacks have run; that counts too. A program that calls or clears the callbacks itself does so in a Python
//! function, which the interpreter's own call is not in; then `exits` is registered again at the next request.
//!
//! "Has the GIL" means in a free-threaded build that the thread is attached to the interpreter.
//!
//! This is the only part of this crate that changes the interpreter: five small objects, which refer to nothing of the program.
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
use crate::{Seen, examine, interpreter, walk};

type Object = *mut c_void;

/// Functions of the interpreter, and two types.
#[derive(Clone, Copy)]
struct Functions {
    is_initialized: unsafe extern "C" fn() -> c_int,
    add_pending_call: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int,
    current_interpreter: unsafe extern "C" fn() -> *mut c_void,
    main_interpreter: unsafe extern "C" fn() -> *mut c_void,
    modules: unsafe extern "C" fn() -> Object,
    item: unsafe extern "C" fn(Object, *const c_char) -> Object,
    /// The same with a new reference; 3.13 and newer.
    owned_item: Option<unsafe extern "C" fn(Object, *const c_char, *mut Object) -> c_int>,
    import: unsafe extern "C" fn(*const c_char, Object, Object, Object, c_int) -> Object,
    type_of: unsafe extern "C" fn(Object) -> Object,
    dictionary: unsafe extern "C" fn(Object) -> Object,
    self_of_function: unsafe extern "C" fn(Object) -> Object,
    call: unsafe extern "C" fn(Object, *const c_char, ...) -> Object,
    new_function: unsafe extern "C" fn(*const Method, Object, Object) -> Object,
    new_capsule: unsafe extern "C" fn(*mut c_void, *const c_char, unsafe extern "C" fn(Object)) -> Object,
    new_value: unsafe extern "C" fn(*const c_char, ...) -> Object,
    append: unsafe extern "C" fn(Object, Object) -> c_int,
    retain: unsafe extern "C" fn(Object),
    release: unsafe extern "C" fn(Object),
    take_error: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object),
    set_error: unsafe extern "C" fn(Object, Object, Object),
    module_type: Object,
    function_type: Object,
    /// 3.8: see [`examine::finishing`].
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

static EXITS: Method = Method::new(c"culeak_exits", exits);
static SHUTTING_DOWN: Method = Method::new(c"culeak_shutting_down", shutting_down);

impl Method {
    const fn new(name: &'static CStr, function: unsafe extern "C" fn(Object, Object) -> Object) -> Method {
        const NO_ARGUMENTS: c_int = 4;
        Method {
            name: name.as_ptr(),
            function,
            flags: NO_ARGUMENTS,
            doc: std::ptr::null(),
        }
    }
}

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
/// `threading._shutdown` will call `shutting_down`. Used by the same thread.
static IS_APPENDED: AtomicBool = AtomicBool::new(false);
static TRIES: AtomicU32 = AtomicU32::new(0);
static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Whether a call of [`call_at_end`] may do something.
#[inline]
pub fn is_wanted() -> bool {
    STATE.load(Relaxed) < BUSY
}

/// Makes the interpreter call the function, if there is one, in its main thread, with the GIL, when the script has ended; and permits
/// direct reads ([`crate::direct`]) until then. Without an interpreter
/// whose frames can be read, nothing happens, and a later call tries again. May wait for the loader's short list lock, and for
/// the interpreter's lock of pending calls.
#[cold]
pub fn call_at_end(function: Option<extern "C" fn()>) {
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
    FUNCTION.store(function.map_or(null_mut(), |function| function as *mut c_void), Relaxed);
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
            8 => Some(examine::finishing()?),
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
                owned_item: address(c"PyDict_GetItemStringRef").map(|found| transmute(found)),
                import: transmute(address(c"PyImport_ImportModuleLevel")?),
                type_of: transmute(address(c"PyObject_Type")?),
                dictionary: transmute(address(c"PyModule_GetDict")?),
                self_of_function: transmute(address(c"PyCFunction_GetSelf")?),
                call: transmute(address(c"PyObject_CallFunction")?),
                new_function: transmute(address(c"PyCFunction_NewEx")?),
                new_capsule: transmute(address(c"PyCapsule_New")?),
                new_value: transmute(address(c"Py_BuildValue")?),
                append: transmute(address(c"PyList_Append")?),
                retain: transmute(address(c"Py_IncRef")?),
                release: transmute(address(c"Py_DecRef")?),
                take_error: transmute(address(c"PyErr_Fetch")?),
                set_error: transmute(address(c"PyErr_Restore")?),
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

    /// `atexit.register(exits)`. Whether it succeeded. The function has a capsule, whose destructor is [`dropped`].
    fn register_exits(&self) -> bool {
        let Some(register) = self.built_in_register() else {
            return false;
        };
        let own = |object| Owned(object, self.release);
        let pointer = (&raw const EXITS).cast_mut().cast();
        // SAFETY: this thread has the GIL; the pointer is not null and never used. The method is never changed, and the format has a
        // letter for the object. A function may be made of the null that stands for an error, but not called with it.
        let is_registered = unsafe {
            let token = own((self.new_capsule)(pointer, std::ptr::null(), dropped));
            let function = own((self.new_function)(&EXITS, token.0, null_mut()));
            let is_made = !token.0.is_null() && !function.0.is_null();
            is_made && !own((self.call)(register.0, c"(O)".as_ptr(), function.0)).0.is_null()
        };
        if is_registered {
            IS_WAITING.store(true, Relaxed);
            GATE.permit();
        }
        is_registered
    }

    /// A new reference to `None`.
    fn none(&self) -> Object {
        // SAFETY: this thread has the GIL; an empty format gives `None`.
        unsafe { (self.new_value)(c"".as_ptr()) }
    }

    /// Makes `threading._shutdown` call `shutting_down`. Appends to a list instead of a call of `threading._register_atexit`, which
    /// is Python code that a tracer would notice.
    fn register_shutting_down(&self) {
        let Some(threading) = self.module(c"threading").filter(|_| !IS_APPENDED.load(Relaxed)) else {
            return;
        };
        // SAFETY: this thread has the GIL. The module keeps its dictionary alive; `append` checks the type of the list.
        unsafe {
            let list = self.value((self.dictionary)(threading.0), c"_threading_atexits");
            let function = Owned(
                (self.new_function)(&SHUTTING_DOWN, null_mut(), null_mut()),
                self.release,
            );
            if !list.0.is_null() && !function.0.is_null() && (self.append)(list.0, function.0) == 0 {
                IS_APPENDED.store(true, Relaxed);
            }
        }
    }

    /// A value of a dictionary, or null. A new reference: without a GIL, another thread may replace the value.
    fn value(&self, dictionary: Object, name: &CStr) -> Owned {
        let mut found = null_mut();
        // SAFETY: this thread has the GIL, and the caller's dictionary is alive; `retain` permits null.
        unsafe {
            if let Some(item) = self.owned_item {
                item(dictionary, name.as_ptr(), &mut found);
            } else {
                found = (self.item)(dictionary, name.as_ptr());
                (self.retain)(found);
            }
        }
        Owned(found, self.release)
    }

    /// An imported module. `None` if there is none, or another object is in its place.
    fn module(&self, name: &CStr) -> Option<Owned> {
        // SAFETY: this thread has the GIL.
        let module = self.value(unsafe { (self.modules)() }, name);
        (!module.0.is_null() && self.is_a(module.0, self.module_type)).then_some(module)
    }

    /// Whether a living object has this very type.
    fn is_a(&self, object: Object, of: Object) -> bool {
        // SAFETY: this thread has the GIL, and the object is alive.
        Owned(unsafe { (self.type_of)(object) }, self.release).0 == of
    }

    /// The function that the `atexit` module of the interpreter has from its start. `None` if the module or the
    /// function is another object. Runs no code of the program, unless the module must be imported first.
    fn built_in_register(&self) -> Option<Owned> {
        let (name, none) = (c"atexit", null_mut());
        // SAFETY: this thread has the GIL, and the module keeps its dictionary alive. Each object is of the type that the next function wants.
        unsafe {
            if self.value((self.modules)(), name).0.is_null() {
                drop(Owned((self.import)(name.as_ptr(), none, none, none, 0), self.release));
            }
            let module = self.module(name)?;
            let function = self.value((self.dictionary)(module.0), c"register");
            let is_own =
                |function| self.is_a(function, self.function_type) && (self.self_of_function)(function) == module.0;
            (!function.0.is_null() && is_own(function.0)).then_some(function)
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
    let is_registered = is_main && functions.quietly(|| functions.register_exits());
    if is_registered && !FUNCTION.load(Relaxed).is_null() {
        functions.quietly(|| functions.register_shutting_down());
    }
    if !is_registered {
        // Release: pairs with the Acquire in `call_at_end`.
        STATE.store(IDLE, Release);
    }
    0
}

/// The script has ended, and the interpreter is about to wait for other threads.
unsafe extern "C" fn shutting_down(_: Object, _: Object) -> Object {
    let functions = functions();
    functions.quietly(|| functions.register_exits());
    functions.none()
}

/// The registered function: the interpreter finalizes, or the program calls the callbacks itself.
unsafe extern "C" fn exits(_: Object, _: Object) -> Object {
    if !is_in_function() {
        end();
    }
    functions().none()
}

/// The registered function is destroyed. If it was registered by one of the last callbacks, it was not called, and the list is
/// cleared because all have run.
unsafe extern "C" fn dropped(_: Object) {
    // Release: pairs with the Acquire in `call_at_end`.
    let _ = STATE.compare_exchange(ASKED, IDLE, Release, Relaxed);
    end();
}

/// `exits` is called or destroyed: the interpreter announces its end by it no more.
fn end() {
    let was_waiting = IS_WAITING.swap(false, Relaxed);
    GATE.forbid();
    let function = FUNCTION.load(Relaxed);
    if was_waiting && !function.is_null() && !is_in_function() {
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
        call_at_end(Some(never));
        assert!(is_wanted(), "an interpreter may come later");
    }
}
