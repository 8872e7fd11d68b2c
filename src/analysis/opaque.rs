//! Opaque pools: memory of caching allocators whose blocks were not recorded, and how to record those.
//!
//! A pool that was recorded without its blocks may be free, or full of leaks. A report that lists nothing else must not say that
//! nothing is held, and a check must not pass on it. Which memory belongs to such a pool is decided in `groups`
//! ([`Level::Cached`]). Deliberately absent: adapters that are always on. Each of them runs code at every block that the program
//! did not ask for, so the user chooses them.

use serde::Serialize;

use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::site::CallStacks;
use crate::analysis::words;
use crate::kind::Place;
use crate::snapshot::Snapshot;
use crate::tally::Tally;

/// How the blocks of an allocator get into a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remedy {
    /// An adapter of the Python package, by its name in `CULEAK_ADAPTERS`.
    Adapter(&'static str),
    /// An option of `culeak run`.
    Option(&'static str),
}

const REMEDIES: &[(&str, Remedy)] = &[
    ("PyTorch", Remedy::Option("--no-pool")),
    ("XLA", Remedy::Option("--record jax")),
    ("CuPy", Remedy::Adapter("cupy")),
    ("RMM", Remedy::Adapter("rmm")),
    ("TensorFlow", Remedy::Adapter("tensorflow")),
    ("ONNX Runtime", Remedy::Adapter("onnxruntime")),
];

/// The memory of a caching allocator of which an unknown part is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpaquePool {
    /// `CuPy`.
    pub owner: &'static str,
    /// Blocks in host memory are never recorded.
    pub on_host: bool,
    #[serde(flatten)]
    pub tally: Tally,
    /// What to record with, so that the blocks are known; `None`: they cannot be recorded.
    pub remedy: Option<String>,
}

impl OpaquePool {
    pub fn new(owner: &'static str, on_host: bool, tally: Tally) -> OpaquePool {
        let remedy = remedy(owner).filter(|_| !on_host).map(|remedy| match remedy {
            Remedy::Adapter(name) => format!("CULEAK_ADAPTERS={name}"),
            Remedy::Option(option) => option.to_owned(),
        });
        OpaquePool {
            owner,
            on_host,
            tally,
            remedy,
        }
    }

    /// The opaque pools of a snapshot, largest first.
    pub fn all(snapshot: &Snapshot) -> Vec<OpaquePool> {
        let stacks = CallStacks::of(snapshot);
        OpaquePool::among(Groups::of(snapshot, &stacks).all.iter(), &stacks)
    }

    /// The opaque pools that these groups belong to, largest first.
    pub fn among<'g, 'a: 'g>(groups: impl IntoIterator<Item = &'g Group<'a>>, stacks: &CallStacks) -> Vec<OpaquePool> {
        let cached = groups.into_iter().filter(|group| group.level == Level::Cached);
        let parts = cached.filter_map(|group| {
            let owner = stacks.get(group.stack).allocator?;
            let on_host = group.call.kind.place() == Place::Host;
            Some(OpaquePool::new(owner, on_host, group.tally()))
        });
        OpaquePool::merged(parts)
    }

    /// One for each owner and place, largest first.
    pub fn merged(parts: impl IntoIterator<Item = OpaquePool>) -> Vec<OpaquePool> {
        let mut pools: Vec<OpaquePool> = Vec::new();
        for part in parts {
            match pools
                .iter_mut()
                .find(|pool| (pool.owner, pool.on_host) == (part.owner, part.on_host))
            {
                Some(pool) => pool.tally.join(part.tally),
                None => pools.push(part),
            }
        }
        pools.sort_by_key(|pool| (std::cmp::Reverse(pool.tally.bytes), pool.owner, pool.on_host));
        pools
    }

    /// `8 MiB in CuPy's pool: which part is in use is unknown; record with CULEAK_ADAPTERS=cupy`, and what that needs. `when`:
    /// `when the script ended`.
    pub fn sentence(&self, when: Option<&str>) -> String {
        match self.parts(when) {
            (what, next) if next.is_empty() => what,
            (what, next) => format!("{what}; {next}"),
        }
    }

    /// What is unknown, and how to record it; the latter is empty if no recording has it.
    pub fn parts(&self, when: Option<&str>) -> (String, String) {
        let verb = if when.is_some() { "was" } else { "is" };
        let when = when.map(|when| format!(" {when}")).unwrap_or_default();
        let (size, place) = (
            words::bytes(self.tally.bytes),
            if self.on_host { " of host memory" } else { "" },
        );
        let needs = match remedy(self.owner) {
            Some(Remedy::Adapter(_)) if !self.on_host => ", which needs culeak's Python package",
            _ => "",
        };
        let how = self.remedy.iter().map(|remedy| format!("record with {remedy}{needs}"));
        (
            format!(
                "{size} in {}'s pool{place}{when}: which part {verb} in use is unknown",
                self.owner
            ),
            how.collect(),
        )
    }
}

fn remedy(owner: &str) -> Option<Remedy> {
    REMEDIES.iter().find(|(of, _)| *of == owner).map(|(_, remedy)| *remedy)
}

/// `CULEAK_ADAPTERS=cupy culeak run -- python train.py`: the command that records the blocks of these pools. `None` if none of them
/// can be recorded, or the command is not known.
pub fn recording_command(pools: &[OpaquePool], command_line: &[String]) -> Option<String> {
    if command_line.is_empty() {
        return None;
    }
    let known = pools.iter().filter(|pool| pool.remedy.is_some());
    let (mut adapters, mut options) = (Vec::new(), Vec::new());
    for pool in known {
        match remedy(pool.owner)? {
            Remedy::Adapter(name) => adapters.push(name),
            Remedy::Option(option) => options.push(option),
        }
    }
    if adapters.is_empty() && options.is_empty() {
        return None;
    }
    let variable = match adapters.as_slice() {
        [] => String::new(),
        names => format!("CULEAK_ADAPTERS={} ", names.join(",")),
    };
    let options: String = options.iter().map(|option| format!(" {option}")).collect();
    let words: Vec<String> = command_line.iter().map(|word| words::quoted(word)).collect();
    Some(format!("{variable}culeak run{options} -- {}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::sample::{MAIN, MIB, RUNTIME, Sample};

    /// A program with pools of these owners, each by a function of its allocator.
    fn pooled(pools: &[(&str, &str, Kind, u64)]) -> Snapshot {
        let mut sample = Sample::new();
        for &(function, module, kind, bytes) in pools {
            let stack = sample.stack(&[RUNTIME, (function, "", module), MAIN]);
            sample.holds(kind, "cudaMalloc", bytes, 2, stack);
        }
        sample.finish(0, 0)
    }

    const CUPY: (&str, &str) = ("", "/venv/cupy/cuda/memory.cpython-312-x86_64-linux-gnu.so");
    const XLA: (&str, &str) = ("tsl::BFCAllocator::Extend(unsigned long)", "/venv/xla_cuda_plugin.so");

    #[test]
    fn every_known_framework_has_a_remedy_except_in_host_memory() {
        let owners = REMEDIES.iter().map(|(owner, _)| *owner);
        for owner in owners.chain(crate::analysis::framework::OWNERS.iter().copied()) {
            let pool = |on_host| OpaquePool::new(owner, on_host, Tally { bytes: 1, count: 1 });
            assert!(pool(false).remedy.is_some(), "{owner}");
            assert_eq!(pool(true).remedy, None, "{owner}");
        }
    }

    #[test]
    fn a_pool_without_recorded_blocks_says_how_to_record_them() {
        let snapshot = pooled(&[
            (CUPY.0, CUPY.1, Kind::Device, MIB),
            (XLA.0, XLA.1, Kind::Device, 56 * MIB),
            (XLA.0, XLA.1, Kind::HostPinned, 2 * MIB),
        ]);
        let pools = OpaquePool::all(&snapshot);
        let sentences: Vec<String> = pools.iter().map(|pool| pool.sentence(None)).collect();
        assert_eq!(
            sentences,
            [
                "112 MiB in XLA's pool: which part is in use is unknown; record with --record jax",
                "4 MiB in XLA's pool of host memory: which part is in use is unknown",
                "2 MiB in CuPy's pool: which part is in use is unknown; record with CULEAK_ADAPTERS=cupy, which needs culeak's \
                 Python package",
            ]
        );
        let command = ["python".to_owned(), "my train.py".to_owned()];
        assert_eq!(
            recording_command(&pools, &command).as_deref(),
            Some("CULEAK_ADAPTERS=cupy culeak run --record jax -- python 'my train.py'")
        );
        assert_eq!(recording_command(&pools[1..2], &command), None);
        assert_eq!(recording_command(&pools, &[]), None);
    }

    #[test]
    fn a_pool_whose_blocks_were_recorded_is_not_opaque_although_all_are_freed() {
        let mut snapshot = pooled(&[(CUPY.0, CUPY.1, Kind::Device, MIB)]);
        assert_eq!(OpaquePool::all(&snapshot).len(), 1);
        snapshot.domains.push("CuPy".to_owned());
        assert_eq!(OpaquePool::all(&snapshot), []);
    }

    #[test]
    fn the_pools_of_rmm_are_known_by_their_old_and_new_names() {
        for function in [
            "rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>::try_to_expand(unsigned long)",
            "rmm::mr::detail::pool_memory_resource_impl<rmm::mr::detail::coalescing_free_list>::block_from_upstream(unsigned long)",
            "rmm::mr::detail::arena_memory_resource_impl::allocate(unsigned long)",
            "rmm::mr::detail::fixed_size_memory_resource_impl::blocks_from_upstream()",
            "rmm::mr::fixed_size_memory_resource<rmm::mr::cuda_memory_resource>::blocks_from_upstream()",
        ] {
            let pools = OpaquePool::all(&pooled(&[(function, "/venv/librmm.so", Kind::Device, MIB)]));
            assert_eq!(
                pools.iter().map(|pool| pool.owner).collect::<Vec<_>>(),
                ["RMM"],
                "{function}"
            );
        }
    }
}
