//! The list of processes: one row for each, with its rank, what it has on devices, and how fast that grows.
//!
//! Sums are those of the recording by device, which need no names, so a row of each of a hundred processes costs little.
//! Deliberately absent: judgement of which process differs; `culeak report` over the folder has it.

use culeak::analysis::job::identity::rank_of;
use culeak::analysis::program::Program;
use culeak::analysis::report::Tally;
use culeak::named;
use culeak::snapshot::Process;
use ratatui::crossterm::event::KeyCode;

use super::state::{Action, Page, State, Watched, next};

named! {
    #[derive(Default)]
    pub enum Order {
        #[default]
        Rank = "rank",
        Bytes = "bytes",
        Growth = "growth",
    }
}

/// The list, and what is selected in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct List {
    pub order: Order,
    /// Index of a process.
    pub selected: usize,
    /// The list opens by itself when there is a second process, unless a key was pressed before.
    pub opens: bool,
}

impl List {
    /// The place of the selected process among these rows.
    pub fn place(&self, rows: &[ProcessRow]) -> usize {
        let is_selected = |row: &ProcessRow| row.process == self.selected;
        rows.iter().position(is_selected).unwrap_or(0)
    }
}

/// A process in the list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessRow {
    /// Index into [`State::processes`].
    pub process: usize,
    pub rank: Option<u32>,
    pub host: String,
    pub pid: Option<u32>,
    pub name: String,
    /// Ordinals of its devices.
    pub devices: Vec<i32>,
    pub on_devices: Tally,
    pub peak_bytes: u64,
    /// Bytes per second since the mark; `None` before the second reading.
    pub per_second: Option<i128>,
    pub state: &'static str,
    pub problem: Option<String>,
}

impl ProcessRow {
    fn of(process: usize, watched: &Watched) -> ProcessRow {
        let Some(reading) = &watched.reading else {
            return ProcessRow {
                process,
                name: culeak::analysis::site::file_name(&watched.recording.display().to_string()).to_owned(),
                problem: watched.problem.clone(),
                ..ProcessRow::default()
            };
        };
        let on_devices = Tally::total(reading.devices.iter().map(|device| device.live));
        let since = watched.mark.as_ref().filter(|mark| mark.at_ns < reading.at_ns);
        let per_second = since.map(|mark| {
            let before = Tally::total(mark.sums.devices.iter().copied());
            let change = i128::from(on_devices.bytes) - i128::from(before.bytes);
            change * 1_000_000_000 / i128::from(reading.at_ns - mark.at_ns)
        });
        ProcessRow {
            process,
            rank: rank_of(&reading.process.ranks),
            host: reading.process.host.clone(),
            pid: Some(reading.process.pid),
            name: name_of(&reading.process),
            devices: reading.devices.iter().map(|device| device.ordinal).collect(),
            on_devices,
            peak_bytes: reading
                .devices
                .iter()
                .fold(0, |sum, device| sum.saturating_add(device.peak_bytes)),
            per_second: per_second.filter(|_| !reading.finished),
            state: reading.process.state.name(),
            problem: watched.problem.clone(),
        }
    }
}

/// What a process is called: its script, or its executable.
pub fn name_of(process: &Process) -> String {
    let program = Program::of_process(process);
    program.script.unwrap_or(program.executable)
}

/// The rows of these processes in order.
pub fn rows<'w>(processes: impl Iterator<Item = &'w Watched>, order: Order) -> Vec<ProcessRow> {
    let mut rows: Vec<ProcessRow> = processes
        .enumerate()
        .map(|(nth, watched)| ProcessRow::of(nth, watched))
        .collect();
    rows.sort_by_cached_key(|row| {
        let first = match order {
            Order::Rank => 0,
            Order::Bytes => -i128::from(row.on_devices.bytes),
            Order::Growth => -row.per_second.unwrap_or(i128::MIN / 2),
        };
        (
            first,
            row.rank.unwrap_or(u32::MAX),
            row.host.clone(),
            row.pid,
            row.process,
        )
    });
    rows
}

impl State {
    pub fn process_rows(&self) -> Vec<ProcessRow> {
        rows(self.processes.iter(), self.list.order)
    }

    /// Shows the process this number of rows below the chosen one.
    pub(super) fn choose(&mut self, step: usize) -> Option<Action> {
        if self.processes.len() < 2 {
            return None;
        }
        self.chosen = (self.chosen + step) % self.processes.len();
        self.selected = None;
        self.offset = 0;
        if matches!(self.page, Page::Processes | Page::Stacks | Page::Holders) {
            self.page = Page::Sites;
        }
        self.refresh();
        Some(Action::Choose(self.processes[self.chosen].recording.clone()))
    }

    /// Opens the list when the second process appears.
    pub(super) fn open_list_if_due(&mut self) {
        if self.list.opens && self.processes.len() > 1 {
            self.show_list();
        }
    }

    /// Shows the list of processes, if there are several.
    pub(super) fn show_list(&mut self) {
        self.list.opens = false;
        if self.processes.len() > 1 {
            self.list.selected = self.chosen;
            self.page = Page::Processes;
            self.offset = 0;
        }
    }

    /// Handles a key that has another meaning on the list; `None`: it has none.
    pub(super) fn list_key(&mut self, code: KeyCode) -> Option<Option<Action>> {
        match code {
            KeyCode::Enter => {
                self.page = Page::Sites;
                let last = self.processes.len().saturating_sub(1);
                let step = (self.list.selected.min(last) + last + 1).saturating_sub(self.chosen);
                return Some(self.choose(step));
            }
            KeyCode::Char('s') => self.list.order = next(Order::ALL, self.list.order),
            KeyCode::Esc | KeyCode::Char('w' | 'l' | 'd' | '/') => {}
            _ => return None,
        }
        Some(None)
    }

    /// Selects the process this many rows below the selected one.
    pub(super) fn go_in_list(&mut self, by: isize) {
        let rows = self.process_rows();
        let at = self.list.place(&rows).saturating_add_signed(by);
        if let Some(row) = rows.get(at.min(rows.len().saturating_sub(1))) {
            self.list.selected = row.process;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::sample::{press, show, state, training};

    /// Two processes of which the second leaks 20 MiB a second.
    fn two() -> State {
        let mut state = state();
        state.list.opens = true;
        for step in [0, 2] {
            for pid in [4711, 4712] {
                let mut snapshot = training(pid, if pid == 4712 { 10 * step } else { 0 });
                snapshot
                    .process
                    .ranks
                    .insert("RANK".to_owned(), (4712 - pid).to_string());
                snapshot.taken.at_ns = 60_000_000_000 + step * 500_000_000;
                show(&mut state, &snapshot);
            }
        }
        state
    }

    #[test]
    fn the_list_opens_with_the_second_process_in_order_of_ranks() {
        let mut state = two();
        assert_eq!(state.page, Page::Processes);
        let rows = state.process_rows();
        assert_eq!(
            rows.iter().map(|row| row.pid).collect::<Vec<_>>(),
            [Some(4712), Some(4711)]
        );
        assert_eq!(rows[0].rank, Some(0));
        // 20 more steps of 10 blocks of 2 MiB in one second.
        assert_eq!(rows[0].per_second, Some(400 << 20));
        assert_eq!(rows[1].per_second, Some(0));
        press(&mut state, KeyCode::Char('s'));
        press(&mut state, KeyCode::Char('s'));
        assert_eq!(state.process_rows()[0].pid, Some(4712));
    }

    #[test]
    fn a_script_is_listed_by_its_name() {
        let mut state = state();
        let mut snapshot = training(4711, 0);
        snapshot.process.executable = "/usr/bin/python3.11".to_owned();
        snapshot.process.command_line = ["python", "-u", "/job/train.py", "--lr", "1"]
            .map(str::to_owned)
            .to_vec();
        show(&mut state, &snapshot);
        assert_eq!(state.process_rows()[0].name, "train.py");
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
        state.list.opens = true;
        show(&mut state, &training(4711, 0));
        press(&mut state, KeyCode::Down);
        show(&mut state, &training(4712, 0));
        assert_eq!(state.page, Page::Sites);
    }
}
