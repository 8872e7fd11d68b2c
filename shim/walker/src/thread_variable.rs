//! Thread-local variables that are reached by two instructions.
//!
//! `thread_local!` in a shared library calls `__tls_get_addr`, which reads four more cache lines, and which may allocate in a
//! thread's first access. The initial-exec model needs neither: the loader stores the variable's distance from the thread
//! pointer in the library's global offset table. Rust has no stable way to choose the model, so the variable is defined in
//! assembly.
//!
//! The loader must then place all thread-local variables of the library in its static block. For a library that is loaded at
//! start-up, it does so in any case. A library that is opened later shares 1,664 bytes with all others of its kind (more
//! if `GLIBC_TUNABLES` sets `glibc.rtld.optional_static_tls`), and cannot be opened if they do not suffice. So keep variables small;
//! `tests/gate.sh` limits them.

/// Declares a variable of each thread, which begins as zeros and has no destructor. The symbol's name must be unique in the
/// program, and the declaration be outside functions. Access never allocates, so it is safe in signal handlers.
///
/// ```
/// use std::cell::Cell;
///
/// mod counter {
///     use super::Cell;
///
///     culeak_walker::thread_variable! {
///         /// How often this thread did something.
///         // SAFETY: an integer.
///         pub static COUNT: unsafe Cell<u32> = "example_count";
///     }
/// }
/// use counter::COUNT;
///
/// fn main() {
///     COUNT.with(|count| count.set(count.get() + 1));
///     assert_eq!(COUNT.with(Cell::get), 1);
///     assert_eq!(std::thread::spawn(|| COUNT.with(Cell::get)).join().unwrap(), 0);
/// }
/// ```
#[macro_export]
macro_rules! thread_variable {
    ($(#[$attribute:meta])* $visibility:vis static $name:ident: unsafe $type:ty = $symbol:literal;) => {
        $(#[$attribute])*
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[derive(Clone, Copy)]
        $visibility struct $name;

        ::std::arch::global_asm!(
            concat!(".pushsection .tbss.", $symbol, ",\"awT\",@nobits"),
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", @object"),
            concat!(".size ", $symbol, ", {size}"),
            ".balign {align}",
            concat!($symbol, ":"),
            ".zero {size}",
            ".popsection",
            size = const ::std::mem::size_of::<$type>(),
            align = const ::std::mem::align_of::<$type>(),
        );

        impl $name {
            #[inline(always)]
            $visibility fn with<R>(self, work: impl FnOnce(&$type) -> R) -> R {
                const { assert!(!::std::mem::needs_drop::<$type>()) };
                let variable: *const $type;
                // SAFETY: reads the thread pointer, and a word that the loader writes before any code of this library runs.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    ::std::arch::asm!(
                        "mov {variable}, fs:0",
                        concat!("add {variable}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                        variable = out(reg) variable,
                        options(nostack, pure, nomem),
                    );
                }
                // SAFETY: as above.
                #[cfg(target_arch = "aarch64")]
                unsafe {
                    ::std::arch::asm!(
                        concat!("adrp {offset}, :gottprel:", $symbol),
                        concat!("ldr {offset}, [{offset}, :gottprel_lo12:", $symbol, "]"),
                        "mrs {variable}, tpidr_el0",
                        "add {variable}, {variable}, {offset}",
                        offset = out(reg) _,
                        variable = out(reg) variable,
                        options(nostack, pure, nomem, preserves_flags),
                    );
                }
                // SAFETY: the calling thread's own variable, which exists as long as the thread runs. It is of this size and
                // alignment and began as zeros, which the declaration vouches for; other threads have no reference to it, since
                // `work` cannot return one.
                work(unsafe { &*variable })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    #[repr(align(64))]
    struct Line(Cell<u64>, Cell<u8>);

    crate::thread_variable! {
        static FIRST: unsafe Cell<u8> = "culeak_test_first";
    }
    crate::thread_variable! {
        // SAFETY: integers.
        static LINE: unsafe Line = "culeak_test_line";
    }

    #[test]
    fn each_thread_has_its_own_variables_which_begin_as_zeros() {
        let check = |number: u64| {
            assert_eq!(
                (FIRST.with(Cell::get), LINE.with(|line| (line.0.get(), line.1.get()))),
                (0, (0, 0))
            );
            LINE.with(|line| {
                assert_eq!(std::ptr::from_ref(line).addr() % 64, 0);
                line.0.set(number);
                line.1.set(1);
            });
            FIRST.with(|first| first.set(number as u8));
            std::thread::yield_now();
            assert_eq!(
                (FIRST.with(Cell::get), LINE.with(|line| line.0.get())),
                (number as u8, number)
            );
        };
        std::thread::scope(|scope| {
            for number in 1..9 {
                scope.spawn(move || check(number));
            }
        });
    }
}
