//! Graph memory is live from a launch until it is freed; a captured allocation alone holds nothing.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::{Outcome, profile};

fn graphs(words: &str) -> Outcome {
    profile("graphs").args(words).run()
}

#[test]
fn a_captured_allocation_that_is_never_launched_holds_no_memory() {
    let outcome = graphs("captured");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    assert_eq!(snapshot.losses.captured_not_launched, 1);
}

#[test]
fn a_launch_makes_it_live() {
    let outcome = graphs("captured launch");
    outcome
        .only_snapshot()
        .expect_live(Graph, 1, 6000)
        .expect_kinds(&[Graph]);
    assert_eq!(outcome.only_snapshot().losses.captured_not_launched, 0);
}

#[test]
fn a_capture_continues_when_ending_another_streams_capture_fails() {
    let outcome = graphs("another_end_fails");
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    assert_eq!(snapshot.losses.captured_not_launched, 1);
}

#[test]
fn a_graph_that_frees_what_it_allocates_leaves_nothing() {
    graphs("captured freed launch").only_snapshot().expect_clean();
    graphs("captured freed launch again").only_snapshot().expect_clean();
}

#[test]
fn a_relaunch_that_fails_does_not_count_twice() {
    graphs("captured launch again")
        .only_snapshot()
        .expect_live(Graph, 1, 6000);
}

#[test]
fn a_relaunch_with_auto_free_frees_and_allocates_again() {
    let outcome = graphs("captured auto launch again");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Graph, 1, 6000);
    assert_eq!(snapshot.counted(Graph).total_count, 2);
    assert_eq!(snapshot.losses.implicit_frees, 1);
}

#[test]
fn graph_memory_may_be_freed_by_address() {
    graphs("captured launch free").only_snapshot().expect_clean();
    graphs("captured launch freeasync").only_snapshot().expect_clean();
}

#[test]
fn destroying_the_graph_frees_nothing_and_its_memory_can_still_be_freed() {
    graphs("captured launch destroy")
        .only_snapshot()
        .expect_live(Graph, 1, 6000);
    graphs("captured launch destroy free").only_snapshot().expect_clean();
}

#[test]
fn memory_freed_and_launched_again_is_live_again() {
    graphs("captured launch free relaunch")
        .only_snapshot()
        .expect_live(Graph, 1, 6000);
}

#[test]
fn what_a_recapture_repeats_is_one_node() {
    let outcome = graphs("recaptured");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    assert_eq!(snapshot.losses.captured_not_launched, 1);

    graphs("recaptured launch").only_snapshot().expect_clean();
    graphs("recaptured freed launch again").only_snapshot().expect_clean();
    let outcome = graphs("recaptured launch again");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Graph, 1, 6000).expect_kinds(&[Graph]);
    assert_eq!(snapshot.losses.captured_not_launched, 0);
}

#[test]
fn nodes_added_explicitly_count_like_captured_ones() {
    for how in ["alloc", "node", "node_v2"] {
        graphs(&format!("built {how}")).only_snapshot().expect_no_leaks();
        graphs(&format!("built {how} launch"))
            .only_snapshot()
            .expect_live(Graph, 1, 7000);
        graphs(&format!("built {how} freed launch again"))
            .only_snapshot()
            .expect_clean();
        graphs(&format!("built {how} params launch"))
            .only_snapshot()
            .expect_live(Graph, 1, 7000);
        graphs(&format!("built {how} params auto launch again"))
            .only_snapshot()
            .expect_live(Graph, 1, 7000);
    }
}

#[test]
fn memory_of_a_child_graph_is_live_from_the_parents_launch() {
    graphs("child").only_snapshot().expect_no_leaks();
    graphs("child launch").only_snapshot().expect_live(Graph, 1, 6000);
    graphs("child freed launch").only_snapshot().expect_clean();
    graphs("child parent_frees launch").only_snapshot().expect_clean();
}

#[test]
fn what_a_large_graph_does_not_free_is_live_in_whatever_order_it_frees_the_rest() {
    for order in ["many", "many backwards"] {
        let captured = graphs(order);
        let snapshot = captured.only_snapshot();
        snapshot.expect_no_leaks();
        assert_eq!(snapshot.losses.captured_not_launched, 600);

        let launched = graphs(&format!("{order} launch"));
        let snapshot = launched.only_snapshot();
        snapshot.expect_live(Graph, 200, 200_000).expect_nothing_lost();
        assert_eq!(snapshot.losses.captured_not_launched, 0);
    }
}

#[test]
fn launches_of_large_graphs_at_once_lose_nothing() {
    let outcome = graphs("at_once");
    outcome.expect_success();
    let rounds = outcome.stdout.lines().find_map(|line| line.strip_prefix("rounds "));
    let rounds: u64 = rounds.unwrap().parse().unwrap();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Graph, 200, 200 * 500).expect_nothing_lost();
    assert_eq!(snapshot.counted(Graph).total_count, 2 * 20 * 100 + rounds);
    assert_eq!(snapshot.losses.implicit_frees, 2 * 19 * 100);
}

#[test]
fn the_stack_is_that_of_the_capture() {
    let outcome = graphs("captured launch");
    let snapshot = outcome.symbolized();
    let functions = snapshot.functions(snapshot.only(Graph));
    assert!(functions.iter().any(|name| name == "capture"), "{functions:?}");
}

#[test]
fn programs_with_graphs_run_the_same_without_the_recorder() {
    for words in [
        "captured auto launch again",
        "captured launch destroy free",
        "built node_v2 freed launch again",
        "child launch",
    ] {
        graphs(words).expect_success().expect_same_output_as_bare();
    }
}
