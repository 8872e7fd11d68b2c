//! XLA's buffers, recorded through the function table of its plugin.
//!
//! `victims/pjrt_plugin.c` stands in for the plugin and `victims/pjrt_host.c` for JAX; they share only the PJRT interface
//! with the library. Claims about the real ones are in `gpu/`.

use std::path::PathBuf;

use culeak::kind::Kind::*;
use culeak::snapshot::Snapshot;

use crate::support::claims::Claims;
use crate::support::{Profile, fake_driver, library, profile};

fn plugin(flags: &[&str]) -> PathBuf {
    library("pjrt_plugin", "xla_cuda_plugin.so", flags, &[fake_driver()])
}

fn host(behaviour: &str, plugin: &PathBuf) -> Profile {
    profile("pjrt_host")
        .arg(behaviour)
        .arg(plugin)
        .setting("CULEAK_JAX_BUFFERS", "1")
}

fn sizes(snapshot: &Snapshot) -> Vec<u64> {
    let mut sizes: Vec<u64> = snapshot.of_kind(Buffer).iter().map(|buffer| buffer.bytes).collect();
    sizes.sort();
    sizes
}

#[test]
fn every_way_to_create_and_delete_a_buffer_is_recorded() {
    let outcome = host("all", &plugin(&[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.symbolized();
    snapshot.expect_nothing_lost();
    assert_eq!(sizes(&snapshot), [400, 400, 1000, 1000, 2000, 2048, 4000, 4096]);
    assert!(
        outcome.stdout.contains("live 9\n"),
        "one of them is on the host: {}",
        outcome.stdout
    );
    for buffer in snapshot.of_kind(Buffer) {
        assert_eq!((buffer.domain.as_deref(), buffer.device), (Some("xla"), Some(0)));
        assert!(buffer.api.starts_with("PJRT_"), "{}", buffer.api);
    }
    let first = snapshot.of_kind(Buffer)[0];
    assert_eq!(snapshot.functions(first)[1..3], ["put", "all"]);
    assert_eq!(snapshot.losses.unknown_blocks, 0);
    assert_eq!(snapshot.device_peaks[0].peak_bytes, 64 << 20, "the slab alone");
}

#[test]
fn addresses_are_queried_on_request_and_lie_in_the_slab() {
    let outcome = host("all", &plugin(&[]))
        .setting("CULEAK_JAX_BUFFERS", "addresses")
        .run();
    let snapshot = outcome.only_snapshot();
    let slab = snapshot.only(Device);
    for buffer in snapshot.of_kind(Buffer) {
        assert!(
            (slab.address..slab.address + slab.bytes).contains(&buffer.address),
            "{buffer:#?}"
        );
    }
}

#[test]
fn a_plugin_with_a_shorter_table_is_recorded_through_the_functions_it_has() {
    let outcome = host("all", &plugin(&["-DSHORT"])).run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(sizes(outcome.only_snapshot()), [400, 400, 1000, 1000, 2000, 2048, 4096]);
}

#[test]
fn plugins_of_an_unknown_version_or_for_other_devices_are_left_alone() {
    let other = library("pjrt_plugin", "libtpu.so", &[], &[fake_driver()]);
    for plugin in [plugin(&["-DNEXT_MAJOR"]), other] {
        let outcome = host("all", &plugin).run();
        outcome.expect_success().expect_same_output_as_bare();
        outcome.only_snapshot().expect_kinds(&[Device]);
    }
}

#[test]
fn without_the_option_the_plugin_is_not_called() {
    let outcome = profile("pjrt_host").arg("counts_queries").arg(plugin(&[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(outcome.stdout.contains("queries 0\n"), "{}", outcome.stdout);
    outcome.only_snapshot().expect_kinds(&[Device]);
}

#[test]
fn running_out_of_memory_inside_xla_is_a_failed_request() {
    let outcome = host("runs_out", &plugin(&[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    assert_eq!(sizes(snapshot), [400]);
    let [failed] = &snapshot.failed[..] else {
        panic!("{:#?}", snapshot.failed)
    };
    assert_eq!(
        (failed.kind, failed.error, failed.api.as_str()),
        (Buffer, 2, "PJRT_Client_BufferFromHostBuffer")
    );
}
