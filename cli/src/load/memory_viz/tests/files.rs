//! Files as the allocators for several devices write them (`tests/data/memory_viz/make.py`).

use culeak::analysis::profile;

use super::*;
use crate::export::memory_viz;
use crate::names::Detail;

const SHORT: Detail = Detail {
    signatures: false,
    lines: true,
};

const CUDA: &[u8] = include_bytes!("../../../../../tests/data/memory_viz/cuda.pickle");
const XPU: &[u8] = include_bytes!("../../../../../tests/data/memory_viz/xpu.pickle");
const NPU: &[u8] = include_bytes!("../../../../../tests/data/memory_viz/npu.pickle");
const NEURON: &[u8] = include_bytes!("../../../../../tests/data/memory_viz/neuron.pickle");

fn of(bytes: &[u8]) -> Snapshot {
    let snapshot = read(bytes, "dump.pickle").expect("read");
    snapshot.validate().expect("valid");
    snapshot
}

/// The functions of each tensor's stack, innermost first, in order of address.
fn functions(snapshot: &Snapshot) -> Vec<Vec<&str>> {
    let tensors = snapshot.allocations.iter().filter(|row| row.kind == Kind::Tensor);
    let mut tensors: Vec<Allocation> = tensors.collect();
    tensors.sort_by_key(|tensor| tensor.address);
    let stack = |tensor: Allocation| {
        let frames = tensor.stack.map_or(&[][..], |stack| &snapshot.stacks[stack].frames);
        let function = |&frame: &usize| snapshot.locations[frame].symbols[0].function.as_str();
        frames.iter().map(function).collect()
    };
    tensors.into_iter().map(stack).collect()
}

#[test]
fn what_the_program_said_about_a_tensor_is_a_frame_outside_its_own() {
    let snapshot = of(CUDA);
    let new = [
        "at::empty_cuda(long)",
        "step",
        "<module>",
        "layer\u{a0}3",
        "Torch-Compiled\u{a0}Region:\u{a0}0/1",
        "saved\u{a0}for\u{a0}backward",
    ];
    assert_eq!(functions(&snapshot), [&["weights"][..], &new, &["step", "<module>"]]);
    let stacks = CallStacks::of(&snapshot);
    let sites = snapshot.allocations.iter().filter(|row| row.kind == Kind::Tensor);
    let sites = sites.map(|row| {
        stacks
            .get(row.stack)
            .site()
            .map(|site| site.function.unwrap_or("").to_owned())
    });
    let sites: Vec<_> = sites.flatten().collect();
    assert_eq!(sites, ["weights", "step", "step"]);
    let labelled = snapshot
        .allocations
        .iter()
        .find(|row| row.kind == Kind::Tensor && row.time_ns == 400_000);
    let shown = stacks.get(labelled.expect("the tensor").stack).shown();
    let shown: Vec<&str> = shown.filter_map(|frame| frame.function).collect();
    assert!(shown.ends_with(&new[3..]), "{shown:?}");
    assert_eq!(snapshot.marks.len(), 1);
    assert_eq!(
        (snapshot.process.ranks[VARIABLE].as_str(), snapshot.taken.by.as_str()),
        ("max_split_size_mb:64", "PyTorch")
    );
}

#[test]
fn each_devices_snapshots_are_recognized_and_reported_alike() {
    for (bytes, by, api, tensors, failed) in [
        (CUDA, "PyTorch", "CUDACachingAllocator", 3, 0),
        (XPU, "torch.xpu, with native stacks", "XPUCachingAllocator", 2, 1),
        (NPU, "torch_npu, without native stacks", "NPUCachingAllocator", 3, 1),
        (
            NEURON,
            "torch_neuronx, without native stacks",
            "NeuronCachingAllocator",
            1,
            0,
        ),
    ] {
        let snapshot = of(bytes);
        assert_eq!((snapshot.taken.by.as_str(), snapshot.failed.len()), (by, failed));
        assert!(snapshot.taken.is_by_pytorch() && !snapshot.is_complete());
        assert!(snapshot.allocations.iter().all(|row| row.call.api == api));
        let report = Report::of(&snapshot, &Options::default());
        assert_eq!(report.totals.held.total().count, tensors, "{by}");
        assert!(report.totals.pool.bytes > 0, "{by}: the rest of segments is cached");
    }
}

#[test]
fn a_file_that_is_written_again_keeps_pools_settings_annotations_and_what_was_there_before() {
    let snapshot = of(CUDA);
    let mut bytes = Vec::new();
    memory_viz::write(&snapshot, None, &profile::Options::default(), SHORT, &mut bytes).expect("written");
    let again = of(&bytes);
    let rows = |snapshot: &Snapshot| {
        let rows = snapshot.allocations.iter();
        let mut rows: Vec<_> = rows
            .map(|row| (row.address, row.bytes, row.kind, row.call.pool, row.time_ns > 0))
            .collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(rows(&again), rows(&snapshot));
    let labels = |snapshot: &Snapshot| {
        let labels = [
            "weights",
            "layer\u{a0}3",
            "Torch-Compiled\u{a0}Region:\u{a0}0/1",
            "saved\u{a0}for\u{a0}backward",
        ];
        let of_stack = |stack: Vec<&str>| {
            stack
                .iter()
                .filter_map(|name| labels.iter().position(|label| label == name))
                .collect()
        };
        functions(snapshot)
            .into_iter()
            .map(of_stack)
            .collect::<Vec<Vec<usize>>>()
    };
    assert_eq!(labels(&again), [vec![0], vec![1, 2, 3], vec![]]);
    assert_eq!(labels(&again), labels(&snapshot));
    assert_eq!(again.process.ranks, snapshot.process.ranks);
    assert_eq!(again.marks[0].name, "epoch 2");
    let pickle = pickle::read(&bytes).expect("a pickle");
    let trace = pickle
        .items(pickle.get(pickle.root(), "device_traces").expect("traces"))
        .expect("a list")[0];
    let text = |entry, name| pickle.text(pickle.get(entry, name)?);
    let entries = pickle.items(trace).expect("a list").iter().map(|&entry| {
        let stream = pickle.number(pickle.get(entry, "stream").expect("a stream"));
        let texts = ["action", "user_metadata", "compile_context"].map(|name| text(entry, name).unwrap_or(""));
        (texts, stream.expect("a number"))
    });
    // The block without a time was there before the history.
    let expected = [
        (["annotate", "weights", ""], 0),
        (["alloc", "layer 3", "Torch-Compiled Region: 0/1"], 0),
        (["annotate", "saved for backward", ""], 0),
        (["alloc", "", ""], 0x5555),
    ];
    assert_eq!(entries.collect::<Vec<_>>(), expected);
    let frames = pickle.texts().filter(|text| text.contains("<metadata>"));
    assert_eq!(frames.count(), 0, "labels are no frames in PyTorch's files");
    let xpu = of(XPU);
    bytes.clear();
    memory_viz::write(&xpu, None, &profile::Options::default(), SHORT, &mut bytes).expect("written");
    assert_eq!(of(&bytes).taken.by, xpu.taken.by);
}
