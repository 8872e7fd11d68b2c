//! What PyTorch's history adds to the blocks: when they were allocated, and what the program said about them; failed requests and marks.
//!
//! What a program said about an allocation (`torch.cuda.memory._set_memory_metadata`, `_annotate_tensor`), and the compiled region that
//! it happened in, become frames outside the outermost Python frame. So they group a tree or a flame graph, `--focus` finds them, and
//! call sites do not change.

use std::collections::HashMap;

use culeak::kind::Kind;
use culeak::snapshot::{Failed, Mark};

use super::{Reader, named, shortened};
use crate::pickle::Id;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// The most labels of a block.
const LABELS: usize = 16;
/// The most frames of stacks with labels: each label makes another stack of the same frames, which may be long.
const LABELLED_FRAMES: usize = 1 << 24;
/// The compile context of what was allocated outside compiled regions.
const NOT_COMPILED: &str = "N/A";
/// The files of labels' frames: what the program said, and a compiled region.
pub const SAID: &str = "<metadata>";
pub const COMPILED: &str = "<compiled>";
/// Characters that begin what is not shown of a function's name, and what labels have in their place.
pub const REPLACED: [(char, char); 3] = [(' ', '\u{a0}'), ('(', '\u{ff08}'), ('<', '\u{ff1c}')];

/// The last allocation at an address.
pub(super) struct Made {
    /// 0: old releases and torch_npu write no times.
    pub time_us: u64,
    /// Locations.
    pub labels: Vec<usize>,
}

/// By device and address.
pub(super) type History = HashMap<(u64, u64), Made>;

impl<'i> Reader<'_, 'i> {
    /// Converts a time of day to the snapshot's clock; call it after all events have been read.
    pub(super) fn since_the_first(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.snapshot.process.started_unix_ns)
    }

    pub(super) fn history(&mut self, traces: Option<Id>) -> Result<History, String> {
        let mut made = History::new();
        let Some(traces) = traces else { return Ok(made) };
        for (ordinal, trace) in (0..).zip(self.list(traces, "device_traces")?) {
            for entry in self.list(trace, "device_trace")? {
                self.once(entry, "trace entry")?;
                let time_us = self.time(entry);
                let at = (ordinal, self.number(entry, "addr").unwrap_or(0));
                match self.text(entry, "action") {
                    Some("alloc") => {
                        let labels = self.labels(entry);
                        made.insert(at, Made { time_us, labels });
                    }
                    // Its address is that of a live block.
                    Some("annotate") => {
                        let labels = self.labels(entry);
                        let block = made.entry(at).or_insert(Made {
                            time_us: 0,
                            labels: Vec::new(),
                        });
                        block.labels.extend(labels);
                        block.labels.truncate(LABELS);
                    }
                    // The next block there is another one.
                    Some("free_requested") => drop(made.remove(&at)),
                    Some("oom") => self.failed(entry, ordinal, time_us)?,
                    Some("user_defined") => self.old_annotation(entry, time_us),
                    _ => {}
                }
            }
        }
        Ok(made)
    }

    /// The time of an event; 0 if it has none.
    fn time(&mut self, entry: Id) -> u64 {
        let time_us = self.number(entry, "time_us").unwrap_or(0);
        if time_us > 0 {
            // A time of day; `finish` subtracts the first.
            let ns = time_us.saturating_mul(1000);
            let taken = &mut self.snapshot.taken;
            taken.at_unix_ns = taken.at_unix_ns.max(ns);
            let started = &mut self.snapshot.process.started_unix_ns;
            *started = if *started == 0 { ns } else { ns.min(*started) };
        }
        time_us
    }

    /// What the program said about an allocation, as locations.
    fn labels(&mut self, entry: Id) -> Vec<usize> {
        let compiled = self.text(entry, "compile_context").filter(|text| *text != NOT_COMPILED);
        let said = [(SAID, self.text(entry, "user_metadata")), (COMPILED, compiled)];
        let said = said
            .into_iter()
            .filter_map(|(sort, text)| Some((sort, text.filter(|text| !text.is_empty())?)));
        let locations = &mut self.snapshot.locations;
        let location = |(sort, text): (&'static str, &'i str)| {
            *self.locations.entry((text, sort, 0)).or_insert_with(|| {
                let mut function = text.to_owned();
                for (character, other) in REPLACED {
                    function = function.replace(character, other.encode_utf8(&mut [0; 4]));
                }
                locations.push(named(&function, sort, 0));
                locations.len() - 1
            })
        };
        said.map(location).collect()
    }

    /// The stack of a block with its labels, which are outside the outermost Python frame.
    pub(super) fn labelled(&mut self, block: Id, labels: &[usize]) -> Result<Option<usize>, String> {
        let frames = self.frames_of(block);
        let count = frames
            .and_then(|frames| self.pickle.items(frames))
            .map_or(0, <[_]>::len);
        self.labelled = self.labelled.saturating_add(count + labels.len());
        if self.labelled > LABELLED_FRAMES {
            return self.stack_of(block);
        }
        let mut frames = match frames {
            Some(frames) => self.locations(frames)?,
            None => Vec::new(),
        };
        let locations = &self.snapshot.locations;
        let python = frames.iter().rposition(|&frame| !locations[frame].language.is_native());
        let at = python.map_or(frames.len(), |outermost| outermost + 1);
        frames.splice(at..at, labels.iter().copied());
        Ok(Some(self.interned(frames)))
    }

    fn failed(&mut self, entry: Id, ordinal: u64, time_us: u64) -> Result<(), String> {
        let device = Some(self.device(ordinal)?);
        let stack = self.stack_of(entry)?;
        let bytes = self.number(entry, "size").unwrap_or(0);
        let time = time_us.saturating_mul(1000);
        let api = self.allocator().to_owned();
        self.snapshot.failed.push(Failed {
            bytes,
            count: 1,
            kind: Kind::Tensor,
            api,
            device,
            error: OUT_OF_MEMORY,
            thread: 0,
            stack,
            stream: self.stream(entry),
            first_ns: time,
            last_ns: time,
        });
        Ok(())
    }

    pub(super) fn annotations(&mut self, annotations: Id) -> Result<(), String> {
        for entry in self.list(annotations, "external_annotations")? {
            self.once(entry, "annotation")?;
            let time_us = self.time(entry);
            if let (Some("START"), Some(name)) = (self.text(entry, "stage"), self.text(entry, "name")) {
                self.mark(name, time_us);
            }
        }
        Ok(())
    }

    /// PyTorch 2.4 wrote annotations as events, with a frame for the stage and the name.
    fn old_annotation(&mut self, entry: Id, time_us: u64) {
        let frames = self.frames_of(entry).and_then(|frames| self.pickle.items(frames));
        if let Some(&[frame, ..]) = frames
            && let (Some("START"), Some(name)) = (self.text(frame, "name"), self.text(frame, "filename"))
        {
            self.mark(name, time_us);
        }
    }

    fn mark(&mut self, name: &str, time_us: u64) {
        if time_us > 0 {
            self.snapshot.marks.push(Mark {
                time_ns: time_us.saturating_mul(1000),
                name: shortened(name),
                thread: 0,
            });
        }
    }
}
