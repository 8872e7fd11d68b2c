//! `cuGetExportTable`: the private tables that cudart requests, as far as it calls them.
//!
//! A table is identified by a UUID. Most begin with their size in bytes; the rest are function pointers. The slots that
//! cudart 12 and 13 call were found by running them on tables whose every slot logs its calls (`slot`; in
//! `CULEAK_FAKE_LOG` as `table-slot …`); the README lists their meaning.
//!
//! Deliberately absent: the table by which the driver proves to cudart that it is NVIDIA's, which this one is not.

use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::gate::{self, Outcome};
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};

type Slot = *const c_void;
type Id = [u8; 16];

const RUNTIME_INTERFACE: Id = id(0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9);
const RUNTIME_CALLBACKS: Id = id(0xa094798c_2e74_2e74_93f2_0800200c0a66);
const CONTEXT_LOCAL_STORAGE: Id = id(0xc693336e_1121_df11_a8c3_68f355d89593);
const TOOLS_TLS: Id = id(0x42d85a81_23f6_cb47_8298_f6e78a3aecdc);
const CONTEXT_CHECKS: Id = id(0x263e8860_7cd2_6143_92f6_bbd5006dfa7e);
const CONTEXT_IDENTITY: Id = id(0x21318c60_9714_3248_8ca6_41ff7324c8f2);

const fn id(number: u128) -> Id {
    number.to_be_bytes()
}

struct Table<const SLOTS: usize>([Slot; SLOTS]);

// SAFETY: a table is a constant of sizes and function addresses; nothing writes to it.
unsafe impl<const SLOTS: usize> Sync for Table<SLOTS> {}

/// The first word of a sized table.
const fn bytes(slots: usize) -> Slot {
    std::ptr::without_provenance(slots * size_of::<Slot>())
}

/// A slot that has never been called: logs the call and fails.
extern "C" fn slot<const TABLE: usize, const INDEX: usize>() -> c_uint {
    const NAMES: [&str; 5] = [
        "runtime-interface",
        "runtime-callbacks",
        "tools-tls",
        "context-checks",
        "context-identity",
    ];
    gate::note(&format!("table-slot {} {INDEX}", NAMES[TABLE]));
    CUDA_ERROR_NOT_SUPPORTED as c_uint
}

macro_rules! slots {
    ($table:literal: $($index:literal),*) => { [ $( slot::<$table, $index> as Slot ),* ] };
}

static RUNTIME_INTERFACE_TABLE: Table<16> = {
    let mut slots = slots!(0: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    slots[0] = bytes(16);
    slots[2] = primary_context as Slot;
    slots[12] = put_zero as Slot;
    Table(slots)
};

static RUNTIME_CALLBACKS_TABLE: Table<7> = {
    let mut slots = slots!(1: 0, 1, 2, 3, 4, 5, 6);
    slots[0] = bytes(7);
    slots[2] = callback_buffer as Slot;
    slots[6] = callback_flags as Slot;
    Table(slots)
};

static TOOLS_TLS_TABLE: Table<4> = {
    let mut slots = slots!(2: 0, 1, 2, 3);
    slots[0] = bytes(4);
    Table(slots)
};

static CONTEXT_CHECKS_TABLE: Table<4> = {
    let mut slots = slots!(3: 0, 1, 2, 3);
    slots[0] = bytes(4);
    slots[3] = nothing_special as Slot;
    Table(slots)
};

static CONTEXT_IDENTITY_TABLE: Table<8> = {
    let mut slots = slots!(4: 0, 1, 2, 3, 4, 5, 6, 7);
    slots[0] = bytes(8);
    Table(slots)
};

static CONTEXT_LOCAL_STORAGE_TABLE: Table<4> = Table([
    put_local as Slot,
    delete_local as Slot,
    get_local as Slot,
    std::ptr::null(),
]);

pub fn hand_out(out: Out<Slot>, id: In<CUuuid>) -> Outcome {
    let id: Id = id.cast().get()?;
    let table = match id {
        RUNTIME_INTERFACE => RUNTIME_INTERFACE_TABLE.0.as_ptr(),
        RUNTIME_CALLBACKS => RUNTIME_CALLBACKS_TABLE.0.as_ptr(),
        CONTEXT_LOCAL_STORAGE => CONTEXT_LOCAL_STORAGE_TABLE.0.as_ptr(),
        TOOLS_TLS => TOOLS_TLS_TABLE.0.as_ptr(),
        CONTEXT_IDENTITY => CONTEXT_IDENTITY_TABLE.0.as_ptr(),
        CONTEXT_CHECKS => CONTEXT_CHECKS_TABLE.0.as_ptr(),
        _ => {
            gate::note(&format!("table-unknown {:032x}", u128::from_be_bytes(id)));
            out.put(std::ptr::null())?;
            return Err(CUDA_ERROR_NOT_FOUND);
        }
    };
    out.put(table.cast())
}

/// Runtime interface, slot 2: the device's primary context, initialized.
extern "C" fn primary_context(out: Out<CUcontext>, device: CUdevice) -> c_uint {
    gate::enter("table primary-context", |driver| {
        out.check()?;
        out.put(driver.primary_for_runtime(device)? as CUcontext)
    })
}

/// Runtime interface, slot 12: a number of unknown meaning; 13.5 continues with 0. It reads this slot whatever size the
/// table states.
extern "C" fn put_zero(out: Out<c_uint>) -> c_uint {
    out.put(0).err().unwrap_or(CUDA_SUCCESS) as c_uint
}

/// Context checks, slot 3: whether contexts of some special kind exist. None do.
extern "C" fn nothing_special() -> c_uint {
    0
}

/// A buffer for the runtime, which writes and reads it without the driver.
#[repr(C)]
struct Buffer(std::cell::UnsafeCell<[u64; 128]>);

// SAFETY: the driver never touches the contents; the runtime that requested the buffer orders its own accesses.
unsafe impl Sync for Buffer {}

static CALLBACK_BUFFER: Buffer = Buffer(std::cell::UnsafeCell::new([0; 128]));
static CALLBACK_FLAGS: Buffer = Buffer(std::cell::UnsafeCell::new([0; 128]));

/// Runtime callbacks, slots 2 and 6: the subscriptions of a profiler. There is none here.
extern "C" fn callback_buffer(out: Out<*mut c_void>, size: Out<usize>) {
    gate::note("table callback-buffer");
    out.put_if_wanted(CALLBACK_BUFFER.0.get().cast());
    size.put_if_wanted(1024);
}

extern "C" fn callback_flags(out: Out<*mut c_void>, size: Out<usize>) {
    gate::note("table callback-flags");
    out.put_if_wanted(CALLBACK_FLAGS.0.get().cast());
    size.put_if_wanted(14);
}

/// Values that libraries store per context, with a destructor to call when the context ends.
#[derive(Default)]
pub struct LocalStorage(HashMap<(Handle, u64), Entry>);

#[derive(Clone, Copy)]
struct Entry {
    value: usize,
    destructor: Option<Destructor>,
}

type Destructor = extern "C" fn(CUcontext, *mut c_void, *mut c_void);

impl Driver {
    fn local_key(&self, context: CUcontext, key: *mut c_void) -> Outcome<(Handle, u64)> {
        let context = if context.is_null() {
            self.current()?
        } else {
            context as Handle
        };
        Ok((context, key as u64))
    }

    pub fn forget_local_storage_of(&mut self, context: Handle) {
        let keys: Vec<(Handle, u64)> = self
            .local_storage
            .0
            .keys()
            .filter(|key| key.0 == context)
            .copied()
            .collect();
        for key in keys {
            let Some(Entry {
                value,
                destructor: Some(destructor),
            }) = self.local_storage.0.remove(&key)
            else {
                continue;
            };
            self.after.push(Box::new(move || {
                destructor(key.0 as CUcontext, key.1 as *mut c_void, value as *mut c_void)
            }));
        }
    }
}

extern "C" fn put_local(
    context: CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Option<Destructor>,
) -> c_uint {
    gate::enter("table put-local", |driver| {
        let key = driver.local_key(context, key)?;
        driver.local_storage.0.insert(
            key,
            Entry {
                value: value as usize,
                destructor,
            },
        );
        Ok(())
    })
}

extern "C" fn delete_local(context: CUcontext, key: *mut c_void) -> c_uint {
    gate::enter("table delete-local", |driver| {
        let key = driver.local_key(context, key)?;
        driver
            .local_storage
            .0
            .remove(&key)
            .map(|_| ())
            .ok_or(CUDA_ERROR_INVALID_VALUE)
    })
}

extern "C" fn get_local(out: Out<*mut c_void>, context: CUcontext, key: *mut c_void) -> c_uint {
    gate::enter("table get-local", |driver| {
        let key = driver.local_key(context, key)?;
        let entry = driver
            .local_storage
            .0
            .get(&key)
            .copied()
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        out.put(entry.value as *mut c_void)
    })
}
