//! Stacks, from the rows of the stack trie.

use std::hash::{BuildHasher, Hash};
use std::path::{Path, PathBuf};

use foldhash::HashMap;
use foldhash::fast::FixedState;

use super::details::Renumbered;
use super::{RawSnapshot, ReadError};
use crate::format::*;
use crate::lockfree::index::mix;
use crate::snapshot::{FRAMES_IN_ALL, Language, Location, Module, Stack, Symbol};

/// The longest stack that is read: a few of what the recorder takes at once (`CULEAK_DEPTH`), since the stacks of autograd's threads
/// continue with others. In a small hostile file thousands of stacks could share a long chain.
pub(super) const FRAMES_MAX: usize = 1024;
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
    keys: Option<StackKeys<'a>>,
    /// The stack of blocks that sampling left out, once there is one.
    pub left_out: Option<usize>,
}

/// Keys of stacks, computed from the rows: equal stacks of different processes have equal keys. A stack whose key is known is
/// left empty, since the caller needs its key alone.
struct StackKeys<'a> {
    known: &'a dyn Fn(u64) -> bool,
    /// By frame row; 0: not computed.
    of_row: Vec<u64>,
    /// By code row and by module; 0: not computed.
    of_code: Vec<u64>,
    of_module: Vec<u64>,
    /// By stack.
    all: Vec<u64>,
}

/// Keys of what is outside the outermost frame: the end of the stack, or a cut.
const END: u64 = 1;
const CUT_OFF: u64 = 2;
/// The key of the stack of blocks that sampling left out.
const LEFT_OUT: u64 = 3;

fn hash_of(value: &impl Hash) -> u64 {
    // 0 means "not computed".
    FixedState::with_seed(11).hash_one(value).max(1)
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
            keys: None,
            left_out: None,
        }
    }

    /// Leaves stacks empty whose key is known.
    pub fn skip(&mut self, known: &'a dyn Fn(u64) -> bool, modules: &[Module]) {
        self.keys = Some(StackKeys {
            known,
            of_row: vec![0; self.location_of.len()],
            of_code: vec![0; self.raw.section(Section::Codes).len()],
            of_module: modules
                .iter()
                .map(|module| hash_of(&(&module.path, &module.build_id)))
                .collect(),
            all: Vec::new(),
        });
    }

    /// Locations and stacks, and the keys of the stacks if some were to be left empty.
    pub fn finish(self) -> (Vec<Location>, Vec<Stack>, Vec<u64>) {
        (
            self.locations,
            self.stacks,
            self.keys.map(|keys| keys.all).unwrap_or_default(),
        )
    }

    /// The number of the stack whose innermost frame is this row; `None` if there is none.
    ///
    /// # Errors
    /// The stacks have more frames in total than any program's.
    pub fn of(&mut self, leaf: u32) -> Result<Option<usize>, ReadError> {
        if leaf == UNSAMPLED {
            return Ok(Some(self.of_left_out()));
        }
        match self.stack_of.get(leaf as usize) {
            None | Some(&NOTHING) => return Ok(None),
            Some(&UNSEEN) => {}
            Some(&known) => return Ok(Some(known as usize)),
        }
        if let Some(key) = self.key(leaf)
            && let Some(keys) = &mut self.keys
        {
            keys.all.push(key);
            if (keys.known)(key) {
                self.stacks.push(Stack {
                    frames: Vec::new(),
                    truncated: false,
                });
                let number = self.stacks.len() - 1;
                self.stack_of[leaf as usize] = number as u32;
                return Ok(Some(number));
            }
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

    fn of_left_out(&mut self) -> usize {
        *self.left_out.get_or_insert_with(|| {
            self.stacks.push(Stack {
                frames: Vec::new(),
                truncated: false,
            });
            if let Some(keys) = &mut self.keys {
                keys.all.push(LEFT_OUT);
            }
            self.stacks.len() - 1
        })
    }

    /// The key of a stack; `None` if keys are not wanted, or the stack has no frames.
    fn key(&mut self, leaf: u32) -> Option<u64> {
        let mut keys = self.keys.take()?;
        let key = self.key_with(&mut keys, leaf);
        self.keys = Some(keys);
        key
    }

    /// Climbs to a row whose key is known or to the end of the stack, and computes the keys of the rows on the way back.
    fn key_with(&mut self, keys: &mut StackKeys, leaf: u32) -> Option<u64> {
        let rows = self.raw.section(Section::Frames);
        let mut path = std::mem::take(&mut self.scratch);
        path.clear();
        let mut row = leaf;
        let mut key = loop {
            match row {
                ROOT => break END,
                CUT => break CUT_OFF,
                _ if row as usize >= rows.len() => break CUT_OFF,
                _ => {}
            }
            match keys.of_row[row as usize] {
                0 => {}
                key => break key,
            }
            let frame = rows.row::<FrameRow>(row as usize);
            if frame.address == 0 {
                break CUT_OFF;
            }
            path.push(row as usize);
            let (parent, _) = halves(frame.parent_module);
            // As in `chain`: a damaged file.
            if parent < CUT && parent >= row {
                break CUT_OFF;
            }
            row = parent;
        };
        for &row in path.iter().rev() {
            let frame = rows.row::<FrameRow>(row);
            let (_, module) = halves(frame.parent_module);
            key = mix(key ^ self.frame_key(keys, row as u32, module, frame.address)).max(CUT_OFF + 1);
            keys.of_row[row] = key;
        }
        self.scratch = path;
        (key > CUT_OFF).then_some(key)
    }

    fn frame_key(&self, keys: &mut StackKeys, row: u32, module: u32, address: u64) -> u64 {
        if module == PYTHON {
            let (offset, code) = halves(address);
            let code = code.wrapping_sub(1);
            let of_code = match keys.of_code.get(code as usize) {
                Some(0) => {
                    let key = self.code_key(code);
                    keys.of_code[code as usize] = key;
                    key
                }
                Some(key) => *key,
                None => 1,
            };
            return mix(of_code ^ mix(u64::from(offset) | 1 << 63));
        }
        if module == GRADIENT {
            let lines = self.raw.forward(row, address);
            return lines.fold(u64::from(GRADIENT) | address & NEAR, |key, (code, offset)| {
                mix(key ^ self.code_key(code) ^ u64::from(offset))
            });
        }
        let number = module.checked_sub(1).and_then(|row| self.modules.get(&row).copied());
        let of_module = number
            .and_then(|number| keys.of_module.get(number).copied())
            .unwrap_or(0);
        let name = self.names.get(&(module, address));
        let of_name = name.map_or(0, |&name| hash_of(&self.raw.bytes(name)));
        mix(mix(of_module) ^ address ^ of_name)
    }

    /// A function of Python, with its line table, so that an offset means the same line.
    fn code_key(&self, code: u32) -> u64 {
        let row = self.raw.section(Section::Codes).row::<CodeRow>(code as usize);
        let table = row.line_table.present().map(|table| self.raw.bytes(table));
        let names = (self.raw.bytes(row.file), self.raw.bytes(row.function));
        hash_of(&(names, table, row.first_line_minor))
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
            if module != GRADIENT || self.raw.forward(row, address).next().is_some() {
                frames.push(self.location(row, module, address));
            }
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
            } else if module == GRADIENT {
                self.raw.gradient_location(address, self.raw.forward(row, address))
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
