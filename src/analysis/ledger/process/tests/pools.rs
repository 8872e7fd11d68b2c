//! CUDA's pools: that for local memory, chunks with the blocks in them, and memory of graphs.

use super::*;

#[test]
fn each_context_has_a_pool_for_local_memory() {
    let mut sample = Sample::new();
    sample.0.contexts.push(Context {
        heap_limit: None,
        handle: 0x6666_0000,
        device: Some(0),
        primary: false,
        first_seen_ns: 2,
        destroyed_ns: None,
    });
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes_context(MAIN, Some(414 * MIB));
    assert_eq!(
        lines(&sample),
        [
            (LineKind::LocalMemory, 828 * MIB, 2, true),
            (LineKind::Context, 208 * MIB, 2, true)
        ]
    );
}

#[test]
fn a_pool_that_is_too_small_to_recognize_stays_in_the_line_of_the_context() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(20 * MIB));
    assert_eq!(lines(&sample), [(LineKind::Context, 124 * MIB, 1, true)]);
}

#[test]
fn pools_hold_chunks_beyond_their_blocks() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Async, "cudaMallocAsync", 1, 100, stack);
    sample.takes("cuMemAllocFromPoolAsync_ptsz", &[RUNTIME, MAIN], &[32 * MIB; 100]);
    assert_eq!(
        lines(&sample)[..2],
        [
            (LineKind::Program, 100, 100, true),
            (LineKind::CudaPools, 3200 * MIB - 100, 100, true)
        ]
    );
}

/// Of a pool whose chunks were taken in an unseen call, the blocks count for the default pool.
#[test]
fn each_pool_has_its_chunks_its_blocks_and_the_line_that_created_it() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    let stack = sample.stack(&[RUNTIME, MAIN]);
    for (handle, bytes) in [(Some(0x70), 300), (Some(0x99), 500), (None, 700)] {
        sample.holds(Kind::Async, "cudaMallocAsync", bytes, 1, stack);
        sample.0.allocations.change_last(|_, call| call.pool = handle);
    }
    sample.holds(Kind::Graph, "cudaGraphLaunch", 3 * MIB, 1, stack);
    sample.holds(Kind::Pool, "cudaMemPoolCreate", 0, 1, stack);
    sample.0.allocations.change_last(|row, _| row.address = 0x70);
    let alloc = "cuMemAllocFromPoolAsync";
    sample.takes(alloc, &[RUNTIME, MAIN], &[64 * MIB]);
    sample.0.segments.change_last(|_, call| call.pool = Some(0x70));
    sample.takes(alloc, &[RUNTIME, MAIN], &[32 * MIB]);
    sample.takes("cuGraphLaunch", &[RUNTIME, MAIN], &[32 * MIB]);
    // A call that was left by an exception may leave its pool behind.
    sample.0.segments.change_last(|_, call| call.pool = Some(0x70));
    ledger(&sample, |device| {
        let line = device.lines.iter().find(|line| line.what == LineKind::CudaPools);
        let pools = line.expect("a line of pools").pools.iter();
        let rows: Vec<_> = pools
            .map(|of| {
                (
                    of.of,
                    of.handle,
                    of.bytes / MIB,
                    of.chunks,
                    of.live_bytes,
                    of.blocks,
                    of.name.is_some(),
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                (PoolOf::Program, Some(0x70), 64, 1, 300, 1, true),
                (PoolOf::Device, None, 32, 1, 1200, 2, false),
                (PoolOf::Graphs, None, 32, 1, 3 * MIB, 1, false),
            ]
        );
    });
}

/// What was given back since has neither thread nor stream nor pool.
#[test]
fn at_an_earlier_time_pools_are_divided_if_none_of_a_programs_own_is_affected() {
    let freed_since = |sample: &mut Sample, is_chunk: bool| {
        let thread = crate::snapshot::at::unknown_thread(&mut sample.0.threads);
        match is_chunk {
            true => sample.0.segments.change_last(|_, call| call.thread = thread),
            false => sample.0.allocations.change_last(|_, call| call.stream = None),
        }
    };
    let pools = |own_pool: bool, chunk_freed: bool, block_freed: bool| {
        let mut sample = Sample::new();
        sample.takes_context(MAIN, Some(414 * MIB));
        let stack = sample.stack(&[RUNTIME, MAIN]);
        if own_pool {
            sample.has_objects(Kind::Pool, 0, 1, stack);
            sample.0.counters = std::mem::take(&mut sample.0.object_counters);
        }
        sample.holds(Kind::Async, "cudaMallocAsync", 300, 1, stack);
        if block_freed {
            freed_since(&mut sample, false);
        }
        sample.takes("cuMemAllocFromPoolAsync", &[RUNTIME, MAIN], &[64 * MIB]);
        if chunk_freed {
            freed_since(&mut sample, true);
        }
        sample.0.taken.point = Some(Point::Time(5));
        ledger(&sample, |device| {
            let line = device.lines.iter().find(|line| line.what == LineKind::CudaPools);
            line.expect("a line of pools").pools.len()
        })
    };
    assert_eq!(pools(true, false, false), 1, "all is known");
    assert_eq!(pools(false, true, true), 1, "there is only the default pool");
    assert_eq!((pools(true, true, false), pools(true, false, true)), (0, 0));
}

#[test]
fn memory_of_graphs_is_in_chunks_and_code_of_a_graph_launch_is_not() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Graph, "cudaGraphLaunch", 3 * MIB, 1, stack);
    sample.takes("cuGraphLaunch", &[RUNTIME, MAIN], &[32 * MIB, 2 * MIB]);
    assert_eq!(
        lines(&sample)[..4],
        [
            (LineKind::Program, 3 * MIB, 1, true),
            (LineKind::CudaPools, 29 * MIB, 1, true),
            (LineKind::LocalMemory, 414 * MIB, 1, true),
            (LineKind::Code, 2 * MIB, 1, true),
        ]
    );
}
