//! A recording with one of everything.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use culeak::cuda_functions::Api;
use culeak::format::{PhaseSource, RANK_VARIABLES, ROOT};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Entry, Key, Space};
use culeak::recording::{CodeSeen, ModuleSeen, NewPhase, Recording, Session};

/// Writes it, with a log of its events or without.
pub fn recording(folder: &Path, logged: bool) -> Vec<u8> {
    let path = folder.join(format!("seed-{logged}.culeak"));
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let session = Session {
        pid: 4711,
        parent_pid: 1,
        depth: 128,
        process_start_ticks: 1,
        executable: b"/usr/bin/python3",
        command_line: b"python3\0train.py\0",
        host: b"node7",
        pid_namespace: 0,
        time_namespace: 0,
        ranks: [Some(b"3".as_slice()); RANK_VARIABLES.len()],
    };
    let Ok(recording) = Recording::create(&name, &session) else {
        panic!("{}: no recording", path.display());
    };
    if logged {
        recording.enable_timeline(0);
        recording.enable_intervals(false);
    }
    let threads = [7, 8].map(|tid| recording.add_thread(tid, b"worker\0\0\0\0\0\0\0\0\0\0"));
    for device in 0..2 {
        recording.add_device(i32::from(device), Some((device == 1, [device; 16])), b"Imagined GPU");
        let context = recording.add_context(0x5555_0000 + u64::from(device), device, device == 1);
        if device == 1 {
            recording.context_destroyed(context);
        }
    }
    recording.domain(b"framework");
    recording.variable(b"PYTORCH_ALLOC_CONF", b"expandable_segments:True");
    let phase = recording.begin_phase(&NewPhase {
        name: b"step",
        domain: Some(b"framework"),
        thread: threads[0],
        parent: None,
        source: PhaseSource::NvtxPush,
    });
    allocate(recording, threads, &stacks(recording));
    if let Some(phase) = phase {
        recording.end_phase(phase, PhaseSource::NvtxPush);
    }
    recording.allocator_reported(0, 4096, 4096, 1 << 21);
    recording.unhooked(b"cuMemSomething");
    recording.end();
    fs::read(path).expect("written")
}

fn stacks(recording: &Recording) -> Vec<u32> {
    let modules = ["/opt/app", "/opt/lib.so"].map(|path| {
        let start = 0x5000_0000_0000 + path.len() as u64 * 0x1_0000_0000;
        recording.add_module(&ModuleSeen {
            path: path.as_bytes(),
            build_id: &[7; 20],
            bias: start,
            start,
            end: start + 0x10_0000,
        })
    });
    recording.interpreter(0x030c_01f0, None);
    let code = recording.code(1, || {
        Some(CodeSeen {
            file: b"/src/train.py",
            function: b"Trainer.step",
            first_line: 11,
            // Two instructions per line, as Python 3.12 encodes it.
            line_table: Some(&[0x80 | 13 << 3, 2, 0x80 | 13 << 3, 2]),
            minor: 12,
        })
    });
    let code = code.expect("room for a code");
    let mut stacks = Vec::new();
    for nth in 0..8 {
        let outer = recording.frame(ROOT, modules[0], 0x1000 + nth).expect("room");
        let middle = recording.python_frame(outer, code, 2).expect("room");
        stacks.push(recording.frame(middle, modules[1], 0x2000 + nth % 3).expect("room"));
    }
    stacks
}

fn allocate(recording: &Recording, threads: [u32; 2], stacks: &[u32]) {
    let kinds = [
        (Kind::Device, Space::Pointer, "cuMemAlloc_v2"),
        (Kind::Async, Space::Pointer, "cuMemAllocAsync"),
        (Kind::HostPinned, Space::Pointer, "cuMemHostAlloc"),
        (Kind::Managed, Space::Pointer, "cuMemAllocManaged"),
        (Kind::Tensor, Space::Tensor, "CUDACachingAllocator"),
    ];
    for nth in 0..40 {
        let (kind, space, api) = kinds[nth % kinds.len()];
        let thread = threads[nth % 2];
        let entry = Entry {
            bytes: 4096 << (nth % 5),
            requested: 4000,
            time_ns: recording.now(),
            extra: nth as u64,
            pool: 0,
            stack: stacks[nth % stacks.len()],
            thread,
            attributes: Attributes {
                kind,
                space,
                flags: if kind == Kind::Async { Attributes::HAS_STREAM } else { 0 },
                device: (nth % 2) as u8,
                api: Api::of(api).0,
                context: 0,
                raised: 0,
            },
        };
        let key = Key {
            space,
            address: 0x7f00_0000_0000 + 0x100_0000 * nth as u64,
        };
        assert!(recording.allocated(key, &entry));
        match nth % 8 {
            0 => {
                let withdrawn = recording.withdraw(key, thread).expect("it is there");
                recording.commit(withdrawn, thread);
            }
            1 => drop(recording.failed(&entry, 2)),
            2 => recording.mark(b"epoch", thread),
            _ => {}
        }
    }
}
