//! `--no-pool`: the switches by which frameworks give up their caching allocators, so that every block is an allocation of
//! CUDA's own, seen with its stack and with the very bytes asked for.
//!
//! It is the fallback: culeak sees the blocks of PyTorch's allocator as it is, at a fraction of the cost. What is set is
//! told, with what it costs. A variable that the user has set stays. Deliberately absent: frameworks without such a
//! variable; they are named, so that nobody takes silence for success.

use std::ffi::OsString;
use std::io::{self, Write};

struct Switch {
    framework: &'static str,
    name: &'static str,
    value: &'static str,
    cost: &'static str,
}

const SWITCHES: [Switch; 6] = [
    Switch {
        framework: "PyTorch",
        name: "PYTORCH_NO_CUDA_MEMORY_CACHING",
        value: "1",
        cost: "each free waits for the GPU, so timing changes and races hide; CUDA graphs cannot be captured; torch's own memory statistics read 0",
    },
    Switch {
        framework: "JAX, XLA",
        name: "XLA_PYTHON_CLIENT_ALLOCATOR",
        value: "platform",
        cost: "very slow; temporaries of a computation are still one block",
    },
    Switch {
        framework: "JAX, XLA",
        name: "XLA_PYTHON_CLIENT_PREALLOCATE",
        value: "false",
        cost: "memory is asked for when it is needed, so it may run out later than usual",
    },
    Switch {
        framework: "TensorFlow",
        name: "TF_GPU_ALLOCATOR",
        value: "cuda_malloc_async",
        cost: "blocks come from CUDA's own pool, which keeps freed memory",
    },
    Switch {
        framework: "numba",
        name: "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT",
        value: "0",
        cost: "each free waits for the GPU",
    },
    Switch {
        framework: "cudf.pandas",
        name: "CUDF_PANDAS_RMM_MODE",
        value: "cuda",
        cost: "no managed memory: what does not fit on the GPU fails",
    },
];

/// Frameworks that cannot be told by their environment, and how else.
const OTHERS: &str =
    "not reached this way: CuPy (cupy.cuda.set_allocator(None) in the program), ONNX Runtime, llama.cpp";

/// The variables to set: those the user has not set.
pub fn changes(present: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, &'static str)> {
    let free = SWITCHES.iter().filter(|switch| present(switch.name).is_none());
    free.map(|switch| (switch.name, switch.value)).collect()
}

/// Says what is set and what that costs.
pub fn tell(present: impl Fn(&str) -> Option<OsString>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "culeak: --no-pool sets, for the program and what it starts:")?;
    for switch in &SWITCHES {
        match present(switch.name) {
            None => writeln!(
                out,
                "  {}={}  ({}: {})",
                switch.name, switch.value, switch.framework, switch.cost
            )?,
            Some(value) => writeln!(
                out,
                "  {} stays as you set it: {}",
                switch.name,
                value.to_string_lossy()
            )?,
        }
    }
    writeln!(out, "  {OTHERS}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_has_set_stays_and_all_is_told() {
        let present = |name: &str| (name == "TF_GPU_ALLOCATOR").then(|| OsString::from("mine"));
        let set = changes(present);
        assert_eq!(set.len(), SWITCHES.len() - 1);
        assert!(set.contains(&("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")));
        assert!(set.iter().all(|(name, _)| *name != "TF_GPU_ALLOCATOR"));
        let mut told = Vec::new();
        tell(present, &mut told).expect("written");
        let told = String::from_utf8(told).expect("text");
        for switch in &SWITCHES {
            assert!(told.contains(switch.name), "{} is not told of:\n{told}", switch.name);
        }
        assert!(told.contains("stays as you set it: mine"), "{told}");
    }
}
