//! What recording alone costs, without hooks and stacks: an allocation and its free on 1, 2, 4 … threads, the same of the
//! table and of the counters by themselves, and lookups of known keys.
//!
//! A time is one allocation and one free (or one lookup) as each thread experiences it: a time that stays the same with more
//! threads means that they do not wait for one another. Every thread has 64 live blocks.

mod undisturbed;

use std::ffi::CString;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use criterion::{Bencher, BenchmarkId, Criterion};
use culeak::cuda_functions::Api;
use culeak::format::RANK_VARIABLES;
use culeak::kind::Kind;
use culeak::lockfree::index::{Index, mix};
use culeak::lockfree::peak::{CentralCredit, LocalCredit, Sum};
use culeak::lockfree::table::{Attributes, Entry, Key, Space};
use culeak::recording::{Recording, Session};
use undisturbed::undisturbed;

/// Live blocks of every thread.
const KEPT: u64 = 64;
const BYTES: u64 = 512;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .without_plots()
        .configure_from_args();
    let folder = std::env::temp_dir().join(format!("culeak-record-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    pairs(&mut criterion, &folder);
    look_ups(&mut criterion, &folder);
    criterion.final_summary();
    std::fs::remove_dir_all(folder).ok();
}

fn recording(folder: &Path, name: &str) -> &'static Recording {
    let path = folder.join(name);
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let recording = Recording::create(
        &name,
        &Session {
            pid: std::process::id(),
            parent_pid: 0,
            depth: 128,
            pid_namespace: 0,
            time_namespace: 0,
            process_start_ticks: 0,
            executable: b"record",
            command_line: b"record\0",
            host: b"",
            ranks: [None; RANK_VARIABLES.len()],
        },
    );
    recording.unwrap_or_else(|error| panic!("{}: no recording: {error:?}", path.display()))
}

fn key(thread: u32, block: u64) -> Key {
    Key {
        space: Space::Pointer,
        address: 0x7000_0000_0000 + (u64::from(thread) << 36) + block * BYTES,
    }
}

fn entry(thread: u32) -> Entry {
    Entry {
        bytes: BYTES,
        requested: BYTES,
        time_ns: 1,
        extra: 0,
        pool: 0,
        stack: 0,
        thread,
        attributes: Attributes {
            kind: Kind::Device,
            space: Space::Pointer,
            flags: 0,
            device: 0,
            api: Api(0).0,
            context: 0,
            raised: 0,
        },
    }
}

/// How long the slowest of `threads` threads takes for `rounds` rounds, started together.
fn together(threads: u32, rounds: u64, body: impl Fn(u32, u64) + Sync) -> Duration {
    const CHUNK: u64 = 1024;
    let start = Barrier::new(threads as usize);
    let one = |thread| {
        // The first rounds create the per-thread structures.
        body(thread, CHUNK);
        start.wait();
        undisturbed(rounds, CHUNK, |rounds| {
            let started = Instant::now();
            body(thread, rounds);
            started.elapsed()
        })
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let times = workers.into_iter().map(|worker| worker.join().unwrap());
        times.max().unwrap()
    })
}

/// On a separate cache line, as rows of the recording are.
#[repr(align(128))]
struct Apart(AtomicU64, AtomicU32);

fn pairs(criterion: &mut Criterion, folder: &Path) {
    let most = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let counts: Vec<u32> = (0..)
        .map(|power| 1 << power)
        .take_while(|count| *count <= most)
        .collect();
    let mut group = criterion.benchmark_group("pair");
    for threads in counts {
        let whole = recording(folder, &format!("whole.{threads}.culeak"));
        group.bench_function(BenchmarkId::new("table and sums", threads), |bencher| {
            bencher.iter_custom(|rounds| together(threads, rounds, |thread, rounds| churn(whole, thread, rounds)));
        });
        let table = recording(folder, &format!("table.{threads}.culeak"));
        group.bench_function(BenchmarkId::new("table", threads), |bencher| {
            bencher
                .iter_custom(|rounds| together(threads, rounds, |thread, rounds| churn_table(table, thread, rounds)));
        });
        // SAFETY: documented: all zeros is a sum of zero, and an empty shard.
        let (central, shards): (CentralCredit, Vec<Apart>) =
            unsafe { (std::mem::zeroed(), (0..threads).map(|_| std::mem::zeroed()).collect()) };
        group.bench_function(BenchmarkId::new("sum", threads), |bencher| {
            bencher.iter_custom(|rounds| {
                together(threads, rounds, |thread, rounds| {
                    let sum = Sum {
                        central: &central,
                        local: LocalCredit {
                            word: &shards[thread as usize].0,
                            hint: &shards[thread as usize].1,
                        },
                        shards: || shards.iter().map(|shard| &shard.0),
                    };
                    for _ in 0..rounds {
                        black_box(sum.grow(BYTES));
                        sum.shrink(BYTES);
                    }
                })
            });
        });
    }
    group.finish();
}

/// Allocates a block in each round and frees the one of `KEPT` rounds ago, and all of them at the end.
fn churn(recording: &Recording, thread: u32, rounds: u64) {
    let free = |block| {
        if let Some(withdrawn) = recording.withdraw(key(thread, block), thread) {
            recording.commit(withdrawn, thread);
        }
    };
    for round in 0..rounds {
        assert!(recording.allocated(key(thread, round), &entry(thread)));
        if round >= KEPT {
            free(round - KEPT);
        }
    }
    (rounds.saturating_sub(KEPT)..rounds).for_each(free);
}

fn churn_table(recording: &Recording, thread: u32, rounds: u64) {
    let table = recording.table(thread);
    let free = |block| {
        if let Some(withdrawn) = table.withdraw(key(thread, block)) {
            table.commit(withdrawn);
        }
    };
    for round in 0..rounds {
        assert!(table.insert(key(thread, round), &entry(thread)).is_ok());
        if round >= KEPT {
            free(round - KEPT);
        }
    }
    (rounds.saturating_sub(KEPT)..rounds).for_each(free);
}

fn repeated<T>(bencher: &mut Bencher, mut once: impl FnMut() -> T) {
    bencher.iter_custom(|rounds| {
        undisturbed(rounds, 4096, |rounds| {
            let started = Instant::now();
            for _ in 0..rounds {
                black_box(once());
            }
            started.elapsed()
        })
    });
}

fn look_ups(criterion: &mut Criterion, folder: &Path) {
    let mut group = criterion.benchmark_group("look-up");
    for entries in [1_000, 100_000] {
        // SAFETY: documented: all zeros is an empty index.
        let index: Box<Index> = Box::new(unsafe { std::mem::zeroed() });
        for row in 0..entries {
            index.insert(mix(u64::from(row)), row).unwrap();
        }
        let mut wanted = 0;
        group.bench_function(BenchmarkId::new("index", entries), |bencher| {
            bencher.iter(|| {
                wanted = (wanted + 1) % entries;
                index
                    .find(mix(u64::from(wanted)), |row| row == wanted)
                    .map(|found| found.row)
            });
        });
    }
    let recording = recording(folder, "stacks.culeak");
    for stack in 0..1000 {
        recording.frame(stack, None, u64::from(stack)).unwrap();
        recording.remember_stack(mix(u64::from(stack)), stack);
    }
    let mut wanted = 0;
    group.bench_function(BenchmarkId::new("stack by hash", 1000), |bencher| {
        repeated(bencher, || {
            wanted = (wanted + 1) % 1000;
            recording.stack(mix(wanted))
        });
    });
    group.finish();
}
