//! A warm walk compared with four others: libgcc's, the `backtrace` crate's, framehop's, and as the lower bound a walk
//! along frame pointers. Each takes the innermost 10, 20 or 40 frames: of the same stack repeatedly, or of 64 stacks in
//! turn.
//!
//! The C++ code is built twice with -O2: with frame pointers for the lower bound, without them for the others. Nearly all
//! frames are C++ frames; a few frames of the bench lie between them and the function that takes the stack.
//! `mixed` includes two clock readings; subtract `mixed/clock`.
//!
//! The program contains the source of the C++ code, so it also runs on machines without Rust (`benches/collect.sh`), which
//! need a C++ compiler.

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../../../benches/undisturbed.rs"]
mod undisturbed;
mod ways;

use criterion::{BenchmarkId, Criterion};
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use support::{DEPTH, Library, Run, compile};
use undisturbed::undisturbed;
use ways::Way;

const DEPTHS: [usize; 3] = [10, 20, 40];
const STACKS: u64 = 64;
const CHUNK: u64 = 256;

type Shape = extern "C" fn(*mut Run, i32);

fn main() {
    let folder = std::env::temp_dir().join(format!("culeak-walk-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let plain = Code::new(&folder, "plain", &["-O2", "-fomit-frame-pointer"]);
    let framed = Code::new(
        &folder,
        "framed",
        &["-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"],
    );
    std::fs::remove_dir_all(&folder).ok();
    ways::prepare();
    expect_same_stacks(&plain);

    let mut criterion = Criterion::default()
        .sample_size(40)
        .warm_up_time(Duration::from_millis(150))
        .measurement_time(Duration::from_millis(600))
        .without_plots()
        .configure_from_args();
    same(&mut criterion, &plain, &framed);
    mixed(&mut criterion, &plain);
    criterion.final_summary();
    let [found, not] = [&ways::FOUND, &ways::NOT_FOUND].map(|count| count.load(Relaxed));
    println!("read sets: {found} stacks found, {not} walked");
}

/// The shapes that call exactly one other, so that the depth is the number of frames, and the probe at the end.
struct Code {
    shapes: Vec<Shape>,
    probe: extern "C" fn(),
}

impl Code {
    fn new(folder: &std::path::Path, name: &str, options: &[&str]) -> Code {
        let source = folder.join("shapes.cpp");
        std::fs::write(&source, include_str!("../tests/support/shapes.cpp")).unwrap();
        let library = folder.join(format!("lib{name}.so"));
        compile(&source, &library, options);
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
        // SAFETY: functions of these types, and a pointer to a function of the type of `probe`.
        unsafe {
            *library.symbol("framed_probe").cast() = probe as extern "C" fn(u64);
            let shape = |name: &&str| {
                std::mem::transmute::<*mut std::ffi::c_void, Shape>(library.symbol(&format!("shape_{name}")))
            };
            Code {
                shapes: names.iter().map(shape).collect(),
                probe: std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn()>(
                    library.symbol("probe_with_frame"),
                ),
            }
        }
    }
}

thread_local! {
    static PROBE: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    /// The frame pointer of the innermost C++ frame: the Rust code of the bench keeps none.
    static FRAME: Cell<u64> = const { Cell::new(0) };
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
    // SAFETY: `probe` takes it out and runs it before this function returns.
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

/// Asserts that all unwinders report the same stacks: otherwise the comparison would be meaningless.
fn expect_same_stacks(code: &Code) {
    // The return address in the innermost C++ function; each unwinder has its own frames before it.
    let innermost = |address: &u64| address.wrapping_sub(code.probe as usize as u64) < 256;
    for seed in 0..STACKS {
        at_depth(code, seed, 40, || {
            let [truth, others @ ..] = &ways::UNWINDERS.iter().map(|way| taken(way, 40)).collect::<Vec<_>>()[..] else {
                unreachable!("libgcc comes first");
            };
            for (way, stack) in ways::UNWINDERS[1..].iter().zip(others) {
                let [ours, theirs] = [stack, truth].map(|stack| {
                    let from = stack.iter().position(innermost);
                    &stack[from.unwrap_or_else(|| panic!("{}: no C++ frame in stack {seed}", way.name))..]
                });
                let common = ours.len().min(theirs.len());
                assert!(common >= 32, "{} reports {common} frames of stack {seed}", way.name);
                assert_eq!(
                    ours[..common],
                    theirs[..common],
                    "{}: not what libgcc reports of stack {seed}",
                    way.name
                );
            }
        });
    }
}

fn taken(way: &Way, limit: usize) -> Vec<u64> {
    let mut addresses = [0; DEPTH];
    let count = (way.take)(&mut addresses, limit);
    addresses[..count].to_vec()
}

/// The innermost `depth` frames of one stack, timed at its end.
fn same(criterion: &mut Criterion, plain: &Code, framed: &Code) {
    let mut group = criterion.benchmark_group("same");
    for depth in DEPTHS {
        let mut measure = |way: &Way, code: &Code, frame: fn() -> u64| {
            group.bench_function(BenchmarkId::new(way.name, depth), |bencher| {
                bencher.iter_custom(|rounds| {
                    let mut took = Duration::ZERO;
                    at_depth(code, 7, depth, || {
                        let mut addresses = [0; DEPTH];
                        ways::START.set(frame());
                        assert_eq!((way.take)(&mut addresses, depth), depth, "{}", way.name);
                        took = undisturbed(rounds, CHUNK, |rounds| {
                            let started = Instant::now();
                            for _ in 0..rounds {
                                black_box((way.take)(black_box(&mut addresses), depth));
                            }
                            started.elapsed()
                        });
                    });
                    took
                });
            });
        };
        for way in ways::UNWINDERS.iter().chain([&ways::READ_SETS]) {
            measure(way, plain, || 0);
        }
        measure(&ways::FLOOR, framed, || FRAME.get());
    }
    group.finish();
}

/// 64 different stacks in turn, each taken once at its end, between two clock readings.
fn mixed(criterion: &mut Criterion, code: &Code) {
    let mut group = criterion.benchmark_group("mixed");
    for depth in DEPTHS {
        for way in ways::UNWINDERS.iter().chain([&ways::READ_SETS, &ways::CLOCK]) {
            group.bench_function(BenchmarkId::new(way.name, depth), |bencher| {
                let mut addresses = [0; DEPTH];
                let mut stack = 0;
                let mut take = |rounds| {
                    let mut took = Duration::ZERO;
                    for _ in 0..rounds {
                        stack = (stack + 1) % STACKS;
                        at_depth(code, stack, depth, || {
                            let started = Instant::now();
                            black_box((way.take)(black_box(&mut addresses), depth));
                            took += started.elapsed();
                        });
                    }
                    took
                };
                bencher.iter_custom(|rounds| undisturbed(rounds, CHUNK, &mut take));
            });
        }
    }
    group.finish();
}
