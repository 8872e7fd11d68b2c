//! Devices, contexts, threads and modules: the rows that allocations refer to.

use std::sync::atomic::Ordering::*;

use super::{ModuleSeen, Recording, fill_words, store_bytes};
use crate::format::*;
use crate::lockfree::shards::Shard;
use crate::lockfree::table::Attributes;

impl Recording {
    /// The row of a device, if it is registered.
    pub fn device(&self, ordinal: i32) -> Option<u8> {
        let number = u8::try_from(ordinal).ok()?;
        let row = self.devices.get(self.backing(Section::Devices), number.into())?;
        (row.ordinal_plus_one.load(Acquire) != 0).then_some(number)
    }

    /// The row of the device, if exactly one is known.
    pub fn only_device(&self) -> Option<u8> {
        let (_, limit) = Section::Devices.extent_sizes();
        let mut known = (0..limit as i32).filter_map(|ordinal| self.device(ordinal));
        known.next().filter(|_| known.next().is_none())
    }

    /// Registers a device. Its ordinal is its row, so threads that register it at once store the same values.
    pub fn add_device(&self, ordinal: i32, uuid: Option<(bool, [u8; 16])>, name: &[u8]) -> u8 {
        let (_, limit) = Section::Devices.extent_sizes();
        let number = u32::try_from(ordinal).ok().filter(|&number| (number as usize) < limit);
        let row = number.and_then(|number| self.devices.ensure(self.backing(Section::Devices), number).ok());
        let (Some(number), Some(row)) = (number, row) else {
            self.add(Loss::Details, 1);
            return Attributes::NO_DEVICE;
        };
        if let Some((mig, bytes)) = uuid {
            row.uuid_kind.store(1 + u32::from(mig), Relaxed);
            store_bytes(&row.uuid, &bytes);
        }
        store_bytes(&row.name, name);
        // Release: pairs with the Acquire in `device` and in readers.
        row.ordinal_plus_one.store(number + 1, Release);
        self.elements(Section::Devices)
            .fetch_max(u64::from(number) + 1, Relaxed);
        number as u8
    }

    fn context_rows(&self) -> impl DoubleEndedIterator<Item = (u16, &ContextRow)> {
        let count = self
            .elements(Section::Contexts)
            .load(Relaxed)
            .min(u64::from(Attributes::NO_CONTEXT)) as u32;
        (0..count).filter_map(|number| {
            let row = self.context_row(number)?;
            let alive = row.seen_plus_one.load(Acquire) != 0 && row.destroyed_plus_one.load(Relaxed) == 0;
            alive.then_some((number as u16, row))
        })
    }

    /// The row of a living context: the newest one with this handle. There are two until the destruction of an older one
    /// is recorded.
    pub fn context(&self, handle: u64) -> Option<u16> {
        let mut rows = self.context_rows().rev();
        rows.find_map(|(number, row)| (row.handle.load(Relaxed) == handle).then_some(number))
    }

    /// Living contexts with this handle that were registered by `before`: usually one, or two if two threads registered it
    /// at the same time.
    pub fn contexts_until(&self, handle: u64, before: u64) -> impl Iterator<Item = u16> + '_ {
        self.context_rows().filter_map(move |(number, row)| {
            let matches = row.handle.load(Relaxed) == handle && row.seen_plus_one.load(Relaxed) <= before + 1;
            matches.then_some(number)
        })
    }

    /// The living context of a device, if it has exactly one.
    pub fn only_context(&self, device: u8) -> Option<u16> {
        let mut rows = (self.context_rows()).filter(|(_, row)| row.device.load(Relaxed) == u32::from(device));
        let (number, _) = rows.next()?;
        rows.next().is_none().then_some(number)
    }

    pub fn context_handle(&self, context: u16) -> Option<u64> {
        Some(self.context_row(context.into())?.handle.load(Relaxed))
    }

    fn context_row(&self, number: u32) -> Option<&ContextRow> {
        self.contexts.get(self.backing(Section::Contexts), number)
    }

    /// Registers a context; `created`: by cuCtxCreate, as opposed to a primary context.
    pub fn add_context(&self, handle: u64, device: u8, created: bool) -> u16 {
        match self.row(Section::Contexts, &self.contexts) {
            Some((number, row)) if number < u32::from(Attributes::NO_CONTEXT) => {
                row.handle.store(handle, Relaxed);
                row.device.store(
                    if device == Attributes::NO_DEVICE {
                        NONE
                    } else {
                        u32::from(device)
                    },
                    Relaxed,
                );
                row.created.store(created.into(), Relaxed);
                // Release: pairs with the Acquire in `context` and in readers.
                row.seen_plus_one.store(self.now() + 1, Release);
                number as u16
            }
            _ => {
                self.add(Loss::Details, 1);
                Attributes::NO_CONTEXT
            }
        }
    }

    pub fn context_device(&self, context: u16) -> u8 {
        let device = self
            .context_row(context.into())
            .map_or(NONE, |row| row.device.load(Relaxed));
        u8::try_from(device).unwrap_or(Attributes::NO_DEVICE)
    }

    /// Rows of the living primary contexts of a device that were registered by `before`.
    pub fn primary_contexts_until(&self, device: u8, before: u64) -> impl Iterator<Item = u16> + '_ {
        self.context_rows().filter_map(move |(number, row)| {
            let matches = row.created.load(Relaxed) == 0
                && row.device.load(Relaxed) == u32::from(device)
                && row.seen_plus_one.load(Relaxed) <= before + 1;
            matches.then_some(number)
        })
    }

    pub fn set_heap_limit(&self, context: u16, bytes: u64) {
        if let Some(row) = self.context_row(context.into()) {
            row.heap_limit.store(bytes, Relaxed);
        }
    }

    pub fn context_destroyed(&self, context: u16) {
        if let Some(row) = self.context_row(context.into()) {
            row.destroyed_plus_one.store(self.now() + 1, Release);
        }
    }

    /// Registers a thread; `NONE` if there is no room.
    pub fn add_thread(&self, tid: u32, name: &[u8; 16]) -> u32 {
        let Some((number, row)) = self.row(Section::Threads, &self.threads) else {
            self.add(Loss::Details, 1);
            return NONE;
        };
        store_bytes(&row.name, name);
        row.seen_ns.store(self.now(), Relaxed);
        // Release: pairs with readers, which accept a row with a tid.
        row.tid.store(tid, Release);
        number
    }

    /// A shard for the calling thread, which calls this once: see [`Owners::claim`](crate::lockfree::shards::Owners::claim).
    pub fn shard_of(&self, tid: u32, thread: u32, is_alive: impl Fn(u32) -> bool) -> Shard {
        self.owners.claim(tid, thread, is_alive)
    }

    pub fn rename_thread(&self, thread: u32, name: &[u8; 16]) {
        if let Some(row) = self.threads.get(self.backing(Section::Threads), thread) {
            store_bytes(&row.name, name);
        }
    }

    /// The row of the loaded module with these bounds, this build id and this path.
    pub fn module(&self, seen: &ModuleSeen) -> Option<u32> {
        let mut id = [0u64; 5];
        fill_words(&mut id, seen.build_id);
        let count = self.elements(Section::Modules).load(Relaxed) as u32;
        (0..count).rev().find(|&number| {
            self.modules
                .get(self.backing(Section::Modules), number)
                .is_some_and(|row| {
                    row.seen_plus_one.load(Acquire) != 0
                        && row.unloaded_plus_one.load(Relaxed) == 0
                        && (row.start.load(Relaxed), row.end.load(Relaxed)) == (seen.start, seen.end)
                        && row
                            .build_id
                            .iter()
                            .zip(id)
                            .all(|(word, wanted)| word.load(Relaxed) == wanted)
                        && self.text_is(Text::from_word(row.path.load(Relaxed)), seen.path)
                })
        })
    }

    /// Whether a module can be registered. False for a second after that has failed.
    pub fn has_room_for_module(&self) -> bool {
        self.has_room(Section::Modules, &self.modules)
    }

    /// Registers a module. Modules that it overlaps were unloaded unnoticed and are marked as unloaded.
    pub fn add_module(&self, seen: &ModuleSeen) -> Option<u32> {
        self.for_each_loaded_module(|number, start, end| {
            if start < seen.end && seen.start < end {
                self.module_unloaded(number);
            }
        });
        let Some((number, row)) = self.row(Section::Modules, &self.modules) else {
            self.add(Loss::Details, 1);
            return None;
        };
        let path = self.text(seen.path);
        row.bias.store(seen.bias, Relaxed);
        row.start.store(seen.start, Relaxed);
        row.end.store(seen.end, Relaxed);
        row.path.store(path.to_word(), Relaxed);
        row.build_id_bytes
            .store(seen.build_id.len().min(BUILD_ID_MAX) as u64, Relaxed);
        store_bytes(&row.build_id, seen.build_id);
        // Release: pairs with the Acquire in `module` and in readers.
        row.seen_plus_one.store(self.now() + 1, Release);
        Some(number)
    }

    /// Calls `each` with row, start and end of every loaded module.
    pub fn for_each_loaded_module(&self, mut each: impl FnMut(u32, u64, u64)) {
        for number in 0..self.elements(Section::Modules).load(Relaxed) as u32 {
            let Some(row) = self.modules.get(self.backing(Section::Modules), number) else {
                continue;
            };
            if row.seen_plus_one.load(Acquire) != 0 && row.unloaded_plus_one.load(Relaxed) == 0 {
                each(number, row.start.load(Relaxed), row.end.load(Relaxed));
            }
        }
    }

    /// Row and load bias of the loaded module whose bounds contain an address.
    pub fn loaded_module_at(&self, address: u64) -> Option<(u32, u64)> {
        (0..self.elements(Section::Modules).load(Relaxed) as u32)
            .rev()
            .find_map(|number| {
                let row = self.modules.get(self.backing(Section::Modules), number)?;
                let inside = row.seen_plus_one.load(Acquire) != 0
                    && row.unloaded_plus_one.load(Relaxed) == 0
                    && (row.start.load(Relaxed)..row.end.load(Relaxed)).contains(&address);
                inside.then(|| (number, row.bias.load(Relaxed)))
            })
    }

    pub fn module_unloaded(&self, number: u32) {
        if let Some(row) = self.modules.get(self.backing(Section::Modules), number) {
            row.unloaded_plus_one.store(self.now() + 1, Release);
        }
    }

    /// Whether a frame of a module has a name. `address` is that of the frame's row.
    pub fn is_named(&self, module: u32, address: u64) -> bool {
        let count = self
            .elements(Section::FrameNames)
            .load(Relaxed)
            .min(FRAME_NAMES_MAX as u64) as u32;
        (0..count).any(|number| {
            let row = self.frame_names.get(self.backing(Section::FrameNames), number);
            row.is_some_and(|row: &FrameNameRow| {
                // Acquire: pairs with the Release in `name_frame`.
                row.name.load(Acquire) != 0
                    && row.address.load(Relaxed) == address
                    && row.module_plus_one.load(Relaxed) == u64::from(module) + 1
            })
        })
    }

    /// Stores the exported function that contains a frame. Two threads may both store it.
    pub fn name_frame(&self, module: u32, address: u64, name: &[u8]) {
        let has_room = self.elements(Section::FrameNames).load(Relaxed) < FRAME_NAMES_MAX as u64;
        let row = match has_room && name.len() <= FRAME_NAME_BYTES {
            true => self.row(Section::FrameNames, &self.frame_names),
            false => None,
        };
        let Some((_, row)) = row else {
            self.add(Loss::Details, 1);
            return;
        };
        row.module_plus_one.store(u64::from(module) + 1, Relaxed);
        row.address.store(address, Relaxed);
        // Release: pairs with the Acquire in `is_named` and in readers.
        row.name.store(self.text(name).to_word(), Release);
    }
}
