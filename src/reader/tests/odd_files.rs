//! Recordings of processes that are hard to judge, and files that are no recordings.

use std::collections::HashMap;

use super::*;

/// Overwrites a word of the header.
fn put(path: &Path, at: usize, word: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&word.to_le_bytes(), at as u64).unwrap();
}

#[test]
fn rows_of_a_busy_process_with_another_clock_are_kept() {
    for offset in [1u64 << 50, (1u64 << 50).wrapping_neg()] {
        let folder = Folder::new("clock");
        let path = folder.0.join("a.culeak");
        let recording = record(&path);
        let steady = |address| Entry {
            time_ns: 5_000_000,
            ..entry(recording, 1, NONE, address)
        };
        for address in 1..=100 {
            assert!(recording.allocated(key(address.into()), &steady(address)));
        }
        let started = crate::recording::monotonic_ns().wrapping_add(offset);
        put(&path, std::mem::offset_of!(Header, started_monotonic_ns), started);
        let (done, busy) = (AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                busy.wait();
                while !done.load(Relaxed) {
                    assert!(recording.allocated(key(1000), &entry(recording, 2, NONE, 0)));
                    recording.commit(recording.withdraw(key(1000), 0).unwrap(), 0);
                }
            });
            busy.wait();
            let mut moved = false;
            while !moved {
                let snapshot = read(&path).unwrap();
                moved = snapshot.taken.events_during_read > 0;
                let rows = snapshot.allocations.len();
                let all = (100..=101).contains(&rows);
                done.store(moved || !all, Relaxed);
                assert!(all, "{rows} rows");
            }
        });
    }
}

#[test]
fn a_recording_that_its_process_no_longer_maps_belongs_to_a_program_that_ended() {
    let folder = Folder::new("unmapped");
    let (path, other) = (folder.0.join("a.culeak"), folder.0.join("b.culeak"));
    filled(&path);
    std::fs::copy(&path, &other).unwrap();
    assert_eq!(read(&other).unwrap().process.state, ProcessState::Running, "a copy");
    let file_number = std::mem::offset_of!(Header, file_number);
    put(&other, file_number, std::fs::metadata(&other).unwrap().ino());
    assert_eq!(read(&other).unwrap().process.state, ProcessState::Ended);
    put(&other, file_number, 0);
    assert_eq!(
        read(&other).unwrap().process.state,
        ProcessState::Running,
        "unknown inode"
    );
}

#[test]
fn a_process_of_an_invisible_pid_namespace_does_not_run_here() {
    let folder = Folder::new("pid-namespace");
    let path = folder.0.join("a.culeak");
    filled(&path);
    let place = std::mem::offset_of!(Header, pid_namespace);
    let ours = std::fs::metadata("/proc/self/ns/pid").unwrap().ino();
    put(&path, place, ours);
    let here = read(&path).unwrap().process;
    assert_eq!((here.state, here.pid_here), (ProcessState::Running, None));
    put(&path, place, ours - 1);
    let elsewhere = read(&path).unwrap().process;
    assert!(matches!(elsewhere.state, ProcessState::Ended | ProcessState::Unknown));
    assert_eq!(elsewhere.pid_here, None);
}

#[test]
fn files_that_are_no_recordings_are_refused_with_a_reason() {
    let folder = Folder::new("bad");
    let path = folder.0.join("a.culeak");
    let error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let text = read(&path).unwrap_err().to_string();
        assert!(text.contains("a.culeak") && !text.contains('\n'), "{text}");
        text
    };
    assert!(error(b"").contains("empty"));
    assert!(error(b"ELF or something").contains("not a culeak recording"));
    assert!(error(&vec![0; HEADER_BYTES]).contains("ended while it created"));
    let good = folder.0.join("good.culeak");
    filled(&good);
    let good = std::fs::read(good).unwrap();
    assert!(error(&good[..30]).contains("truncated"));
    assert!(error(&good[..HEADER_BYTES + 4096]).contains("truncated"));
    let with = |at: usize, bytes: &[u8]| {
        let mut copy = good.clone();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        copy
    };
    for (version, release) in [(99u32, "newer"), (1, "older")] {
        let message = error(&with(8, &version.to_le_bytes()));
        let reason = format!(
            "written by format {version}, this build reads format {}; record again or use the {release} release",
            crate::format::VERSION
        );
        assert!(message.contains(&reason), "{message}");
    }
    assert!(error(&with(12, &BYTE_ORDER.to_be_bytes())).contains("byte order"));
    assert!(error(&with(DIRECTORY_OFFSET + 8, &0u32.to_le_bytes())).contains("damaged"));
    assert!(read(&folder.0).unwrap_err().to_string().contains("cannot be read"));
}

/// Each frame of a damaged or hostile trie is decoded once, and the number of frames is limited.
#[test]
fn two_recordings_in_one_file_are_refused() {
    let folder = Folder::new("joined");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    assert!(recording.allocated(key(1), &entry(recording, 1, NONE, 1)));
    assert_eq!(read(&path).unwrap().allocations.len(), 1);
    let once = std::fs::read(&path).unwrap();
    std::fs::write(folder.0.join("joined"), [&once[..], &once[..]].concat()).unwrap();
    let error = read(&folder.0.join("joined")).unwrap_err().to_string();
    let begins = format!("another recording begins at byte {}", once.len());
    assert!(error.contains(&begins), "{error}");
    // The first one may be cut off anywhere.
    for cut in [HEADER_BYTES, once.len() / 2, once.len() - 1] {
        std::fs::write(folder.0.join("joined"), [&once[..cut], &once[..]].concat()).unwrap();
        let error = read(&folder.0.join("joined")).unwrap_err().to_string();
        assert!(
            error.contains(&format!("another recording begins at byte {cut};")),
            "{error}"
        );
    }
}

#[test]
fn parts_that_contradict_each_other_are_damage() {
    let folder = Folder::new("contradictions");
    let (path, copy) = (folder.0.join("a.culeak"), folder.0.join("b.culeak"));
    filled(&path).end();
    let bytes = std::fs::read(&path).unwrap();
    let changed = |sections: &[Section], to: u8| {
        let mut changed = bytes.clone();
        for extent in extents(&bytes).filter(|extent| sections.iter().any(|of| *of as u32 == extent.section)) {
            changed[extent.offset as usize..][..extent.bytes as usize].fill(to);
        }
        std::fs::write(&copy, changed).unwrap();
        read(&copy).map_err(|error| error.to_string())
    };
    assert!(changed(&[], 0).is_ok());
    for (sections, to, reason) in [
        (&[Section::Peaks][..], 0x22, "at 2459565876494606882 ns"),
        (&[Section::Counters, Section::Records], 0, "no event is counted"),
    ] {
        let error = changed(sections, to).expect_err("damaged");
        assert!(error.contains("damaged") && error.contains(reason), "{error}");
    }
    let mut enormous = bytes.clone();
    for extent in extents(&bytes).filter(|extent| extent.section == Section::Records as u32) {
        let words = enormous[extent.offset as usize..][..extent.bytes as usize].chunks_exact_mut(8);
        // The size and the address of a live block.
        words
            .filter(|word| **word == 2000u64.to_le_bytes())
            .for_each(|word| word[7] = 0x40);
    }
    std::fs::write(&copy, enormous).unwrap();
    let error = read(&copy).unwrap_err().to_string();
    assert!(error.contains("memory, more than was ever allocated"), "{error}");
    let mut empty = bytes.clone();
    empty[DIRECTORY_OFFSET..HEADER_BYTES].fill(0);
    std::fs::write(&copy, empty).unwrap();
    assert!(read(&copy).unwrap_err().to_string().contains("directory is empty"));
}

#[test]
fn circular_stacks_end_and_enormous_ones_are_refused() {
    let folder = Folder::new("frames");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    let mut leaves = vec![ROOT];
    for depth in 1..=5000 {
        let address = 0x00c0_ffee_0000_0000 + depth;
        leaves.push(recording.frame(leaves[leaves.len() - 1], None, address).unwrap());
    }
    let thread = recording.add_thread(4711, &[0; 16]);
    assert!(recording.allocated(key(1), &entry(recording, 1, leaves[5000], thread)));
    let deep = read(&path).unwrap();
    assert!(deep.stacks[0].frames.len() <= 1024 && deep.stacks[0].truncated);

    // The parent of each frame becomes a later frame, or the frame itself.
    let bytes = std::fs::read(&path).unwrap();
    let words = bytes.chunks_exact(8).enumerate();
    let places: HashMap<[u8; 8], usize> = words.rev().map(|(nth, word)| (word.try_into().unwrap(), nth)).collect();
    for ahead in [0, 1, 100] {
        let mut circle = bytes.clone();
        for depth in 1..=4900u64 {
            let address = (0x00c0_ffee_0000_0000 + depth).to_le_bytes();
            let at = places[&address] * 8 - 8;
            let parent = leaves[depth as usize + ahead];
            circle[at..at + 4].copy_from_slice(&parent.to_le_bytes());
        }
        let path = folder.0.join("circle.culeak");
        std::fs::write(&path, circle).unwrap();
        let read = read(&path).unwrap();
        assert!(read.stacks[0].frames.len() <= 101 && read.stacks[0].truncated);
    }

    // One stack per frame: a slightly larger file, with millions of frames in total.
    for (address, &leaf) in (2..).zip(&leaves[1..]) {
        assert!(recording.allocated(key(address), &entry(recording, 1, leaf, thread)));
    }
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains("more than 262144 frames in all"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_reader_panic(
        changes in proptest::collection::vec((0usize..120_000, any::<u8>()), 1..60),
        cut in proptest::option::of(0usize..200_000),
    ) {
        static GOOD: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let folder = Folder::new("fuzz");
        let good = GOOD.get_or_init(|| {
            let path = folder.0.join("good.culeak");
            filled(&path);
            std::fs::read(path).unwrap()
        });
        let mut bytes = good.clone();
        for (at, value) in changes {
            let length = bytes.len();
            bytes[at % length] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut);
        }
        let path = folder.0.join("hostile.culeak");
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(snapshot) = read(&path) {
            prop_assert!(snapshot.validate().is_ok());
        }
    }
}
