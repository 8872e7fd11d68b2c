use super::*;
use crate::analysis::whatif::version::NEWEST;

fn model(settings: &str) -> Model {
    Model::new(
        Settings::parse(settings, NEWEST).expect("settings"),
        None,
        HashMap::default(),
    )
}

fn mib(model: &Model) -> u64 {
    assert_eq!(model.reserved % PAGE, 0);
    model.reserved / MIB
}

#[test]
fn segments_are_of_2_mib_of_20_mib_or_of_the_size_of_the_request() {
    let mut model = model("");
    model.allocate(1000, 0);
    assert_eq!(mib(&model), 2);
    // The rest of the small segment serves it.
    model.allocate(MIB, 0);
    assert_eq!(mib(&model), 2);
    model.allocate(MIB, 0);
    assert_eq!(mib(&model), 4);
    model.allocate(MIB + 1, 0);
    assert_eq!(mib(&model), 24);
    // 20 MiB minus 1 MiB and 512 B have room for 18 MiB, but not for 19.
    model.allocate(18 * MIB, 0);
    assert_eq!(mib(&model), 24);
    model.allocate(19 * MIB, 0);
    assert_eq!(mib(&model), 24 + 20);
    model.allocate(11 * MIB + 1, 0);
    assert_eq!((mib(&model), model.driver_calls), (24 + 20 + 12, 5));
}

#[test]
fn the_smallest_block_that_fits_is_used_and_split_if_more_than_1_mib_is_left() {
    let mut model = model("");
    let large = model.allocate(64 * MIB, 0);
    let middle = model.allocate(32 * MIB, 0);
    model.free(large);
    model.free(middle);
    // Best fit: 32 MiB, of which 2 MiB are left and serve a small request of the large pool.
    let block = model.allocate(30 * MIB, 0);
    let rest = model.allocate(2 * MIB, 0);
    // 1 MiB would be left: the block is handed out whole, so nothing is left for the next one.
    let whole = model.allocate(63 * MIB, 0);
    model.allocate(2 * MIB, 0);
    assert_eq!(mib(&model), 64 + 32 + 20);
    // Free neighbours are joined.
    model.free(rest);
    model.free(block);
    model.free(whole);
    model.allocate(32 * MIB, 0);
    model.allocate(64 * MIB, 0);
    assert_eq!(mib(&model), 64 + 32 + 20);
}

#[test]
fn blocks_of_another_class_serve_no_request() {
    let mut model = model("");
    let block = model.allocate(30 * MIB, 0);
    model.free(block);
    model.allocate(30 * MIB, 1);
    assert_eq!(mib(&model), 60);
    model.allocate(30 * MIB, 0);
    assert_eq!(mib(&model), 60);
}

#[test]
fn empty_cache_gives_back_segments_without_live_blocks_alone() {
    let mut model = model("");
    let first = model.allocate(4 * MIB, 0);
    let second = model.allocate(4 * MIB, 0);
    let whole = model.allocate(40 * MIB, 0);
    model.free(first);
    model.free(whole);
    assert_eq!(model.idle(), 40 * MIB);
    model.release_cached();
    assert_eq!((mib(&model), model.peak / MIB, model.idle()), (20, 60, 0));
    model.free(second);
    model.release_cached();
    assert_eq!((mib(&model), model.driver_calls), (0, 4));
}

#[test]
fn when_the_driver_has_no_more_the_cache_is_given_back_first() {
    let mut model = model("");
    model.limit = Some(100 * MIB);
    let block = model.allocate(60 * MIB, 0);
    model.free(block);
    let held = model.allocate(80 * MIB, 0);
    assert_eq!((mib(&model), model.failed), (80, 0));
    let failed = model.allocate(40 * MIB, 0);
    assert_eq!((mib(&model), model.failed), (120, 1));
    model.free(failed);
    model.free(held);
}

#[test]
fn blocks_above_max_split_size_are_not_split_and_serve_only_requests_of_nearly_their_size() {
    let mut model = model("max_split_size_mb:32");
    let block = model.allocate(64 * MIB, 0);
    model.free(block);
    // Smaller requests do not use it, neither those below the limit nor those that leave 20 MiB.
    let small = model.allocate(8 * MIB, 0);
    model.allocate(44 * MIB, 0);
    assert_eq!(mib(&model), 64 + 20 + 44);
    let block = model.allocate(46 * MIB, 0);
    assert_eq!(mib(&model), 64 + 20 + 44);
    // The driver has no more: the oversize block is given back, and the rest of the cache stays.
    model.free(block);
    model.free(small);
    model.limit = Some(130 * MIB);
    model.allocate(40 * MIB, 0);
    assert_eq!((mib(&model), model.failed), (20 + 44 + 40, 0));
}

#[test]
fn expandable_segments_grow_by_pages_and_give_whole_free_pages_back() {
    let mut model = model("expandable_segments:True");
    let small = model.allocate(1000, 0);
    assert_eq!(mib(&model), 2);
    let first = model.allocate(30 * MIB, 0);
    assert_eq!(mib(&model), 2 + 40);
    // 10 MiB are mapped already, and two more pages follow.
    let second = model.allocate(50 * MIB, 0);
    assert_eq!(mib(&model), 2 + 80);
    // A larger request than the free range before it grows at the end.
    model.free(first);
    let third = model.allocate(35 * MIB, 0);
    assert_eq!(mib(&model), 2 + 120);
    // Of 30 free MiB, one whole page is given back. The rest of the last page too is no whole one.
    assert_eq!(model.idle(), 20 * MIB);
    model.release_cached();
    assert_eq!(mib(&model), 2 + 100);
    // It is mapped again: the lowest range with room.
    let again = model.allocate(30 * MIB, 0);
    assert_eq!(mib(&model), 2 + 120);
    for block in [small, second, third, again] {
        model.free(block);
    }
    model.release_cached();
    assert_eq!(mib(&model), 0);
    model.allocate(100 * MIB, 0);
    assert_eq!(mib(&model), 100);
}

#[test]
fn expandable_segments_have_no_fragmentation_at_the_end_of_a_range() {
    // Each round needs a little more than the last one: whole segments cannot serve it, a range that grows can.
    let reserved = |settings: &str| {
        let mut model = model(settings);
        for round in 0..20 {
            let block = model.allocate((40 + 2 * round) * MIB, 0);
            model.free(block);
        }
        mib(&model)
    };
    assert_eq!(reserved(""), (0..20).map(|round| 40 + 2 * round).sum::<u64>());
    assert_eq!(reserved("expandable_segments:True"), 80);
    // Sizes that are rounded up alike serve each other.
    let sizes = [40, 44, 48, 52, 56, 60, 64, 72, 80];
    assert_eq!(reserved("roundup_power2_divisions:8"), sizes.iter().sum::<u64>());
}

#[test]
fn garbage_collection_gives_back_what_was_unused_for_longest() {
    let mut model = model("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5");
    model.limit = Some(200 * MIB);
    let old = model.allocate(60 * MIB, 0);
    let new = model.allocate(42 * MIB, 0);
    model.allocate(2 * MIB, 0);
    model.free(old);
    for _ in 0..10 {
        let other = model.allocate(2 * MIB, 0);
        model.free(other);
    }
    model.free(new);
    // More than 100 MiB are reserved.
    model.allocate(62 * MIB, 0);
    assert_eq!(mib(&model), 42 + 20 + 62);
}

#[test]
fn a_replay_of_any_requests_ends_with_an_empty_cache() {
    for settings in [
        "",
        "expandable_segments:True",
        "max_split_size_mb:32",
        "roundup_power2_divisions:4",
    ] {
        let mut model = model(settings);
        let (mut live, mut state) = (Vec::new(), 1u64);
        for _ in 0..5000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            if live.len() > 40 || random % 3 == 0 && !live.is_empty() {
                let nth = random as usize % live.len();
                model.free(live.swap_remove(nth));
            } else {
                let bytes = 1 << (random % 26);
                live.push(model.allocate(bytes + random % 4096, (random % 2) as u32));
            }
            if random % 997 == 0 {
                model.release_cached();
            }
        }
        live.into_iter().for_each(|block| model.free(block));
        model.release_cached();
        assert_eq!(model.reserved, 0, "{settings}");
        assert!(model.free.iter().all(BTreeSet::is_empty), "{settings}");
    }
}

#[test]
fn of_equal_blocks_the_lowest_or_since_2_12_the_one_with_the_oldest_record_is_used() {
    // 128 KiB in two halves, 64, 64, 64. The first half is cut off later than the third block, and both are free.
    let used = |oldest_record_first: bool| {
        let mut model = model("");
        model.settings.oldest_record_first = oldest_record_first;
        let [first, _, third, _] = [128, 64, 64, 64].map(|kib| model.allocate(kib << 10, 0));
        model.free(first);
        let [half, _] = [64, 64].map(|kib| model.allocate(kib << 10, 0));
        let start = model.block(half).address;
        model.free(half);
        model.free(third);
        let id = model.allocate(64 << 10, 0);
        (model.block(id).address - start) >> 10
    };
    assert_eq!((used(false), used(true)), (0, 192));
}

/// pytorch#193400: two settings, each of which alone needs little, keep each other's free blocks from being used.
#[test]
fn expandable_segments_with_blocks_that_are_not_split_reserve_14_gib_for_266_mib() {
    let after = |settings: &str| {
        let mut model = model(settings);
        model.allocate(64 * MIB, 0);
        let mut reserved = Vec::new();
        for cycle in 0..101 {
            let (large, half) = (model.allocate(91 * MIB, 0), model.allocate(91 * MIB / 2, 0));
            model.allocate(2 * MIB, 0);
            model.free(large);
            model.free(half);
            if cycle % 20 == 0 {
                reserved.push(mib(&model));
            }
        }
        reserved
    };
    let both = after("max_split_size_mb:128,expandable_segments:True");
    assert_eq!(both, [220, 2980, 5760, 8520, 11_300, 14_060]);
    for alone in ["", "max_split_size_mb:128", "expandable_segments:True"] {
        assert!(after(alone)[5] < 500, "{alone}: {:?}", after(alone));
    }
}
