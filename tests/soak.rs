//! Everything at once: threads, signals, forks and libraries opened and closed, on a driver without locks.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::{library, profile};

#[test]
fn threads_signals_forks_and_closing_libraries_together_lose_and_add_nothing() {
    let plugin = library("plugin", "libcomes_and_goes.so", &["-DLEAKS=unused", "-DBYTES=1"], &[]);
    // The full length, 10^9 events on 64 threads: benches/soak.sh.
    let outcome = profile("churn")
        .tiny_driver()
        .arg("churn")
        .arg(plugin)
        .args("8 100000 60")
        .run();
    outcome.expect_success();
    let numbers: Vec<u64> = outcome
        .stdout
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [allocations, live] = numbers[..] else {
        panic!("{}", outcome.stdout);
    };
    assert!(outcome.unreadable.is_empty(), "{:?}", outcome.unreadable);

    let (children, parents): (Vec<_>, Vec<_>) = outcome.snapshots.iter().partition(|snapshot| {
        snapshot
            .allocations
            .iter()
            .any(|a| a.bytes == 99 && snapshot.allocations.len() == 1)
    });
    let [parent] = parents[..] else {
        panic!("{} recordings are not a child's", parents.len());
    };
    assert_eq!(children.len(), 60);
    parent.expect_nothing_lost();
    assert_eq!(parent.allocations.len() as u64, live);
    assert_eq!(parent.counted(Device).total_count, allocations);
    assert_eq!(
        (
            parent.losses.unknown_frees,
            parent.losses.vanished,
            parent.devices.len()
        ),
        (0, 0, 1)
    );
    for child in children {
        child.expect_nothing_lost();
    }
}

#[test]
fn a_live_allocation_costs_less_than_96_bytes_of_file_and_its_stack_is_stored_once() {
    // Extents are allocated whole and double in size; with this count the last one is nearly full.
    const COUNT: usize = 260_000;
    let outcome = profile("churn").tiny_driver().args(&format!("keep {COUNT} 4")).run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_nothing_lost();
    assert_eq!(snapshot.allocations.len(), COUNT + 1);
    // The stack of the first block, and that of the threads.
    assert_eq!(snapshot.stacks.len(), 2);
    let bytes = std::fs::metadata(&outcome.recordings[0]).expect("the recording").len();
    assert!(bytes / (COUNT as u64) < 96, "{bytes} bytes");
}
