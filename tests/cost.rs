//! What an event costs, in instructions and in lines of code: figures that do not depend on the load of the machine, nor much on its
//! processor.

#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;

use crate::support::compile::executable;
use crate::support::{Outcome, Profile, library, profile, program};

/// `benches/count.c`, with a driver that does nothing.
fn count() -> Profile {
    let driver = library(
        "tiny_driver",
        "libcuda.so.1",
        &["-O2", "-DADDRESSES_PER_THREAD", "-DANSWERS_IOCTL"],
        &[],
    );
    let allocator = library(
        "tiny_c10_cuda",
        "libc10_cuda.so",
        &["-O2"],
        std::slice::from_ref(&driver),
    );
    program(executable("../../benches/count", &["-O2"], &[driver, allocator]))
        .arg("20")
        .without_driver()
}

/// Instructions, locked ones, system calls, and lines of 64 bytes of the library's code, by the name of the call.
fn counted(outcome: &Outcome) -> BTreeMap<String, [f64; 4]> {
    outcome.expect_success();
    let line = |line: &str| {
        let (name, figures) = line.split_once(": ")?;
        let mut figures = figures.split(", ").map(|figure| figure.split(' ').next()?.parse().ok());
        let mut next = || figures.next().flatten();
        Some((name.to_owned(), [next()?, next()?, next()?, next()?]))
    };
    outcome.stdout.lines().filter_map(line).collect()
}

/// The same with sampled stacks, of a block without one. That of a tensor is 30 more than the 109 instructions that it took, for the clock.
const SAMPLED: [(&str, [f64; 4], f64); 4] = [
    ("allocation", [570.0, 3.0, 0.0, 57.0], 1.0),
    ("free", [460.0, 3.0, 0.0, 42.0], 0.0),
    // Under load, readings of the clock take up to 30 instructions more.
    ("tensor", [140.0, 1.0, 0.0, 14.0], 1.0),
    ("free of a tensor", [110.0, 1.0, 0.0, 12.0], 0.0),
];

/// The limits of what is more than bare: instructions, locked ones, system calls, lines of code; and how often the clock is read, whose
/// code is the kernel's, and which may be a system call.
///
/// They are 5 to 10 % more instructions and lines than on the day when this was written, with 20 frames. If a change needs more, measure
/// what that costs (`benches/event.sh`) before you raise a limit.
const LIMITS: [(&str, [f64; 4], f64); 13] = [
    ("allocation", [1030.0, 3.0, 0.0, 88.0], 1.0),
    ("free", [530.0, 3.0, 0.0, 48.0], 0.0),
    ("tensor", [925.0, 2.0, 0.0, 78.0], 1.0),
    ("free of a tensor", [495.0, 2.0, 0.0, 55.0], 0.0),
    ("stream", [970.0, 1.0, 0.0, 85.0], 1.0),
    ("destruction of a stream", [465.0, 1.0, 0.0, 44.0], 0.0),
    ("event", [970.0, 1.0, 0.0, 83.0], 1.0),
    ("destruction of an event", [465.0, 1.0, 0.0, 45.0], 0.0),
    ("segment", [1820.0, 3.0, 1.0, 135.0], 1.0),
    ("free of a segment", [1270.0, 4.0, 1.0, 113.0], 1.0),
    ("other request", [12.0, 0.0, 0.0, 3.0], 0.0),
    // Of 15 frames more, each of 240 stacks in turn. A walk takes 1,500 more; totals that are not found in their slot take 170.
    ("one stack of hundreds", [1110.0, 3.0, 0.0, 105.0], 1.0),
    ("new stack", [24_000.0, 14.0, 0.0, 290.0], 1.0),
];

#[test]
#[ignore = "needs ptrace"]
fn events_take_as_many_instructions_as_they_did() {
    expect_within(&LIMITS, count().run());
}

#[test]
#[ignore = "needs ptrace"]
fn a_block_that_sampling_leaves_out_takes_half_of_the_instructions() {
    expect_within(&SAMPLED, count().setting("CULEAK_SAMPLE", "1TiB").run());
}

#[test]
fn stacks_that_are_used_once_take_no_memory_for_words_to_know_them_by() {
    // A thread's ring of read sets has 520 KiB, and is mapped when the first stack is seen again.
    let outcome = profile("sightings").run();
    outcome.expect_success();
    let grown: Vec<i64> = outcome.stdout.lines().map(|kib| kib.parse().expect("KiB")).collect();
    let [once, again] = grown[..] else { panic!("{grown:?}") };
    assert!(once < 512 && again >= 512, "grown by {once} KiB, and then by {again}");
}

#[test]
fn where_ptrace_is_refused_the_counter_says_so() {
    let forbids = executable("forbids", &["-DFORBIDDEN=SYS_ptrace"], &[]);
    let outcome = count().bare().wrapped_in(&[forbids.to_str().expect("a path")]).run();
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.stderr.contains("may not trace its child"), "{}", outcome.stderr);
}

fn expect_within(limits: &[(&str, [f64; 4], f64)], recorded: Outcome) {
    let (bare, recorded) = (counted(&count().bare().run()), counted(&recorded));
    for &(name, limits, readings) in limits {
        let more: Vec<f64> = (0..4)
            .map(|figure| recorded[name][figure] - bare[name][figure] - readings * bare["clock"][figure])
            .collect();
        // The figures are means of ten calls; the cost of some calls is measured with two readings of the clock. Lines differ by where
        // the linker puts the same instructions.
        let room = [0.5, 0.5, 0.5, 5.5];
        let fits = (more.iter().zip(limits).zip(room)).all(|((more, limit), room)| *more < limit + room);
        assert!(
            fits,
            "{name}: {more:.1?} more than bare, {limits:?} allowed\n{recorded:#.1?}"
        );
        // The recorder was there.
        assert!(more[0] > 0.0, "{name}: {more:?}");
    }
}
