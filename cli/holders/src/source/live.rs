//! A live process, read with `process_vm_readv`.
