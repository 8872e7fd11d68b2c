//! Backward passes of PyTorch: the thread that calls `backward()` enters the engine here.
//!
//! Python's engine and the vtable of C++'s reach `Engine::execute_with_graph_task` by its name, so our definition comes first. It
//! takes the stack, which continues those of the engine's threads ([`crate::stacks::backward`]), and goes on to PyTorch's own.
//! The mangled name contains the argument types, which are of two kinds, but not the result's: a pointer with a destructor, which C++
//! returns in memory whose address precedes the arguments.
//!
//! Deliberately absent: aarch64, which has another register for that address.
#![cfg(target_arch = "x86_64")]

use libc::c_void;
use std::ffi::CStr;

use crate::frameworks::pytorch;
use crate::recorder;
use crate::resolve::loader;
use crate::stacks::backward::{self, NAMES};
use culeak_walker::Registers;

const ENTRIES: [unsafe extern "C-unwind" fn(); 2] = [entry, entry_intrusive];
const EXEC_INFO: &CStr = c"_ZN5torch8autograd32get_current_graph_task_exec_infoEv";

/// Passes its caller's address on, in the register that follows the arguments.
#[unsafe(naked)]
#[unsafe(export_name = "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEES2_INS0_4NodeEEONS0_11InputBufferE")]
unsafe extern "C-unwind" fn entry() {
    std::arch::naked_asm!("endbr64", "mov r9, [rsp]", "jmp {body}", body = sym body::<0>)
}

/// As `entry`.
#[unsafe(naked)]
#[unsafe(export_name = "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEEN3c1013intrusive_ptrINS0_4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEEONS0_11InputBufferE")]
unsafe extern "C-unwind" fn entry_intrusive() {
    std::arch::naked_asm!("endbr64", "mov r9, [rsp]", "jmp {body}", body = sym body::<1>)
}

/// The function of the nth name. `graph_task`: the address of a shared pointer to the task.
unsafe extern "C-unwind" fn body<const NTH: usize>(
    result: u64,
    engine: u64,
    graph_task: *const u64,
    root: u64,
    inputs: u64,
    caller: u64,
) -> u64 {
    type Execute = unsafe extern "C-unwind" fn(u64, u64, *const u64, u64, u64) -> u64;
    let in_child = || loader::definition_after(NAMES[NTH], ENTRIES[NTH] as *const c_void);
    let Some(next) = pytorch::next_definition(NAMES[NTH], caller).or_else(in_child) else {
        // The loader would end the process too, since the caller's library has no such function.
        std::process::abort()
    };
    let at = Registers::here();
    // SAFETY: a reference to the shared pointer, by the function's name; the pointer to the object is its first word.
    let task = unsafe { *graph_task };
    recorder::quietly(|| {
        let Some(recording) = recorder::running() else { return };
        let search = || loader::find_containing(next as u64, |loaded| loaded.symbol(EXEC_INFO)).flatten();
        if backward::is_possible(|| search().map(|found| found as usize)) {
            recorder::begin_backward(recording, task, at);
        }
    });
    // An exception may pass: nothing here has a destructor.
    // SAFETY: PyTorch's function of this name, with its own arguments.
    let result =
        unsafe { std::mem::transmute::<*const c_void, Execute>(next)(result, engine, graph_task, root, inputs) };
    backward::end(task);
    result
}
