//! What would hide memory from a check, and is noticed.

use super::*;
use crate::analysis::job::member::Member;
use crate::analysis::suppressions::Suppressions;
use crate::sample::{MAIN, RUNTIME};
use crate::snapshot::{Allocation, Call, End, EndOf, Python};

const NCCL: &str = "/v/nccl/lib/libnccl.so.2";
const INTERNAL: sample::FrameText = ("", "", NCCL);
const ENTRY: sample::FrameText = ("ncclCommInitRank", "", NCCL);

/// A program that holds 1 MiB with this stack, of which callers were cut off if `cut`.
fn with_stack(frames: &[sample::FrameText], cut: bool) -> Snapshot {
    let mut sample = Sample::new();
    let stack = sample.stack(frames);
    sample.0.stacks[stack].truncated = cut;
    sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    sample.finish(0, 0)
}

/// The outcome, and what was not seen.
fn outcome_with(snapshot: &Snapshot, rules: &str, limits: Limits) -> (Outcome, String) {
    let mut suppressions = Suppressions::default();
    suppressions.add(rules, "x.supp").expect("rules");
    suppressions.add_built_in();
    let rules = Rules {
        suppressions,
        ..Rules::from(limits)
    };
    let verdict = verdict(snapshot, &rules);
    let unseen = verdict.unseen.iter().map(Unseen::sentence);
    (verdict.outcome, unseen.collect())
}

#[test]
fn a_built_in_rule_does_not_hide_memory_whose_entry_into_the_library_is_not_known() {
    let outcome = |frames: &[_], cut| outcome_with(&with_stack(frames, cut), "", Limits::default());
    assert_eq!(outcome(&[RUNTIME, INTERNAL, ENTRY, MAIN], false).0, Outcome::Passed);
    // The callers of the library do not matter.
    assert_eq!(outcome(&[RUNTIME, INTERNAL, ENTRY, MAIN], true).0, Outcome::Passed);
    let (cut, why) = outcome(&[RUNTIME, INTERNAL, INTERNAL], true);
    assert_eq!(cut, Outcome::NoVerdict);
    assert_eq!(
        why,
        "cannot be judged: leak:^libnccl.so excludes 1 MiB in 1 block, which keep:^ncclMemAlloc$ above it may exempt: their stacks \
         were cut off; record with a larger --depth, or leave the rule out, or accept it with --allow-losses"
    );
    let (unnamed, why) = outcome(&[RUNTIME, INTERNAL, INTERNAL, MAIN], false);
    assert!(unnamed == Outcome::NoVerdict && why.contains("have no names"), "{why}");
}

#[test]
fn a_rule_below_a_keep_rule_does_not_hide_memory_whose_stack_is_incomplete() {
    let fill = ("Cache::fill()", "/src/cache.cu:8", "/opt/app");
    let rules = "keep:Cache::lend\nleak:Cache::fill";
    let of = |snapshot: &Snapshot, rules: &str| outcome_with(snapshot, rules, Limits::default()).0;
    let whole = with_stack(&[RUNTIME, fill, MAIN], false);
    assert_eq!(of(&whole, rules), Outcome::Passed);
    let cut = with_stack(&[RUNTIME, fill], true);
    assert_eq!(of(&cut, rules), Outcome::NoVerdict);
    assert_eq!(
        of(&cut, "leak:Cache::fill\nkeep:Cache::lend"),
        Outcome::Passed,
        "it is above"
    );
    let unnamed = with_stack(&[RUNTIME, fill, ("", "", "/opt/app"), MAIN], false);
    assert_eq!(of(&unnamed, rules), Outcome::NoVerdict);
    let mut without_python = whole.clone();
    without_python.process.python = Some(Python {
        no_frames: Some("--record native-frames".to_owned()),
        version: "3.12.1".to_owned(),
    });
    assert_eq!(of(&without_python, rules), Outcome::NoVerdict);
    // The limit is kept in any case.
    let limits = Limits::from([Limit::bytes(Scope::All, MIB)]);
    assert_eq!(outcome_with(&cut, rules, limits).0, Outcome::Passed);
    // The user's own line was cut off.
    let of_library = with_stack(&[RUNTIME, ("Py_New", "", "/v/numpy/core.so")], true);
    assert_eq!(of(&of_library, "leak:Py_New"), Outcome::Passed);
}

#[test]
fn a_rule_that_matches_every_stack_is_said_to_hide_all_leaks() {
    let snapshot = holding(4, 8, true);
    let warned = |text: &str| {
        let mut rules = Rules::default();
        rules.suppressions.add(text, "x.supp").expect("rules");
        let warnings = verdict(&snapshot, &rules).warnings;
        warnings.iter().any(|warning| warning.contains("matches every stack"))
    };
    assert!(warned("leak:main") && warned("leak:/opt/app"));
    assert!(!warned("leak:Cache::fill") && !warned("leak:Cache::fill\nleak:Eval::keep"));
    // One call site, hidden by the function that calls it, or by its own name.
    let only = with_stack(&[RUNTIME, ("Cache::fill", "/src/cache.cu:9", "/opt/app"), MAIN], false);
    let warned = |text: &str| {
        let mut rules = Rules::default();
        rules.suppressions.add(text, "x.supp").expect("rules");
        let warnings = verdict(&only, &rules).warnings;
        warnings.iter().any(|warning| warning.contains("matches every stack"))
    };
    assert!(warned("leak:main") && !warned("leak:Cache::fill"));
    // The C library called main.
    let start = ("__libc_start_main", "", "/usr/lib/libc.so.6");
    let only = with_stack(
        &[
            RUNTIME,
            ("Cache::fill", "/src/cache.cu:9", "/opt/app"),
            MAIN,
            start,
            ("_start", "", "/opt/app"),
        ],
        false,
    );
    let mut rules = Rules::default();
    rules.suppressions.add("leak:libc", "x.supp").expect("rules");
    let warnings = verdict(&only, &rules).warnings;
    assert!(
        warnings.iter().any(|warning| warning.contains("matches every stack")),
        "{warnings:?}"
    );
}

#[test]
fn the_last_of_several_equal_marks_counts_and_that_is_said() {
    let mut snapshot = holding(4, 8, true);
    let limits = Limits {
        since: Some("step".to_owned()),
        ..Limits::default()
    };
    let warned = |snapshot: &Snapshot| {
        let warnings = verdict(snapshot, &limits.clone().into()).warnings;
        warnings.iter().any(|warning| warning.contains("--since 2 times"))
    };
    let mark = |time_ns| crate::snapshot::Mark {
        name: "step".to_owned(),
        time_ns,
        thread: 0,
    };
    let marks = [mark(1), mark(2)];
    snapshot.marks = marks[..1].to_vec();
    assert!(!warned(&snapshot));
    snapshot.marks = marks.to_vec();
    assert!(warned(&snapshot));
}

#[test]
fn a_budget_of_suppressed_stacks_is_said_to_limit_nothing() {
    let mut rules = Rules::from(Limits::from([in_pattern("cache.cu", 0)]));
    let warned = |rules: &Rules| {
        let warnings = verdict(&holding(4, 8, true), rules).warnings;
        warnings.iter().any(|warning| warning.contains("limits nothing"))
    };
    assert!(!warned(&rules));
    rules.suppressions.add("leak:Cache::fill", "x.supp").expect("rules");
    assert!(warned(&rules));
}

/// A block of 1 KiB within memory of 64 MiB.
#[test]
fn one_block_does_not_hide_the_memory_that_it_lies_in_from_a_check_of_pools() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Device, "cuMemAlloc_v2", 64 * MIB, 1, stack);
    let memory = sample.0.allocations.at(0);
    let (address, after_it) = (memory.address, memory.time_ns + 20);
    let call = Call {
        domain: Some("mine".to_owned()),
        ..Call::new(Kind::Block, "culeak_alloc", Some(0), 0)
    };
    for (address, bytes) in [
        (address + 512, 1024),
        (address + 1024, 512),
        (address + 64 * MIB - 100, 4096),
    ] {
        sample.0.allocations.push(Allocation {
            address,
            bytes,
            requested: bytes,
            time_ns: after_it,
            stack: Some(stack),
            call: &call,
        });
    }
    let snapshot = sample.finish(0, 0);
    let judged = |judge_pools| {
        let limits = Limits {
            judge_pools,
            ..Limits::default()
        };
        verdict(&snapshot, &limits.into()).judged
    };
    let of_blocks = 1024 + 512 + 4096;
    assert_eq!(
        judged(false),
        Tally {
            bytes: of_blocks,
            count: 3
        }
    );
    let covered = 1024 + 100;
    assert_eq!(
        judged(true),
        Tally {
            bytes: of_blocks + 64 * MIB - covered,
            count: 4
        }
    );
}

/// Memory of 64 MiB with blocks of these sizes, which the program reports at this time under this name.
fn with_blocks(domain: &str, sizes: &[u64], time_ns: u64) -> Snapshot {
    let mut sample = Sample::new();
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Device, "cuMemAlloc_v2", 64 * MIB, 1, stack);
    let memory = sample.0.allocations.at(0);
    let (address, after) = (memory.address, memory.time_ns);
    let call = Call {
        domain: Some(domain.to_owned()),
        ..Call::new(Kind::Block, "culeak_alloc", Some(0), 0)
    };
    for (nth, &bytes) in sizes.iter().enumerate() {
        sample.0.allocations.push(Allocation {
            address: address + nth as u64 * MIB,
            bytes,
            requested: bytes,
            time_ns: if time_ns == 0 { 0 } else { after + time_ns },
            stack: Some(stack),
            call: &call,
        });
    }
    sample.finish(0, 0)
}

#[test]
fn a_block_of_the_program_does_not_exempt_the_memory_that_it_lies_in() {
    let outcome = |snapshot: &Snapshot, limits: &Limits| {
        let verdict = verdict(snapshot, &limits.clone().into());
        (verdict.outcome, verdict.judged.bytes)
    };
    let at_most = |bytes| Limits::from([Limit::bytes(Scope::All, bytes)]);
    let pool = with_blocks("mine", &[1], 5);
    assert_eq!(outcome(&pool, &at_most(MIB)), (Outcome::NoVerdict, 1));
    assert_eq!(outcome(&pool, &at_most(64 * MIB)), (Outcome::Passed, 1));
    let kind = Limits {
        kinds: vec![Kind::Device],
        ..Limits::default()
    };
    assert_eq!(outcome(&pool, &kind).0, Outcome::NoVerdict);
    assert_eq!(verdict(&pool, &at_most(MIB).into()).rest_of_pools.bytes, 64 * MIB - 1);
    let judges_pools = Limits {
        judge_pools: true,
        ..at_most(MIB)
    };
    assert_eq!(outcome(&pool, &judges_pools), (Outcome::Failed, 64 * MIB));
    let mut rules = Rules::from(at_most(MIB));
    rules.suppressions.add("leak:main", "x.supp").expect("rules");
    assert_eq!(verdict(&pool, &rules).outcome, Outcome::Passed);
    // The blocks fill it, or a framework keeps the rest.
    let full = with_blocks("mine", &[64 * MIB], 5);
    assert_eq!(outcome(&full, &at_most(64 * MIB)), (Outcome::Passed, 64 * MIB));
    let of_framework = with_blocks("CuPy", &[1], 5);
    assert_eq!(outcome(&of_framework, &at_most(MIB)), (Outcome::Passed, 1));
}

#[test]
fn blocks_of_no_bytes_and_blocks_that_are_older_make_no_pool_of_memory() {
    for snapshot in [with_blocks("mine", &[0, 0], 5), with_blocks("mine", &[1, 1], 0)] {
        let verdict = verdict(&snapshot, &Rules::default());
        assert!(verdict.judged.bytes >= 64 * MIB, "{:?}", verdict.judged);
    }
}

#[test]
fn memory_that_was_allocated_after_the_end_of_the_script_is_named() {
    let mut snapshot = holding(4, 8, true);
    // The first three blocks of each site are older.
    snapshot.end = Some(End {
        time_ns: 12_500_000_000,
        of: EndOf::Script,
    });
    let at_end = snapshot.at(&Point::End).expect("an end");
    let later = |limits: Limits| {
        let verdict = verdict(&at_end, &limits.into());
        (verdict.judged.count, verdict.allocated_after_end.count)
    };
    assert_eq!(later(Limits::default()), (4, 1));
    let kinds = vec![Kind::HostPinned];
    let pinned = Limits {
        kinds,
        ..Limits::default()
    };
    assert_eq!(later(pinned), (0, 0));
    assert_eq!(
        verdict(&snapshot, &Rules::default()).allocated_after_end,
        Tally::default()
    );
}

#[test]
fn a_job_lacks_the_ranks_that_no_input_shows() {
    let ranks = |ranks: &[u32], world: Option<u32>| {
        let member = |&rank: &u32| {
            let mut member = Member::of(&Sample::new().finish(0, 0));
            (member.identity.rank, member.identity.world) = (Some(rank), world);
            member
        };
        let members: Vec<Member> = ranks.iter().map(member).collect();
        let lacking = missing_ranks(&members).into_iter();
        lacking
            .map(|(number, unseen)| format!("{number}: {}", unseen.what))
            .collect::<String>()
    };
    assert_eq!(ranks(&[1, 0, 3], Some(4)), "0: rank 2 of 4 has no recording here");
    assert_eq!(ranks(&[0, 1], Some(8)), "0: ranks 2-7 of 8 have no recordings here");
    assert_eq!(ranks(&[0, 1, 2, 3, 3], Some(4)), "");
    // Without a number of ranks, gaps are noticed.
    assert_eq!(ranks(&[0, 2], None), "0: rank 1 has no recording here");
    assert_eq!(ranks(&[0, 1], Some(4_000_000_000)), "");
}

#[test]
fn a_program_lacks_the_ranks_of_its_node() {
    let ranks = |stated: &[(u32, u32)], node: Option<u32>, local_world: Option<u32>| {
        let member = |&(rank, local): &(u32, u32)| {
            let mut member = Member::of(&Sample::new().finish(0, 0));
            (member.identity.rank, member.identity.world) = (Some(rank), Some(16));
            (member.identity.local_rank, member.identity.local_world) = (Some(local), local_world);
            member.identity.node = node;
            member
        };
        let members: Vec<Member> = stated.iter().map(member).collect();
        let lacking = missing_ranks_here(&members).into_iter();
        lacking.map(|(_, unseen)| unseen.what).collect::<String>()
    };
    let two = [(8, 0), (10, 2)];
    assert_eq!(ranks(&two, Some(1), Some(3)), "local rank 1 of 3 has no recording here");
    assert_eq!(ranks(&[(8, 0), (9, 1)], Some(1), Some(2)), "");
    // How many ranks another node has is unknown.
    assert_eq!(ranks(&two, Some(1), None), "");
    assert!(ranks(&two, None, None).starts_with("ranks 0-7, 9, 11-15 of 16"));
}

#[test]
fn whole_jobs_of_several_runs_lack_nothing() {
    let member = |rank, restart| {
        let mut member = Member::of(&Sample::new().finish(0, 0));
        (member.identity.rank, member.identity.world, member.identity.restart) = (Some(rank), Some(2), restart);
        member
    };
    let both = [
        member(0, Some(0)),
        member(1, Some(0)),
        member(0, Some(1)),
        member(1, Some(1)),
    ];
    assert_eq!(missing_ranks(&both), []);
    assert_eq!(missing_ranks(&both[..3])[0].0, 2);
    assert_eq!(missing_ranks(&[Member::of(&holding(1, 2, false))]), []);
}

#[test]
fn launches_at_the_same_time_are_told_apart_by_their_ports_or_steps() {
    let lacking = |stated: &[(u32, Option<&str>)]| {
        let member = |(at, &(rank, port)): (usize, &(u32, Option<&str>))| {
            let mut member = Member::of(&Sample::new().finish(0, 0));
            (member.identity.rank, member.identity.world) = (Some(rank), Some(2));
            let variables = ["MASTER_PORT", "SLURM_STEP_ID"].into_iter();
            let values = port.into_iter().flat_map(|port| port.split(' ').map(str::to_owned));
            member.identity.launch = variables.zip(values).collect();
            // Another program of a launch does not stand in for a rank of the first one.
            member.program.executable = if at == 2 { "other" } else { "first" }.into();
            member
        };
        let members: Vec<Member> = stated.iter().enumerate().map(member).collect();
        let lacking = missing_ranks(&members).into_iter();
        lacking.map(|(_, unseen)| unseen.what).collect::<String>()
    };
    let (a, b) = (Some("29500"), Some("29501"));
    let text = lacking(&[(0, a), (1, a), (0, b)]);
    assert_eq!(text, "rank 1 of 2 has no recording here");
    let steps = (Some("29500 0"), Some("29500 1"));
    assert_eq!(lacking(&[(0, steps.0), (1, steps.0), (0, steps.1)]), text);
    assert_ne!(lacking(&[(0, a), (1, b)]), "");
    assert_eq!(lacking(&[(0, a), (1, a), (0, b), (1, b)]), "");
    // Lightning's first rank sets it after its recording began.
    assert_eq!(lacking(&[(0, None), (1, a)]), "");
    assert_eq!(lacking(&[(0, a), (1, steps.0), (0, a)]), "");
}

#[test]
fn a_launch_lacks_the_ranks_that_only_another_launch_has() {
    let lacking = |stated: &[(u32, u64, &str)]| {
        let member = |&(rank, started, host): &(u32, u64, &str)| {
            let mut member = Member::of(&Sample::new().finish(0, 0));
            (member.identity.rank, member.identity.world) = (Some(rank), Some(2));
            (member.started_unix_ns, member.lasted_ns) = (started * 1_000_000_000, 10_000_000_000);
            member.host = host.to_owned();
            member
        };
        let members: Vec<Member> = stated.iter().map(member).collect();
        let lacking = missing_ranks(&members).into_iter();
        lacking.map(|(_, unseen)| unseen.what).collect::<String>()
    };
    let text = lacking(&[(0, 100, "a"), (0, 200, "a"), (1, 201, "a")]);
    assert!(
        text.starts_with("rank 1 of 2 has no recording of one of the 2 launches of "),
        "{text}"
    );
    assert_eq!(
        lacking(&[(0, 100, "a"), (1, 101, "a"), (0, 200, "a"), (1, 201, "a")]),
        ""
    );
    // Another process of the same rank and launch, and shards that run one after the other.
    assert_eq!(lacking(&[(0, 100, "a"), (1, 101, "a"), (0, 105, "a")]), "");
    assert_eq!(lacking(&[(0, 100, "a"), (1, 200, "a")]), "");
    // A clock that is 30 seconds ahead.
    assert_eq!(lacking(&[(0, 100, "a"), (1, 130, "b"), (0, 105, "a")]), "");
}
