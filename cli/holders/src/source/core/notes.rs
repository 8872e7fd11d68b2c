//! The notes of a core file: threads, the process, mapped files.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::modules::headers::{word, word4};
use crate::source::Thread;
use crate::source::registers::Machine;

const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;

/// Notes beyond this are not those of a real process: a thread takes about 10 KiB.
const LARGEST: u64 = 1 << 30;

/// A mapping of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    pub range: Range<u64>,
    /// In the file, in bytes.
    pub offset: u64,
    pub name: String,
}

#[derive(Debug, Default)]
pub struct Notes {
    pub threads: Vec<Thread>,
    pub process_id: u32,
    pub command: String,
    /// By address.
    pub mapped: Vec<Mapped>,
    auxiliary: Vec<(u64, u64)>,
}

impl Notes {
    /// # Errors
    /// Why they cannot be used.
    pub fn read(file: &File, machine: Machine, parts: &[Range<u64>]) -> Result<Notes, String> {
        let mut notes = Notes::default();
        for part in parts {
            let bytes = part.end - part.start;
            if bytes > LARGEST {
                return Err(format!("damaged: its notes have {} MiB", bytes >> 20));
            }
            let mut buffer = vec![0; bytes as usize];
            file.read_exact_at(&mut buffer, part.start)
                .map_err(|error| format!("its notes cannot be read: {error}"))?;
            notes.parse(&buffer, machine);
        }
        if notes.threads.is_empty() {
            return Err("damaged: it has no threads".to_owned());
        }
        if notes.process_id == 0 {
            notes.process_id = notes.threads[0].id;
        }
        let (id, command) = (notes.process_id, notes.command.clone());
        if let Some(main) = notes.threads.iter_mut().find(|thread| thread.id == id) {
            main.name = command;
        }
        notes.mapped.sort_by_key(|mapped| mapped.range.start);
        let mut end = 0;
        notes.mapped.retain(|mapped| {
            let follows = mapped.range.start >= end;
            end = end.max(mapped.range.end);
            follows
        });
        Ok(notes)
    }

    /// A value that the kernel gave to the program when it started.
    pub fn auxiliary(&self, kind: u64) -> Option<u64> {
        let found = self.auxiliary.iter().find(|(found, _)| *found == kind);
        found.map(|(_, value)| *value)
    }

    /// Takes what is whole; the rest of a damaged note is ignored.
    fn parse(&mut self, mut rest: &[u8], machine: Machine) {
        while rest.len() >= 12 {
            let (name, size, kind) = (word4(rest, 0) as usize, word4(rest, 4) as usize, word4(rest, 8));
            let start = 12 + name.next_multiple_of(4);
            let Some(content) = rest.get(start..).and_then(|from| from.get(..size)) else {
                return;
            };
            self.note(kind, content, machine);
            rest = rest.get(start + size.next_multiple_of(4)..).unwrap_or_default();
        }
    }

    fn note(&mut self, kind: u32, content: &[u8], machine: Machine) {
        match kind {
            NT_PRSTATUS => {
                const ID: usize = 32;
                const REGISTERS: usize = 112;
                if content.len() < REGISTERS {
                    return;
                }
                let mut thread = Thread {
                    id: word4(content, ID),
                    ..Thread::default()
                };
                machine.store(&words(&content[REGISTERS..]), &mut thread);
                self.threads.push(thread);
            }
            NT_PRPSINFO if content.len() >= 56 => {
                self.process_id = word4(content, 24);
                let name = content[40..56].split(|&byte| byte == 0).next().unwrap_or_default();
                self.command = String::from_utf8_lossy(name).into_owned();
            }
            NT_AUXV => {
                let words = words(content);
                self.auxiliary
                    .extend(words.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            NT_FILE => self.files(content),
            _ => {}
        }
    }

    /// The number of mappings, the unit of offsets, three words for each mapping, then the names.
    fn files(&mut self, content: &[u8]) {
        if content.len() < 16 {
            return;
        }
        let (count, unit) = (word(content, 0) as usize, word(content, 8));
        let Some(names) = count.checked_mul(24).and_then(|bytes| content.get(16 + bytes..)) else {
            return;
        };
        let rows = content[16..].chunks_exact(24).take(count);
        for (row, name) in rows.zip(names.split(|&byte| byte == 0)) {
            let (start, end) = (word(row, 0), word(row, 8));
            let offset = word(row, 16).checked_mul(unit);
            let (Some(offset), true) = (offset.filter(|offset| *offset < 1 << 62), start < end) else {
                continue;
            };
            self.mapped.push(Mapped {
                range: start..end,
                offset,
                name: String::from_utf8_lossy(name).into_owned(),
            });
        }
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|bytes| word(bytes, 0)).collect()
}
