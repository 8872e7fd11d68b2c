//! A warm walk beside libgcc's and beside the floor, a walk along frame pointers: the same stack again and again at
//! three depths, and 64 different stacks in turn.
//!
//! The C++ code is built twice with -O2, without frame pointers for the two unwinders and with them for the floor.
//! A time is one stack; the depth counts the frames of C++ code, below which lie the bench's own dozen.

#[path = "../tests/support/mod.rs"]
mod support;

use culeak_walker::{Registers, walk};
use divan::{Bencher, black_box};
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use support::{DEPTH, Library, Run, compile, folder, source};

type Shape = extern "C" fn(*mut Run, i32);

fn main() {
    divan::main();
}

/// The shapes that call on exactly once, so that a depth is a number of frames, and what they end with.
struct Code {
    shapes: Vec<Shape>,
    probe: extern "C" fn(),
}

fn code(options: &'static [&'static str]) -> Code {
    let library = folder().join(format!("libshapes{}.so", options.len()));
    compile(&source("shapes.cpp"), &library, options);
    let library = Library::open(&library, libc::RTLD_NOW);
    let names = [
        "small",
        "alloca",
        "big_frame",
        "many_registers",
        "cleanup",
        "catch",
        "realigned",
    ];
    // SAFETY: functions of these types, and a pointer to a function of `probe`'s.
    unsafe {
        *library.symbol("framed_probe").cast() = probe as extern "C" fn(u64);
        let shape =
            |name: &&str| std::mem::transmute::<*mut std::ffi::c_void, Shape>(library.symbol(&format!("shape_{name}")));
        Code {
            shapes: names.iter().map(shape).collect(),
            probe: std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn()>(library.symbol("probe_with_frame")),
        }
    }
}

fn without_frame_pointers() -> &'static Code {
    static CODE: OnceLock<Code> = OnceLock::new();
    CODE.get_or_init(|| code(&["-O2", "-fomit-frame-pointer"]))
}

fn with_frame_pointers() -> &'static Code {
    static CODE: OnceLock<Code> = OnceLock::new();
    CODE.get_or_init(|| code(&["-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]))
}

thread_local! {
    static FRAME: Cell<u64> = const { Cell::new(0) };
    static PROBE: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

extern "C" fn probe(frame: u64) {
    FRAME.set(frame);
    let mut body = PROBE.take().unwrap();
    body();
}

/// Runs `body` at the end of a stack of `depth` C++ frames.
fn at_depth(code: &Code, seed: u64, depth: usize, body: impl FnOnce()) {
    let mut body = Some(body);
    let mut once = || (body.take().unwrap())();
    let boxed: Box<dyn FnMut() + '_> = Box::new(&mut once);
    // SAFETY: taken out again and run before this function returns.
    PROBE.set(Some(unsafe {
        std::mem::transmute::<Box<dyn FnMut() + '_>, Box<dyn FnMut()>>(boxed)
    }));
    let random = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut run = Run {
        probe: code.probe,
        shapes: code.shapes.as_ptr(),
        count: code.shapes.len() as u64,
        random,
    };
    code.shapes[seed as usize % code.shapes.len()](&mut run, depth as i32 - 2);
}

#[inline(never)]
fn walker(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    walk(Registers::here(), &mut addresses[..limit]).count
}

#[inline(never)]
fn libgcc(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    let mut count = 0;
    // SAFETY: the walk itself keeps no shared state.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            addresses[count] = frame.ip() as u64;
            count += 1;
            count < limit
        });
    }
    count
}

/// Follows the chain from the innermost C++ frame: the Rust code in between keeps none.
#[inline(never)]
fn frame_pointers(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    let mut frame = FRAME.get();
    let mut count = 0;
    while count < limit {
        // SAFETY: code with frame pointers keeps the caller's and the return address there, and the chain is followed
        // no further than that code goes.
        let (next, address) = unsafe { (*(frame as *const u64), *(frame as *const u64).add(1)) };
        addresses[count] = address;
        count += 1;
        if next <= frame {
            break;
        }
        frame = next;
    }
    count
}

/// The innermost `depth` frames of a stack that is that deep.
fn same(bencher: Bencher, code: &Code, depth: usize, take: fn(&mut [u64; DEPTH], usize) -> usize) {
    at_depth(code, 7, depth, || {
        let mut addresses = [0; DEPTH];
        assert_eq!(take(&mut addresses, depth), depth);
        bencher.bench_local(|| take(black_box(&mut addresses), depth));
    });
}

const DEPTHS: [usize; 3] = [10, 20, 40];

#[divan::bench(args = DEPTHS)]
fn same_1_walker(bencher: Bencher, depth: usize) {
    same(bencher, without_frame_pointers(), depth, walker);
}

#[divan::bench(args = DEPTHS)]
fn same_2_libgcc(bencher: Bencher, depth: usize) {
    same(bencher, without_frame_pointers(), depth, libgcc);
}

#[divan::bench(args = DEPTHS)]
fn same_3_frame_pointers(bencher: Bencher, depth: usize) {
    same(bencher, with_frame_pointers(), depth, frame_pointers);
}

/// 64 different stacks in turn.
fn mixed(bencher: Bencher, depth: usize, take: fn(&mut [u64; DEPTH], usize) -> usize) {
    let code = without_frame_pointers();
    let mut seed = 0;
    bencher.bench_local(|| {
        seed = (seed + 1) % 64;
        let mut count = 0;
        at_depth(code, seed, depth, || count = take(&mut [0; DEPTH], depth));
        count
    });
}

fn nothing(_: &mut [u64; DEPTH], limit: usize) -> usize {
    limit
}

/// With the calls down to the probe; `mixed_3_calls_alone` is what to subtract.
#[divan::bench(args = DEPTHS, sample_size = 64, sample_count = 1000)]
fn mixed_1_walker(bencher: Bencher, depth: usize) {
    mixed(bencher, depth, walker);
}

#[divan::bench(args = DEPTHS, sample_size = 64, sample_count = 1000)]
fn mixed_2_libgcc(bencher: Bencher, depth: usize) {
    mixed(bencher, depth, libgcc);
}

#[divan::bench(args = DEPTHS, sample_size = 64, sample_count = 1000)]
fn mixed_3_calls_alone(bencher: Bencher, depth: usize) {
    mixed(bencher, depth, nothing);
}
