//! Golden screens. `CULEAK_BLESS=1 cargo test -p culeak-cli screen` rewrites them; review the diff before committing.

use std::path::{Path, PathBuf};

use anstream::adapter::strip_str;
use crossterm::event::KeyCode;
use culeak::analysis::filter::Filter;
use culeak::analysis::groups::Groups;
use culeak::analysis::site::CallStacks;
use culeak::analysis::why::by_site;
use culeak::kind::Kind;
use culeak::snapshot::{DeviceUsage, ProcessState, Snapshot, Usage};
use proptest::prelude::*;

use super::super::holders::Holders;
use super::super::state::Action;
use super::*;
use crate::document::columns;
use crate::escape::is_active;
use crate::live::tests::sample::{press, show, state, training, type_in};
use crate::text::sample::{MAIN, MIB, Sample, held, leaky, serving};

fn shown(width: usize, height: usize, state: &mut State) -> String {
    let lines = screen(state, [width, height], true);
    assert!(lines.len() <= height, "{lines:?}");
    let lines = lines.iter().map(|line| strip_str(line).to_string());
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

fn expect_screen(name: &str, width: usize, height: usize, state: &mut State) {
    let text = shown(width, height, state);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/live/golden").join(name);
    if std::env::var_os("CULEAK_BLESS").is_some() {
        std::fs::write(&path, text).expect("golden screen written");
        return;
    }
    let golden = std::fs::read_to_string(&path).expect("golden screen; make it with CULEAK_BLESS=1");
    assert_eq!(
        text, golden,
        "{name} differs; if that is right, bless it with CULEAK_BLESS=1"
    );
}

/// Twenty readings of one process.
fn watched() -> State {
    let mut state = state();
    for step in 0..20 {
        show(&mut state, &training(4711, step));
    }
    state
}

/// A server that made objects since the view started.
fn serving_more() -> State {
    let (mut state, mut snapshot) = (state(), serving());
    snapshot.process.state = ProcessState::Running;
    let mut earlier = snapshot.clone();
    earlier.objects.truncate(30);
    earlier.object_counters.clear();
    show(&mut state, &earlier);
    show(&mut state, &snapshot);
    state
}

#[test]
fn screen_of_objects_without_an_address() {
    let mut state = serving_more();
    expect_screen("objects-80x24.txt", 80, 24, &mut state);
    press(&mut state, KeyCode::Char('/'));
    type_in(&mut state, "graph-exec");
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Enter);
    expect_screen("objects-stacks-80x24.txt", 80, 24, &mut state);
    press(&mut state, KeyCode::Char('w'));
    let text = shown(80, 24, &mut state);
    assert!(
        text.contains("what holds objects without an address is not searched"),
        "{text}"
    );
}

#[test]
fn screen_of_a_running_process() {
    expect_screen("running-80x24.txt", 80, 24, &mut watched());
    expect_screen("running-200x50.txt", 200, 50, &mut watched());
}

#[test]
fn screen_of_a_device_whose_driver_was_asked() {
    let mut state = state();
    for step in 0..20 {
        let mut snapshot = training(4711, step);
        snapshot.usage = Some(Usage {
            devices: vec![DeviceUsage {
                used_bytes: 1536 * MIB,
                total_bytes: 140 * 1024 * MIB,
                ..DeviceUsage::default()
            }],
            ..Usage::default()
        });
        show(&mut state, &snapshot);
    }
    expect_screen("used-80x24.txt", 80, 24, &mut state);
    expect_screen("used-120x30.txt", 120, 30, &mut state);
    expect_screen("narrow-40x10.txt", 40, 10, &mut state);
    let mut over = training(4711, 21);
    over.process.state = ProcessState::Exited;
    show(&mut state, &over);
    assert!(
        !shown(80, 24, &mut state).contains("full"),
        "an ended process uses no device"
    );
}

#[test]
fn screen_of_a_narrow_terminal() {
    expect_screen("narrow-40x10.txt", 40, 10, &mut watched());
}

#[test]
fn screen_that_is_too_small() {
    expect_screen("small-30x8.txt", 30, 8, &mut watched());
}

#[test]
fn screen_before_the_first_reading() {
    expect_screen("waiting-80x24.txt", 80, 24, &mut state());
}

#[test]
fn screen_of_what_changed_since_the_mark() {
    let mut state = watched();
    press(&mut state, KeyCode::Char('m'));
    for step in 20..24 {
        show(&mut state, &training(4711, step));
    }
    press(&mut state, KeyCode::Char('d'));
    expect_screen("diff-80x24.txt", 80, 24, &mut state);
}

#[test]
fn screen_of_the_stacks_of_a_site() {
    let mut state = watched();
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    expect_screen("stacks-80x24.txt", 80, 24, &mut state);
}

#[test]
fn objects_are_counted_beside_the_memory() {
    let mut state = state();
    show(&mut state, &crate::text::sample::serving());
    let screen = shown(80, 24, &mut state);
    assert!(
        screen.contains("leaked 64 MiB in 1 block at 1 call site · 40 executable graphs, 16 streams, 12 …"),
        "{screen}"
    );
}

#[test]
fn screen_of_several_processes_filtered_and_paused() {
    let mut state = watched();
    for pid in [4712, 4713] {
        show(&mut state, &training(pid, 3));
    }
    press(&mut state, KeyCode::Tab);
    type_in(&mut state, "/train.cu pinned");
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Char(' '));
    expect_screen("several-80x24.txt", 80, 24, &mut state);
}

#[test]
fn screen_of_an_ended_process() {
    let mut state = state();
    show(&mut state, &leaky());
    expect_screen("over-80x24.txt", 80, 24, &mut state);
    expect_screen("over-200x50.txt", 200, 50, &mut state);
    let mut state = crate::live::tests::sample::state();
    let mut clean = Sample::new().finish(9, 9);
    clean.process.state = ProcessState::Ended;
    show(&mut state, &clean);
    expect_screen("clean-80x24.txt", 80, 24, &mut state);
}

#[test]
fn screen_of_what_holds_the_memory_of_a_site() {
    let snapshot = held();
    let mut state = state();
    show(&mut state, &snapshot);
    let recording = state.processes[0].recording.clone();
    let asked = press(&mut state, KeyCode::Char('w'));
    let search = Some(Action::Search(recording.clone(), 4711));
    assert_eq!(asked, search);
    assert_eq!(press(&mut state, KeyCode::Char('w')), None, "one search at a time");
    expect_screen("searching-80x24.txt", 80, 24, &mut state);
    let stacks = CallStacks::of(&snapshot);
    let answer = Holders {
        at_ns: snapshot.taken.at_ns - 3_000_000_000,
        took_ns: 640_000_000,
        sites: by_site(&snapshot, &stacks, &Groups::of(&snapshot, &stacks), &Filter::default()),
        limits: vec!["memory shared with other processes".to_owned()],
    };
    state.found(&recording, Ok(answer));
    expect_screen("held-by-80x24.txt", 80, 24, &mut state);
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Down);
    assert_eq!(
        press(&mut state, KeyCode::Char('w')),
        None,
        "the answer covers all call sites"
    );
    assert!(shown(80, 24, &mut state).contains("uncollected cycle"));
    assert_eq!(press(&mut state, KeyCode::Char('w')), search);
    state.found(&recording, Err("process 4711: no such process".to_owned()));
    assert!(shown(80, 24, &mut state).contains("no such process"));
}

/// A running process whose ledger has every kind of line.
fn with_a_ledger(used: u64) -> Snapshot {
    let mut sample = Sample::new().running();
    let init = ("init(int)", "/src/train.cu:12", "/opt/app");
    sample.takes_context(init, Some(414 * MIB));
    let stack = sample.stack(&[init, MAIN]);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    sample.takes("cuMemAlloc_v2", &[init, MAIN], &[2 * MIB]);
    let kernels = ("", "", "/v/libcublasLt.so.13");
    sample.takes("cuLibraryGetModule", &[kernels, MAIN], &[2 * MIB]);
    sample.takes("cuLaunchKernel", &[init, MAIN], &[2 * MIB]);
    sample.uses(used, Some(524 * MIB), None);
    sample.finish(0, 0)
}

#[test]
fn screen_of_the_ledger_which_follows_the_readings_while_its_page_is_open() {
    let mut state = state();
    show(&mut state, &with_a_ledger(530 * MIB));
    press(&mut state, KeyCode::Char('l'));
    expect_screen("ledger-80x24.txt", 80, 24, &mut state);
    show(&mut state, &with_a_ledger(900 * MIB));
    assert!(shown(80, 24, &mut state).contains("900 MiB of 140 GiB used"));
    press(&mut state, KeyCode::Char('l'));
    assert_eq!(state.page, Page::Sites);
}

#[test]
fn a_ledger_that_is_older_than_the_reading_says_so() {
    let old = Reading::of(&with_a_ledger(530 * MIB), PathBuf::from("/tmp/app.culeak"));
    let mut snapshot = with_a_ledger(900 * MIB);
    snapshot.taken.at_ns += 12_000_000_000;
    let mut new = Reading::of(&snapshot, PathBuf::from("/tmp/app.culeak"));
    assert!(!new.ledger_now().plain().contains("ago, when the driver was asked"));
    new.keep_usage_of(&old);
    let text = new.ledger_now().plain();
    assert!(
        text.starts_with("as of 12 s ago, when the driver was asked") && text.contains("530 MiB of 140 GiB used"),
        "{text}"
    );
    assert_eq!(new.devices[0].used, old.devices[0].used);
}

#[test]
fn screen_of_the_keys() {
    let mut state = watched();
    state.notes.push("/opt/libfoo.so: not on this machine".to_owned());
    press(&mut state, KeyCode::Char('?'));
    expect_screen("help-80x24.txt", 80, 24, &mut state);
}

#[test]
fn no_cell_has_a_colour_without_colours() {
    for colours in [true, false] {
        let lines = screen(&mut watched(), [80, 24], colours).concat();
        assert_eq!(lines.contains("\u{1b}[3"), colours, "{lines:?}");
        assert!(lines.contains("\u{1b}[1m"), "bold remains");
    }
}

#[test]
fn the_selected_row_stays_on_the_screen() {
    let mut state = state();
    let mut sample = Sample::new().running();
    for site in 0..60u64 {
        let name = format!("site_{site:02}");
        let stack = sample.stack(&[(&name, "/src/a.cu:1", "/opt/app")]);
        sample.holds(culeak::kind::Kind::Device, "cudaMalloc", 1000 - site, 1, stack);
    }
    show(&mut state, &sample.finish(0, 0));
    shown(80, 24, &mut state);
    for (key, name) in [
        (KeyCode::PageDown, "site_1"),
        (KeyCode::End, "site_59"),
        (KeyCode::Up, "site_58"),
        (KeyCode::Home, "site_00"),
    ] {
        press(&mut state, key);
        let screen = shown(80, 24, &mut state);
        let label = state.shown[state.selected_place()].row.site.label.clone();
        assert!(
            label.starts_with(name) && screen.contains(&label),
            "{key:?}: {label}\n{screen}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_size_and_any_keys_are_accepted(
        sizes in proptest::collection::vec((1usize..250, 1usize..80), 1..4),
        keys in "[qsbcganmdw/?kj f\\PC]{0,12}",
    ) {
        let mut state = watched();
        show(&mut state, &training(4712, 1));
        for (width, height) in sizes {
            for letter in keys.chars() {
                press(&mut state, KeyCode::Char(letter));
                press(&mut state, KeyCode::Tab);
                press(&mut state, KeyCode::Enter);
                press(&mut state, KeyCode::PageDown);
            }
            let text = shown(width, height, &mut state);
            prop_assert!(!text.replace('\n', "").contains(is_active));
            prop_assert!(text.lines().all(|line| columns::width(line) <= width), "{text}");
        }
    }

    #[test]
    fn recorded_text_is_escaped_on_the_terminal(
        name in "\\PC{0,20}|[\\x00-\\x1f\\u{202e}a]{0,20}", long in 0usize..300,
    ) {
        let name = name + &"x".repeat(long);
        let mut sample = Sample::new().running();
        let stack = sample.stack(&[(&name, &format!("/src/{name}.cu:1"), &format!("/opt/{name}"))]);
        sample.holds(culeak::kind::Kind::Device, "cudaMalloc", 5, 1, stack);
        let mut snapshot = sample.finish(0, 0);
        snapshot.process.command_line = vec![name.clone()];
        snapshot.devices[0].name = name.clone();
        snapshot.process.recording = name.clone();
        let mut state = state();
        show(&mut state, &snapshot);
        for key in ['?', '?', '\n'] {
            press(&mut state, if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) });
            let text = shown(120, 30, &mut state);
            prop_assert!(!text.replace('\n', "").contains(is_active), "{text:?}");
        }
    }
}
