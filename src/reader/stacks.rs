//! Stacks, from the rows of the stack trie.

use std::path::{Path, PathBuf};

use foldhash::HashMap;

use super::decode::Renumbered;
use super::{RawSnapshot, ReadError};
use crate::format::*;
use crate::snapshot::{FRAMES_IN_ALL, Language, Location, Stack, Symbol};

/// The longest stack that the recorder stores (`CULEAK_DEPTH`). In a small hostile file thousands of stacks could share a
/// long chain.
const FRAMES_MAX: usize = 256;
/// Not decoded yet.
const UNSEEN: u32 = u32::MAX;
/// Decoded, and empty.
const NOTHING: u32 = u32::MAX - 1;

/// Turns chains of frame rows into stacks, and rows into locations, without duplicates.
pub struct Stacks<'a> {
    raw: &'a RawSnapshot,
    path: PathBuf,
    modules: &'a Renumbered,
    pub locations: Vec<Location>,
    pub stacks: Vec<Stack>,
    /// By row.
    location_of: Vec<u32>,
    stack_of: Vec<u32>,
    /// By module half and address.
    location_at: HashMap<(u32, u64), u32>,
    /// Names of frames, by module half and address.
    names: HashMap<(u32, u64), Text>,
    frames: usize,
    /// Frames of one stack at a time.
    scratch: Vec<usize>,
}

impl<'a> Stacks<'a> {
    pub fn new(raw: &'a RawSnapshot, path: &Path, modules: &'a Renumbered) -> Stacks<'a> {
        let rows = raw.section(Section::Frames).len();
        Stacks {
            raw,
            path: path.to_path_buf(),
            modules,
            locations: Vec::new(),
            stacks: Vec::new(),
            location_of: vec![UNSEEN; rows],
            stack_of: vec![UNSEEN; rows],
            location_at: HashMap::default(),
            names: names(raw),
            frames: 0,
            scratch: Vec::new(),
        }
    }

    /// The number of the stack whose innermost frame is this row; `None` if there is none.
    ///
    /// # Errors
    /// The stacks have more frames in total than any program's.
    pub fn of(&mut self, leaf: u32) -> Result<Option<usize>, ReadError> {
        match self.stack_of.get(leaf as usize) {
            None | Some(&NOTHING) => return Ok(None),
            Some(&UNSEEN) => {}
            Some(&known) => return Ok(Some(known as usize)),
        }
        let stack = self.chain(leaf);
        self.frames += stack.frames.len();
        if self.frames > FRAMES_IN_ALL {
            return Err(ReadError::Damaged(
                self.path.clone(),
                format!("its stacks have more than {FRAMES_IN_ALL} frames in all"),
            ));
        }
        if stack.frames.is_empty() {
            self.stack_of[leaf as usize] = NOTHING;
            return Ok(None);
        }
        self.stacks.push(stack);
        let number = self.stacks.len() - 1;
        self.stack_of[leaf as usize] = number as u32;
        Ok(Some(number))
    }

    fn chain(&mut self, leaf: u32) -> Stack {
        let rows = self.raw.section(Section::Frames);
        let mut frames = std::mem::take(&mut self.scratch);
        frames.clear();
        let mut row = leaf;
        let truncated = loop {
            match row {
                ROOT => break false,
                CUT => break true,
                // A row is always added after its parent; in a damaged file the stack ends here.
                _ if row as usize >= rows.len() || frames.len() >= FRAMES_MAX => break true,
                _ => {}
            }
            let frame = rows.row::<FrameRow>(row as usize);
            let ((parent, module), address) = (halves(frame.parent_module), frame.address);
            if address == 0 {
                break true;
            }
            frames.push(self.location(row, module, address));
            if parent < CUT && parent >= row {
                break true;
            }
            row = parent;
        };
        // One allocation of the exact size, since there may be thousands of stacks.
        let stack = Stack {
            frames: frames.as_slice().to_vec(),
            truncated,
        };
        self.scratch = frames;
        stack
    }

    fn location(&mut self, row: u32, module: u32, address: u64) -> usize {
        let known = self.location_of[row as usize];
        if known != UNSEEN {
            return known as usize;
        }
        let number = *self.location_at.entry((module, address)).or_insert_with(|| {
            let location = if module == PYTHON {
                let (offset, code) = halves(address);
                self.raw.python_location(code.wrapping_sub(1), offset)
            } else {
                let row = module.checked_sub(1);
                let name = self.names.get(&(module, address));
                let symbols = name.map(|&name| Symbol {
                    function: self.raw.text(name),
                    file: None,
                    line: None,
                    inlined: false,
                });
                Location {
                    module: row.and_then(|row| self.modules.get(&row).copied()),
                    address,
                    symbols: symbols.into_iter().collect(),
                    language: Language::Native,
                }
            };
            self.locations.push(location);
            self.locations.len() as u32 - 1
        });
        self.location_of[row as usize] = number;
        number as usize
    }
}

/// The functions of the driver that the recorder named, by module half and address of the frame.
fn names(raw: &RawSnapshot) -> HashMap<(u32, u64), Text> {
    let rows = raw.section(Section::FrameNames).rows::<FrameNameRow>();
    rows.take(FRAME_NAMES_MAX)
        .filter(|row| (1..=FRAME_NAME_BYTES as u32).contains(&row.name.bytes))
        .filter_map(|row| Some(((u32::try_from(row.module_plus_one).ok()?, row.address), row.name)))
        .collect()
}
