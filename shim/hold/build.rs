//! Link options, as those of the preload library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libculeak-hold.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
