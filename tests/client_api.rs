//! The client API: blocks of the program's own allocator, registered through `culeak.h` or NVTX, and marks.

use culeak::kind::Kind::*;
use culeak::point::Point;
use culeak::snapshot::{Pages, Snapshot, Stream};

use crate::cudart::cudart;
use crate::support::claims::Claims;
use crate::support::compile::{executable, run_folder};
use crate::support::{Profile, fake_driver, profile, program, shim, sources};

/// Domain, bytes and offset within the slab of each block.
fn blocks(snapshot: &Snapshot) -> Vec<(&str, u64, u64)> {
    let slab = snapshot.only(Device).address;
    let mut blocks: Vec<_> = snapshot
        .of_kind(Block)
        .iter()
        .map(|block| (block.domain().unwrap_or("?"), block.bytes, block.address - slab))
        .collect();
    blocks.sort();
    blocks
}

#[test]
fn blocks_of_two_allocators_at_one_address_are_two_rows() {
    let outcome = profile("client_api").arg("blocks").run();
    outcome.expect_success();
    let snapshot = outcome.symbolized();
    assert_eq!(blocks(&snapshot), [("arena", 100, 0), ("cache", 4096, 0)]);
    assert_eq!(snapshot.losses.unknown_blocks, 1);
    assert_eq!(
        snapshot.device_peaks[0].peak_bytes,
        1 << 20,
        "blocks are not added to the memory they lie in"
    );
    for block in snapshot.of_kind(Block) {
        assert_eq!(
            (block.api.as_str(), block.stream),
            ("culeak_alloc", Some(Stream::Handle(0x77)))
        );
        assert_eq!(block.device, Some(0));
        assert_eq!(snapshot.functions(block)[0], "hand_out");
    }
}

#[test]
fn pages_of_one_call_have_one_stack_and_one_time() {
    let outcome = profile("client_api").arg("pages").run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.symbolized();
    assert_eq!(blocks(&snapshot), [("pages", 4096, 0)]);
    assert_eq!(snapshot.counted(Block).total_count, 3);
    assert_eq!(snapshot.losses.unknown_blocks, 0);
    // Those that cannot be: the most pages of one call, and two addresses.
    assert_eq!(snapshot.losses.lost_allocations, (1 << 24) + 2);
    let page = snapshot.only(Block);
    assert_eq!((page.api(), page.stream), ("culeak_alloc", Some(Stream::Handle(0x77))));
    assert_eq!(snapshot.functions(page)[0], "pages");
}

#[test]
fn a_pool_of_pages_has_states_and_owners() {
    expect_owners(profile("client_api"));
}

#[test]
#[ignore = "needs g++"]
fn a_program_in_cpp_gives_its_pages_states_and_owners_through_the_same_header() {
    let flags = ["-Wextra", "-Werror", "-std=c++14"];
    expect_owners(program(executable("client_api_cpp", &flags, &[fake_driver()])));
}

fn expect_owners(profile: Profile) {
    let outcome = profile.arg("owners").run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    let states = Pages {
        live: 10,
        reclaimable: 20,
        waiting: 5,
        free: 65,
    };
    let pool = snapshot.only_pool("engine", 4096, states);
    assert_eq!(pool.owners_begun, 3);
    let owners: Vec<_> = (pool.owners.iter())
        .map(|of| (of.name.as_str(), of.pages.held(), of.end_ns.is_some()))
        .collect();
    assert_eq!(owners, [("kept", 3, false), ("ended", 5, true)]);
    let peak = snapshot.at(&Point::Peak).expect("a peak");
    assert!(peak.page_pools.is_empty(), "they are not known at the peak");
    assert_eq!(snapshot.losses.lost_details, 0);
}

/// The lines of docs/frameworks.md, in a program that prints what it found.
#[test]
fn a_program_in_rust_finds_the_functions_of_pages_as_the_documentation_says() {
    let page = std::fs::read_to_string(sources().join("../docs/frameworks.md")).expect("the page");
    let lines = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let program_text = format!(
        r#"
        mod libc {{
            pub const RTLD_DEFAULT: *mut std::ffi::c_void = std::ptr::null_mut();
            extern "C" {{ pub fn dlsym(handle: *mut std::ffi::c_void, name: *const std::ffi::c_char) -> *mut std::ffi::c_void; }}
        }}
        fn main() {{
            {}
            let found = unsafe {{ libc::dlsym(libc::RTLD_DEFAULT, c"culeak_pool_begin".as_ptr()) }};
            let begin: Option<extern "C" fn(*const std::ffi::c_char, u64) -> u64> = unsafe {{ std::mem::transmute(found) }};
            match set_pages.zip(begin) {{
                Some((set_pages, begin)) => {{
                    let pages = Pages {{ live: 1, reclaimable: 2, waiting: 3, free: 4 }};
                    set_pages(begin(c"engine".as_ptr(), 4096), &pages)
                }}
                None => println!("bare"),
            }}
        }}"#,
        lines.expect("lines of Rust")
    );
    let folder = run_folder().join("rust_caller");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (source, made) = (folder.join("main.rs"), folder.join("caller"));
    std::fs::write(&source, program_text).expect("written");
    let mut rustc = std::process::Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    let output = rustc.args(["--edition=2021", "-o"]).args([&made, &source]).output();
    let output = output.expect("rustc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let outcome = program(&made).run();
    outcome.expect_success();
    let states = Pages {
        live: 1,
        reclaimable: 2,
        waiting: 3,
        free: 4,
    };
    outcome.only_snapshot().only_pool("engine", 4096, states);
    assert_eq!(program(&made).bare().run().stdout, "bare\n");
}

#[test]
fn blocks_of_an_allocator_of_two_functions_are_recorded_by_those_in_front_of_it() {
    let outcome = profile("client_api").arg("forwards").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(outcome.stdout, "freed 32\ndone\n");
    let snapshot = outcome.symbolized();
    let found = snapshot.of_kind(Block);
    assert_eq!(found.len(), 8, "one for each allocator that there is room for");
    assert_eq!(snapshot.counted(Block).total_count, 16);
    assert_eq!(snapshot.losses.unknown_blocks, 0);
    for (nth, block) in found.iter().enumerate() {
        assert_eq!((block.bytes, block.stream), (512, Some(Stream::Handle(0x99))));
        assert_eq!(block.domain(), Some(format!("own{nth}").as_str()));
        assert_eq!(block.device, Some(1), "the device that the caller named");
        assert_eq!(snapshot.functions(*block)[0], "ask");
    }
}

/// In a program that is not position independent, the linker resolves weak names for good.
#[test]
fn the_header_works_in_every_kind_of_executable() {
    for flags in [
        &["-fPIE", "-pie"][..],
        &["-fno-pie", "-no-pie"],
        &["-fno-pie", "-no-pie", "-O2"],
        &["-O2", "-fPIE", "-pie"],
    ] {
        let victim = executable("client_api", flags, &[fake_driver()]);
        let run = |profile: Profile| profile.arg("blocks").run();
        assert_eq!(
            run(program(&victim)).only_snapshot().of_kind(Block).len(),
            2,
            "{flags:?}"
        );
        run(program(&victim).bare()).expect_success();
    }
}

#[test]
fn marks_are_recorded_in_order() {
    let outcome = profile("client_api").arg("marks").run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    let names: Vec<&str> = snapshot.marks.iter().map(|mark| mark.name.as_str()).collect();
    assert_eq!(names, ["epoch 1", "epoch 2 \u{e9}"]);
    let times: Vec<u64> = snapshot.allocations.iter().map(|a| a.time_ns).collect();
    assert!(times[0] <= snapshot.marks[0].time_ns && snapshot.marks[0].time_ns <= times[1]);
    assert!(times[2] <= snapshot.marks[1].time_ns);
}

#[test]
fn a_mark_before_cuda_is_recorded_and_invalid_calls_are_ignored() {
    let outcome = profile("client_api").arg("odd").run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    let names: Vec<&str> = snapshot.marks.iter().map(|mark| mark.name.as_str()).collect();
    assert_eq!(names, ["before CUDA", ""]);
    snapshot.expect_kinds(&[Device]);
}

#[test]
fn blocks_registered_by_eight_threads_are_all_recorded() {
    let outcome = profile("client_api").arg("threads").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_nothing_lost().expect_live(Block, 8, 8 * 512);
    assert_eq!(snapshot.counted(Block).total_count, 8 * 5001);
    assert_eq!(snapshot.losses.unknown_blocks, 0);
}

#[test]
fn a_forked_child_that_frees_its_parents_blocks_records_nothing() {
    let outcome = profile("client_api").arg("forks").run();
    outcome.expect_success();
    outcome.only_snapshot().expect_live(Block, 1, 512);
}

#[test]
fn python_finds_the_functions_by_name() {
    let script = "import ctypes; me = ctypes.CDLL(None); me.culeak_mark(b'epoch 3') if hasattr(me, 'culeak_mark') else print('bare')";
    let outcome = program("/usr/bin/env").args("python3 -c").arg(script).run();
    outcome.expect_success();
    assert_eq!(
        outcome
            .snapshots
            .iter()
            .flat_map(|s| &s.marks)
            .map(|m| m.name.as_str())
            .collect::<Vec<_>>(),
        ["epoch 3"]
    );
    let bare = program("/usr/bin/env").args("python3 -c").arg(script).bare().run();
    assert_eq!(bare.stdout, "bare\n");
}

#[test]
fn an_interval_measures_what_is_left_of_its_allocations_and_their_peak() {
    let outcome = profile("client_api")
        .arg("intervals")
        .env("CULEAK_INTERVALS", "1")
        .run();
    outcome.expect_success();
    let expected = "\
first: device -2 left 4096 in 1, needed 4096, holds 4096
first: device -1 left 1000 in 2, needed 6000, holds 1000
first: device 0 left 1000 in 2, needed 6000, holds 1000
second: device -2 left 0 in 0, needed 0, holds 4096
second: device -1 left 70 in 1, needed 70, holds 70
second: device 0 left 70 in 1, needed 70, holds 70
third: device -2 left 0 in 0, needed 0, holds 4096
third: device -1 left 0 in 0, needed 3501, holds 70
third: device 0 left 0 in 0, needed 3501, holds 70
done
";
    assert_eq!(outcome.stdout, expected);
    let marks: Vec<String> = outcome
        .only_snapshot()
        .marks
        .iter()
        .map(|mark| mark.name.clone())
        .collect();
    assert_eq!(marks, ["before CUDA", "second", "third"]);
}

#[test]
fn intervals_are_measured_only_on_request() {
    let outcome = profile("client_api").arg("intervals").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(outcome.stdout, "done\n");
}

#[test]
fn regions_registered_through_nvtx_are_blocks_of_their_heap() {
    let outcome = profile("nvtx")
        .arg("regions")
        .env("NVTX_INJECTION64_PATH", shim())
        .run();
    outcome.expect_success();
    let snapshot = outcome.symbolized();
    expect_regions(&snapshot);
    for block in snapshot.of_kind(Block) {
        assert_eq!(block.api, "nvtxMemRegionsRegister");
    }
}

fn expect_regions(snapshot: &Snapshot) {
    let half = 1 << 19;
    let expected = [("nvtx", 4096, half), ("textures", 256, 512), ("textures", 256, 768)];
    assert_eq!(blocks(snapshot), expected);
    assert_eq!(snapshot.losses.unknown_blocks, 0);
    assert_eq!(snapshot.losses.implicit_frees, 5, "two heaps were reset");
}

#[test]
fn without_the_variable_nvtx_finds_no_tool() {
    let outcome = profile("nvtx").arg("regions").run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome.only_snapshot().expect_kinds(&[Device]);
}

#[test]
#[ignore = "needs pip"]
fn regions_registered_through_nvidias_own_header_are_blocks_of_their_heap() {
    let include = format!("-I{}", cudart().join("nvtx/include").display());
    let victim = executable("nvtx", &["-DREAL_HEADER", &include], &[fake_driver()]);
    let outcome = program(victim)
        .arg("regions")
        .env("NVTX_INJECTION64_PATH", shim())
        .run();
    expect_regions(outcome.only_snapshot());
}
