//! Stacks of CPython with native extensions: the installed interpreter, with the comparison preloaded.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Native frames between Python frames, by callbacks through ctypes, sorting, maps, regular expressions, generators,
/// exceptions, JSON and threads.
const PROGRAM: &str = r#"
import ctypes, functools, json, re, threading
probe = ctypes.PyDLL(None).oracle_compare   # holds the GIL
unlocked = ctypes.CDLL(None).oracle_compare # releases it
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

/// A transformer's training steps, with autograd's threads, a data loader's arithmetic in numpy, and sorting in C++.
const TRAINING: &str = r#"
import ctypes, torch, numpy
torch.manual_seed(0)
probe = ctypes.CDLL(None).oracle_compare
model = torch.nn.Sequential(
    torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 3),
    torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters())
rng = numpy.random.default_rng(0)
class Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): probe(); return x * 1
    @staticmethod
    def backward(ctx, g): probe(); return g
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
for step in range(STEPS):
    batch = torch.from_numpy(rng.standard_normal((8, 16, 64)).astype(numpy.float32))
    numpy.apply_along_axis(lambda row: probe() or row.sum(), 0, numpy.ones((4, 3)))
    loss = Watched.apply(model(batch)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=False).sum().backward()
"#;

/// The library to preload. `cargo test` has usually built it, but not if it runs only this test.
fn oracle() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("");
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let done = Command::new(env!("CARGO"))
            .args([
                "build",
                "--locked",
                "--example",
                "oracle",
                "--profile",
                profile,
                "--target-dir",
            ])
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let folder = if cfg!(debug_assertions) { "debug" } else { "release" };
        target.join(folder).join("examples/liboracle.so")
    })
}

/// Runs a program in an interpreter; asserts that all compared stacks are equal and returns their number.
fn compared(python: &str, program: &str, test: &str) -> u64 {
    let folder = support::folder().join(test);
    std::fs::create_dir_all(&folder).unwrap();
    let report = folder.join("report");
    let done = Command::new(python)
        .args(["-c", program])
        .env("LD_PRELOAD", oracle())
        .env("ORACLE_REPORT", &report)
        .output()
        .unwrap_or_else(|error| panic!("this test needs {python}: {error}"));
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{python}: {}\n{stderr}", done.status);
    let text = std::fs::read_to_string(&report).expect("the library was loaded and wrote its report");
    std::fs::remove_dir_all(folder).ok();
    // `python3` may be a script that starts others first.
    let mut sums = [0; 4];
    for line in text.lines() {
        for (sum, word) in sums.iter_mut().zip(line.split(' ')) {
            *sum += word.parse::<u64>().expect("a number");
        }
    }
    let [stacks, frames, truncated, different] = sums;
    println!("{python}: {stacks} stacks, {frames} frames, {truncated} truncated for both, {different} different");
    assert_eq!(different, 0, "{stderr}");
    stacks
}

#[test]
fn stacks_through_the_interpreter() {
    assert!(compared("python3", PROGRAM, "python") > 4_000);
}

/// With PyTorch and numpy, which are too large for every test run:
/// `TORCH_PYTHON=…/bin/python cargo test --release -p culeak-walker --test python -- --ignored --nocapture`.
#[test]
#[ignore = "needs PyTorch"]
fn a_hundred_thousand_stacks_of_pytorch() {
    let python = std::env::var("TORCH_PYTHON").expect("TORCH_PYTHON is an interpreter with PyTorch and numpy");
    assert!(compared(&python, &TRAINING.replace("STEPS", "100"), "pytorch") > 100_000);
}
