//! Every kind of memory, leaked and freed, through every way of looking up the driver's functions.

use culeak::kind::Kind::{self, *};

use crate::support::claims::Claims;
use crate::support::{Lookup, profile};

/// A behaviour of `victims/kinds.c` and what it leaks: bytes held, bytes requested, the function called.
struct Left {
    behaviour: &'static str,
    kind: Kind,
    bytes: u64,
    requested: u64,
    api: &'static str,
}

const fn left(behaviour: &'static str, kind: Kind, bytes: u64, requested: u64, api: &'static str) -> Left {
    Left {
        behaviour,
        kind,
        bytes,
        requested,
        api,
    }
}

const ALL: [Left; 27] = [
    left("device", Device, 1000, 1000, "cuMemAlloc_v2"),
    left("device_v1", Device, 1001, 1001, "cuMemAlloc"),
    // 30 rows of 100 bytes, which this driver lays out 512 bytes apart
    left("pitched", Pitched, 15360, 3000, "cuMemAllocPitch_v2"),
    left("pitched_v1", Pitched, 15360, 3000, "cuMemAllocPitch"),
    left("managed", Managed, 2000, 2000, "cuMemAllocManaged"),
    left("host", HostPinned, 3000, 3000, "cuMemHostAlloc"),
    left("host_v1", HostPinned, 3001, 3001, "cuMemAllocHost"),
    left("host_v2", HostPinned, 3002, 3002, "cuMemAllocHost_v2"),
    left("registered", HostRegistered, 4096, 4096, "cuMemHostRegister_v2"),
    left("registered_v1", HostRegistered, 4096, 4096, "cuMemHostRegister"),
    left("array", Array, 32768, 32768, "cuArrayCreate_v2"),
    left("array_v1", Array, 16384, 16384, "cuArrayCreate"),
    left("array3d", Array, 512, 512, "cuArray3DCreate_v2"),
    left("array3d_v1", Array, 1024, 1024, "cuArray3DCreate"),
    left("mipmapped", Mipmapped, 1344, 1344, "cuMipmappedArrayCreate"),
    left("async", Async, 4000, 4000, "cuMemAllocAsync"),
    left("async_ptsz", Async, 4001, 4001, "cuMemAllocAsync_ptsz"),
    left("from_pool", Async, 5000, 5000, "cuMemAllocFromPoolAsync"),
    left("from_pool_ptsz", Async, 5001, 5001, "cuMemAllocFromPoolAsync_ptsz"),
    left("pool", Pool, 0, 0, "cuMemPoolCreate"),
    left("reserved", Reserved, 0, 4 << 20, "cuMemAddressReserve"),
    left("physical", Physical, 2 << 20, 2 << 20, "cuMemCreate"),
    left("host_physical", HostPhysical, 2 << 20, 2 << 20, "cuMemCreate"),
    left("localized", Physical, 2 << 20, 2 << 20, "cuMemCreate"),
    left("multicast", Multicast, 0, 2 << 20, "cuMulticastCreate"),
    left("external", External, 0, 1 << 20, "cuImportExternalMemory"),
    left(
        "external_mapping",
        ExternalMapping,
        0,
        65536,
        "cuExternalMemoryGetMappedBuffer",
    ),
];

impl Left {
    /// The function that the driver returns for the per-thread default stream.
    fn api_through(&self, lookup: Lookup) -> String {
        let has_variant = matches!(self.api, "cuMemAllocAsync" | "cuMemAllocFromPoolAsync");
        if lookup == Lookup::ProcPtsz && has_variant {
            format!("{}_ptsz", self.api)
        } else {
            self.api.to_owned()
        }
    }

    /// What is wrong with the recording of a leak, and with that of the same program when it frees its memory.
    fn check(&self, lookup: Lookup) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut claim = |holds: bool, what: String| {
            if !holds {
                wrong.push(format!("{}: {what}", self.behaviour));
            }
        };
        let leaked = profile("kinds").lookup(lookup).arg(self.behaviour).run();
        let snapshot = leaked.only_snapshot();
        match snapshot.of_kind(self.kind)[..] {
            [found] => {
                claim(
                    found.bytes == self.bytes,
                    format!("holds {} bytes, not {}", self.bytes, found.bytes),
                );
                claim(
                    found.requested == self.requested,
                    format!("requested {}, not {}", self.requested, found.requested),
                );
                let api = self.api_through(lookup);
                claim(found.api == api, format!("came from {api}, not {}", found.api));
                claim(found.stack.is_some(), "has a stack".into());
            }
            _ => claim(
                false,
                format!("one live {:?}, not {:#?}", self.kind, snapshot.allocations),
            ),
        }
        let freed = profile("kinds").lookup(lookup).args(self.behaviour).arg("free").run();
        let snapshot = freed.only_snapshot();
        claim(
            snapshot.allocations.is_empty(),
            format!("nothing is left once freed, not {:#?}", snapshot.allocations),
        );
        let counted = snapshot.counted(self.kind);
        claim(
            counted.total_count == 1 && counted.total_bytes == self.bytes,
            format!("freed memory is counted: {counted:?}"),
        );
        claim(
            snapshot.losses.unknown_frees == 0,
            "its free is not of unknown memory".into(),
        );
        wrong
    }
}

#[track_caller]
fn every_kind_through(lookup: Lookup) {
    let wrong: Vec<String> = ALL.iter().flat_map(|kind| kind.check(lookup)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_kind_is_recorded_through_exported_symbols() {
    every_kind_through(Lookup::Linked);
}

#[test]
fn every_kind_is_recorded_through_dlsym() {
    every_kind_through(Lookup::Dlsym);
}

#[test]
fn every_kind_is_recorded_through_the_first_cu_get_proc_address() {
    every_kind_through(Lookup::ProcV1);
}

#[test]
fn every_kind_is_recorded_through_the_second_cu_get_proc_address() {
    every_kind_through(Lookup::ProcV2);
}

#[test]
fn every_kind_is_recorded_with_per_thread_default_streams() {
    every_kind_through(Lookup::ProcPtsz);
}

#[test]
fn every_behaviour_runs_the_same_without_the_recorder() {
    for kind in &ALL {
        profile("kinds")
            .arg(kind.behaviour)
            .run()
            .expect_success()
            .expect_same_output_as_bare();
    }
}

#[test]
fn every_kind_of_memory_has_a_victim() {
    let elsewhere = [Graph, Mapping, Imported, Ipc, PoolImport, Tensor, Buffer, Block];
    for kind in Kind::of_memory() {
        let here = ALL.iter().any(|left| left.kind == kind);
        assert!(here || elsewhere.contains(&kind), "no victim leaks {}", kind.name());
    }
}
