//! A walk along Python's frames: bare, and with the hash that the recorder needs to recognize a stack. This process loads
//! the interpreter, and Python calls back into the bench at a given depth.
//!
//! The interpreter is `python3`, or the one in `CULEAK_PYTHON`; it must have a shared libpython. Times are per stack.
//!
//! * `inlined`: functions that call each other directly; `nested`: through `map`, so that each is a separate interpreter
//!   call.
//! * `main`: the main thread, or any that holds the GIL; `other`: one that does not, whose memory the kernel copies.

#[path = "../../../benches/undisturbed.rs"]
mod undisturbed;

use criterion::{BenchmarkId, Criterion};
use culeak_cpython::{Frame, Seen, Status, prepare, walk};
use culeak_walker::mix_in;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};
use undisturbed::undisturbed;

const PROGRAM: &CStr = cr#"
import ctypes, threading
def here(callback, kind):
    return kind(callback)()
def inlined(n, callback, kind):
    return inlined(n - 1, callback, kind) if n > 2 else here(callback, kind)
def nested(n, callback, kind):
    return list(map(nested, [n - 1], [callback], [kind])) if n > 2 else here(callback, kind)
def main(function, n, callback):
    function(n, callback, ctypes.PYFUNCTYPE(None))
def other(function, n, callback):
    thread = threading.Thread(target=function, args=(n - 1, callback, ctypes.CFUNCTYPE(None)))
    thread.start()
    thread.join()
"#;

const DEPTHS: [usize; 2] = [10, 30];

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(150))
        .measurement_time(Duration::from_millis(500))
        .without_plots()
        .configure_from_args();
    let mut group = criterion.benchmark_group("python");
    for depth in DEPTHS {
        for (name, thread, function, take) in [
            ("inlined, bare", "main", "inlined", count as fn() -> usize),
            ("inlined, hashed", "main", "inlined", hash),
            ("nested, hashed", "main", "nested", hash),
            ("inlined, hashed, other thread", "other", "inlined", hash),
        ] {
            group.bench_function(BenchmarkId::new(name, depth), |bencher| {
                bencher.iter_custom(|rounds| timed(rounds, thread, function, depth, take));
            });
        }
    }
    group.finish();
    criterion.final_summary();
}

fn timed(rounds: u64, thread: &str, function: &str, depth: usize, take: fn() -> usize) -> Duration {
    let mut took = Duration::ZERO;
    at_depth(thread, function, depth, || {
        assert_eq!(count(), depth);
        took = undisturbed(rounds, 256, |rounds| {
            let started = Instant::now();
            for _ in 0..rounds {
                black_box(take());
            }
            started.elapsed()
        });
    });
    took
}

struct Interpreter {
    run: extern "C" fn(*const libc::c_char, *mut c_void) -> i32,
}

/// Started once, on the thread that runs the benches.
fn interpreter() -> Interpreter {
    thread_local!(static STARTED: Cell<usize> = const { Cell::new(0) });
    if STARTED.get() == 0 {
        let command = std::env::var("CULEAK_PYTHON").unwrap_or_else(|_| "python3".into());
        let ask = "import sys, sysconfig as s; print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME')); print(sys.base_prefix)";
        let output = Command::new(command).args(["-c", ask]).output().expect("a python3");
        let output = String::from_utf8(output.stdout).expect("a path");
        let (library, home) = output.trim().split_once('\n').expect("two lines");
        // SAFETY: set before another thread exists and before the interpreter reads it.
        unsafe { std::env::set_var("PYTHONHOME", home) };
        let library = CString::new(library).expect("a path");
        // SAFETY: the interpreter's functions, each called once and in this order.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            assert!(
                !handle.is_null(),
                "{library:?} cannot be opened: name a Python with a shared library in CULEAK_PYTHON"
            );
            let symbol = |name: &CStr| libc::dlsym(handle, name.as_ptr());
            let initialize: extern "C" fn(i32) = std::mem::transmute(symbol(c"Py_InitializeEx"));
            initialize(0);
            STARTED.set(symbol(c"PyRun_SimpleStringFlags") as usize);
        }
    }
    type Run = extern "C" fn(*const libc::c_char, *mut c_void) -> i32;
    // SAFETY: the address of a function of that type.
    let run = unsafe { std::mem::transmute::<usize, Run>(STARTED.get()) };
    let interpreter = Interpreter { run };
    assert_eq!((interpreter.run)(PROGRAM.as_ptr(), std::ptr::null_mut()), 0);
    assert!(matches!(prepare(), Status::Ready { .. }), "{:?}", prepare());
    interpreter
}

/// What Python calls, on either thread.
static BODY: std::sync::Mutex<usize> = std::sync::Mutex::new(0);

extern "C" fn called() {
    let body = *BODY.lock().unwrap() as *mut &mut dyn FnMut();
    // SAFETY: set by `at_depth`, which waits for Python to return.
    unsafe { (*body)() };
}

fn at_depth(thread: &str, function: &str, depth: usize, mut body: impl FnMut()) {
    let interpreter = interpreter();
    let mut body: &mut dyn FnMut() = &mut body;
    *BODY.lock().unwrap() = std::ptr::from_mut(&mut body) as usize;
    // The module and the function `main` or `other` are frames too.
    let depth = depth - 2;
    let call = format!("{thread}({function}, {depth}, {})", called as extern "C" fn() as usize);
    let call = CString::new(call).expect("no zero");
    assert_eq!((interpreter.run)(call.as_ptr(), std::ptr::null_mut()), 0);
}

fn count() -> usize {
    let mut count = 0;
    walk(128, |seen| count += usize::from(matches!(seen, Seen::Frame(_))));
    count
}

/// As the recorder does it.
fn hash() -> usize {
    let mut hashes = [1, 2];
    walk(128, |seen| match seen {
        Seen::Frame(Frame { code, stamp, offset }) => {
            hashes = [
                mix_in(hashes[0], code),
                mix_in(hashes[1], stamp.rotate_left(20) ^ u64::from(offset)),
            ];
        }
        Seen::Boundary(_) => hashes[0] = hashes[0].wrapping_add(1),
    });
    (hashes[0] ^ hashes[1]) as usize
}
