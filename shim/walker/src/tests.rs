//! That the comparison with libgcc notices wrong rules, and that it holds without `_dl_find_object`.

use super::*;
use crate::rule::{Base, Packed, Rule};
use crate::support::{compare, expect_no_difference, same_as_libgcc, shapes};

/// These tests change the one table of the process.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Whether the comparison holds, and the return address to the caller, which is on the compared stack.
#[inline(never)]
fn compared() -> (bool, u64) {
    let same = same_as_libgcc(false);
    let mut addresses = [0; 2];
    walk(Registers::here(), &mut addresses);
    (same, addresses[1])
}

#[inline(never)]
fn once() -> (bool, u64) {
    std::hint::black_box(compared())
}

#[test]
fn a_wrong_rule_is_noticed_as_a_difference() {
    let _alone = ALONE.lock();
    let (same, address) = once();
    assert!(same, "before");
    for wrong in [
        Rule::Frame {
            base: Base::Stack,
            offset: 4096,
            ra: 1,
            fp: 0,
        },
        Rule::Frame {
            base: Base::Frame,
            offset: 64,
            ra: 1,
            fp: 0,
        },
        Rule::Frame {
            base: Base::Saved,
            offset: -8,
            ra: 1,
            fp: 2,
        },
        Rule::Root,
        Rule::Signal,
    ] {
        TABLE.void();
        TABLE.insert(address - 1, Packed::of(wrong).unwrap(), TABLE.ticket());
        assert!(!once().0, "{wrong:?} was not noticed");
    }
    TABLE.void();
    assert!(once().0, "after");
}

/// From here on the other tests of this process run without `_dl_find_object` too.
#[test]
#[ignore = "needs g++"]
fn an_older_loader_gives_the_same_stacks() {
    let _alone = ALONE.lock();
    modules::without_find_object();
    generation_changed();
    for seed in 0..2_000u64 {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut run = support::Run {
            probe: compare,
            shapes: shapes::ALL.as_ptr(),
            count: shapes::ALL.len() as u64,
            random,
        };
        shapes::ALL[seed as usize % shapes::ALL.len()](&mut run, (seed % 30) as i32);
        if seed % 100 == 0 {
            closing_began();
            compare();
            generation_changed();
            closing_ended();
        }
    }
    expect_no_difference();
    let game = support::Game::new();
    let folder = support::folder().join("older-loader");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("libframe.so");
    support::compile(&support::source("frame.c"), &path, &["-O2", "-DSIZE=1000"]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (game, stop) = (&game, &stop);
            scope.spawn(move || {
                for seed in (thread..).step_by(2) {
                    game.play(seed, (seed % 30) as i32, compare);
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        for _ in 0..300 {
            let library = support::Library::open(&path, libc::RTLD_NOW);
            // SAFETY: the library's function of this type.
            let call: extern "C" fn(extern "C" fn()) = unsafe { std::mem::transmute(library.symbol("call")) };
            call(compare);
            closing_began();
            library.close();
            generation_changed();
            closing_ended();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    std::fs::remove_dir_all(folder).ok();
    expect_no_difference();
}
