use super::tree::{Limits, Node, Step, Tree};
use super::*;
use crate::analysis::filter::Filter;
use crate::analysis::report;
use crate::sample::{MAIN, MIB, RUNTIME, Sample as Made, leaky, training};
use crate::snapshot::Total;
use proptest::prelude::*;

/// Paths as text, outermost first, with bytes.
fn lines(profile: &Profile) -> Vec<(String, u64)> {
    let text = |sample: &Sample| {
        let names: Vec<String> = profile.path(sample.path).map(Frame::name).collect();
        (names.join(";"), sample.live.bytes)
    };
    profile.samples.iter().map(text).collect()
}

fn reported(snapshot: &Snapshot) -> Tally {
    let report = report::Report::of(snapshot, &report::Options::default());
    let rows = report.rows.iter().map(|row| Tally::new(row.bytes, row.count));
    Tally::total(rows)
}

#[test]
fn the_sum_of_a_profile_equals_that_of_the_report() {
    for snapshot in [leaky(), training().finish(0, 3), Made::new().finish(0, 0)] {
        for full_stacks in [false, true] {
            let options = Options {
                full_stacks,
                ..Options::default()
            };
            let profile = Profile::of(&snapshot, &options);
            assert_eq!(profile.total(), reported(&snapshot));
            assert_eq!(
                Tree::of(&profile, &Limits::default()).root().sums.now,
                reported(&snapshot)
            );
        }
    }
}

#[test]
fn suppressed_memory_is_in_no_sample_and_counted_by_rule() {
    let snapshot = leaky();
    let mut suppressions = Suppressions::default();
    suppressions
        .add("leak:load_weights\nleak:no_such", "known.supp")
        .unwrap();
    let options = Options {
        suppressions: suppressions.clone(),
        made: true,
        ..Options::default()
    };
    let mut visited = Tally::default();
    let left = Profile::visiting(&snapshot, &options, |allocation, _| visited.add(allocation.bytes));
    let all = Profile::of(&snapshot, &Options::default());
    assert_eq!(
        left.suppressed,
        Tally {
            bytes: 64 * MIB,
            count: 1
        }
    );
    assert_eq!(left.total().bytes + left.suppressed.bytes, all.total().bytes);
    assert_eq!(visited, left.total());
    assert!(lines(&left).iter().all(|(path, _)| !path.contains("load_weights")));
    let used: Vec<u64> = left.suppressions.iter().map(|used| used.suppressed.count).collect();
    assert_eq!(used, [1, 0]);
    let reported = report::Report::of(
        &snapshot,
        &report::Options {
            suppressions,
            ..report::Options::default()
        },
    );
    assert_eq!(
        (reported.suppressed, reported.suppressions),
        (left.suppressed, left.suppressions)
    );
}

#[test]
fn paths_are_outermost_first_and_have_the_frames_of_the_report() {
    let snapshot = leaky();
    let profile = Profile::of(&snapshot, &Options::default());
    let first = &lines(&profile)[0].0;
    assert_eq!(first, "main;Trainer::run();Trainer::step(int, float*)");
    let full = Profile::of(
        &snapshot,
        &Options {
            full_stacks: true,
            ..Options::default()
        },
    );
    assert!(lines(&full)[0].0.starts_with("__libc_start_call_main;main;"));
    assert!(lines(&full)[0].0.ends_with(";libcudart.so.13+0x1234"));
}

#[test]
fn memory_behind_listed_blocks_is_not_counted_twice() {
    let snapshot = training().finish(0, 3);
    let profile = Profile::of(&snapshot, &Options::default());
    assert!(profile.samples.iter().all(|sample| sample.kind != Kind::Physical));
    let tensors: u64 = profile
        .samples
        .iter()
        .filter(|sample| sample.kind == Kind::Tensor)
        .map(|sample| sample.live.bytes)
        .sum();
    assert_eq!(tensors, 8 * MIB);
}

#[test]
fn stacks_that_look_equal_are_one_path_unless_addresses_are_included() {
    let mut sample = Made::new();
    // Each frame of a sample has its own address.
    let first = sample.stack(&[RUNTIME, ("step", "/src/a.cu:1", "/opt/app"), MAIN]);
    let second = sample.stack(&[RUNTIME, ("step", "/src/a.cu:1", "/opt/app"), MAIN]);
    sample
        .holds(Kind::Device, "cudaMalloc", MIB, 1, first)
        .holds(Kind::Device, "cudaMalloc", MIB, 2, second);
    let snapshot = sample.finish(0, 0);
    let paths = |addresses| {
        let options = Options {
            addresses,
            ..Options::default()
        };
        Profile::of(&snapshot, &options).paths.len()
    };
    assert_eq!((paths(false), paths(true)), (1, 2));
}

#[test]
fn a_record_without_a_stack_has_an_empty_path() {
    let mut snapshot = leaky();
    snapshot.allocations.truncate(1);
    snapshot
        .allocations
        .change_last(|allocation, _| allocation.stack = None);
    let profile = Profile::of(&snapshot, &Options::default());
    assert_eq!(profile.paths[profile.samples[0].path].frames, [0; 0]);
    let tree = Tree::of(&profile, &Limits::default());
    assert_eq!(steps(&tree).last(), Some(&Step::NoStack));
}

#[test]
fn kinds_can_be_selected() {
    let snapshot = leaky();
    let profile = Profile::of(
        &snapshot,
        &Options {
            filter: Filter {
                kinds: vec![Kind::Managed],
                ..Filter::default()
            },
            ..Options::default()
        },
    );
    assert_eq!(
        profile.total(),
        Tally {
            bytes: 3 * 4096,
            count: 3
        }
    );
}

fn steps(tree: &Tree) -> Vec<Step> {
    tree.nodes.iter().map(|node| node.step.clone()).collect()
}

#[test]
fn a_tree_splits_by_location_first_and_merges_single_children() {
    let snapshot = leaky();
    let profile = Profile::of(&snapshot, &Options::default());
    let tree = Tree::of(&profile, &Limits::default());
    let places: Vec<&Step> = tree
        .root()
        .children
        .iter()
        .map(|&child| &tree.nodes[child].step)
        .collect();
    assert_eq!(
        places,
        [
            &Step::Place("GPU 0".to_owned()),
            &Step::Place("host memory".to_owned()),
            &Step::Place("no memory".to_owned())
        ]
    );
    let host = &tree.nodes[tree.root().children[1]];
    let Step::Frames(chain) = &tree.nodes[host.children[0]].step else {
        panic!("{tree:?}")
    };
    assert_eq!(chain.len(), 3, "main, load_weights and thrust's");
}

#[test]
fn a_tree_counts_what_it_does_not_show() {
    let snapshot = leaky();
    let profile = Profile::of(&snapshot, &Options::default());
    let limits = Limits {
        top: Some(1),
        min_bytes: 0,
        ..Limits::default()
    };
    let tree = Tree::of(&profile, &limits);
    assert_eq!(tree.root().hidden_children, 2, "the host and the claims");
    assert_eq!(tree.root().hidden.now.bytes, 64 * MIB);
    assert_adds_up(&tree);
    let limits = Limits {
        top: None,
        min_bytes: 1 << 40,
        ..Limits::default()
    };
    let nothing = Tree::of(&profile, &limits);
    assert_eq!((nothing.nodes.len(), nothing.root().hidden.now), (1, profile.total()));
}

/// Each node has at least the sum of its children, including hidden ones.
fn assert_adds_up(tree: &Tree) {
    let below = |node: &Node| Tally::total(node.children.iter().map(|&child| tree.nodes[child].sums.now));
    for node in &tree.nodes {
        let mut sum = below(node);
        sum.join(node.hidden.now);
        assert!(
            sum.bytes <= node.sums.now.bytes && sum.count <= node.sums.now.count,
            "{node:?}"
        );
    }
    let leaves = Tally::total(tree.nodes.iter().map(|node| {
        let below = below(node);
        Tally::new(node.sums.now.bytes - below.bytes, node.sums.now.count - below.count)
    }));
    assert_eq!(leaves, tree.root().sums.now);
}

#[test]
fn a_stack_may_have_a_hundred_thousand_frames() {
    let mut sample = Made::new();
    let frames: Vec<_> = (0..10)
        .map(|nth| -> &'static str { ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"][nth] })
        .map(|name| (name, "/src/a.cu:1", "/opt/app"))
        .collect();
    let stack = sample.stack(&frames);
    let short = sample.stack(&frames[5..]);
    sample
        .holds(Kind::Device, "cudaMalloc", MIB, 1, stack)
        .holds(Kind::Device, "cudaMalloc", MIB, 1, short);
    let mut snapshot = sample.finish(0, 0);
    let deep: Vec<usize> = snapshot.stacks[0]
        .frames
        .iter()
        .copied()
        .cycle()
        .take(100_000)
        .collect();
    snapshot.stacks[0].frames = deep;
    let profile = Profile::of(&snapshot, &Options::default());
    let tree = Tree::of(&profile, &Limits::default());
    assert_eq!(tree.root().sums.now.bytes, 2 * MIB);
    assert_adds_up(&tree);
}

proptest! {
    #[test]
    fn trees_of_any_shape_add_up(
        stacks in proptest::collection::vec((proptest::collection::vec(0usize..4, 1..6), 0u64..5, 1u64..4), 0..12),
        top in proptest::option::of(0usize..6),
        min_bytes in 0u64..8,
    ) {
        let mut sample = Made::new();
        let names = ["a", "b", "c", "d"];
        for (frames, bytes, count) in stacks {
            let frames: Vec<_> = frames.iter().map(|&frame| (names[frame], "/src/a.cu:1", "/opt/app")).collect();
            let stack = sample.stack(&frames);
            sample.holds(Kind::Device, "cudaMalloc", bytes, count, stack);
        }
        let snapshot = sample.finish(0, 0);
        let profile = Profile::of(&snapshot, &Options::default());
        prop_assert_eq!(profile.total(), reported(&snapshot));
        let whole = Tree::of(&profile, &Limits::default());
        prop_assert_eq!(whole.root().sums.now, profile.total());
        assert_adds_up(&whole);
        assert_adds_up(&Tree::of(&profile, &Limits { top, min_bytes, all: false }));
    }
}

#[test]
fn total_requests_are_reported_with_live_memory() {
    let mut snapshot = leaky();
    let total = |stack, kind, bytes, count| Total {
        stack: Some(stack),
        kind,
        device: Some(0),
        bytes,
        count,
    };
    // The leaking site requested twice as much; another requested the same and freed all of it.
    snapshot.totals = vec![
        total(0, Kind::Device, 2 * 1152 * MIB, 256),
        total(1, Kind::Device, 5 * MIB, 5),
    ];
    let profile = Profile::of(
        &snapshot,
        &Options {
            made: true,
            ..Options::default()
        },
    );
    assert_eq!(profile.total(), reported(&snapshot), "live memory is unchanged");
    let made = |live: u64| {
        let mut samples = profile
            .samples
            .iter()
            .filter(|sample| sample.live.bytes == live && sample.kind == Kind::Device);
        samples.next().and_then(|sample| sample.made)
    };
    assert_eq!(
        made(1152 * MIB).map(|made| (made.bytes, made.count)),
        Some((2304 * MIB, 256))
    );
    assert_eq!(made(0).map(|made| (made.bytes, made.count)), Some((5 * MIB, 5)));
    assert!(
        profile
            .samples
            .iter()
            .all(|sample| sample.made.is_some_and(|made| made.bytes >= sample.live.bytes))
    );
    let unasked = Profile::of(&snapshot, &Options::default());
    assert!(
        unasked
            .samples
            .iter()
            .all(|sample| sample.made.is_none() && sample.live.count > 0)
    );
}
