//! How functions outside the list of memory functions are declared and looked up by name.
//!
//! ```text
//! exports! {
//!     fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |driver| { … Ok(()) }
//!     fn [cuStreamSynchronize, cuStreamSynchronize_ptsz] (stream: CUstream) |driver| { … Ok(()) }
//! }
//! ```
//! Each name becomes an exported C function; all names of one declaration share the body, which gets the locked driver.

/// An exported function, for lookups by name.
pub struct Export {
    pub name: &'static str,
    pub address: *const (),
}

// SAFETY: the address of a function is a constant of the loaded library; nothing is read or written through it.
unsafe impl Sync for Export {}

macro_rules! exports {
    ($( fn $names:tt $arguments:tt |$driver:ident| $body:block )*) => {
        $( crate::exports::exported! { $names $arguments $driver $body } )*
        pub static EXPORTS: &[&[crate::exports::Export]] = &[ $( crate::exports::addresses!($names) ),* ];
    };
}
pub(crate) use exports;

macro_rules! exported {
    ([ $($name:ident),+ ] $arguments:tt $driver:ident $body:block) => {
        $( crate::exports::exported! { $name $arguments $driver $body } )+
    };
    ($name:ident ( $($argument:ident : $type:ty),* $(,)? ) $driver:ident $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name( $($argument: $type),* ) -> std::ffi::c_uint {
            crate::gate::enter(stringify!($name), |$driver: &mut crate::driver::Driver| $body)
        }
    };
}
pub(crate) use exported;

macro_rules! addresses {
    ([ $($name:ident),+ ]) => {
        &[ $( crate::exports::Export { name: stringify!($name), address: $name as *const () } ),+ ]
    };
    ($name:ident) => {
        crate::exports::addresses!([$name])
    };
}
pub(crate) use addresses;

/// The same for functions that work before `cuInit` and after exit.
macro_rules! early_exports {
    ($( fn $name:ident ( $($argument:ident : $type:ty),* $(,)? ) $body:block )*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            extern "C" fn $name( $($argument: $type),* ) -> std::ffi::c_uint {
                crate::gate::enter_early(stringify!($name), || $body)
            }
        )*
        pub static EXPORTS: &[&[crate::exports::Export]] = &[ $( crate::exports::addresses!($name) ),* ];
    };
}
pub(crate) use early_exports;
