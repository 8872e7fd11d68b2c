//! Devices, contexts, threads and modules: the rows that allocations refer to.

use std::collections::HashMap;

use super::RawSnapshot;
use crate::format::*;
use crate::snapshot::{Context, Device, Module, Thread, uuid_text};

/// Row number in the recording → row number in the snapshot, for sections whose unpublished rows are left out.
pub type Renumbered = HashMap<u32, usize>;

impl RawSnapshot {
    pub fn devices(&self) -> (Vec<Device>, Renumbered) {
        renumbered(
            self.rows::<DeviceRow>(Section::Devices, |row| row.ordinal_plus_one != 0),
            |row| Device {
                ordinal: row.ordinal_plus_one as i32 - 1,
                uuid: match (row.uuid_kind, bytes_of(&row.uuid).try_into()) {
                    (1, Ok(bytes)) => uuid_text("GPU", &bytes),
                    (2, Ok(bytes)) => uuid_text("MIG", &bytes),
                    _ => String::new(),
                },
                name: until_zero(&bytes_of(&row.name)),
            },
        )
    }

    pub fn contexts(&self, devices: &Renumbered) -> (Vec<Context>, Renumbered) {
        renumbered(
            self.rows::<ContextRow>(Section::Contexts, |row| row.seen_plus_one != 0),
            |row| Context {
                handle: row.handle,
                device: devices.get(&row.device).copied(),
                primary: row.created == 0,
                first_seen_ns: row.seen_plus_one - 1,
                destroyed_ns: row.destroyed_plus_one.checked_sub(1),
                heap_limit: Some(row.heap_limit).filter(|&limit| limit > 0),
            },
        )
    }

    pub fn threads(&self) -> (Vec<Thread>, Renumbered) {
        renumbered(self.rows::<ThreadRow>(Section::Threads, |row| row.tid != 0), |row| {
            Thread {
                tid: row.tid,
                name: until_zero(&bytes_of(&row.name)),
                first_seen_ns: row.seen_ns,
            }
        })
    }

    pub fn modules(&self) -> (Vec<Module>, Renumbered) {
        renumbered(
            self.rows::<ModuleRow>(Section::Modules, |row| row.seen_plus_one != 0),
            |row| {
                let id = bytes_of(&row.build_id);
                let id = &id[..(row.build_id_bytes as usize).min(BUILD_ID_MAX)];
                Module {
                    path: self.text(row.path),
                    build_id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
                    bias: row.bias,
                    start: row.start,
                    end: row.end,
                    first_seen_ns: row.seen_plus_one - 1,
                    unloaded_ns: row.unloaded_plus_one.checked_sub(1),
                    bare: false,
                }
            },
        )
    }
}

/// Decodes rows in order, and maps their numbers to those in the snapshot.
fn renumbered<V, T>(rows: impl Iterator<Item = (u32, V)>, decode: impl Fn(V) -> T) -> (Vec<T>, Renumbered) {
    let (mut decoded, mut numbers) = (Vec::new(), Renumbered::new());
    for (number, row) in rows {
        numbers.insert(number, decoded.len());
        decoded.push(decode(row));
    }
    (decoded, numbers)
}

pub(super) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
