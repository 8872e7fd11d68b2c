//! Frame by frame, every stack is what libgcc says it is: over ordinary code, on every kind of thread, and interrupted
//! by signals at arbitrary instructions.

mod support;

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use support::{Game, STACKS, compare, expect_no_difference};

fn game() -> &'static Game {
    static GAME: OnceLock<Game> = OnceLock::new();
    GAME.get_or_init(Game::new)
}

fn play(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        game().play(seed, (seed % 40) as i32, compare);
    }
}

#[test]
fn a_hundred_thousand_stacks_of_rust_and_cpp_code() {
    std::thread::scope(|scope| {
        scope.spawn(|| play(0..55_000));
        scope.spawn(|| play(55_000..110_000));
    });
    assert!(STACKS.load(Relaxed) >= 100_000);
    expect_no_difference();
}
