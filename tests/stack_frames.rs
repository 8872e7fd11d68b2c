//! Which frames stacks consist of (`CULEAK_STACKS`): those of Python, native ones, or both.

use culeak::kind::Kind;
use culeak::snapshot::Snapshot;

use crate::interpreters::recorded;
use crate::support::claims::Claims;
use crate::support::{Profile, program};
use crate::tensors::{tensors, torch};

/// Starts CUDA and allocates a tensor of the stand-in for PyTorch.
const PYTHON: &str = r#"
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
device, context = ctypes.c_int(), ctypes.c_void_p()
assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert driver.cuCtxSetCurrent(context) == 0
torch = ctypes.CDLL(sys.argv[1])
torch.stand_in_malloc.restype = ctypes.c_void_p
def training_step():
    return torch.stand_in_malloc(ctypes.c_size_t(1024))
assert training_step()
"#;

/// The languages of the frames of the only record of a kind: is any Python, is any native.
fn languages(snapshot: &Snapshot, kind: Kind) -> (bool, bool) {
    let stack = &snapshot.stacks[snapshot.only(kind).stack.expect("a stack")];
    let native = |frame: &usize| snapshot.locations[*frame].language.is_native();
    (!stack.frames.iter().all(native), stack.frames.iter().any(native))
}

fn with_stacks(python: &std::path::Path, frames: &str) -> Profile {
    let [cuda, _] = torch(1, &[]);
    program(python)
        .arg("-c")
        .arg(PYTHON)
        .arg(cuda)
        .setting("CULEAK_STACKS", frames)
}

#[test]
fn stacks_consist_of_the_chosen_frames() {
    for python in recorded() {
        for (frames, of_tensor, of_segment) in [
            ("both", (true, true), (true, true)),
            ("python", (true, false), (true, true)),
            ("native", (false, true), (false, true)),
        ] {
            let outcome = with_stacks(python.command.as_ref(), frames).run();
            outcome.expect_success();
            let snapshot = outcome.only_snapshot();
            assert_eq!(languages(snapshot, Kind::Tensor), of_tensor, "{frames}");
            // Reports recognize caching allocators by native frames.
            assert_eq!(languages(snapshot, Kind::Device), of_segment, "{frames}");
            let no_frames = snapshot
                .process
                .python
                .as_ref()
                .and_then(|python| python.no_frames.as_deref());
            assert_eq!(no_frames.is_some(), frames == "native", "{no_frames:?}");
            let symbolized = outcome.symbolized();
            let functions = symbolized.functions(symbolized.only(Kind::Tensor));
            if frames != "native" {
                assert!(
                    functions.iter().any(|function| function == "training_step"),
                    "{functions:?}"
                );
            }
        }
    }
}

#[test]
fn a_thread_without_python_frames_has_native_ones() {
    let outcome = tensors("leaks", &torch(1, &[]))
        .setting("CULEAK_STACKS", "python")
        .run();
    outcome.expect_success();
    let snapshot = outcome.symbolized();
    for tensor in snapshot.of_kind(Kind::Tensor) {
        assert_eq!(snapshot.functions(tensor)[..2], ["stand_in_malloc", "training_step"]);
    }
}
