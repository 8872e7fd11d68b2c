//! Settings of PyTorch's allocator that a program makes by a call (`torch.cuda.memory._set_allocator_settings`).
//!
//! libtorch_python calls these functions by their names, so our definitions come first: they go on to PyTorch's
//! own, and store the text. PyTorch reads its environment variables through the last one, too. Settings that it refuses are not stored.

use libc::c_void;
use std::ffi::CStr;

use crate::frameworks::pytorch;
use crate::recorder::{self, job_variables};
use crate::resolve::loader;

/// The arguments of all of them; a function with one has none of use in the second.
type Set = unsafe extern "C-unwind" fn(u64, u64);

/// A `std::string`: address and length of its text.
///
/// # Safety
/// `string` is the address of one, which lives as long as the result is used.
unsafe fn text<'a>(string: u64) -> &'a [u8] {
    // SAFETY: the layout of libstdc++'s strings.
    unsafe {
        let [text, length] = *(string as *const [usize; 2]);
        std::slice::from_raw_parts(text as *const u8, length)
    }
}

/// A `std::string` of the old ABI: the address of its text, before which its length is.
///
/// # Safety
/// As [`text`].
unsafe fn old_text<'a>(string: u64) -> &'a [u8] {
    // SAFETY: the layout of libstdc++'s reference-counted strings.
    unsafe {
        let text = *(string as *const *const u8);
        std::slice::from_raw_parts(text, *text.cast::<usize>().sub(3))
    }
}

/// Functions of PyTorch, which pass their caller's address to a body in the register of the third argument.
macro_rules! exports {
    ($( $name:ident = $symbol:literal, $read:ident($argument:literal); )*) => {$(
        mod $name {
            use super::*;

            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(export_name = $symbol)]
            unsafe extern "C-unwind" fn entry() {
                std::arch::naked_asm!("endbr64", "mov rdx, [rsp]", "jmp {body}", body = sym body)
            }

            // Run in an emulator only (tests/aarch64/).
            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[unsafe(export_name = $symbol)]
            unsafe extern "C-unwind" fn entry() {
                std::arch::naked_asm!("bti c", "mov x2, x30", "b {body}", body = sym body)
            }

            unsafe extern "C-unwind" fn body(first: u64, second: u64, caller: u64) {
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                };
                let in_child = || loader::definition_after(NAME, entry as *const c_void);
                let Some(next) = pytorch::next_definition(NAME, caller).or_else(in_child) else {
                    // The caller's library is for another PyTorch, which has no such function.
                    return;
                };
                // An exception may pass: nothing here has a destructor.
                // SAFETY: PyTorch's function of this name, with its own arguments.
                unsafe { std::mem::transmute::<*const c_void, Set>(next)(first, second) }
                // SAFETY: a reference to a string, by the function's name, which the caller has until this returns.
                let text = unsafe { $read([first, second][$argument]) };
                recorder::quietly(|| Some(job_variables::set_by_program(text)?.store(recorder::running()?)));
            }
        }
    )*};
}

exports! {
    // 2.7 to 2.9, and before.
    of_cuda = "_ZN3c104cuda20CUDACachingAllocator20setAllocatorSettingsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        text(0);
    of_cuda_old = "_ZN3c104cuda20CUDACachingAllocator20setAllocatorSettingsERKSs", old_text(0);
    // Since 2.10.
    of_any = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig9parseArgsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        text(1);
}
