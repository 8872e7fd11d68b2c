//! PyTorch's memory_viz: what its viewer shows is what the report lists.

use super::*;

/// Bytes in the active blocks of a written snapshot, and what the format left out.
fn in_the_viewer(snapshot: &Snapshot) -> (u64, u64) {
    let mut left_out = 0;
    let bytes = written(|out| {
        left_out = memory_viz::write(snapshot, None, &Options::default(), SHORT, out)?
            .0
            .bytes;
        Ok(())
    });
    let pickle = pickle::read(&bytes).expect("a pickle");
    let get = |from, name| pickle.get(from, name).expect(name);
    let number = |from, name| pickle.number(get(from, name)).expect(name);
    let items = |from, name| pickle.items(get(from, name)).expect(name).iter().copied();
    let mut active = 0;
    for segment in items(pickle.root(), "segments") {
        let (mut at, mut allocated) = (number(segment, "address"), 0);
        for block in items(segment, "blocks") {
            assert_eq!(number(block, "address"), at, "blocks without gaps");
            at += number(block, "size");
            if pickle.text(get(block, "state")) == Some("active_allocated") {
                allocated += number(block, "size");
            }
        }
        assert_eq!(at, number(segment, "address") + number(segment, "total_size"));
        assert_eq!(allocated, number(segment, "allocated_size"));
        active += allocated;
    }
    let traced: u64 = items(pickle.root(), "device_traces")
        .flat_map(|trace| pickle.items(trace).expect("a trace").to_vec())
        .filter(|&event| pickle.text(get(event, "action")) == Some("alloc"))
        .map(|event| number(event, "size"))
        .sum();
    assert_eq!(traced, active, "every live block has its event");
    (active, left_out)
}

#[test]
fn pytorchs_viewer_shows_what_the_report_lists_on_devices() {
    for snapshot in samples() {
        let mapped = |allocation: &culeak::snapshot::Allocation| allocation.kind == Kind::Mapping;
        let windows: u64 = match snapshot.allocators.is_empty() {
            true => snapshot
                .allocations
                .iter()
                .filter(mapped)
                .map(|mapping| mapping.requested)
                .sum(),
            false => 0,
        };
        let (active, left_out) = in_the_viewer(&snapshot);
        assert_eq!(active - windows + left_out, reported(&snapshot).bytes);
    }
    assert_eq!(in_the_viewer(&training().finish(0, 0)), (42 * MIB, MIB));
}

#[test]
fn a_memory_viz_file_is_read_back() {
    let snapshot = training().finish(0, 3);
    let bytes = written(|out| memory_viz::write(&snapshot, None, &Options::default(), SHORT, out).map(drop));
    let back = crate::load::memory_viz::read(&bytes, "back.pickle").expect("read");
    back.validate().expect("valid");
    let tensors = |snapshot: &Snapshot| {
        let tensors = snapshot
            .allocations
            .iter()
            .filter(|allocation| allocation.kind == Kind::Tensor);
        let stacks = CallStacks::of(snapshot);
        let places = tensors.map(|tensor| {
            let site = stacks.get(tensor.stack).site().expect("a site").place();
            (tensor.address, tensor.bytes, tensor.requested, site)
        });
        places.collect::<BTreeSet<_>>()
    };
    let wanted = tensors(&snapshot);
    assert_eq!(wanted.len(), 2);
    assert!(wanted.is_subset(&tensors(&back)), "{:?}", tensors(&back));
    assert_eq!(
        tensors(&back).len(),
        4,
        "with the blocks of the program itself and of cuBLAS"
    );
}

#[test]
fn a_tensor_over_two_mappings_lies_in_one_segment() {
    let mut snapshot = training().finish(0, 3);
    let whole = snapshot.allocations.clone();
    let mapping = whole
        .iter()
        .find(|allocation| allocation.kind == Kind::Mapping)
        .expect("a mapping");
    // The first tensor of 4 MiB lies over 2 MiB of one and 18 MiB of the next.
    snapshot.allocations.change(|_, allocation, _| {
        if allocation.address == mapping.address && allocation.bytes == 0 {
            allocation.requested = 2 * MIB;
        }
    });
    snapshot.allocations.push(culeak::snapshot::Allocation {
        address: mapping.address + 2 * MIB,
        requested: 18 * MIB,
        ..mapping
    });
    assert_eq!(in_the_viewer(&snapshot), (42 * MIB, MIB));
}
