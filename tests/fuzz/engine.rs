//! libFuzzer, in a process of its own: it expects signals in the thread that reads, which must be the first one.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_uint};
use std::{env, fs, panic, process, slice};

// Links libFuzzer, which is C++.
use libfuzzer_sys as _;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::mutate::{self, Form};
use super::{Read, TOLERATED, Target};

/// Addresses are not memory, so more of them are allowed than `run.sh` allows memory.
const ADDRESSES: u64 = 8 << 30;

unsafe extern "C" {
    fn LLVMFuzzerRunDriver(
        count: *mut c_int,
        words: *mut *mut *mut c_char,
        read: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
    fn LLVMFuzzerMutate(input: *mut u8, bytes: usize, most: usize) -> usize;
}

thread_local! {
    static CHOSEN: RefCell<Option<(Form, Read)>> = const { RefCell::new(None) };
}

/// Runs libFuzzer with the options in `FUZZ_OPTIONS`. Seeds become files in the folder `FUZZ_CORPUS`.
pub fn run(target: &Target, read: Read, seeds: &[Vec<u8>]) {
    let corpus = env::var("FUZZ_CORPUS").expect("FUZZ_CORPUS names a folder");
    fs::create_dir_all(&corpus).expect("a folder");
    let inputs = super::inputs_of(target).into_iter().map(|(_, input)| input);
    for (nth, input) in seeds.iter().cloned().chain(inputs).enumerate() {
        fs::write(format!("{corpus}/seed-{nth}"), input).expect("written");
    }
    let options = env::var("FUZZ_OPTIONS").unwrap_or_default();
    let words = [target.name]
        .into_iter()
        .chain(options.split_whitespace())
        .chain([corpus.as_str()]);
    let words: Vec<CString> = words.map(|word| CString::new(word).expect("a word")).collect();
    // SAFETY: the only other thread waits for this test.
    match unsafe { fork() }.expect("forked") {
        ForkResult::Child => drive(target.form, read, &words),
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).expect("our child");
            assert_eq!(status, WaitStatus::Exited(child, 0), "see above");
        }
    }
}

fn drive(form: Form, read: Read, words: &[CString]) -> ! {
    CHOSEN.set(Some((form, read)));
    setrlimit(Resource::RLIMIT_AS, ADDRESSES, ADDRESSES).expect("a lower limit");
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        if !TOLERATED.get() {
            usual(panicked);
            process::abort();
        }
    }));
    let mut words: Vec<*mut c_char> = words
        .iter()
        .map(|word| word.as_ptr().cast_mut())
        .chain([std::ptr::null_mut()])
        .collect();
    let mut count = words.len() as c_int - 1;
    let mut words = words.as_mut_ptr();
    // SAFETY: the words are texts that outlive this process's use of them, which does not change them, and a null pointer follows.
    process::exit(unsafe { LLVMFuzzerRunDriver(&mut count, &mut words, read_one) })
}

extern "C" fn read_one(input: *const u8, bytes: usize) -> c_int {
    let input: &[u8] = match bytes {
        0 => &[],
        // SAFETY: libFuzzer's input, which lives until this returns.
        _ => unsafe { slice::from_raw_parts(input, bytes) },
    };
    CHOSEN.with_borrow_mut(|chosen| {
        if let Some((_, read)) = chosen {
            read(input);
        }
    });
    0
}

/// Called by libFuzzer instead of its own changes: half of them are those, and half follow the form.
#[unsafe(no_mangle)]
extern "C" fn LLVMFuzzerCustomMutator(input: *mut u8, bytes: usize, most: usize, seed: c_uint) -> usize {
    if seed.is_multiple_of(2) {
        // SAFETY: the arguments are libFuzzer's.
        return unsafe { LLVMFuzzerMutate(input, bytes, most) };
    }
    // SAFETY: libFuzzer's buffer, of which `bytes` are the input and `most` may be written.
    let buffer = unsafe { slice::from_raw_parts_mut(input, most) };
    let form = CHOSEN.with_borrow(|chosen| chosen.as_ref().map_or(Form::Words, |(form, _)| *form));
    let changed = mutate::changed(form, &buffer[..bytes], seed.into());
    let count = changed.len().min(most);
    buffer[..count].copy_from_slice(&changed[..count]);
    count
}
