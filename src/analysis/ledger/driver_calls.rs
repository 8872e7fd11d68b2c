//! The driver call in which the kernel driver gave memory to the process, and what such memory serves.
//!
//! ```text
//! ioctl
//! libcuda.so.1+0x2f1c04     the driver, inside
//! libcuda.so.1+0x31d5aa
//! cuLaunchKernel            the outermost frame of the driver: the exported function names the call
//! libcudart.so.13           the runtime
//! fill_kernel_cuda          the caller: the binary that the memory is for
//! step       train.py:212   the call site
//! ```
//!
//! The recorder names that frame. A call through a private table of the driver has no exported function; then the caller alone is
//! known.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::analysis::site::{CallStack, CallStacks, Frame, Role};
use crate::snapshot::Snapshot;

/// What a driver call takes memory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A context.
    Context,
    /// A limit of a context: the pool for local memory.
    Limit,
    /// Blocks from `cuMemAlloc` and `cuMemAllocPitch`.
    Linear,
    /// Physical memory from `cuMemCreate`.
    Physical,
    /// Chunks of memory pools.
    Pool,
    Array,
    /// Modules, libraries, kernels and their attributes.
    Load,
    Launch,
    GraphLaunch,
    GraphExec,
    Stream,
    GreenContext,
    /// Pinned host memory of the program.
    Host,
    Other,
}

/// The beginnings of functions' names. The longest decides.
const PURPOSES: &[(Purpose, &str)] = &[
    (Purpose::Context, "cuDevicePrimaryCtxRetain cuCtxCreate cuGLCtxCreate"),
    (Purpose::Limit, "cuCtxSetLimit"),
    (Purpose::Stream, "cuStreamCreate cuGreenCtxStreamCreate"),
    (Purpose::GreenContext, "cuGreenCtx cuCtxFromGreenCtx"),
    (Purpose::GraphExec, "cuGraphInstantiate cuGraphExec cuGraphUpload"),
    (Purpose::GraphLaunch, "cuGraphLaunch"),
    (Purpose::Linear, "cuMemAlloc"),
    (Purpose::Physical, "cuMemCreate"),
    (Purpose::Pool, "cuMemAllocAsync cuMemAllocFromPoolAsync"),
    (Purpose::Array, "cuArray cuMipmappedArray"),
    (Purpose::Host, "cuMemAllocHost cuMemHost"),
    (
        Purpose::Load,
        "cuModule cuLibrary cuKernel cuFunc cuOccupancy cuLink cuGraphAdd cuGraphKernelNode",
    ),
    (Purpose::Launch, "cuLaunch"),
    (Purpose::Other, "cuMemAllocManaged"),
];

impl Purpose {
    fn of(function: &str) -> Purpose {
        let matching = PURPOSES.iter().flat_map(|(purpose, starts)| {
            let matching = starts.split(' ').filter(|start| function.starts_with(start));
            matching.map(|start| (start.len(), *purpose))
        });
        matching
            .max_by_key(|(length, _)| *length)
            .map_or(Purpose::Other, |(_, purpose)| purpose)
    }
}

/// The driver call on a stack.
#[derive(Debug, Clone, Copy)]
pub struct DriverCall<'a> {
    pub purpose: Purpose,
    /// The exported function; `None` if the driver was called through a private table, or its symbols are missing.
    pub function: Option<&'a str>,
    /// The file name of the module that called the driver or the CUDA runtime; empty if unknown.
    pub binary: &'a str,
}

/// Gives each segment in the place of an allocation the driver's exported function as the one that was called.
pub fn name_segments(snapshot: &mut Snapshot) {
    let functions: HashMap<Option<usize>, String> = {
        let stacks = CallStacks::of(snapshot);
        let rows = snapshot.allocations.iter().map(|row| row.stack);
        let named = rows.collect::<HashSet<_>>().into_iter();
        named
            .filter_map(|stack| Some((stack, DriverCall::of(stacks.get(stack)).function?.to_owned())))
            .collect()
    };
    snapshot.allocations.change(|_, segment, call| {
        if let Some(function) = functions.get(&segment.stack) {
            call.api.clone_from(function);
        }
    });
}

impl<'a> DriverCall<'a> {
    pub fn of(stack: &CallStack<'a>) -> DriverCall<'a> {
        let frames = &stack.frames;
        let first = frames.iter().position(is_of_driver).unwrap_or(frames.len());
        let inside = frames[first..].iter().take_while(|frame| is_of_driver(frame)).count();
        let (within, callers) = frames.split_at(first + inside);
        let function = within
            .last()
            .filter(|_| inside > 0)
            .and_then(|frame| frame.function)
            .filter(|function| function.starts_with("cu"));
        let caller = callers
            .iter()
            .find(|frame| frame.role != Role::Runtime && !frame.module.is_empty());
        DriverCall {
            purpose: function.map_or(Purpose::Other, Purpose::of),
            function,
            binary: caller.map_or("", Frame::module_name),
        }
    }
}

fn is_of_driver(frame: &Frame) -> bool {
    !frame.is_python() && frame.module_name().starts_with("libcuda.so")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::site::CallStacks;
    use crate::sample::{FrameText, MAIN, PYTHON, RUNTIME, Sample};

    const INSIDE: FrameText = ("", "", "/usr/lib/libcuda.so.1");

    fn call_of<R>(frames: &[FrameText], check: impl FnOnce(DriverCall) -> R) -> R {
        let mut sample = Sample::new();
        let stack = sample.stack(frames);
        check(DriverCall::of(CallStacks::of(&sample.0).get(Some(stack))))
    }

    #[test]
    fn the_outermost_function_of_the_driver_names_the_call_and_the_next_module_the_binary() {
        let launch = ("cuLaunchKernel", "", "/usr/lib/libcuda.so.1");
        let hook = ("cuLaunchKernel", "", "/opt/libculeak_preload.so");
        let kernel = ("fill_kernel_cuda", "", "/v/torch/lib/libtorch_cuda.so");
        let step = ("step", "/home/me/train.py:3", PYTHON);
        call_of(&[INSIDE, INSIDE, launch, hook, RUNTIME, kernel, step], |call| {
            assert_eq!(call.purpose, Purpose::Launch);
            assert_eq!(
                (call.function, call.binary),
                (Some("cuLaunchKernel"), "libtorch_cuda.so")
            );
        });
    }

    #[test]
    fn a_call_without_an_exported_function_has_only_a_binary() {
        call_of(&[INSIDE, INSIDE, RUNTIME, MAIN], |call| {
            assert_eq!(call.purpose, Purpose::Other);
            assert_eq!((call.function, call.binary), (None, "app"));
        });
        call_of(&[MAIN], |call| assert_eq!(call.purpose, Purpose::Other));
    }

    #[test]
    fn versions_and_stream_variants_of_a_function_serve_the_same() {
        for (function, purpose) in [
            ("cuMemAlloc_v2", Purpose::Linear),
            ("cuMemAllocPitch_v2", Purpose::Linear),
            ("cuMemAllocAsync_ptsz", Purpose::Pool),
            ("cuMemAllocHost_v2", Purpose::Host),
            ("cuCtxCreate_v4", Purpose::Context),
            ("cuGreenCtxStreamCreate", Purpose::Stream),
            ("cuGreenCtxCreate", Purpose::GreenContext),
            ("cuGraphInstantiateWithParams_ptsz", Purpose::GraphExec),
            ("cuArray3DCreate_v2", Purpose::Array),
            ("cuMemsetD8_v2", Purpose::Other),
        ] {
            assert_eq!(Purpose::of(function), purpose, "{function}");
        }
    }
}
