//! The state of the view, and what keys do to it. Drawing is in `view`.
//!
//! Readings, names and keys arrive one by one; after each the state can be drawn. All times are on the recordings' clocks,
//! so nothing here reads a clock, and a test can simulate an hour instantly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use culeak::analysis::diff::State as Change;
use culeak::named;
use culeak::snapshot::ProcessState;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::ask::{Answer, Asked, Question, Subject};
use super::history::History;
use super::names::Names;
use super::processes::List;
use super::reading::Reading;
use super::rows::{Row, Rows, SiteKey};
use super::sums::LiveSums;
use super::usage::Used;

/// What the terminal or the watching thread does after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Quit,
    Suspend,
    Redraw,
    /// Read this process's recording at every refresh.
    Choose(PathBuf),
    Ask(Question),
}

named! {
    #[derive(Default)]
    pub enum Sort {
        #[default]
        Bytes = "bytes",
        Count = "count",
        Growth = "growth",
        /// Oldest first.
        Age = "age",
        Name = "name",
    }
}

/// The value behind `this` in a list; the first one is behind the last one.
pub fn next<T: Copy + PartialEq>(all: &[T], this: T) -> T {
    let here = all.iter().position(|&each| each == this).unwrap_or(0);
    all[(here + 1) % all.len()]
}

/// What fills the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Page {
    #[default]
    Sites,
    /// All processes; opens one of them.
    Processes,
    /// The stacks of the chosen call site.
    Stacks,
    /// What holds the memory of the chosen call site.
    Holders,
    /// What holds each byte of the devices.
    Ledger,
    Help,
}

/// The reading that growth is measured from.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    pub at_ns: u64,
    /// The user set it; otherwise it is the first reading.
    pub set: bool,
    pub sums: LiveSums,
}

#[derive(Debug, Clone, Default)]
pub struct Watched {
    pub recording: PathBuf,
    pub reading: Option<Reading>,
    pub mark: Option<Mark>,
    /// By ordinal.
    pub histories: BTreeMap<i32, History>,
    /// By ordinal; of devices whose driver was asked.
    pub used: BTreeMap<i32, Used>,
    /// Why the last attempt to read it failed.
    pub problem: Option<String>,
    pub holders: Asked,
    pub ledger: Asked,
    /// The newest reading since the view was paused.
    pending: Option<Reading>,
}

#[derive(Debug, Default)]
pub struct State {
    pub processes: Vec<Watched>,
    pub chosen: usize,
    pub names: Names,
    /// Notes, for example on modules without symbols.
    pub notes: Vec<String>,
    /// Text to show while there is no process.
    pub waiting: String,
    pub page: Page,
    pub list: List,
    pub sort: Sort,
    pub filter: String,
    pub filtering: bool,
    pub paused: bool,
    /// Only what changed since the mark.
    pub diff: bool,
    /// How the program that the view started has ended.
    pub ended: Option<String>,
    /// Of the chosen process.
    pub rows: Rows,
    /// Indices of the rows that are shown, in order.
    pub shown: Vec<usize>,
    pub selected: Option<SiteKey>,
    /// First row (or line of stacks) on the screen.
    pub offset: usize,
    /// The number of rows that fitted on the screen when it was last drawn.
    pub room: usize,
    interval_ns: u64,
}

impl State {
    pub fn new(waiting: String, interval_ns: u64) -> State {
        State {
            waiting,
            room: 10,
            interval_ns,
            ..State::default()
        }
    }

    /// The process on the screen.
    pub fn process(&self) -> Option<&Watched> {
        self.processes.get(self.chosen)
    }

    pub fn reading_shown(&self) -> Option<&Reading> {
        self.process()?.reading.as_ref()
    }

    pub fn row(&self, place: usize) -> Option<&Row> {
        self.rows.rows.get(*self.shown.get(place)?)
    }

    /// The index of the selected row among the shown ones.
    pub fn selected_place(&self) -> usize {
        let is_selected = |&row: &usize| Some(self.rows.rows[row].key) == self.selected;
        self.shown.iter().position(is_selected).unwrap_or(0)
    }

    pub fn selected_row(&self) -> Option<&Row> {
        self.row(self.selected_place())
    }

    /// Takes a new reading of a process.
    pub fn add_reading(&mut self, reading: Reading) {
        let process = self.watched(&reading.recording.clone());
        let (paused, between) = (self.paused, self.interval_ns);
        let process = &mut self.processes[process];
        process.problem = None;
        if paused && process.reading.is_some() {
            process.pending = Some(reading);
            return;
        }
        process.show(reading, between);
        self.refresh();
    }

    /// Notes that a recording could not be read.
    pub fn unreadable(&mut self, recording: &Path, why: String) {
        let process = self.watched(recording);
        self.processes[process].problem = Some(why);
    }

    /// Takes the driver's answer on how full devices are.
    pub fn used(&mut self, recording: &Path, used: Vec<(i32, Used)>) {
        if !self.paused {
            let process = self.watched(recording);
            self.processes[process].used.extend(used);
        }
    }

    /// Takes the answer to a question.
    pub fn answered(&mut self, question: &Question, answer: Result<Answer, String>) {
        let process = self.watched(&question.recording);
        let process = &mut self.processes[process];
        let asked = match question.about {
            Subject::Holders => &mut process.holders,
            Subject::Ledger => &mut process.ledger,
        };
        *asked = Asked {
            waiting: false,
            answer: Some(answer),
        };
    }

    /// What to ask after a new reading: the ledger, if its page is open and the last one is old.
    pub fn next_question(&mut self) -> Option<Question> {
        if self.page != Page::Ledger || self.paused {
            return None;
        }
        let process = self.processes.get_mut(self.chosen)?;
        let reading = process.reading.as_ref()?;
        if !process.ledger.is_due(reading.at_ns, reading.finished) {
            return None;
        }
        process.ledger.waiting = true;
        let is_running = reading.process.state == ProcessState::Running;
        Some(Question {
            recording: process.recording.clone(),
            pid: is_running.then(|| reading.process.number()),
            about: Subject::Ledger,
        })
    }

    pub fn named(&mut self, names: Names, notes: Vec<String>) {
        self.names.extend(names);
        self.notes.extend(notes);
        self.refresh();
    }

    fn watched(&mut self, recording: &Path) -> usize {
        let known = self.processes.iter().position(|process| process.recording == recording);
        known.unwrap_or_else(|| {
            self.processes.push(Watched {
                recording: recording.to_path_buf(),
                ..Watched::default()
            });
            self.open_list_if_due();
            self.processes.len() - 1
        })
    }

    /// Groups, filters and sorts the chosen process again.
    pub(super) fn refresh(&mut self) {
        self.rows = match self.processes.get(self.chosen) {
            Some(Watched {
                reading: Some(reading),
                mark,
                ..
            }) => Rows::of(&reading.sums, mark.as_ref().map(|mark| &mark.sums), &self.names),
            _ => Rows::default(),
        };
        self.arrange();
    }

    /// Filters and sorts the rows again.
    fn arrange(&mut self) {
        let rows = &self.rows.rows;
        let words: Vec<String> = self.filter.split_whitespace().map(str::to_lowercase).collect();
        let mut shown: Vec<usize> = (0..rows.len()).collect();
        shown.retain(|&row| {
            let row = &rows[row];
            let present = match self.diff {
                true => row.state() != Change::Unchanged,
                false => row.state() != Change::Gone,
            };
            present && row.matches(&words)
        });
        let key = |row: &Row| -> (i128, i128) {
            let (bytes, count) = (i128::from(row.of.after.bytes), i128::from(row.of.after.count));
            match self.sort {
                Sort::Bytes => (bytes, count),
                Sort::Count => (count, bytes),
                Sort::Growth if self.diff => (row.of.bytes().abs(), row.of.count().abs()),
                Sort::Growth => (row.of.bytes(), row.of.count()),
                Sort::Age => (-i128::from(row.oldest_ns), bytes),
                Sort::Name => (0, 0),
            }
        };
        shown.sort_by(|&a, &b| {
            let (a, b) = (&rows[a], &rows[b]);
            key(b)
                .cmp(&key(a))
                .then_with(|| a.label().cmp(b.label()))
                .then_with(|| a.key.cmp(&b.key))
        });
        self.shown = shown;
        if self.page == Page::Sites {
            self.scroll_to_selected();
        }
    }

    pub fn scroll_to_selected(&mut self) {
        let place = self.selected_place();
        let room = self.room.max(1);
        self.offset = self.offset.clamp((place + 1).saturating_sub(room), place);
        self.offset = self.offset.min(self.shown.len().saturating_sub(room));
    }

    /// Handles a key. `None`: the screen needs drawing and nothing else.
    pub fn key(&mut self, key: KeyEvent) -> Option<Action> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Some(Action::Quit),
            KeyCode::Char('z') if control => return Some(Action::Suspend),
            KeyCode::Char('l') if control => return Some(Action::Redraw),
            KeyCode::Char(_) if control => return None,
            _ => {}
        }
        if self.filtering {
            self.filter_key(key.code);
            return None;
        }
        self.list.opens = false;
        if self.page == Page::Processes
            && let Some(action) = self.list_key(key.code)
        {
            return action;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Tab => return self.choose(1),
            KeyCode::BackTab => return self.choose(self.processes.len().saturating_sub(1)),
            KeyCode::Char('?') => {
                self.page = if self.page == Page::Help {
                    Page::Sites
                } else {
                    Page::Help
                }
            }
            KeyCode::Char(' ' | 'f') => self.pause(),
            KeyCode::Char('p') => self.show_list(),
            KeyCode::Char('m') => self.mark(),
            KeyCode::Esc => self.back(),
            KeyCode::Char('w') if self.page != Page::Help => return self.why(),
            KeyCode::Char('l') if self.page != Page::Help => return self.show_ledger(),
            KeyCode::Enter if matches!(self.page, Page::Stacks | Page::Holders | Page::Ledger) => self.back(),
            KeyCode::Enter if self.page == Page::Sites => self.expand(),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-(self.room as isize)),
            KeyCode::PageDown => self.go(self.room as isize),
            KeyCode::Home => self.go(isize::MIN / 2),
            KeyCode::End => self.go(isize::MAX / 2),
            KeyCode::Char(letter) if self.page == Page::Sites => self.letter(letter),
            _ => {}
        }
        None
    }

    /// Handles a letter on the list of call sites.
    fn letter(&mut self, letter: char) {
        match letter {
            '/' => self.filtering = true,
            's' => self.sort = next(Sort::ALL, self.sort),
            'b' => self.sort = Sort::Bytes,
            'c' => self.sort = Sort::Count,
            'g' => self.sort = Sort::Growth,
            'a' => self.sort = Sort::Age,
            'n' => self.sort = Sort::Name,
            'd' => {
                self.diff = !self.diff;
                self.sort = if self.diff { Sort::Growth } else { Sort::Bytes };
            }
            _ => return,
        }
        self.arrange();
    }

    fn filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.filtering = false,
            KeyCode::Esc => {
                self.filtering = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => return,
        }
        self.arrange();
    }

    /// Leaves the current page, diff or filter.
    fn back(&mut self) {
        match self.page {
            Page::Sites if self.diff => {
                self.diff = false;
                self.sort = Sort::Bytes;
            }
            Page::Sites if self.filter.is_empty() => return self.show_list(),
            Page::Sites => self.filter.clear(),
            Page::Processes => {}
            Page::Stacks | Page::Holders | Page::Ledger | Page::Help => self.page = Page::Sites,
        }
        self.offset = 0;
        self.arrange();
    }

    fn expand(&mut self) {
        let Some(key) = self.selected_row().map(|row| row.key) else {
            return;
        };
        self.selected = Some(key);
        self.page = Page::Stacks;
        self.offset = 0;
    }

    /// Shows what holds the memory of the selected call site. Starts a search if there is none, or if the page is open already.
    fn why(&mut self) -> Option<Action> {
        let is_open = self.page == Page::Holders;
        let key = self.selected_row().map(|row| row.key)?;
        self.selected = Some(key);
        self.page = Page::Holders;
        self.offset = 0;
        let process = self.processes.get_mut(self.chosen)?;
        let holders = &mut process.holders;
        if holders.waiting || matches!(holders.answer, Some(Ok(_))) && !is_open {
            return None;
        }
        let reading = process.reading.as_ref()?;
        if reading.process.state != ProcessState::Running {
            let why = "the process has ended; `culeak run --why` searches at the end of a program";
            holders.answer = Some(Err(why.to_owned()));
            return None;
        }
        holders.waiting = true;
        Some(Action::Ask(Question {
            recording: process.recording.clone(),
            pid: Some(reading.process.number()),
            about: Subject::Holders,
        }))
    }

    /// Opens the page of the ledger, or leaves it.
    fn show_ledger(&mut self) -> Option<Action> {
        if self.page == Page::Ledger {
            self.back();
            return None;
        }
        self.page = Page::Ledger;
        self.offset = 0;
        self.next_question().map(Action::Ask)
    }

    fn go(&mut self, by: isize) {
        match self.page {
            Page::Sites => {
                let last = self.shown.len().saturating_sub(1);
                let place = self.selected_place().saturating_add_signed(by).min(last);
                self.selected = self.row(place).map(|row| row.key);
                self.scroll_to_selected();
            }
            Page::Processes => self.go_in_list(by),
            // Drawing limits the offset to the number of lines.
            Page::Stacks | Page::Holders | Page::Ledger | Page::Help => {
                self.offset = self.offset.saturating_add_signed(by)
            }
        }
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
        if self.paused {
            return;
        }
        let between = self.interval_ns;
        for process in &mut self.processes {
            if let Some(reading) = process.pending.take() {
                process.show(reading, between);
            }
        }
        self.refresh();
    }

    /// Measures growth from now on.
    fn mark(&mut self) {
        for process in &mut self.processes {
            let Some(reading) = &process.reading else { continue };
            process.mark = Some(Mark {
                at_ns: reading.at_ns,
                set: true,
                sums: reading.sums.clone(),
            });
        }
        self.refresh();
    }
}

impl Watched {
    fn show(&mut self, reading: Reading, interval_ns: u64) {
        if reading.finished {
            // The process has left the devices.
            self.used.clear();
        }
        for device in &reading.devices {
            let history = self.histories.entry(device.ordinal);
            let history = history.or_insert_with(|| History::new(interval_ns));
            history.add(reading.at_ns, device.live.bytes);
        }
        if self.mark.is_none() {
            self.mark = Some(Mark {
                at_ns: reading.at_ns,
                set: false,
                sums: reading.sums.clone(),
            });
        }
        self.reading = Some(reading);
    }
}

#[cfg(test)]
mod tests;
