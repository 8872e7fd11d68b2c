//! Names of kernels: the first one of each module and library, and the one whose code the driver is loading.

use super::{Word, with_table};
use crate::recorder::{FrameWord, kernel_name, key};
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::table::Space;
use libc::c_char;

/// A kernel is looked up by its name. What the kernel driver gives meanwhile is for its code.
pub fn names_kernel(_: Api, real: impl FnOnce() -> i32, kind: Kind, of: impl Word, name: *const c_char) -> i32 {
    let mut word = FrameWord::new();
    let before = kernel_name::begin(name as u64, &mut word);
    let result = real();
    kernel_name::end(before, &mut word);
    if result == 0 {
        let key = key(Space::of_object(kind), of.word());
        with_table(|recording, table| {
            let link = table.link(key)?;
            if table.get(key)?.extra != 0 {
                return None;
            }
            let name = kernel_name::text(recording, name as u64)?.to_word();
            table.update_extra_of(link, |extra| if extra == 0 { name } else { extra })
        });
    }
    result
}
