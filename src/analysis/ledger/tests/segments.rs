use super::*;
use crate::analysis::ledger::segments::{IdleReason, Pin, Segments, Unfit};
use crate::snapshot::{Automatic, Failed, GroupLimits, Reason, Sampling, Stream};

const OTHER: FrameText = ("make_state", "/home/me/optimizer.py:88", PYTHON);

/// Two segments of 20 MiB that 3 blocks of one line keep, one that both lines keep, one of each pool without blocks.
fn fragmented() -> Sample {
    let mut sample = Sample::new().running();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    let state = sample.stack(&[RUNTIME, CACHING, OTHER]);
    for nth in 0..4 {
        memory(
            &mut sample,
            Kind::Device,
            0x1000_0000 + nth * 0x1000_0000,
            20 * MIB,
            pool,
        );
    }
    memory(&mut sample, Kind::Device, 0x9000_0000, 2 * MIB, pool);
    tensor(&mut sample, 0x1000_0000, 2 * MIB, state);
    tensor(&mut sample, 0x1000_0000 + 10 * MIB, 2 * MIB, state);
    tensor(&mut sample, 0x2000_0000 + 4 * MIB, 2 * MIB, state);
    tensor(&mut sample, 0x3000_0000, 16 * MIB, pool);
    tensor(&mut sample, 0x3000_0000 + 16 * MIB, MIB, state);
    sample
}

fn of(snapshot: &Snapshot) -> Segments<'_> {
    let stacks = CallStacks::of(snapshot);
    Segments::of(snapshot, &stacks, &Groups::of(snapshot, &stacks), None, |_| None)
}

fn shown(pin: &Pin) -> (Vec<&str>, u64, u64, u64) {
    let places = pin.sites.iter().filter_map(|site| site.place.as_deref());
    (places.collect(), pin.blocks.count, pin.segments, pin.free_bytes / MIB)
}

#[test]
fn free_memory_is_pinned_by_the_lines_of_live_blocks_or_idle() {
    let snapshot = fragmented().finish(0, 0);
    let segments = of(&snapshot);
    let [pool] = &segments.pools[..] else {
        panic!("one pool")
    };
    assert_eq!((pool.reserved_bytes, pool.live_bytes), (82 * MIB, 23 * MIB));
    assert_eq!(
        (pool.pinned, pool.idle),
        (Tally::new(37 * MIB, 3), Tally::new(22 * MIB, 2))
    );
    let pins: Vec<_> = pool.pins.iter().map(shown).collect();
    let first = (vec!["optimizer.py:88"], 3, 2, 34);
    assert_eq!(pins, [first, (vec!["train.py:212", "optimizer.py:88"], 2, 1, 3)]);
    let idle: Vec<_> = pool.idle_by.iter().map(|idle| (idle.why, idle.tally.bytes)).collect();
    assert_eq!(idle, [(IdleReason::Small, 2 * MIB), (IdleReason::Cached, 20 * MIB)]);
    for idle in &pool.idle_by {
        let requested = idle.sites.iter().map(|site| (site.place.as_deref(), site.tally));
        assert_eq!(requested.collect::<Vec<_>>(), [(Some("train.py:212"), idle.tally)]);
    }
    assert_eq!(pool.largest_free_run, 20 * MIB);
    // At most what is left of a block of 2 MiB for a request of more than 1, 1 MiB and 511 bytes of a larger one, and 511 of a small one.
    let most = 3 * (MIB - 1) + (MIB + 511) + 511;
    assert_eq!((pool.rounding_bytes, pool.rounding_is_known), (Some(most), false));
}

#[test]
fn settings_decide_how_much_of_a_block_may_be_rounding() {
    let mut snapshot = fragmented().finish(0, 0);
    let mut most = |settings: &str| {
        let variables = &mut snapshot.process.ranks;
        variables.insert("PYTORCH_CUDA_ALLOC_CONF".to_owned(), settings.to_owned());
        of(&snapshot).pools[0].rounding_bytes
    };
    // Half of each block but that of 2 MiB, of which more than 1 was requested.
    assert_eq!(
        most("roundup_power2_divisions:2"),
        Some(3 * (MIB - 1) + 9 * MIB + MIB / 2)
    );
    // Settings that are not understood.
    assert_eq!(most("backend:cudaMallocAsync"), None);
}

#[test]
fn a_segment_that_was_taken_while_a_graph_was_captured_is_of_a_private_pool() {
    let mut sample = fragmented();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    for address in [0x6000_0000, 0x7000_0000] {
        memory(&mut sample, Kind::Device, address, 20 * MIB, pool);
        sample.0.allocations.change_last(|_, call| call.pool = Some(3));
    }
    // As a graph's output has it, and from a line that keeps other segments, too.
    let state = sample.stack(&[RUNTIME, CACHING, OTHER]);
    tensor(&mut sample, 0x7000_0000, 2 * MIB, state);
    let snapshot = sample.finish(0, 0);
    let segments = of(&snapshot);
    let idle = segments.pools[0].idle_by.iter();
    let private = idle.filter(|idle| idle.why == IdleReason::PrivatePool);
    let [private] = &private.collect::<Vec<_>>()[..] else {
        panic!("{segments:?}")
    };
    assert_eq!(private.tally, Tally::new(20 * MIB, 1));
    let places = private.sites.iter().map(|site| (site.place.as_deref(), site.tally));
    assert_eq!(places.collect::<Vec<_>>(), [(Some("train.py:212"), private.tally)]);
    let pins = segments.pools[0]
        .pins
        .iter()
        .map(|pin| (pin.is_private, pin.free_bytes / MIB));
    assert_eq!(pins.collect::<Vec<_>>(), [(false, 34), (true, 18), (false, 3)]);
    let of = &segments.pools[0];
    let expected = (Tally::new(55 * MIB, 4), Tally::new(18 * MIB, 1));
    assert_eq!((of.pinned, of.pinned_private), expected);
    // A MemPool may have others.
    assert!(!segments.pools[0].pools_are_known);
}

#[test]
fn an_idle_segment_that_a_later_request_did_not_use_is_of_another_pool() {
    let snapshot = fragmented().finish(0, 0);
    let stacks = CallStacks::of(&snapshot);
    let segments = Segments::of(&snapshot, &stacks, &Groups::of(&snapshot, &stacks), Some(1), |at| {
        (at == 0x4000_0000).then_some(IdleReason::OtherPool)
    });
    let pool = &segments.pools[0];
    assert_eq!(pool.idle_by[0].why, IdleReason::OtherPool);
    assert_eq!((pool.pins.len(), pool.pins_hidden), (1, 1));
}

#[test]
fn what_the_recording_lacks_is_a_warning_here_too() {
    let mut sample = fragmented();
    sample.0.losses.lost_stacks = 3;
    sample.0.sampling = Some(Sampling {
        bytes: MIB,
        most_bytes: 0,
        left_out: None,
    });
    let snapshot = sample.finish(0, 0);
    let warnings = of(&snapshot).warnings;
    let has = |part: &str| warnings.iter().any(|warning| warning.contains(part));
    assert!(
        has("3 allocations recorded without a stack") && has("were sampled"),
        "{warnings:?}"
    );
}

#[test]
fn each_mapping_of_an_expandable_segment_is_kept_by_the_blocks_in_it() {
    let mut sample = Sample::new().running();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    for nth in 0..4 {
        memory(&mut sample, Kind::Physical, 0x7700 + nth, 20 * MIB, pool);
        memory(&mut sample, Kind::Mapping, 0x4000_0000 + nth * 20 * MIB, 20 * MIB, pool);
    }
    // One block in the first two mappings; the others can be unmapped.
    tensor(&mut sample, 0x4000_0000 + 10 * MIB, 20 * MIB, pool);
    let snapshot = sample.finish(0, 0);
    let segments = of(&snapshot);
    let pool = &segments.pools[0];
    assert_eq!((pool.reserved_bytes, pool.live_bytes), (80 * MIB, 20 * MIB));
    assert_eq!(
        (pool.pinned, pool.idle),
        (Tally::new(20 * MIB, 2), Tally::new(40 * MIB, 2))
    );
    assert_eq!(pool.largest_free_run, 50 * MIB);
    let pins: Vec<_> = pool.pins.iter().map(|pin| (pin.segments, pin.blocks)).collect();
    assert_eq!(
        pins,
        [(2, Tally::new(20 * MIB, 1))],
        "one block, although it is in both"
    );
}

fn failed(mut sample: Sample, requested: u64, stream: Option<Stream>) -> Unfit {
    sample.0.failed.push(Failed {
        bytes: requested,
        count: 1,
        kind: Kind::Tensor,
        api: "CUDACachingAllocator".to_owned(),
        device: Some(0),
        error: 2,
        thread: 0,
        stack: None,
        stream,
        first_ns: 0,
        last_ns: 0,
    });
    sample.0.taken.automatic = Some(Automatic {
        reason: Reason::OutOfMemory,
        name: None,
        failed: Some(sample.0.failed.len() - 1),
        limits: GroupLimits::default(),
    });
    let snapshot = sample.finish(0, 0);
    let failed = of(&snapshot).pools.remove(0).failed.expect("a failed request");
    assert_eq!(failed.requested_bytes, requested);
    failed
}

/// The blocks in the way of a request that failed, by bytes.
fn in_the_way(sample: Sample, requested: u64) -> Option<Vec<u64>> {
    bytes_in_the_way(&failed(sample, requested, None))
}

fn bytes_in_the_way(failed: &Unfit) -> Option<Vec<u64>> {
    let sites = failed.in_the_way.as_ref()?.iter();
    Some(sites.map(|site| site.tally.bytes).collect())
}

#[test]
fn segments_that_cannot_serve_a_failed_request_are_not_searched() {
    let of_streams = || {
        let mut sample = Sample::new().running();
        let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
        for (nth, stream) in [(1, Some(1)), (2, Some(2)), (3, None)] {
            let address = nth * 0x1000_0000;
            memory(&mut sample, Kind::Device, address, 20 * MIB, pool);
            sample.0.allocations.change_last(|_, call| {
                call.stream = stream.map(Stream::Handle);
                call.pool = stream.is_none().then_some(3);
            });
            tensor(&mut sample, address, (5 - nth) * MIB, pool);
        }
        memory(&mut sample, Kind::Device, 0x9000_0000, 2 * MIB, pool);
        sample
    };
    let large = failed(of_streams(), 20 * MIB, Some(Stream::Handle(1)));
    assert_eq!(bytes_in_the_way(&large), Some(vec![4 * MIB]));
    assert_eq!((large.unusable, large.stream_is_known), (Tally::new(42 * MIB, 3), true));
    assert_eq!((large.free_bytes, large.largest_free_run), (16 * MIB, 16 * MIB));
    // That of the other stream may serve it.
    let large = failed(of_streams(), 20 * MIB, None);
    assert_eq!(bytes_in_the_way(&large), Some(vec![3 * MIB]));
    assert_eq!(
        (large.unusable, large.stream_is_known),
        (Tally::new(22 * MIB, 2), false)
    );
    let small = failed(of_streams(), MIB, None);
    assert_eq!((small.unusable, small.free_bytes), (Tally::new(60 * MIB, 3), 2 * MIB));
}

#[test]
fn a_request_that_is_larger_than_all_segments_has_no_block_in_its_way() {
    assert_eq!(in_the_way(fragmented(), 20 * MIB), Some(vec![]));
    assert_eq!(in_the_way(fragmented(), 21 * MIB), None);
    let snapshot = fragmented().finish(0, 0);
    assert_eq!(of(&snapshot).pools[0].failed, None);
}

#[test]
fn the_fewest_blocks_in_the_way_of_a_failed_request_are_named() {
    for (requested, bytes) in [(7, 0), (8, 1), (13, 1), (14, 4), (20, 4)] {
        let mut sample = Sample::new().running();
        let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
        memory(&mut sample, Kind::Device, 0x1000_0000, 20 * MIB, pool);
        // 4 free, 3 live, 5 free, 1 live, 7 free
        tensor(&mut sample, 0x1000_0000 + 4 * MIB, 3 * MIB, pool);
        tensor(&mut sample, 0x1000_0000 + 12 * MIB, MIB, pool);
        let found = in_the_way(sample, requested * MIB).expect("the segment is large enough");
        assert_eq!(found.iter().sum::<u64>(), bytes * MIB, "{requested} MiB");
    }
}
