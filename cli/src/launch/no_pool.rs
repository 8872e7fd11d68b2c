//! `--no-pool`: environment variables that switch off the caching allocators of frameworks. Every block is then a CUDA
//! allocation, recorded with its stack and its requested size.
//!
//! This is a fallback: culeak records the blocks of PyTorch's allocator without it, at a fraction of the cost. The variables
//! and their costs are printed. A variable that the user has set stays. Deliberately absent: frameworks without such a
//! variable; the message lists them.

use std::ffi::OsString;
use std::io::{self, Write};

use culeak::table;

/// Framework, variable, value, and what that costs.
const SWITCHES: [(&str, &str, &str, &str); 6] = table! {
    "PyTorch", "PYTORCH_NO_CUDA_MEMORY_CACHING", "1",
        "each free waits for the GPU, which changes timing and may hide races; CUDA graphs cannot be captured; \
         torch's memory statistics are 0";
    "JAX, XLA", "XLA_PYTHON_CLIENT_ALLOCATOR", "platform",
        "very slow; the temporaries of a computation remain one block";
    "JAX, XLA", "XLA_PYTHON_CLIENT_PREALLOCATE", "false",
        "memory is allocated on demand, so the program may run out of it later than usual";
    "TensorFlow", "TF_GPU_ALLOCATOR", "cuda_malloc_async",
        "blocks come from a CUDA memory pool, which keeps freed memory";
    "numba", "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT", "0", "each free waits for the GPU";
    "cudf.pandas", "CUDF_PANDAS_RMM_MODE", "cuda",
        "no managed memory: allocations that do not fit on the GPU fail";
};

/// Frameworks without such a variable, and what to do instead.
const OTHERS: &str = "not affected: CuPy (call cupy.cuda.set_allocator(None) in the program), ONNX Runtime, llama.cpp";

/// The variables to set: all that the user has not set.
pub fn changes(present: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, &'static str)> {
    let free = SWITCHES.iter().filter(|(_, name, ..)| present(name).is_none());
    free.map(|(_, name, value, _)| (*name, *value)).collect()
}

/// Prints the variables and their costs.
pub fn report(present: impl Fn(&str) -> Option<OsString>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "culeak: --no-pool sets these variables for the program and its children:"
    )?;
    for (framework, name, value, cost) in SWITCHES {
        match present(name) {
            None => writeln!(out, "  {name}={value}  ({framework}: {cost})")?,
            Some(own) => writeln!(out, "  {name} keeps your value: {}", own.to_string_lossy())?,
        }
    }
    writeln!(out, "  {OTHERS}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_reported_and_user_settings_stay() {
        let present = |name: &str| (name == "TF_GPU_ALLOCATOR").then(|| OsString::from("mine"));
        let set = changes(present);
        assert_eq!(set.len(), SWITCHES.len() - 1);
        assert!(set.contains(&("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")));
        assert!(set.iter().all(|(name, _)| *name != "TF_GPU_ALLOCATOR"));
        let mut report_bytes = Vec::new();
        report(present, &mut report_bytes).expect("written");
        let text = String::from_utf8(report_bytes).expect("text");
        for (_, name, ..) in SWITCHES {
            assert!(text.contains(name), "{name} is missing:\n{text}");
        }
        assert!(text.contains("keeps your value: mine"), "{text}");
    }
}
