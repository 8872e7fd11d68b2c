//! The state of the view, and what keys do to it. Drawing is in `view`.
//!
//! Readings and keys arrive one by one; after each the state can be drawn. All times are on the recordings' clocks, so nothing
//! here reads a clock, and a test can simulate an hour instantly.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use culeak::analysis::diff::State as Changed;
use culeak::analysis::job::identity::rank_of;
use culeak::named;
use culeak::snapshot::ProcessState;
use culeak::tally::Change;

use super::holders::Holders;
use super::reading::{Reading, Row, RowKey};

/// What the terminal or another thread does after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Quit,
    Suspend,
    Redraw,
    /// Read this process's recording at every refresh.
    Choose(PathBuf),
    /// Search for what holds the memory of the process with this recording and number.
    Search(PathBuf, u32),
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

named! {
    /// Of the list of processes.
    #[derive(Default)]
    pub enum Order {
        #[default]
        Rank = "rank",
        Bytes = "bytes",
        Growth = "growth",
    }
}

/// The value behind `this` in a list; the first one is behind the last one.
fn next<T: Copy + PartialEq>(all: &[T], this: T) -> T {
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

/// The memory of a device over time in a bounded number of points. When they run out, each pair becomes its larger value, so a
/// short peak stays visible in a chart of hours.
#[derive(Debug, Clone, Default)]
pub struct History {
    points: Vec<u64>,
    /// Readings of a point, as a power of two, and those that the last point has.
    doubled: u32,
    in_last: u64,
}

impl History {
    /// More than a terminal has columns.
    const MOST: usize = 1024;

    pub fn add(&mut self, value: u64) {
        match self.points.last_mut().filter(|_| self.in_last < 1 << self.doubled) {
            Some(last) => *last = value.max(*last),
            None => {
                self.points.push(value);
                self.in_last = 0;
            }
        }
        self.in_last += 1;
        if self.points.len() > Self::MOST {
            self.points = self.columns(self.points.len().div_ceil(2));
            self.doubled += 1;
        }
    }

    /// The whole history in at most this many values, oldest first.
    pub fn columns(&self, columns: usize) -> Vec<u64> {
        let each = self.points.len().div_ceil(columns.max(1)).max(1);
        let values = self
            .points
            .chunks(each)
            .filter_map(|points| points.iter().copied().max());
        values.take(columns).collect()
    }
}

/// The reading that growth is measured from.
#[derive(Debug, Clone)]
pub struct Mark {
    /// The user set it; otherwise it is the first reading.
    pub set: bool,
    pub reading: Arc<Reading>,
}

#[derive(Debug, Clone, Default)]
pub struct Watched {
    pub recording: PathBuf,
    pub reading: Option<Arc<Reading>>,
    pub mark: Option<Mark>,
    /// By ordinal.
    pub histories: BTreeMap<i32, History>,
    /// Why the last attempt to read it failed.
    pub problem: Option<String>,
    pub searching: bool,
    /// The answer to the last search; an error says why there is none.
    pub holders: Option<Result<Holders, String>>,
    /// The newest reading since the view was paused.
    pending: Option<Arc<Reading>>,
}

/// A row of the list of call sites.
#[derive(Debug, Clone)]
pub struct Line {
    /// As it was at the mark if it is gone.
    pub row: Arc<Row>,
    pub before: Option<Arc<Row>>,
    /// Since the mark.
    pub of: Change,
}

impl Line {
    fn new(now: Option<&Arc<Row>>, before: Option<Arc<Row>>) -> Option<Line> {
        let of = Change {
            before: before.as_ref().map(|row| row.tally).unwrap_or_default(),
            after: now.map(|row| row.tally).unwrap_or_default(),
        };
        let row = now.or(before.as_ref()).cloned()?;
        Some(Line { row, before, of })
    }

    pub fn state(&self) -> Changed {
        match (self.of.before.count, self.of.after.count) {
            (0, _) => Changed::New,
            (_, 0) => Changed::Gone,
            _ => Changed::between(self.of.before, self.of.after),
        }
    }
}

#[derive(Debug, Default)]
pub struct State {
    pub processes: Vec<Watched>,
    pub chosen: usize,
    /// Notes, for example on modules without symbols.
    pub notes: Vec<String>,
    /// Text to show while there is no process.
    pub waiting: String,
    pub page: Page,
    pub order: Order,
    /// The process that is selected in the list.
    pub in_list: usize,
    /// The list opens by itself when there is a second process, unless a key was pressed before.
    pub list_opens: bool,
    pub sort: Sort,
    pub filter: String,
    pub filtering: bool,
    pub paused: bool,
    /// Only what changed since the mark.
    pub diff: bool,
    /// How the program that the view started has ended.
    pub ended: Option<String>,
    /// The call sites of the chosen process that are shown, in order.
    pub shown: Vec<Line>,
    /// A filter's words, and whether the call sites that were last searched have them: most are the same in the next reading.
    matched: (Vec<String>, HashMap<(RowKey, u64), bool>),
    /// The number of call sites without the filter.
    pub all: usize,
    pub selected: Option<RowKey>,
    /// First row (or line of stacks) on the screen.
    pub offset: usize,
    /// The number of rows that fitted on the screen when it was last drawn.
    pub room: usize,
}

impl State {
    pub fn new(waiting: String) -> State {
        State {
            waiting,
            room: 10,
            ..State::default()
        }
    }

    /// The process on the screen.
    pub fn process(&self) -> Option<&Watched> {
        self.processes.get(self.chosen)
    }

    pub fn reading(&self) -> Option<&Arc<Reading>> {
        self.process()?.reading.as_ref()
    }

    /// The place of the selected row among the shown ones.
    pub fn selected_place(&self) -> usize {
        let is_selected = |line: &Line| Some(line.row.key) == self.selected;
        self.shown.iter().position(is_selected).unwrap_or(0)
    }

    /// The row under the cursor becomes the selected one.
    fn select(&mut self) -> Option<()> {
        self.selected = Some(self.shown.get(self.selected_place())?.row.key);
        Some(())
    }

    /// Takes a new reading of a process.
    pub fn add_reading(&mut self, reading: Arc<Reading>) {
        let paused = self.paused;
        let process = self.watched(&reading.recording);
        process.problem = None;
        if paused && process.reading.is_some() {
            process.pending = Some(reading);
            return;
        }
        let recording = reading.recording.clone();
        process.show(reading);
        if self.process().is_some_and(|process| process.recording == recording) {
            self.arrange();
        }
    }

    /// Notes that a recording could not be read.
    pub fn unreadable(&mut self, recording: &Path, why: String) {
        self.watched(recording).problem = Some(why);
    }

    /// Takes the answer to a search.
    pub fn found(&mut self, recording: &Path, answer: Result<Holders, String>) {
        let process = self.watched(recording);
        process.searching = false;
        process.holders = Some(answer);
    }

    fn watched(&mut self, recording: &Path) -> &mut Watched {
        let known = self.processes.iter().position(|process| process.recording == recording);
        let process = known.unwrap_or_else(|| {
            self.processes.push(Watched {
                recording: recording.to_path_buf(),
                ..Watched::default()
            });
            if self.list_opens {
                self.show_list();
            }
            self.processes.len() - 1
        });
        &mut self.processes[process]
    }

    /// Pairs the call sites of the chosen process with those at the mark, filters and sorts them.
    fn arrange(&mut self) {
        self.shown.clear();
        self.all = 0;
        let process = self.processes.get(self.chosen);
        let Some((reading, mark)) =
            process.and_then(|process| Some((process.reading.as_ref()?, process.mark.as_ref()?)))
        else {
            return;
        };
        let before = mark.reading.rows.iter().map(|row| (row.key, Arc::clone(row)));
        let mut before: HashMap<RowKey, Arc<Row>> = before.collect();
        let now = reading.rows.iter();
        let mut lines: Vec<Line> = now
            .filter_map(|row| Line::new(Some(row), before.remove(&row.key)))
            .collect();
        lines.extend(before.into_values().filter_map(|row| Line::new(None, Some(row))));
        self.all = lines.len();
        let words: Vec<String> = self.filter.split_whitespace().map(str::to_lowercase).collect();
        let known = std::mem::take(&mut self.matched);
        let known = if known.0 == words { known.1 } else { HashMap::new() };
        let mut matched = HashMap::new();
        let mut matches = |row: &Row| {
            let searched = row.searched();
            *matched
                .entry(searched)
                .or_insert_with(|| known.get(&searched).copied().unwrap_or_else(|| row.matches(&words)))
        };
        let hidden = if self.diff { Changed::Unchanged } else { Changed::Gone };
        lines.retain(|line| line.state() != hidden && (words.is_empty() || matches(&line.row)));
        self.matched = (words, matched);
        let key = |line: &Line| -> (i128, i128) {
            let (bytes, count) = (i128::from(line.of.after.bytes), i128::from(line.of.after.count));
            match self.sort {
                Sort::Bytes => (bytes, count),
                Sort::Count => (count, bytes),
                Sort::Growth if self.diff => (line.of.bytes().abs(), line.of.count().abs()),
                Sort::Growth => (line.of.bytes(), line.of.count()),
                Sort::Age => (-i128::from(line.row.oldest_ns), bytes),
                Sort::Name => (0, 0),
            }
        };
        fn name(line: &Line) -> (&str, RowKey) {
            (&line.row.site.label, line.row.key)
        }
        lines.sort_by(|a, b| key(b).cmp(&key(a)).then_with(|| name(a).cmp(&name(b))));
        self.shown = lines;
    }

    /// Handles a key. `None`: the screen needs drawing and nothing else.
    pub fn key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Action::Quit),
                KeyCode::Char('z') => Some(Action::Suspend),
                KeyCode::Char('l') => Some(Action::Redraw),
                _ => None,
            };
        }
        if self.filtering {
            self.filter_key(key.code);
            self.arrange();
            return None;
        }
        self.list_opens = false;
        let (in_list, in_sites) = (self.page == Page::Processes, self.page == Page::Sites);
        match key.code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Enter if in_list => return self.choose(self.in_list),
            KeyCode::Char('s') if in_list => self.order = next(Order::ALL, self.order),
            KeyCode::Esc | KeyCode::Char('w' | 'l' | 'd' | '/') if in_list => {}
            KeyCode::Tab => return self.choose(self.chosen + 1),
            KeyCode::BackTab => return self.choose(self.chosen + self.processes.len().saturating_sub(1)),
            KeyCode::Char('?') if self.page == Page::Help => self.page = Page::Sites,
            KeyCode::Char('?') => self.page = Page::Help,
            KeyCode::Char(' ' | 'f') => self.pause(),
            KeyCode::Char('p') => self.show_list(),
            KeyCode::Char('m') => self.mark(),
            KeyCode::Char('w') if self.page != Page::Help => return self.why(),
            KeyCode::Char('l') if self.page == Page::Ledger => self.back(),
            KeyCode::Char('l') if self.page != Page::Help => self.open(Page::Ledger),
            KeyCode::Enter if in_sites => {
                self.select()?;
                self.open(Page::Stacks);
            }
            KeyCode::Esc => self.back(),
            KeyCode::Enter if self.page != Page::Help => self.back(),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-(self.room as isize)),
            KeyCode::PageDown => self.go(self.room as isize),
            KeyCode::Home => self.go(isize::MIN / 2),
            KeyCode::End => self.go(isize::MAX / 2),
            KeyCode::Char('/') if in_sites => self.filtering = true,
            KeyCode::Char('d') if in_sites => self.show_diff(!self.diff),
            KeyCode::Char('s') if in_sites => self.sort = next(Sort::ALL, self.sort),
            KeyCode::Char(letter) if in_sites => {
                let is_named = |sort: &&Sort| sort.name().starts_with(letter);
                self.sort = *Sort::ALL.iter().find(is_named)?;
            }
            _ => {}
        }
        self.arrange();
        None
    }

    fn show_diff(&mut self, diff: bool) {
        self.diff = diff;
        self.sort = if diff { Sort::Growth } else { Sort::Bytes };
    }

    fn filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.filtering = false,
            KeyCode::Esc => {
                self.filtering = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    fn open(&mut self, page: Page) {
        self.page = page;
        self.offset = 0;
    }

    /// Leaves the current page, diff or filter.
    fn back(&mut self) {
        match self.page {
            Page::Sites if self.diff => self.show_diff(false),
            Page::Sites if self.filter.is_empty() => self.show_list(),
            Page::Sites => self.filter.clear(),
            _ => self.open(Page::Sites),
        }
    }

    /// Shows what holds the memory of the selected call site. Starts a search if there is none, or if the page is open already.
    fn why(&mut self) -> Option<Action> {
        let is_open = self.page == Page::Holders;
        self.select()?;
        self.open(Page::Holders);
        let process = self.processes.get_mut(self.chosen)?;
        if process.searching || matches!(process.holders, Some(Ok(_))) && !is_open {
            return None;
        }
        let reading = process.reading.as_ref()?;
        if reading.process.state != ProcessState::Running {
            let why = "the process has ended; `culeak run --why` searches at the end of a program";
            process.holders = Some(Err(why.to_owned()));
            return None;
        }
        process.searching = true;
        Some(Action::Search(process.recording.clone(), reading.process.number()))
    }

    fn go(&mut self, by: isize) {
        match self.page {
            Page::Sites => {
                let last = self.shown.len().saturating_sub(1);
                let place = self.selected_place().saturating_add_signed(by).min(last);
                self.selected = self.shown.get(place).map(|line| line.row.key);
            }
            Page::Processes => {
                let order = self.in_order();
                let at = order.iter().position(|&nth| nth == self.in_list).unwrap_or(0);
                let last = order.len().saturating_sub(1);
                self.in_list = order.get(at.saturating_add_signed(by).min(last)).copied().unwrap_or(0);
            }
            // Drawing limits the offset to the number of lines.
            _ => self.offset = self.offset.saturating_add_signed(by),
        }
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
        if !self.paused {
            for process in &mut self.processes {
                process
                    .pending
                    .take()
                    .into_iter()
                    .for_each(|reading| process.show(reading));
            }
        }
    }

    /// Measures growth from now on.
    fn mark(&mut self) {
        for process in &mut self.processes {
            let reading = process.reading.clone();
            process.mark = reading.map(|reading| Mark { set: true, reading });
        }
    }

    /// Shows this process; the first one is behind the last one.
    fn choose(&mut self, process: usize) -> Option<Action> {
        let count = self.processes.len();
        if count < 2 {
            return None;
        }
        self.chosen = process % count;
        self.selected = None;
        match self.page {
            Page::Processes | Page::Stacks | Page::Holders => self.open(Page::Sites),
            _ => self.offset = 0,
        }
        self.arrange();
        Some(Action::Choose(self.processes[self.chosen].recording.clone()))
    }

    /// Shows the list of processes, if there are several.
    fn show_list(&mut self) {
        if self.processes.len() > 1 {
            self.list_opens = false;
            self.in_list = self.chosen;
            self.open(Page::Processes);
        }
    }

    /// The processes as the list has them.
    pub fn in_order(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.processes.len()).collect();
        all.sort_by_cached_key(|&nth| {
            let watched = &self.processes[nth];
            let first = match self.order {
                Order::Rank => 0,
                Order::Bytes => -i128::from(watched.on_devices()),
                Order::Growth => -watched.per_second().unwrap_or(i128::MIN / 2),
            };
            let process = watched.reading.as_ref().map(|reading| &reading.process);
            let rank = process.and_then(|process| rank_of(&process.ranks));
            let name = process.map(|process| (process.host.clone(), process.pid));
            (first, rank.unwrap_or(u32::MAX), name, nth)
        });
        all
    }
}

impl Watched {
    fn show(&mut self, reading: Arc<Reading>) {
        for device in &reading.devices {
            self.histories.entry(device.ordinal).or_default().add(device.live.bytes);
        }
        if self.mark.is_none() {
            self.mark = Some(Mark {
                set: false,
                reading: Arc::clone(&reading),
            });
        }
        self.reading = Some(reading);
    }

    /// The bytes that it holds on devices.
    pub fn on_devices(&self) -> u64 {
        self.reading.as_ref().map_or(0, |reading| reading.on_devices().bytes)
    }

    /// By how many bytes it has grown each second since the mark. `None`: it has ended, or there is one reading.
    pub fn per_second(&self) -> Option<i128> {
        let (reading, mark) = (self.reading.as_ref()?, self.mark.as_ref()?);
        let since = reading.at_ns.checked_sub(mark.reading.at_ns).filter(|&ns| ns > 0)?;
        let change = i128::from(self.on_devices()) - i128::from(mark.reading.on_devices().bytes);
        (!reading.finished).then_some(change * 1_000_000_000 / i128::from(since))
    }
}

#[cfg(test)]
mod tests;
