use culeak::snapshot::{Call, HeldBlock, HolderPath, Retainer};

use super::*;
use crate::text::sample::{MIB, Sample, held, leaky, training};

#[test]
fn tensors_are_searched_for_in_place_of_the_segment_behind_them() {
    let snapshot = held();
    let listed = Listed::of(&snapshot);
    let segment = snapshot.allocations.at(0);
    assert_eq!(listed.blocks.len(), snapshot.allocations.len() - 1);
    assert!(listed.blocks.iter().all(|block| block.bytes < segment.bytes));
    let of_torch = listed.blocks.iter().filter(|block| block.of_torch).count();
    let tensors = snapshot
        .allocations
        .iter()
        .filter(|row| row.kind == Kind::Tensor)
        .count();
    assert_eq!(of_torch, tensors);
    // The segment is not searched for pointers either.
    assert!(
        listed
            .excluded
            .contains(&(segment.address..segment.address + segment.bytes))
    );
}

#[test]
fn blocks_are_sorted_and_apart() {
    for mut snapshot in [held(), leaky(), training().finish(0, 0)] {
        let first = snapshot.allocations.at(0).address;
        snapshot
            .allocations
            .change_last(|last, _| (last.address, last.bytes) = (first + 1, 1));
        let blocks = Listed::of(&snapshot).blocks;
        assert!(!blocks.is_empty());
        for pair in blocks.windows(2) {
            assert!(pair[0].address + pair[0].bytes <= pair[1].address, "{pair:?}");
        }
    }
}

#[test]
fn claims_are_not_searched_for() {
    let snapshot = leaky();
    let claims = snapshot.allocations.iter().filter(|row| row.bytes == 0).count();
    assert!(claims > 0);
    assert_eq!(Listed::of(&snapshot).blocks.len(), snapshot.allocations.len() - claims);
}

/// Physical memory that is mapped: handles 0x5000, 0x5001 …, each mapped before the next is created or after all are.
fn mapped(interleaved: bool) -> Snapshot {
    let mut sample = Sample::new();
    let stack = sample.stack(&[]);
    sample.holds(Kind::Physical, "cuMemCreate", 2 * MIB, 2, stack);
    sample.holds(Kind::Mapping, "cuMemMap", 2 * MIB, 2, stack);
    let order = if interleaved { [1, 3, 2, 4] } else { [1, 2, 3, 4] };
    sample.0.allocations.change(|nth, row, call| {
        (row.time_ns, call.mappings) = (order[nth], u32::from(call.kind == Kind::Physical));
        if call.kind == Kind::Physical {
            row.address = 0x50_0000 + nth as u64;
        }
    });
    sample.finish(0, 0)
}

#[test]
fn physical_memory_is_searched_for_by_the_address_of_its_mapping() {
    let snapshot = mapped(true);
    let listed = Listed::of(&snapshot);
    let mappings = snapshot.allocations.iter().filter(|row| row.kind == Kind::Mapping);
    let mappings: Vec<u64> = mappings.map(|row| row.address).collect();
    assert_eq!(
        listed.blocks.iter().map(|block| block.address).collect::<Vec<_>>(),
        mappings
    );
    assert_eq!(listed.records[0].address, 0x50_0000);
    let unknown = Listed::of(&mapped(false));
    assert!(unknown.blocks.is_empty() && unknown.limits[0].starts_with("2 blocks of virtual memory"));
}

#[test]
fn ranges_in_which_several_blocks_are_mapped_are_searched_for_too() {
    let model = mapped(true);
    let first = model.allocations.at(0);
    let reserved = Call {
        kind: Kind::Reserved,
        ..first.call.clone()
    };
    let mappings = model.allocations.iter().filter(|row| row.kind == Kind::Mapping);
    let starts: Vec<u64> = mappings.map(|row| row.address).collect();
    let ranges = |address: u64, requested: u64| {
        let mut snapshot = model.clone();
        snapshot.allocations.push(Allocation {
            call: &reserved,
            address,
            bytes: 0,
            requested,
            ..first
        });
        Listed::of(&snapshot).reserved
    };
    let end = starts[1] + 2 * MIB;
    assert_eq!(
        ranges(starts[0], end - starts[0]),
        std::slice::from_ref(&(starts[0]..end))
    );
    let around = starts[0] - MIB..starts[0] + MIB;
    assert_eq!(ranges(starts[0] - MIB, 2 * MIB), std::slice::from_ref(&around));
    assert!(
        ranges(starts[1], 2 * MIB).is_empty(),
        "the pointer to the block is the one to the range"
    );
    assert!(ranges(end, MIB).is_empty());
}

/// An answer for these blocks, all with one path of this class and one retainer.
fn answer(blocks: &[Block], class: Class) -> Holders {
    let path = HolderPath {
        class,
        ..HolderPath::default()
    };
    let held = blocks.iter().map(|block| HeldBlock {
        address: block.address,
        time_ns: block.time_ns,
        bytes: block.bytes,
        path: 0,
        retainer: Some(1),
        module: None,
        tensor: None,
    });
    let retainer = |parent| Retainer {
        parent,
        bytes: blocks.iter().map(|block| block.bytes).sum(),
        count: blocks.len() as u64,
        ..Retainer::default()
    };
    Holders {
        paths: vec![path],
        retainers: vec![retainer(None), retainer(Some(0))],
        blocks: held.collect(),
        ..Holders::default()
    }
}

#[test]
fn an_answer_names_records_and_counts_their_bytes() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[]);
    sample.holds(Kind::Array, "cudaMallocArray", MIB, 3, stack);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    let snapshot = sample.finish(0, 0);
    let listed = Listed::of(&snapshot);
    assert_eq!(listed.blocks[0].bytes, 1, "the handle of an array");
    let mut holders = answer(&listed.blocks, Class::Held);
    listed.give_back(&mut holders);
    assert!(holders.blocks.iter().all(|block| block.bytes == MIB));
    assert_eq!(holders.retainers[0].bytes, 4 * MIB);
    assert_eq!(holders.retainers[1].bytes, 4 * MIB);
}

#[test]
fn a_cached_block_that_nothing_points_to_is_not_lost() {
    let snapshot = leaky();
    let listed = Listed::of(&snapshot);
    let cached = listed.records.iter().filter(|record| record.cached).count();
    assert_eq!(cached, 2);
    let mut lost = answer(&listed.blocks, Class::Lost);
    listed.give_back(&mut lost);
    assert_eq!(lost.blocks.len(), listed.blocks.len() - cached);
    let mut held = answer(&listed.blocks, Class::Held);
    listed.give_back(&mut held);
    assert_eq!(held.blocks.len(), listed.blocks.len());
}

/// A list in managed memory: what its first node has a pointer to, only the second node has.
#[test]
fn nothing_is_lost_for_certain_beside_memory_that_is_not_searched() {
    let answered = |is_head_held: bool, kind: Kind| {
        let mut sample = Sample::new();
        let stack = sample.stack(&[]);
        sample.holds(kind, "cudaMallocManaged", MIB, 3, stack);
        sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
        let snapshot = sample.finish(0, 0);
        let listed = Listed::of(&snapshot);
        let mut holders = answer(&listed.blocks, Class::Lost);
        if is_head_held {
            holders.paths.push(HolderPath::default());
            holders.blocks[0].path = 1;
        }
        listed.give_back(&mut holders);
        unread::doubt_lost(&mut holders, &snapshot, |held| listed.is_of_torch(held));
        holders
    };
    let holders = answered(true, Kind::Managed);
    let paths: Vec<&HolderPath> = holders.blocks.iter().map(|held| &holders.paths[held.path]).collect();
    assert!(paths[0].class == Class::Held && !paths[0].possibly);
    assert!(
        paths[1..].iter().all(|path| path.class == Class::Lost && path.possibly),
        "{paths:?}"
    );
    let limits = &holders.search.limits;
    assert!(
        limits.len() == 1 && limits[0].starts_with("1 MiB of managed memory"),
        "{limits:?}"
    );
    // Memory that is lost holds nothing. Registered memory is searched, and pinned memory seldom has the only pointer.
    let others = [Kind::HostRegistered, Kind::HostPinned].map(|kind| answered(true, kind));
    for holders in others.into_iter().chain([answered(false, Kind::Managed)]) {
        assert!(!holders.paths.iter().any(|path| path.possibly) && holders.search.limits.is_empty());
    }
}

#[test]
fn blocks_freed_during_the_search_have_no_path_any_more() {
    let before = held();
    let mut after = held();
    let freed = before.allocations.at(1).address;
    after.allocations.retain(|row| row.address != freed);
    // Another block has the address of the second: it is not the one that was searched for.
    let reused = before.allocations.at(2).address;
    after.allocations.change(|_, row, _: &mut Call| {
        row.time_ns += u64::from(row.address == reused);
    });
    let mut holders = before.holders.clone().expect("searched");
    drop_all_but(&mut holders, &live_blocks(&after));
    let all = before.holders.expect("searched");
    let changed = holders.blocks.iter().filter(|held| holders.paths[held.path].changed);
    assert_eq!((changed.count(), holders.blocks.len()), (2, all.blocks.len()));
    assert_eq!(holders.search.changed, all.search.changed + 2);
    assert_eq!(holders.retainers[0].bytes, all.retainers[0].bytes - 2 * MIB);
    assert_eq!(holders.retainers[0].count, all.retainers[0].count - 2);
}

#[test]
fn advice_can_be_followed() {
    let advice_of = |pid, state, change: &dyn Fn(&mut Process)| {
        let mut snapshot = leaky();
        (snapshot.process.pid, snapshot.process.pid_here, snapshot.process.state) = (pid, None, state);
        change(&mut snapshot.process);
        not_searched(&Loaded::of(snapshot, "a.culeak"))
    };
    let here = |process: &mut Process| {
        process.host = culeak::reader::host_name().expect("a host");
        process.started_unix_ns = u64::MAX;
    };
    let advice = |state| advice_of(std::process::id(), state, &here);
    // A killed program has no end at which it could be searched.
    let killed = advice(ProcessState::Ended);
    assert!(
        !killed.contains("run --why") && killed.contains("why --core FILE a.culeak"),
        "{killed}"
    );
    assert!(advice(ProcessState::Exited).contains("run --why"));
    assert!(advice(ProcessState::Running).contains("name its id"));
    // No process has this id.
    assert!(advice_of(u32::MAX, ProcessState::Running, &here).contains("run --why"));
    // Another process has it: on another machine, or since the process of the recording ended.
    let elsewhere = |process: &mut Process| {
        here(process);
        process.host = "another-host".to_owned();
    };
    let earlier = |process: &mut Process| {
        here(process);
        process.started_unix_ns = 1;
    };
    for change in [&elsewhere as &dyn Fn(&mut Process), &earlier] {
        assert!(advice_of(std::process::id(), ProcessState::Running, change).contains("run --why"));
    }
}

#[test]
fn a_process_that_has_the_number_of_an_older_one_is_not_searched() {
    let mut item = Loaded::of(held(), String::new());
    item.snapshot.taken.by = culeak::snapshot::BY_READING.to_owned();
    let process = &mut item.snapshot.process;
    (process.pid, process.pid_here) = (std::process::id(), None);
    process.host = culeak::reader::host_name().expect("a name");
    process.started_unix_ns = 1;
    let searched = of_process(&mut item, std::process::id(), &Wanted::default());
    let why = searched.expect_err("another process").message;
    assert!(why.contains("another process has its number"), "{why}");
}
