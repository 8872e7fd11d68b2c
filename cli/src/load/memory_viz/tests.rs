use std::io;

use culeak::analysis::groups::Groups;
use culeak::analysis::ledger::segments::{IdleReason, Segments};
use culeak::analysis::report::{Options, Report};
use culeak::analysis::site::CallStacks;

use super::*;
use crate::pickle::write::{Pickler, Sort};

mod files;

const MIB: u64 = 1 << 20;

/// A snapshot as PyTorch writes it: a segment of 20 MiB with a tensor of 4 MiB, a freed block that waits for a stream, and room.
fn snapshot(change: impl Fn(&mut Made)) -> Result<Snapshot, String> {
    let mut made = Made {
        segments: 1,
        block_size: 4 * MIB,
        frames: vec![
            ("at::empty_cuda(long)", "??", 0),
            ("step", "/home/me/train.py", 12),
            ("<module>", "/home/me/train.py", 30),
        ],
        ordinal: 1,
        same_block: false,
        of_segments: false,
        bytes: 20 * MIB,
        pool: None,
        stream: 0x5555,
        settings: "",
    };
    change(&mut made);
    let mut bytes = Vec::new();
    made.write(&mut bytes).expect("written");
    read(&bytes, "dump.pickle")
}

struct Made {
    segments: usize,
    block_size: u64,
    frames: Vec<(&'static str, &'static str, u64)>,
    ordinal: u64,
    same_block: bool,
    /// Segments have a stack too.
    of_segments: bool,
    bytes: u64,
    /// The segment is expandable, and of this pool.
    pool: Option<(u64, u64)>,
    stream: u64,
    settings: &'static str,
}

const ADDRESS: u64 = 0x7f12_0000_0000;

impl Made {
    fn write(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut to = Pickler::new(out);
        to.begin();
        to.word("segments")?;
        to.list(0..self.segments, |to, _| self.segment(to))?;
        to.word("allocator_settings")?;
        to.begin();
        to.text_entry(VARIABLE, self.settings)?;
        to.end();
        to.word("device_traces")?;
        to.list([0, 1].into_iter(), |to, device| {
            let events: &[(&str, u64, u64)] = if device == 1 {
                &[
                    ("segment_alloc", ADDRESS, 1_000),
                    ("alloc", ADDRESS, 2_000),
                    ("free_requested", ADDRESS, 3_000),
                    ("free_completed", ADDRESS, 3_000),
                    ("alloc", ADDRESS, 4_000),
                    ("oom", 0, 9_000),
                ]
            } else {
                &[]
            };
            to.list(events.iter(), |to, &(action, address, time)| {
                to.begin();
                to.text_entry("action", action)?;
                to.entry("addr", address)?;
                to.entry("size", 7 * MIB)?;
                to.entry("stream", 0)?;
                to.entry("time_us", 1_800_000_000_000_000 + time)?;
                self.frames(to)?;
                to.end();
                Ok(())
            })
        })?;
        to.word("external_annotations")?;
        to.list([("START", 3_500), ("END", 3_600)].into_iter(), |to, (stage, time)| {
            to.begin();
            to.text_entry("stage", stage)?;
            to.text_entry("name", "epoch 2")?;
            to.entry("time_us", 1_800_000_000_000_000 + time)?;
            to.end();
            Ok(())
        })?;
        to.end();
        to.finish()
    }

    fn segment(&self, to: &mut Pickler) -> io::Result<()> {
        to.begin();
        to.entry("device", self.ordinal)?;
        to.entry("address", ADDRESS)?;
        to.entry("total_size", self.bytes)?;
        to.entry("stream", self.stream)?;
        if let Some((first, second)) = self.pool {
            to.word("segment_pool_id")?;
            to.pair(first, second);
            to.word("is_expandable")?;
            to.boolean(true);
        }
        if self.of_segments {
            self.frames(to)?;
        }
        to.word("blocks")?;
        let states = ["active_allocated", "active_pending_free", "inactive"];
        let write = |to: &mut Pickler, state: &&str| {
            to.begin();
            to.entry("size", self.block_size)?;
            to.entry("requested_size", self.block_size.saturating_sub(100))?;
            to.text_entry("state", state)?;
            self.frames(to)?;
            to.end();
            Ok(())
        };
        if self.same_block {
            to.shared(Sort::Frames, 9, |to| to.list(states.iter(), write))?;
        } else {
            to.list(states.iter(), write)?;
        }
        to.end();
        Ok(())
    }

    fn frames(&self, to: &mut Pickler) -> io::Result<()> {
        to.word("frames")?;
        to.shared(Sort::Frames, 0, |to| {
            to.list(self.frames.iter(), |to, &(name, file, line)| {
                to.begin();
                to.text_entry("name", name)?;
                to.text_entry("filename", file)?;
                to.entry("line", line)?;
                to.end();
                Ok(())
            })
        })
    }
}

#[test]
fn tensors_come_with_their_lines_and_times() {
    let snapshot = snapshot(|_| {}).expect("read");
    snapshot.validate().expect("valid");
    let stacks = CallStacks::of(&snapshot);
    let tensors: Vec<Allocation> = snapshot.allocations.iter().filter(|a| a.kind == Kind::Tensor).collect();
    let [tensor] = tensors[..] else { panic!("{tensors:?}") };
    assert_eq!((tensor.bytes, tensor.requested), (4 * MIB, 4 * MIB - 100));
    assert_eq!(tensor.time_ns, 3_000_000, "the second time the address was handed out");
    let site = stacks.get(tensor.stack).site().expect("a site");
    assert_eq!(
        (site.function, site.place().as_deref()),
        (Some("step"), Some("/home/me/train.py:12"))
    );
    assert_eq!(snapshot.taken.at_ns, 8_000_000);
    assert_eq!(snapshot.marks[0].name, "epoch 2");
    assert_eq!(
        (snapshot.failed[0].bytes, snapshot.failed[0].first_ns),
        (7 * MIB, 8_000_000)
    );
}

#[test]
fn the_rest_of_a_segment_is_cached_by_pytorch() {
    let snapshot = snapshot(|_| {}).expect("read");
    let report = Report::of(&snapshot, &Options::default());
    let ledger = serde_json::to_string(&report.ledger).expect("json");
    assert!(ledger.contains(&(16 * MIB).to_string()), "{ledger}");
    assert_eq!(report.totals.held.total().bytes, 4 * MIB);
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("PyTorch's allocator"))
    );
}

#[test]
fn a_segment_without_tensors_is_cached_too() {
    let snapshot = snapshot(|made| made.block_size = 0).expect("read");
    let report = Report::of(&snapshot, &Options::default());
    assert_eq!(report.totals.held.total().bytes, 0);
    assert_eq!(report.totals.pool.bytes, 20 * MIB);
}

#[test]
fn files_that_cause_unbounded_work_are_refused() {
    let twice = snapshot(|made| (made.segments, made.same_block) = (2, true)).expect_err("refused");
    assert!(twice.contains("contains the same"), "{twice}");
    let many = snapshot(|made| made.ordinal = 1 << 40).expect_err("refused");
    assert!(many.contains("GPU 1099511627776"), "{many}");
}

/// A list of frames that each of many segments refers to is read once.
#[test]
fn segments_with_the_same_long_stack_are_read_in_the_time_of_one() {
    let began = std::time::Instant::now();
    let snapshot = snapshot(|made| {
        made.segments = 20_000;
        made.of_segments = true;
        made.frames = vec![("step", "/home/me/train.py", 12); 20_000];
    });
    assert_eq!(snapshot.expect("read").stacks.len(), 2);
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}

#[test]
fn other_pickles_are_refused_with_a_reason() {
    for (bytes, reason) in [
        (&b"\x80\x02K\x01."[..], "no `segments`"),
        (b"\x80\x02}.", "no `segments`"),
        (b"\x80\x02]K\x01a.", "without `address`"),
        (b"\x80\x02cos\nsystem\n.", "nothing was run"),
        (b"\x80\x02}(X\x08\x00\x00\x00segmentsK\x01u.", "is not a list"),
    ] {
        let error = read(bytes, "x").expect_err("refused");
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn sums_that_overflow_are_saturated() {
    let snapshot = snapshot(|made| made.block_size = u64::MAX).expect("read");
    snapshot.validate().expect("valid");
    Report::of(&snapshot, &Options::default());
}

#[test]
fn pages_of_an_expandable_segment_without_live_blocks_are_idle_and_those_of_private_pools_stay() {
    for (bytes, pool, settings, expected) in [
        (60 * MIB, (0, 0), "expandable_segments:True", [16, 40, 0]),
        (60 * MIB, (0, 7), "", [16, 40, 0]),
        // Not a multiple of the pages that PyTorch has by default, and one page of a size that the settings have.
        (70 * MIB, (0, 0), "", [66, 0, 70]),
        (60 * MIB, (0, 0), "large_segment_size_mb:60", [56, 0, 0]),
    ] {
        let change = |made: &mut Made| (made.bytes, made.pool, made.settings) = (bytes, Some(pool), settings);
        let snapshot = snapshot(change).expect("read");
        snapshot.validate().expect("valid");
        assert_eq!(snapshot.allocators[0].reserved_bytes, bytes);
        let stacks = CallStacks::of(&snapshot);
        let segments = Segments::of(&snapshot, &stacks, &Groups::of(&snapshot, &stacks), None, |_| None);
        let of = &segments.pools[0];
        let found = [of.pinned, of.idle, of.unknown_pages].map(|tally| tally.bytes / MIB);
        assert_eq!((of.reserved_bytes, found), (bytes, expected));
        let is_private = of.idle_by.iter().any(|idle| idle.why == IdleReason::PrivatePool);
        assert_eq!((is_private, of.pools_are_known), (pool != (0, 0), true));
    }
}

#[test]
fn a_failed_request_is_compared_with_the_segments_of_its_stream() {
    let page = |change: fn(&mut Made)| {
        let snapshot = snapshot(change).expect("read");
        let stacks = CallStacks::of(&snapshot);
        let segments = Segments::of(&snapshot, &stacks, &Groups::of(&snapshot, &stacks), None, |_| None);
        crate::text::segments::page(&segments).plain()
    };
    let of_another = page(|_| ());
    for part in [
        "the request of 7 MiB failed: the driver had no more, and nothing was free in segments that may serve it",
        "not among them: 1 segment of 20 MiB of other streams",
    ] {
        assert!(of_another.contains(part), "{of_another}");
    }
    let of_its_own = page(|made| (made.stream, made.pool) = (0, Some((0, 0))));
    for part in [
        "the largest free range in segments that may serve it was 16 MiB, although 16 MiB was free in them",
        "the range is of blocks that still waited for another stream, or that were freed after the request failed\n",
    ] {
        assert!(of_its_own.contains(part), "{of_its_own}");
    }
    assert!(!of_its_own.contains("not among them"), "{of_its_own}");
    let unknown = page(|made| (made.stream, made.settings) = (0, "max_split_size_mb:20"));
    let part = "the range is of a private pool, or too large to be split for it (max_split_size_mb), or of blocks";
    assert!(unknown.contains(part), "{unknown}");
}
