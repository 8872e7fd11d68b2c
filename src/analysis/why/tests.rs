use super::words::path_text;
use super::*;
use crate::analysis::filter::Filter;
use crate::analysis::report::{self, Report};
use crate::sample::{MIB, held, leaky, modelled};
use crate::snapshot::{HolderPath, Retainer, RootKind, Step};

fn why<'a>(snapshot: &'a Snapshot, options: &Options) -> Why<'a> {
    Why::of(snapshot, options).expect("an answer")
}

/// Some blocks were freed while they were searched for.
fn changing() -> Snapshot {
    let mut snapshot = held();
    let mut nth = 0;
    snapshot.holders.as_mut().expect("searched").change(|_| {
        nth += 1;
        nth % 7 == 0
    });
    snapshot
}

#[test]
fn every_listed_byte_is_counted_once() {
    for snapshot in [held(), changing()] {
        expect_identity(&snapshot);
    }
    let changed = why(&changing(), &Options::default()).changed;
    assert_eq!(changed.count, 9, "of 67 blocks every seventh");
}

fn expect_identity(snapshot: &Snapshot) {
    let all = why(snapshot, &Options::default());
    let report = Report::of(snapshot, &report::Options::default());
    let listed = Tally::total(report.rows.iter().map(report::Row::tally));
    assert_eq!(all.total, listed);
    let of_classes = Tally::total(all.classes.iter().map(|class| class.tally));
    let of_pools = Tally::total(all.pools.values().map(|pool| pool.unknown));
    assert_eq!(
        Tally::total([of_classes, all.changed, all.not_searched, of_pools]),
        all.total
    );
    assert_eq!(Tally::total(all.origins.iter().map(|origin| origin.tally)), of_classes);
    for origin in &all.origins {
        assert_eq!(Tally::total(origin.holders.iter().map(|row| row.tally)), origin.tally);
    }
    let sites = by_site_of(snapshot);
    assert_eq!(Tally::total(sites.iter().map(|site| site.tally)), all.total);
    for site in &sites {
        let holders = site.holders.iter().map(|holder| holder.tally);
        assert_eq!(Tally::total(holders.chain([site.not_searched])), site.tally);
    }
}

#[test]
fn a_call_site_has_the_rows_and_the_order_of_its_own_answer() {
    let mut snapshot = held();
    // The holder of most memory has it over two paths, neither of which is the largest.
    let holders = snapshot.holders.as_mut().expect("searched");
    let mut other = holders.paths[0].clone();
    other.origin = "__main__.other".to_owned();
    holders.paths.push(other);
    let path = holders.paths.len() - 1;
    for block in holders.blocks.iter_mut().filter(|block| block.path == 0).take(18) {
        block.path = path;
    }
    for block in holders.blocks.iter_mut().filter(|block| block.path == 1).take(22) {
        block.path = 0;
    }
    let sites = by_site_of(&snapshot);
    assert_eq!(sites.len(), 6);
    for site in sites.iter().filter(|site| !site.holders.is_empty()) {
        let place = site.place.as_deref().expect("a place");
        let options = Options {
            selector: Some(place.parse().expect("a selector")),
            ..Options::default()
        };
        let answer = why(&snapshot, &options);
        let rows = answer.origins.iter().flat_map(|origin| {
            let rows = origin
                .holders
                .iter()
                .filter(|row| row.site_fingerprint == site.site_fingerprint);
            rows.map(|row| (origin.text(), row.path.clone(), row.tally))
        });
        let shown = site.holders.iter();
        let shown: Vec<_> = shown
            .map(|row| (row.origin.clone(), row.path.clone(), row.tally))
            .collect();
        let text = |origin: &str| origin.trim_start_matches("possibly ").to_owned();
        let rows: Vec<_> = rows.map(|(origin, path, tally)| (text(&origin), path, tally)).collect();
        assert_eq!(shown, rows, "{place}");
    }
    let first: Vec<&str> = sites[0].holders.iter().map(|row| row.origin.as_str()).collect();
    let keep = "__main__.keep (list of 60)";
    assert_eq!(
        first,
        [keep, keep, "__main__.other (list of 60)"],
        "by holder, not by path"
    );
}

#[test]
fn what_is_held_only_possibly_is_in_no_sum_without_that_word() {
    let mut snapshot = held();
    let certain = why(&snapshot, &Options::default());
    assert_eq!(certain.possibly, Tally::default());
    assert!(certain.retainers.iter().all(|retainer| retainer.possibly_bytes == 0));
    let paths = &mut snapshot.holders.as_mut().expect("searched").paths;
    let mut of_keep = paths.iter_mut().filter(|path| path.origin == "__main__.keep");
    of_keep.next().expect("a path").possibly = true;
    let found = why(&snapshot, &Options::default());
    let keep = &found.retainers[0];
    assert!(
        found.possibly.bytes > 0 && found.possibly.bytes < keep.tally.bytes,
        "{:?}",
        found.possibly
    );
    assert_eq!(keep.possibly_bytes, found.possibly.bytes);
}

#[test]
fn what_several_hold_is_freed_by_none_of_them_alone() {
    let mut snapshot = held();
    let holders = snapshot.holders.as_mut().expect("searched");
    // Two variables hold the whole list, and a third one holds one of its elements.
    holders.retainers[0].also = vec!["__main__.other".to_owned()];
    holders.retainers[1].also = vec!["__main__.best['x']".to_owned()];
    holders.retainers[1].also_unnamed = 3;
    holders
        .blocks
        .iter_mut()
        .find(|block| block.path == 0)
        .expect("a block")
        .retainer = Some(1);
    let all = why(&snapshot, &Options::default());
    let keep = &all.origins[0];
    assert_eq!(keep.retained, Some(Tally::default()));
    let row = keep
        .holders
        .iter()
        .find(|row| !row.path.contains("grad_fn"))
        .expect("a row");
    let also: Vec<(&str, u64)> = row
        .also
        .iter()
        .map(|also| (also.name.as_str(), also.tally.count))
        .collect();
    assert_eq!(
        also,
        [("__main__.other", 20), ("__main__.best[*]", 1), ("other holders", 1)]
    );
    assert_eq!(all.retainers[0].also, ["__main__.other"]);
    let (by_site, place) = (by_site_of(&snapshot), "train.py:8");
    let site = by_site
        .iter()
        .find(|site| site.place.as_deref() == Some(place))
        .expect("a site");
    assert!(site.holders.iter().all(|holder| !holder.also.is_empty()));
}

#[test]
fn what_an_unnamed_holder_has_too_is_not_freed_with_the_named_one() {
    let mut snapshot = held();
    snapshot.holders.as_mut().expect("searched").retainers[0].also_unnamed = 1;
    let all = why(&snapshot, &Options::default());
    assert_eq!(all.origins[0].retained, Some(Tally::default()));
    assert!(all.retainers[0].is_shared());
}

#[test]
fn memory_of_which_it_is_not_known_what_frees_it_is_named() {
    let mut snapshot = held();
    let holders = snapshot.holders.as_mut().expect("searched");
    let block = holders
        .blocks
        .iter_mut()
        .find(|block| block.retainer == Some(3))
        .expect("a block");
    block.retainer = None;
    let bytes = block.bytes;
    let all = why(&snapshot, &Options::default());
    assert_eq!(all.unretained, Tally { bytes, count: 1 });
    assert_eq!(why(&held(), &Options::default()).unretained, Tally::default());
}

fn by_site_of(snapshot: &Snapshot) -> Vec<SiteHolders> {
    let stacks = CallStacks::of(snapshot);
    by_site(snapshot, &stacks, &Groups::of(snapshot, &stacks), &Filter::default())
}

#[test]
fn blocks_are_grouped_by_origin_then_by_path_and_call_site() {
    let snapshot = held();
    let all = why(&snapshot, &Options::default());
    let first = &all.origins[0];
    assert_eq!(first.text(), "__main__.keep (list of 60)");
    assert_eq!(
        first.tally,
        Tally {
            bytes: 40 * MIB,
            count: 60
        }
    );
    assert_eq!(first.retained, Some(first.tally));
    let mut paths: Vec<&str> = first.holders.iter().map(|row| row.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        [
            "keep[*] → Tensor → storage",
            "keep[*] → Tensor.grad_fn → SumBackward0 → ExpBackward0, saved result → storage",
        ]
    );
    assert_eq!(all.roots.count, 3, "keep, the generator's frame and g_cache");
}

#[test]
fn a_call_site_a_class_and_an_address_select_memory() {
    let snapshot = held();
    let selected = |text: &str| Options {
        selector: Some(text.parse().expect("a selector")),
        ..Options::default()
    };
    assert_eq!(why(&snapshot, &selected("train.py:29")).total.bytes, 8 * MIB);
    assert_eq!(why(&snapshot, &selected("me/train.py:29")).total.bytes, 8 * MIB);
    assert_eq!(why(&snapshot, &selected("^make_cache$")).total.bytes, 5 * MIB / 2);
    // No call site, but a frame of one stack.
    assert_eq!(why(&snapshot, &selected("^_*libc_start_call_main")).call_sites, 6);
    let lost = Options {
        class: Some(Class::Lost),
        ..Options::default()
    };
    assert_eq!(why(&snapshot, &lost).total, Tally { bytes: MIB, count: 1 });
    let block = snapshot.holders.as_ref().expect("searched").blocks[0];
    let one = why(&snapshot, &selected(&format!("{:#x}", block.address + 17)));
    assert_eq!(one.block.as_ref().map(|one| one.address), Some(block.address));
    assert!(one.retainers.is_empty(), "the tree is that of all memory");
    let nothing = Why::of(&snapshot, &selected("rain.py:29"));
    let Err(Unanswered::NothingSelected(sites)) = nothing else {
        panic!("{nothing:?}")
    };
    assert_eq!(sites.first().map(String::as_str), Some("train.py:8"));
}

#[test]
fn memory_without_an_answer_is_listed_as_such() {
    let snapshot = held();
    let all = why(&snapshot, &Options::default());
    assert_eq!(
        all.not_searched,
        Tally {
            bytes: MIB / 8,
            count: 1
        }
    );
    let unused = all.pools["PyTorch"].unused_bytes;
    assert_eq!(unused, 64 * MIB - (40 + 8 + 2) * MIB - MIB / 4 - MIB / 8);
    assert_eq!(Why::of(&leaky(), &Options::default()), Err(Unanswered::NotSearched));
}

#[test]
fn the_sums_of_what_is_hidden_are_exact() {
    let snapshot = held();
    let options = Options {
        top: Some(1),
        rows: Some(1),
        ..Options::default()
    };
    let all = why(&snapshot, &options);
    assert_eq!((all.origins.len(), all.hidden_origins), (1, 6));
    let classes = Tally::total(all.classes.iter().map(|class| class.tally));
    assert_eq!(Tally::total([all.origins[0].tally, all.hidden]), classes);
    let first = &all.origins[0];
    assert_eq!(Tally::total([first.holders[0].tally, first.hidden]), first.tally);
    assert_eq!(all.retainers.len(), 1);
}

#[test]
fn retainers_are_a_tree_with_parents_before_children() {
    let snapshot = held();
    let tree = why(&snapshot, &Options::default()).retainers;
    assert_eq!(tree.iter().map(|node| node.depth).collect::<Vec<_>>(), [0, 1, 0, 0]);
    for (nth, node) in tree.iter().enumerate() {
        assert!(
            node.parent
                .is_none_or(|parent| parent < nth && tree[parent].tally.bytes >= node.tally.bytes)
        );
    }
}

/// A retainer of this name, below another one.
fn retainer(name: &str, parent: Option<usize>, mib: u64) -> Retainer {
    Retainer {
        name: name.to_owned(),
        parent,
        bytes: mib * MIB,
        count: mib,
        ..Retainer::default()
    }
}

/// The tree of these retainers as text.
fn tree_of(retainers: Vec<Retainer>) -> Vec<String> {
    let mut snapshot = held();
    snapshot.holders.as_mut().expect("searched").retainers = retainers;
    snapshot.validate().expect("a valid snapshot");
    let tree = why(&snapshot, &Options::default()).retainers;
    let line = |node: &Retained| format!("{}{} {}", "  ".repeat(node.depth), node.tally.bytes / MIB, node.name);
    tree.iter().map(line).collect()
}

#[test]
fn retainers_that_differ_in_an_index_are_one_and_equal_ones_are_left_out() {
    let mut all = vec![retainer("keep (list of 9)", None, 9), retainer("net.cache", None, 4)];
    for nth in 0..9 {
        all.push(retainer(&format!("keep[{nth}] (Block)"), Some(0), 1));
    }
    // The whole cache is below one of its keys.
    all.push(retainer("net.cache['k'] (list of 2)", Some(1), 4));
    let cache = all.len() - 1;
    all.push(retainer("net.cache['k'][0] (Block)", Some(cache), 3));
    all.push(retainer("net.cache['k'][1] (Tensor)", Some(cache), 1));
    let expected = [
        "9 keep (list of 9)",
        "4 net.cache",
        "  3 net.cache['k'][0] (Block)",
        "  1 net.cache['k'][1] (Tensor)",
    ];
    assert_eq!(tree_of(all), expected);
    let mut many = vec![retainer("cache (dict of 40)", None, 42)];
    many.extend((0..40).map(|nth| retainer(&format!("cache['request {nth}'] (Block)"), Some(0), 1)));
    assert_eq!(tree_of(many), ["42 cache (dict of 40)", "  40 40 × cache[*] (Block)"]);
}

#[test]
fn retainers_of_one_name_are_added_up_and_those_of_another_root_are_not() {
    let mut snapshot = held();
    let keep = Retainer {
        root: RootKind::Module,
        ..retainer("__main__.keep (list of 60)", None, 30)
    };
    let other_root = Retainer {
        root: RootKind::Frame,
        ..keep.clone()
    };
    let inner = retainer("__main__.keep (list of 60)", Some(0), 7);
    let second = Retainer {
        bytes: 10 * MIB,
        count: 10,
        ..keep.clone()
    };
    snapshot.holders.as_mut().expect("searched").retainers = vec![keep, second, inner, other_root];
    let all = why(&snapshot, &Options::default());
    let retained = all.origins[0]
        .retained
        .map(|retained| (retained.bytes / MIB, retained.count));
    assert_eq!((all.origins[0].key.origin, retained), ("__main__.keep", Some((40, 40))));
}

#[test]
fn a_chain_of_many_retainers_is_one_node() {
    let link = |nth: usize| retainer("node.next", nth.checked_sub(1), if nth == 0 { 2 } else { 1 });
    assert_eq!(
        tree_of((0..100_000).map(link).collect()),
        ["2 node.next", "  1 node.next"]
    );
}

#[test]
fn a_linked_list_is_one_row() {
    let mut all = vec![retainer("__main__.head (dict of 2)", None, 500)];
    for nth in 1..400 {
        let name = format!("head{} (dict of 2)", "['next']".repeat(nth));
        all.push(retainer(&name, Some(nth - 1), 401 - nth as u64));
    }
    let last = format!("head{} (Tensor)", "['next']".repeat(399));
    all.push(retainer(&last, Some(399), 1));
    let mut snapshot = held();
    snapshot.holders.as_mut().expect("searched").retainers = all;
    let tree = why(&snapshot, &Options::default()).retainers;
    let names: Vec<&str> = tree.iter().map(|node| node.name.as_str()).collect();
    let expected = [
        "__main__.head (dict of 2)",
        "head['next'] (dict of 2)",
        "head … 399 × ['next'] … (Tensor)",
    ];
    assert_eq!(names, expected);
    assert_eq!(tree[1].repeated, 398);
    let one = Options {
        top: Some(1),
        ..Options::default()
    };
    assert_eq!(why(&snapshot, &one).hidden_retainers, 2);
}

#[test]
fn holders_with_the_same_text_are_one_row_with_the_holders_below_them() {
    let long = |letter: &str, end: &str| format!("a{}z{end}", letter.repeat(500));
    let both = |letter: &str| format!("{}{}{}", "x".repeat(300), letter, "y".repeat(300));
    let all = vec![
        retainer(&both("1"), None, 3),
        retainer("inner", Some(0), 1),
        retainer(&long("b", ".c"), None, 9),
        retainer(&both("2"), None, 4),
        retainer("outer", Some(3), 2),
    ];
    let tree = tree_of(all);
    assert!(tree[0].starts_with("9 ab") && tree[0].chars().count() < 210, "{tree:?}");
    assert!(tree[1].starts_with("7 2 × xxx"), "{tree:?}");
    assert_eq!(tree[2..], ["  2 outer", "  1 inner"]);
}

#[test]
fn a_holder_and_a_caller_are_selected_if_no_call_site_matches() {
    let snapshot = held();
    let matched = |text: &str| {
        let options = Options {
            selector: Some(text.parse().expect("a selector")),
            ..Options::default()
        };
        let why = why(&snapshot, &options);
        (why.matched, why.total.bytes)
    };
    assert_eq!(matched("make_cache"), (Some(Matched::Site), 5 * MIB / 2));
    assert_eq!(matched("g_cache"), (Some(Matched::Holder), 2 * MIB));
    assert_eq!(matched("__main__.keep"), (Some(Matched::Holder), 40 * MIB));
    assert_eq!(matched("libc_start").0, Some(Matched::Caller));
}

#[test]
fn no_memory_of_a_class_is_an_answer() {
    let mut snapshot = held();
    let holders = snapshot.holders.as_mut().expect("searched");
    holders.paths.iter_mut().for_each(|path| path.class = Class::Held);
    let lost = Options {
        class: Some(Class::Lost),
        ..Options::default()
    };
    let all = why(&snapshot, &lost);
    assert_eq!((all.total.count, all.origins.len()), (0, 0));
    assert_eq!(all.not_searched.bytes, MIB / 8, "it may be lost");
}

#[test]
fn the_next_command_narrows_the_answer() {
    let snapshot = held();
    let next = |selector: Option<&str>, class| {
        let options = Options {
            source: "a.culeak".to_owned(),
            core: Some("core.7".to_owned()),
            selector: selector.map(|text| text.parse().expect("a selector")),
            class,
            ..Options::default()
        };
        why(&snapshot, &options).next
    };
    assert_eq!(next(None, None), "culeak why --core core.7 a.culeak train.py:8");
    let held = next(None, Some(Class::Held));
    assert_eq!(held, "culeak why --core core.7 a.culeak train.py:8 --class held");
    // One call site: its answer would be the same.
    let address = |next: &str| next.starts_with("culeak why --core core.7 a.culeak 0x");
    assert!(address(&next(None, Some(Class::Cycle))));
    assert!(address(&next(Some("train.py:8"), None)));
}

#[test]
fn a_path_of_a_million_steps_has_a_short_text() {
    let step = Step {
        via: String::new(),
        holder: "Node".to_owned(),
    };
    let mut path = HolderPath {
        steps: vec![step; 1_000_000],
        ..HolderPath::default()
    };
    path.steps[0].holder = "Node".repeat(1_000_000);
    let text = path_text(&path);
    assert!(text.len() < 4_000, "{}", text.len());
}

#[test]
fn holders_that_contradict_themselves_are_refused() {
    let damaged = |damage: fn(&mut Holders)| {
        let mut snapshot = held();
        damage(snapshot.holders.as_mut().expect("searched"));
        snapshot.validate().expect_err("refused")
    };
    assert!(damaged(|holders| holders.blocks[3].path = 8).contains("the path of a block"));
    assert!(damaged(|holders| holders.blocks[3].retainer = Some(9)).contains("the retainer of a block"));
    assert!(damaged(|holders| holders.retainers[1].parent = Some(1)).contains("the parent of a retainer"));
}

#[test]
fn modules_have_the_sums_of_those_in_them_and_every_byte_is_in_one() {
    let snapshot = modelled();
    let all = why(&snapshot, &Options::default());
    let modules = all.modules.as_ref().expect("modules own memory");
    let roots = modules.tree.iter().filter(|row| row.depth == 0);
    let roots: Vec<Tally> = roots.map(|row| row.tally).collect();
    assert_eq!(roots.len(), 2);
    assert_eq!(Tally::total(roots.into_iter().chain([modules.without])), all.total);
    let of = |path: &str| modules.tree.iter().find(|row| row.path == path).expect("a module");
    let (layers, own) = (of("body.layers"), of("body.layers.3"));
    let inner = |parent: &ModuleRow| {
        let rows = modules.tree.iter();
        let rows = rows.filter(|row| row.parent.is_some_and(|nth| modules.tree[nth] == *parent));
        Tally::total(rows.map(|row| row.tally))
    };
    assert_eq!(inner(layers), layers.tally);
    assert_eq!(own.tally.count, inner(own).count + 4, "its cache is its own");
    let report = Report::of(
        &snapshot,
        &report::Options {
            by: report::By::Module,
            ..report::Options::default()
        },
    );
    let rows: Vec<(&str, Tally)> = report
        .rows
        .iter()
        .map(|row| (row.label.as_str(), row.tally()))
        .collect();
    for (label, tally) in rows {
        match report.modules.as_ref().expect("modules").of_root(label).first() {
            Some(root) => assert_eq!(root.tally, tally, "{label}"),
            None => assert_eq!((label, modules.without), ("(no module)", tally)),
        }
    }
    let of_sites = by_site_of(&snapshot);
    let of_sites = of_sites.iter().filter_map(|site| site.modules.as_ref());
    let of_sites = of_sites.flat_map(|modules| &modules.tree).filter(|row| row.depth == 0);
    assert_eq!(
        Tally::total(of_sites.map(|row| row.tally)).bytes,
        all.total.bytes - modules.without.bytes
    );
}

#[test]
fn modules_that_are_alike_are_one_line_and_others_are_not() {
    let snapshot = modelled();
    let all = why(&snapshot, &Options::default());
    let tree = &all.modules.as_ref().expect("modules own memory").tree;
    let texts = |most| {
        let (lines, hidden) = modules::folded(tree, most);
        let text = |row: &ModuleRow| format!("{}{}", "  ".repeat(row.depth), row.text());
        (lines.iter().map(text).collect::<Vec<_>>(), hidden)
    };
    let (lines, hidden) = texts(100);
    assert_eq!(
        lines,
        [
            "__main__.model (Model)",
            "  body.layers (ModuleList)",
            "    body.layers.* (5 × Layer)",
            "      body.layers.*.linear1 (5 × Linear)",
            "      body.layers.*.linear2 (5 × Linear)",
            "    body.layers.3 (Layer)",
            "      body.layers.3.linear1 (Linear)",
            "      body.layers.3.linear2 (Linear)",
            "  embed (Embedding)",
            "__main__.critic (Sequential)",
        ]
    );
    assert_eq!(hidden, 0);
    assert_eq!(texts(3), (lines[..3].to_vec(), 7), "the largest");
    // An allocator gave one of the layers a little more, and another one has twice as much.
    let mut tree = tree.clone();
    let mut grow = |path: &str, bytes: u64| {
        let row = tree.iter_mut().find(|row| row.path == path).expect("a module");
        row.tally.bytes += bytes;
    };
    grow("body.layers.1", MIB / 8);
    grow("body.layers.2", 2 * MIB);
    let lines = modules::folded(&tree, 100).0;
    let layers: Vec<String> = lines
        .iter()
        .map(ModuleRow::text)
        .filter(|text| text.ends_with("Layer)"))
        .collect();
    assert_eq!(
        layers,
        [
            "body.layers.* (4 × Layer)",
            "body.layers.3 (Layer)",
            "body.layers.2 (Layer)"
        ]
    );
}

#[test]
fn a_tree_of_a_million_modules_in_each_other_costs_no_more_than_its_size() {
    let mut snapshot = modelled();
    let holders = snapshot.holders.as_mut().expect("searched");
    holders.modules = (0..1_000_000)
        .map(|nth: usize| crate::snapshot::OwnerModule {
            parent: nth.checked_sub(1),
            ..Default::default()
        })
        .collect();
    for block in &mut holders.blocks {
        block.module = Some(999_999);
    }
    let all = why(&snapshot, &Options::default());
    let tree = &all.modules.as_ref().expect("modules own memory").tree;
    assert!(tree.len() < 100);
    assert_eq!(modules::folded(tree, 10).0.len(), 2, "the root, and the innermost");
}
