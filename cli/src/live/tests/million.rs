//! Benchmark: the CPU time of a refresh with a million live allocations. It is ignored in test runs; to run it:
//!
//! ```text
//! taskset -c 0 cargo test --release -p culeak-cli --bin culeak -- --ignored --nocapture million
//! ```

use std::ffi::CString;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use culeak::cuda_functions::Api;
use culeak::format::{RANK_VARIABLES, ROOT};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Entry, Key, Space};
use culeak::reader;
use culeak::recording::{ModuleSeen, Recording, Session};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;

use super::sample::{press, state};
use crate::live::names;
use crate::live::reading::Reading;
use crate::live::sums::stack_keys;
use crate::live::view::{self, Palette};

const LIVE: u64 = 1_000_000;
/// Refreshes to measure.
const ROUNDS: u32 = 9;

/// A recording of this process with `stacks` stacks of 30 frames that share their outer halves.
fn recording(path: &Path, stacks: u32) -> (&'static Recording, Vec<u32>) {
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let recording = Recording::create(
        &name,
        &Session {
            pid: std::process::id(),
            parent_pid: 1,
            depth: 128,
            pid_namespace: 0,
            time_namespace: 0,
            process_start_ticks: culeak::proc::start_ticks(std::process::id()).unwrap_or(0),
            executable: b"/opt/million",
            command_line: b"/opt/million\0",
            host: host.trim_end().as_bytes(),
            ranks: [None; RANK_VARIABLES.len()],
        },
    );
    let recording = recording.unwrap_or_else(|error| panic!("{}: {error:?}", path.display()));
    recording.add_device(0, None, b"NVIDIA H200");
    recording.add_context(0x5000, 0, false);
    recording.add_thread(std::process::id(), b"million\0\0\0\0\0\0\0\0\0");
    let module = recording.add_module(&ModuleSeen {
        path: b"/opt/million",
        build_id: &[7; 20],
        bias: 0x1000,
        start: 0x1000,
        end: 0x100_0000,
    });
    let mut leaves = Vec::new();
    for stack in 0..stacks {
        let mut frame = ROOT;
        for depth in 0..30u64 {
            // The stacks fan out towards the inner frames.
            let way = u64::from(stack) >> (16u64.saturating_sub(depth / 2).min(16));
            frame = recording
                .frame(frame, module, 0x2000 + depth * 0x1_0000 + way)
                .expect("room");
        }
        leaves.push(frame);
    }
    (recording, leaves)
}

fn allocate(recording: &Recording, number: u64, stack: u32) {
    let key = Key {
        space: Space::Pointer,
        address: 0x7000_0000_0000 + number * 512,
    };
    let entry = Entry {
        bytes: 512,
        requested: 512,
        time_ns: number,
        extra: 0,
        pool: 0,
        stack,
        thread: 0,
        attributes: Attributes {
            kind: if number.is_multiple_of(7) {
                Kind::Async
            } else {
                Kind::Device
            },
            space: Space::Pointer,
            flags: 0,
            device: 0,
            api: Api(0).0,
            context: 0,
            raised: 0,
        },
    };
    assert!(recording.allocated(key, &entry), "no room for a record");
}

fn free(recording: &Recording, number: u64) {
    let key = Key {
        space: Space::Pointer,
        address: 0x7000_0000_0000 + number * 512,
    };
    let withdrawn = recording.withdraw(key, 0).expect("it was allocated");
    recording.commit(withdrawn, 0);
}

/// CPU time of this process; other processes do not count.
struct Clock(Duration);

impl Clock {
    fn now() -> Clock {
        let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
        Clock(clock.now().expect("a clock").into())
    }

    fn elapsed(&self) -> Duration {
        Clock::now().0 - self.0
    }
}

struct Times {
    read: Duration,
    sum: Duration,
    arrange: Duration,
    draw: Duration,
}

fn refreshes(path: &Path) -> Vec<Times> {
    let mut state = state();
    let mut terminal = Terminal::new(TestBackend::new(200, 50)).expect("a terminal in memory");
    let palette = Palette::new(true);
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        let started = Clock::now();
        let snapshot = reader::read_once(path).expect("readable");
        let read = started.elapsed();
        let keys = stack_keys(&snapshot);
        let reading = Reading::of(&snapshot, &keys, PathBuf::from(path));
        let sum = started.elapsed() - read;
        if round == 0 {
            state.named(names::all(&snapshot, &keys), Vec::new());
            println!(
                "    the first reading: {read:?}, naming all stacks, once: {:?}",
                started.elapsed() - sum - read
            );
            continue;
        }
        let started = Clock::now();
        state.add_reading(reading);
        let arrange = started.elapsed();
        // Scrolls, as a user would.
        press(
            &mut state,
            if round % 2 == 0 {
                KeyCode::PageDown
            } else {
                KeyCode::Home
            },
        );
        terminal
            .draw(|frame| view::draw(&mut state, &palette, frame))
            .expect("drawn");
        let draw = started.elapsed() - arrange;
        all.push(Times {
            read,
            sum,
            arrange,
            draw,
        });
        black_box(snapshot);
    }
    all
}

fn print(what: &str, times: &[Times]) {
    let median = |of: fn(&Times) -> Duration| {
        let mut all: Vec<Duration> = times.iter().map(of).collect();
        all.sort();
        all[all.len() / 2].as_secs_f64() * 1e3
    };
    let whole: fn(&Times) -> Duration = |times| times.read + times.sum + times.arrange + times.draw;
    println!(
        "{what}: {:.0} ms of CPU per refresh (read {:.0}, sum {:.0}, arrange {:.0}, draw {:.1}), {:.1} per second",
        median(whole),
        median(|times| times.read),
        median(|times| times.sum),
        median(|times| times.arrange),
        median(|times| times.draw),
        1e3 / median(whole),
    );
}

#[test]
#[ignore = "needs minutes"]
fn a_million_live_allocations() {
    let folder = tempfile::tempdir().expect("a folder");
    for stacks in [1_000, 50_000] {
        let path = folder.path().join(format!("million.{stacks}.culeak"));
        let (recording, leaves) = recording(&path, stacks);
        for number in 0..LIVE {
            allocate(
                recording,
                number,
                leaves[(number.wrapping_mul(2_654_435_761) % u64::from(stacks)) as usize],
            );
        }
        // A process that is idle is not read again.
        print(&format!("{stacks} stacks, still"), &refreshes(&path));
        let stop = AtomicBool::new(false);
        let times = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in LIVE.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    allocate(recording, number, leaves[0]);
                    free(recording, number);
                    // Up to ten thousand pairs a second, as in a busy program.
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            let times = refreshes(&path);
            stop.store(true, Ordering::Relaxed);
            times
        });
        print(&format!("{stacks} stacks, busy"), &times);
    }
}
