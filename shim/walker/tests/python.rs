//! Stacks of CPython with native extensions: this process becomes an interpreter, and Python calls back into the test.

mod support;

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use support::{Library, STACKS, compare, expect_no_difference};

/// Native frames between Python frames, in many ways: callbacks through ctypes, sorting, maps, regular expressions,
/// generators, exceptions, JSON, threads.
const PROGRAM: &str = r#"
import ctypes, functools, json, re, threading
probe = ctypes.PYFUNCTYPE(None)(PROBE)      # holds the GIL
unlocked = ctypes.CFUNCTYPE(None)(PROBE)    # lets it go
callback = ctypes.CFUNCTYPE(None)
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
qsort = ctypes.CDLL(None).qsort
qsort.restype = None

def leaf(n):
    probe() if n % 2 else unlocked()
    return n

def plain(n, k): return go(n, k)
def mapped(n, k): return list(map(lambda _: go(n, k), [1]))
def ordered(n, k): return sorted([2, 1], key=lambda v: go(n, k) if v == 1 else 0 or v)
def generated(n, k): return sum(1 for _ in (go(n, k) for _ in range(1)))
def substituted(n, k): return re.sub("a", lambda m: str(go(n, k)), "bab")
def decoded(n, k): return json.loads("[1.5]", parse_float=lambda s: go(n, k))
def partial(n, k): return functools.reduce(lambda a, b: go(n, k), [1, 2])
def native(n, k): return callback(lambda: go(n, k))()
def raised(n, k):
    try:
        raise ValueError(n)
    except ValueError:
        return go(n, k)
def quick(n, k):
    first = [True]
    def once(a, b):
        if first[0]:
            first[0] = False
            go(n, k)
        return 0
    qsort((ctypes.c_int * 8)(), 8, 4, compare(once))
class Thing:
    def __init__(self, n, k): go(n, k)
    def __eq__(self, other): return True
    __hash__ = None
ways = [plain, mapped, ordered, generated, substituted, decoded, partial, native, raised, quick, Thing]

def go(n, k):
    if n <= 0:
        leaf(k)
        return 1
    k = (k * 1103515245 + 12345) % (1 << 31)
    ways[(k >> 8) % len(ways)](n - 1, k)
    return 1

def play(start, count):
    for seed in range(start, start + count):
        go(seed % 14, seed)

threads = [threading.Thread(target=play, args=(i * 100000, 1500)) for i in range(2)]
for t in threads: t.start()
play(500000, 1500)
for t in threads: t.join()
"#;

fn interpreter() -> Option<PathBuf> {
    let ask = "import sysconfig as s; print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME'))";
    let said = Command::new("python3").args(["-c", ask]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(said.stdout).ok()?.trim());
    path.extension()
        .is_some_and(|kind| kind != "a")
        .then_some(path)
        .filter(|path| path.exists())
}

#[test]
fn stacks_through_the_interpreter() {
    let Some(path) = interpreter() else {
        println!("skipped: no shared libpython");
        return;
    };
    let python = Library::open(&path, libc::RTLD_NOW | libc::RTLD_GLOBAL);
    let program = PROGRAM.replace("PROBE", &(compare as *const () as usize).to_string());
    let program = CString::new(program).unwrap();
    // SAFETY: the interpreter's own functions, called once each and in this order on one thread.
    let result = unsafe {
        let initialize: extern "C" fn(i32) = std::mem::transmute(python.symbol("Py_InitializeEx"));
        let run: extern "C" fn(*const libc::c_char, *mut c_void) -> i32 =
            std::mem::transmute(python.symbol("PyRun_SimpleStringFlags"));
        initialize(0);
        run(program.as_ptr(), std::ptr::null_mut())
    };
    assert_eq!(result, 0, "the program failed");
    assert!(STACKS.load(Relaxed) > 4_000);
    expect_no_difference();
}
