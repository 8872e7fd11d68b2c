use super::*;
use crate::live::tests::sample::{press, show, state, training, type_in};

fn labels(state: &State) -> Vec<&str> {
    (0..state.shown.len())
        .filter_map(|place| state.row(place))
        .map(Row::label)
        .collect()
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
        let row = state.rows.rows.iter().find(|row| row.label() == "load_batch");
        row.map(|row| (row.of.bytes() >> 20, row.of.count()))
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
    assert_eq!(state.row(0).map(Row::state), Some(Change::Gone));
    assert_eq!(state.row(1).map(Row::state), Some(Change::Grown));
    press(&mut state, KeyCode::Esc);
    assert_eq!(labels(&state).len(), 3);
}

#[test]
fn late_names_change_no_total_and_no_growth() {
    let snapshot = training(4711, 1);
    let keys = super::super::sums::stack_keys(&snapshot);
    let reading = Reading::of(&snapshot, &keys, "a".into());
    let mut state = state();
    state.add_reading(reading.clone());
    let held = state.rows.held;
    assert!(labels(&state).is_empty() && state.rows.unnamed > 0);
    state.named(super::super::names::all(&snapshot, &keys), Vec::new());
    state.add_reading(reading);
    assert_eq!(state.rows.held, held);
    assert!(state.rows.rows.iter().all(|row| row.of.bytes() == 0));
    assert_eq!(labels(&state).len(), 3);
}

#[test]
fn a_frozen_view_stands_still_and_then_shows_the_newest() {
    let mut state = at_step(1);
    let before = state.reading_shown().map(|reading| reading.at_ns);
    press(&mut state, KeyCode::Char(' '));
    for step in 2..6 {
        show(&mut state, &training(4711, step));
    }
    assert_eq!(state.reading_shown().map(|reading| reading.at_ns), before);
    press(&mut state, KeyCode::Char('f'));
    assert_eq!(
        state.reading_shown().map(|reading| reading.at_ns),
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
    assert_eq!(state.reading_shown().map(|reading| reading.process.pid), Some(4712));
    press(&mut state, KeyCode::BackTab);
    assert_eq!(state.reading_shown().map(|reading| reading.process.pid), Some(4711));
}

#[test]
fn the_selection_stays_with_its_site_when_the_order_changes() {
    let mut state = at_step(1);
    press(&mut state, KeyCode::End);
    press(&mut state, KeyCode::Up);
    let selected = state.selected_row().map(|row| row.label().to_owned());
    press(&mut state, KeyCode::Char('n'));
    assert_eq!(state.selected_row().map(|row| row.label().to_owned()), selected);
}

#[test]
fn an_unreadable_recording_keeps_its_last_reading() {
    let mut state = at_step(1);
    state.unreadable(Path::new("/tmp/app.node7.4711.culeak"), "it is gone".to_owned());
    assert!(state.reading_shown().is_some());
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
