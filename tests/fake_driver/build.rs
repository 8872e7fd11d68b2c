//! Gives the library the name that programs look for, and binds its own calls to itself.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // As in the real driver, cuGetProcAddress returns this library's own functions even when a preloaded library exports
    // the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rerun-if-changed=build.rs");
}
