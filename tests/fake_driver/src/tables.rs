//! `cuGetExportTable`: the private tables cudart asks for.

use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::collections::HashMap;
use std::ffi::c_void;

/// Values libraries keep per context, with what to call when the context goes.
#[derive(Default)]
pub struct LocalStorage(HashMap<(Handle, u64), Entry>);

struct Entry {
    value: usize,
    destructor: Option<Destructor>,
}

type Destructor = extern "C" fn(CUcontext, *mut c_void, *mut c_void);

impl Driver {
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

pub fn hand_out(out: Out<*const c_void>, _id: In<CUuuid>) -> Outcome {
    out.check()?;
    Err(CUDA_ERROR_NOT_FOUND)
}

exports! {}
