//! From rows of the stack trie to stacks.

use std::collections::HashMap;

use super::Picture;
use super::picture::Renumbered;
use crate::layout::*;
use crate::snapshot::{Language, Location, Stack};

/// Longer chains of frames than this are not stacks.
const FRAMES_MAX: usize = 4096;

/// Turns chains of frame rows into stacks, each once.
pub struct Stacks<'a> {
    picture: &'a Picture,
    modules: &'a Renumbered,
    pub locations: Vec<Location>,
    pub stacks: Vec<Stack>,
    location_of: HashMap<u32, usize>,
    stack_of: HashMap<u32, Option<usize>>,
}

impl<'a> Stacks<'a> {
    pub fn new(picture: &'a Picture, modules: &'a Renumbered) -> Stacks<'a> {
        Stacks {
            picture,
            modules,
            locations: Vec::new(),
            stacks: Vec::new(),
            location_of: HashMap::new(),
            stack_of: HashMap::new(),
        }
    }

    pub fn of(&mut self, leaf: u32) -> Option<usize> {
        if let Some(&known) = self.stack_of.get(&leaf) {
            return known;
        }
        let rows = self.picture.rows(Section::Frames);
        let mut frames = Vec::new();
        let mut row = leaf;
        let truncated = loop {
            match row {
                ROOT => break false,
                CUT => break true,
                // Rows are added after their parents: anything else is damage, and ends the stack.
                _ if row as usize >= rows.len() || frames.len() >= FRAMES_MAX => break true,
                _ => {}
            }
            let (parent, module) = halves(rows.word(row as usize, 0));
            let address = rows.word(row as usize, 1);
            if address == 0 {
                break true;
            }
            let location = match self.location_of.get(&row) {
                Some(&known) => known,
                None => {
                    let location = self.location(module, address);
                    self.locations.push(location);
                    self.location_of.insert(row, self.locations.len() - 1);
                    self.locations.len() - 1
                }
            };
            frames.push(location);
            if parent < CUT && parent >= row {
                break true;
            }
            row = parent;
        };
        let stack = (!frames.is_empty()).then(|| {
            self.stacks.push(Stack { frames, truncated });
            self.stacks.len() - 1
        });
        self.stack_of.insert(leaf, stack);
        stack
    }

    fn location(&self, module: u32, address: u64) -> Location {
        if module == PYTHON {
            let (offset, code) = halves(address);
            return self.picture.python_location(code.wrapping_sub(1), offset);
        }
        Location {
            module: module
                .checked_sub(1)
                .and_then(|module| self.modules.get(&module).copied()),
            address,
            symbols: Vec::new(),
            language: Language::Native,
        }
    }
}
