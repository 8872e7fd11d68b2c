//! Libraries that are opened and closed at the same address.

mod support;

use culeak_walker::{closing_began, closing_ended, generation_changed};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use support::{Library, compare, expect_no_difference, same_as_libgcc};

/// These tests share the one table of the process.
static ALONE: Mutex<()> = Mutex::new(());

/// Two libraries that differ only in the size of a frame.
fn libraries(test: &str) -> [PathBuf; 2] {
    let folder = support::folder().join(test);
    std::fs::create_dir_all(&folder).unwrap();
    ["1000", "2000"].map(|size| {
        let library = folder.join(format!("libframe{size}.so"));
        support::compile(
            &support::source("frame.c"),
            &library,
            &["-O2", "-fomit-frame-pointer", &format!("-DSIZE={size}")],
        );
        library
    })
}

type Call = extern "C" fn(extern "C" fn());

fn function(library: &Library) -> Call {
    // SAFETY: the library's function of this type.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Call>(library.symbol("call")) }
}

fn close(library: Library) {
    closing_began();
    library.close();
    generation_changed();
    closing_ended();
}

static WRONG: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_wrong() {
    WRONG.fetch_add(u64::from(!same_as_libgcc(false)), Relaxed);
}

/// Opens both libraries in turn, `rounds` times; returns how often a library was mapped where the previous one had been.
fn take_turns(test: &str, rounds: u64, probe: extern "C" fn(), close: fn(Library)) -> u64 {
    let libraries = libraries(test);
    let (mut same_place, mut before) = (0, 0);
    for round in 0..rounds {
        let library = Library::open(&libraries[round as usize % 2], libc::RTLD_NOW);
        let call = function(&library);
        same_place += u64::from(call as usize == before);
        before = call as usize;
        call(probe);
        call(probe);
        close(library);
    }
    remove(&libraries);
    same_place
}

fn remove(libraries: &[PathBuf; 2]) {
    std::fs::remove_dir_all(libraries[0].parent().unwrap()).ok();
}

#[test]
fn rules_of_a_closed_library_are_not_used() {
    let _alone = ALONE.lock();
    let same_place = take_turns("generations", 100, compare, close);
    assert!(
        same_place > 50,
        "only {same_place} of 100 at the same address, so nothing was tested"
    );
    expect_no_difference();
}

/// Proves that the test above can fail: here the walker is not notified of the closes.
#[test]
fn without_notification_stacks_are_wrong() {
    let _alone = ALONE.lock();
    let same_place = take_turns("no-generations", 40, count_wrong, Library::close);
    assert!(
        same_place > 20,
        "only {same_place} of 40 at the same address, so nothing was tested"
    );
    assert!(WRONG.swap(0, Relaxed) > 0);
    generation_changed();
}

/// Between the beginning and the end of a close no rule of the table is used.
#[test]
fn during_a_close_the_table_is_not_used() {
    let _alone = ALONE.lock();
    closing_began();
    take_turns("closing", 40, compare, Library::close);
    generation_changed();
    closing_ended();
    expect_no_difference();
}

#[test]
#[ignore = "needs g++"]
fn two_threads_walk_while_two_others_open_and_close() {
    let _alone = ALONE.lock();
    let libraries = libraries("concurrent");
    let game = support::Game::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (game, stop) = (&game, &stop);
            scope.spawn(move || {
                let mut seed = thread;
                while !stop.load(Relaxed) {
                    seed += 2;
                    game.play(seed, (seed % 30) as i32, compare);
                }
            });
        }
        let openers = libraries.each_ref().map(|library| {
            scope.spawn(move || {
                for _ in 0..1_500 {
                    let library = Library::open(library, libc::RTLD_NOW);
                    let call = function(&library);
                    call(compare);
                    close(library);
                }
            })
        });
        let joined = openers.map(|opener| opener.join());
        stop.store(true, Relaxed);
        assert!(joined.iter().all(Result::is_ok));
    });
    remove(&libraries);
    expect_no_difference();
}
