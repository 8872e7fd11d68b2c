use super::*;
use crate::live::tests::sample::{press, show, state, training, type_in};

fn labels(state: &State) -> Vec<&str> {
    state.shown.iter().map(|line| line.row.site.label.as_str()).collect()
}

fn at_step(step: u64) -> State {
    let mut state = state();
    show(&mut state, &training(4711, 0));
    show(&mut state, &training(4711, step));
    state
}

#[test]
fn keys_choose_the_order_of_sites() {
    let mut state = at_step(20);
    let by = |state: &mut State, key: char| {
        press(state, KeyCode::Char(key));
        labels(state).first().map(|label| (*label).to_owned())
    };
    assert_eq!(labels(&state)[0], "Cache::grow");
    assert_eq!(by(&mut state, 'c').as_deref(), Some("load_batch"));
    assert_eq!(by(&mut state, 'g').as_deref(), Some("load_batch"));
    assert_eq!(by(&mut state, 'n').as_deref(), Some("Cache::grow"));
    assert_eq!(by(&mut state, 'b').as_deref(), Some("Cache::grow"));
    press(&mut state, KeyCode::Char('s'));
    assert_eq!(state.sort, Sort::Count);
}

#[test]
fn a_filter_searches_sites_kinds_and_stacks() {
    let mut state = at_step(1);
    for (text, found) in [
        ("batch", &["load_batch"][..]),
        ("PINNED", &["staging_buffer"]),
        ("cache.cu", &["Cache::grow"]),
        ("trainer::step io.cu", &["staging_buffer"]),
        ("no such thing", &[]),
    ] {
        press(&mut state, KeyCode::Char('/'));
        type_in(&mut state, text);
        press(&mut state, KeyCode::Enter);
        assert_eq!(labels(&state), found, "{text}");
        press(&mut state, KeyCode::Esc);
        assert!(state.filter.is_empty());
    }
    assert_eq!(labels(&state).len(), 3);
}

#[test]
fn a_filter_searches_a_call_site_once_until_its_stacks_change() {
    let mut state = at_step(1);
    press(&mut state, KeyCode::Char('/'));
    type_in(&mut state, "batch");
    press(&mut state, KeyCode::Enter);
    // As if another one matched: the next reading has the same stacks, so it is not searched again.
    let cache = state
        .reading()
        .expect("a reading")
        .rows
        .iter()
        .find(|row| row.site.label == "Cache::grow");
    let searched = cache.expect("a row").searched();
    assert_eq!(state.matched.1.insert(searched, true), Some(false));
    show(&mut state, &training(4711, 3));
    assert_eq!(labels(&state), ["Cache::grow", "load_batch"]);
    press(&mut state, KeyCode::Char('/'));
    type_in(&mut state, "_");
    press(&mut state, KeyCode::Enter);
    assert_eq!(labels(&state).len(), 0, "the words are others");
}

#[test]
fn letters_typed_into_the_filter_do_nothing_else() {
    let mut state = at_step(1);
    press(&mut state, KeyCode::Char('/'));
    for letter in "qmd f?".chars() {
        assert_eq!(press(&mut state, KeyCode::Char(letter)), None);
    }
    assert_eq!(state.filter, "qmd f?");
    assert!(!state.paused && !state.diff && state.page == Page::Sites);
}

#[test]
fn growth_counts_from_the_first_reading_until_a_mark_is_set() {
    let mut state = at_step(4);
    let growth = |state: &State| {
        let line = state.shown.iter().find(|line| line.row.site.label == "load_batch");
        line.map(|line| (line.of.bytes() >> 20, line.of.count()))
    };
    assert_eq!(growth(&state), Some((80, 40)));
    press(&mut state, KeyCode::Char('m'));
    assert_eq!(growth(&state), Some((0, 0)));
    show(&mut state, &training(4711, 5));
    assert_eq!(growth(&state), Some((20, 10)));
}

#[test]
fn the_diff_shows_what_changed_and_what_is_gone_and_nothing_else() {
    let mut state = at_step(2);
    press(&mut state, KeyCode::Char('m'));
    show(&mut state, &training(4711, 3));
    assert_eq!(labels(&state), ["Cache::grow", "load_batch", "staging_buffer"]);
    press(&mut state, KeyCode::Char('d'));
    assert_eq!(labels(&state), ["scratch_space", "load_batch"]);
    assert_eq!(state.shown[0].state(), Changed::Gone);
    assert_eq!(state.shown[1].state(), Changed::Grown);
    press(&mut state, KeyCode::Esc);
    assert_eq!(labels(&state).len(), 3);
}

#[test]
fn a_frozen_view_stands_still_and_then_shows_the_newest() {
    let mut state = at_step(1);
    let before = state.reading().map(|reading| reading.at_ns);
    press(&mut state, KeyCode::Char(' '));
    for step in 2..6 {
        show(&mut state, &training(4711, step));
    }
    assert_eq!(state.reading().map(|reading| reading.at_ns), before);
    press(&mut state, KeyCode::Char('f'));
    assert_eq!(
        state.reading().map(|reading| reading.at_ns),
        Some(training(4711, 5).taken.at_ns)
    );
}

#[test]
fn a_new_process_appears_and_is_reached_by_tab() {
    let mut state = at_step(1);
    assert_eq!(press(&mut state, KeyCode::Tab), None);
    show(&mut state, &training(4712, 1));
    assert_eq!(state.chosen, 0);
    let chosen = press(&mut state, KeyCode::Tab);
    assert_eq!(chosen, Some(Action::Choose("/tmp/app.node7.4712.culeak".into())));
    assert_eq!(state.reading().map(|reading| reading.process.pid), Some(4712));
    press(&mut state, KeyCode::BackTab);
    assert_eq!(state.reading().map(|reading| reading.process.pid), Some(4711));
}

#[test]
fn the_selection_stays_with_its_site_when_the_order_changes() {
    let mut state = at_step(1);
    press(&mut state, KeyCode::End);
    press(&mut state, KeyCode::Up);
    let selected = state.selected;
    press(&mut state, KeyCode::Char('n'));
    assert_eq!(state.selected, selected);
}

#[test]
fn an_unreadable_recording_keeps_its_last_reading() {
    let mut state = at_step(1);
    state.unreadable(Path::new("/tmp/app.node7.4711.culeak"), "it is gone".to_owned());
    assert!(state.reading().is_some());
    assert_eq!(
        state.process().and_then(|process| process.problem.as_deref()),
        Some("it is gone")
    );
    show(&mut state, &training(4711, 2));
    assert_eq!(state.process().and_then(|process| process.problem.as_deref()), None);
}

#[test]
fn q_and_control_c_quit_from_everywhere() {
    for page in [Page::Sites, Page::Stacks, Page::Ledger, Page::Help] {
        let mut state = at_step(1);
        state.page = page;
        assert_eq!(press(&mut state, KeyCode::Char('q')), Some(Action::Quit));
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        state.filtering = true;
        assert_eq!(state.key(control_c), Some(Action::Quit));
    }
}

/// Two processes of which the second leaks 20 MiB a second.
fn two() -> State {
    let mut state = state();
    state.list_opens = true;
    for step in [0, 2] {
        for pid in [4711, 4712] {
            let mut snapshot = training(pid, if pid == 4712 { 10 * step } else { 0 });
            let ranks = &mut snapshot.process.ranks;
            ranks.insert("RANK".to_owned(), (4712 - pid).to_string());
            snapshot.taken.at_ns = 60_000_000_000 + step * 500_000_000;
            show(&mut state, &snapshot);
        }
    }
    state
}

#[test]
fn the_list_opens_with_the_second_process_in_order_of_ranks() {
    let mut state = two();
    assert_eq!((state.page, state.in_order()), (Page::Processes, vec![1, 0]));
    // 20 more steps of 10 blocks of 2 MiB in one second.
    assert_eq!(state.processes[1].per_second(), Some(400 << 20));
    assert_eq!(state.processes[0].per_second(), Some(0));
    state.processes.swap(0, 1);
    assert_eq!(state.in_order(), [0, 1]);
    press(&mut state, KeyCode::Char('s'));
    press(&mut state, KeyCode::Char('s'));
    assert_eq!((state.order, state.in_order()), (Order::Growth, vec![0, 1]));
}

#[test]
fn enter_opens_the_selected_process_and_esc_returns() {
    let mut state = two();
    press(&mut state, KeyCode::Home);
    let action = press(&mut state, KeyCode::Enter);
    assert_eq!(action, Some(Action::Choose("/tmp/app.node7.4712.culeak".into())));
    assert_eq!((state.page, state.chosen), (Page::Sites, 1));
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.page, Page::Processes);
    press(&mut state, KeyCode::End);
    press(&mut state, KeyCode::Enter);
    assert_eq!((state.page, state.chosen), (Page::Sites, 0));
    press(&mut state, KeyCode::Char('p'));
    assert_eq!(state.page, Page::Processes);
}

#[test]
fn the_list_does_not_open_over_what_the_user_looks_at() {
    let mut state = state();
    state.list_opens = true;
    show(&mut state, &training(4711, 0));
    press(&mut state, KeyCode::Down);
    show(&mut state, &training(4712, 0));
    assert_eq!(state.page, Page::Sites);
}

#[test]
fn a_short_history_is_shown_point_by_point_and_a_peak_survives_hours() {
    let mut history = History::default();
    [5, 7, 6].into_iter().for_each(|value| history.add(value));
    assert_eq!(history.columns(40), [5, 7, 6]);
    for reading in 0..100_000 {
        history.add(if reading == 12_345 { 99 } else { reading % 7 });
    }
    assert!(history.points.len() <= History::MOST);
    for columns in [1, 60, 2000] {
        let shown = history.columns(columns);
        assert!(shown.len() <= columns && shown.iter().max() == Some(&99), "{columns}");
    }
    assert!(history.columns(0).is_empty());
}
