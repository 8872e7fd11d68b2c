//! Every stack equals libgcc's, frame by frame: of ordinary code, on every kind of thread and stack, and interrupted by
//! signals at arbitrary instructions.

mod support;

use std::ffi::{CString, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use support::{FOUND, Game, STACKS, compare, expect_no_difference};

fn game() -> &'static Game {
    static GAME: OnceLock<Game> = OnceLock::new();
    GAME.get_or_init(Game::new)
}

fn play(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        // The second stack is known by its read set.
        for _ in 0..2 {
            game().play(seed, (seed % 40) as i32, compare);
        }
    }
}

#[test]
#[ignore = "needs g++"]
fn a_hundred_thousand_stacks_of_rust_and_cpp_code() {
    let before = STACKS.load(Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| play(0..30_000));
        scope.spawn(|| play(30_000..60_000));
    });
    assert!(STACKS.load(Relaxed) - before >= 100_000);
    assert!(FOUND.load(Relaxed) >= 10_000);
    expect_no_difference();
}

/// A thread on memory that the program supplied, with readable memory on either side of it.
#[test]
#[ignore = "needs g++"]
fn a_thread_on_a_supplied_stack() {
    extern "C" fn body(_: *mut c_void) -> *mut c_void {
        play(0..500);
        std::ptr::null_mut()
    }
    game();
    let mut memory = vec![0u64; 1 << 18];
    let stack = &mut memory[1 << 16..3 << 16];
    // SAFETY: plain use of the thread functions; the stack outlives the thread, which is joined.
    unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        let start = (stack.as_mut_ptr() as usize).next_multiple_of(4096);
        assert_eq!(
            libc::pthread_attr_setstack(&mut attributes, start as *mut c_void, 1 << 20),
            0
        );
        let mut thread = std::mem::zeroed();
        assert_eq!(
            libc::pthread_create(&mut thread, &attributes, body, std::ptr::null_mut()),
            0
        );
        libc::pthread_join(thread, std::ptr::null_mut());
    }
    expect_no_difference();
}

/// makecontext: a stack that belongs to no thread.
#[test]
#[ignore = "needs g++"]
fn a_fiber() {
    extern "C" fn body() {
        play(0..300);
    }
    game();
    let mut memory = vec![0u64; 1 << 17];
    // SAFETY: as in the manual page; both contexts and the stack live until the fiber has returned.
    unsafe {
        let mut here: libc::ucontext_t = std::mem::zeroed();
        let mut fiber: libc::ucontext_t = std::mem::zeroed();
        libc::getcontext(&mut fiber);
        fiber.uc_stack.ss_sp = memory.as_mut_ptr().cast();
        fiber.uc_stack.ss_size = memory.len() * 8;
        fiber.uc_link = &mut here;
        libc::makecontext(&mut fiber, body, 0);
        libc::swapcontext(&mut here, &fiber);
    }
    expect_no_difference();
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    // switch_stacks(save: rdi, to: rsi)
    ".globl switch_stacks",
    "switch_stacks:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    "push r14",
    ".cfi_adjust_cfa_offset 8",
    "push r15",
    ".cfi_adjust_cfa_offset 8",
    "mov [rdi], rsp",
    "mov rsp, rsi",
    "pop r15",
    ".cfi_adjust_cfa_offset -8",
    "pop r14",
    ".cfi_adjust_cfa_offset -8",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    // The outermost code of the fiber: calls its function, which is in rbx.
    ".globl begin_fiber",
    "begin_fiber:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "call rbx",
    "ud2",
    ".cfi_endproc",
);

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl undescribed",
    "undescribed:",
    "sub rsp, 40",
    "call rdi",
    "add rsp, 40",
    "ret",
);

/// As coroutine libraries do it: all registers that a callee must preserve are pushed, and the stack pointer is exchanged.
/// The bottom of such a stack is made by hand, and its unwind information marks the outermost frame.
#[test]
#[cfg(target_arch = "x86_64")]
#[ignore = "needs g++"]
fn a_fiber_switched_to_by_hand() {
    unsafe extern "C" {
        fn switch_stacks(save: *mut u64, to: u64);
        fn begin_fiber();
    }
    thread_local! {
        static OUTSIDE: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
        static INSIDE: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    fn outside() {
        // SAFETY: the other stack is suspended in `switch_stacks`.
        unsafe { switch_stacks(INSIDE.with(|at| at.as_ptr()), OUTSIDE.get()) };
    }
    fn inside() {
        // SAFETY: as above, or made below.
        unsafe { switch_stacks(OUTSIDE.with(|at| at.as_ptr()), INSIDE.get()) };
    }
    extern "C" fn body() {
        for seed in 0.. {
            play(seed * 20..seed * 20 + 20);
            outside();
        }
    }
    game();
    let before = STACKS.load(Relaxed);
    let mut memory = vec![0u64; 1 << 17];
    // The six registers as `switch_stacks` pops them, and its return address.
    let place = memory.len() - 17;
    memory[place + 4] = body as *const () as u64;
    memory[place + 6] = begin_fiber as *const () as u64;
    INSIDE.set(std::ptr::from_ref(&memory[place]) as u64);
    for seed in 0..20 {
        inside();
        // From the thread's own stack again.
        play(seed * 20..seed * 20 + 5);
    }
    assert!(STACKS.load(Relaxed) - before >= 500);
    expect_no_difference();
}

/// A hand-written function without unwind information, in a module that has some for other functions.
#[test]
#[cfg(target_arch = "x86_64")]
fn assembly_without_unwind_information_ends_the_stack() {
    unsafe extern "C" {
        safe fn undescribed(next: extern "C" fn());
    }
    extern "C" fn inside() {
        let mut addresses = [0; 64];
        let walked = culeak_walker::walk(culeak_walker::Registers::here(), &mut addresses);
        assert_eq!((walked.end, walked.count), (culeak_walker::End::Lost, 2));
        let frame = addresses[1].wrapping_sub(undescribed as *const () as u64);
        assert!(frame < 16, "the last frame is that of the undescribed function");
    }
    undescribed(inside);
    undescribed(compare);
    expect_no_difference();
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    // CFA computed from rbx, as in the loader's lazy binding.
    ".globl counts_from_rbx",
    "counts_from_rbx:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, 16",
    "sub rsp, 100",
    "and rsp, -64",
    "call rdi",
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, 16",
    "pop rbx",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    // CFA by an expression: breg7 (rsp) + 8; lit8; plus.
    ".globl counts_by_expression",
    "counts_by_expression:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_escape 0x0f, 4, 0x77, 8, 0x38, 0x22",
    "call rdi",
    "pop rdi",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    // A large frame, with the frame pointer saved far from the CFA: too far for the table.
    ".globl counts_far",
    "counts_far:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    "sub rsp, 300000",
    "mov [rsp + 64], rbp",
    ".cfi_def_cfa_offset 300016",
    ".cfi_offset rbp, -299952",
    "call rdi",
    "add rsp, 300000",
    ".cfi_def_cfa_offset 16",
    "pop rbp",
    ".cfi_restore rbp",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
);

/// Frames that no rule of the table describes are evaluated each time, with all registers if necessary.
#[test]
#[cfg(target_arch = "x86_64")]
fn unwind_information_that_does_not_fit_a_rule() {
    unsafe extern "C" {
        safe fn counts_from_rbx(next: extern "C" fn());
        safe fn counts_by_expression(next: extern "C" fn());
        safe fn counts_far(next: extern "C" fn());
    }
    extern "C" fn one() {
        counts_from_rbx(compare);
        counts_by_expression(compare);
        counts_far(compare);
    }
    extern "C" fn two() {
        counts_from_rbx(one);
        counts_by_expression(one);
        counts_far(one);
    }
    extern "C" fn three() {
        counts_from_rbx(two);
        counts_by_expression(two);
        counts_far(two);
    }
    let before = STACKS.load(Relaxed);
    for _ in 0..20 {
        three();
    }
    assert!(STACKS.load(Relaxed) - before >= 540);
    expect_no_difference();
}

/// Deeper than the walker probes at once.
#[test]
fn the_first_walk_of_a_thread_deep_in_its_stack() {
    #[inline(never)]
    fn deep() {
        let filler = std::mem::MaybeUninit::<[u8; 80 << 20]>::uninit();
        std::hint::black_box(&filler);
        compare();
        std::hint::black_box(&filler);
    }
    std::thread::Builder::new()
        .stack_size(100 << 20)
        .spawn(deep)
        .unwrap()
        .join()
        .unwrap();
    expect_no_difference();
}

/// Code in no module: both unwinders report its address and stop.
#[test]
#[cfg(target_arch = "x86_64")]
#[ignore = "needs g++"]
fn code_without_unwind_information_ends_the_stack() {
    game();
    // push rbx; call rdi; pop rbx; ret
    const CODE: [u8; 5] = [0x53, 0xff, 0xd7, 0x5b, 0xc3];
    // SAFETY: a new page with a function that calls its argument.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            7,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.cast(), CODE.len());
        let call: extern "C" fn(extern "C" fn()) = std::mem::transmute(page);
        extern "C" fn inside() {
            let mut addresses = [0; 64];
            let walked = culeak_walker::walk(culeak_walker::Registers::here(), &mut addresses);
            assert_eq!((walked.end, walked.count), (culeak_walker::End::Lost, 2));
        }
        call(inside);
        call(compare);
        libc::munmap(page, 4096);
    }
    expect_no_difference();
}

#[test]
#[ignore = "needs g++"]
fn a_full_slice_ends_the_walk() {
    extern "C" fn inside() {
        let start = culeak_walker::Registers::here();
        let mut all = [0; support::DEPTH];
        let full = culeak_walker::walk(start, &mut all);
        assert_eq!(full.end, culeak_walker::End::Root);
        for room in 0..full.count {
            let mut some = [0; support::DEPTH];
            let walked = culeak_walker::walk(start, &mut some[..room]);
            assert_eq!((walked.end, walked.count), (culeak_walker::End::Full, room));
            assert_eq!(some[..room], all[..room]);
        }
        assert_eq!(culeak_walker::walk(start, &mut all[..full.count]), full);
    }
    game().play(5, 20, inside);
}

static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

/// The addresses of libgcc's own code.
static ORACLE: OnceLock<(u64, u64)> = OnceLock::new();
/// Signals at which libgcc could not be called.
static NOT_ASKED: AtomicU64 = AtomicU64::new(0);

/// While libgcc jumps to a landing pad it overwrites the registers saved in its own frame, whose unwind information is
/// wrong until it arrives. libgcc's unwinder then uses some word of the stack as an address and faults; the walker must
/// not.
fn raises_an_exception(addresses: &[u64]) -> bool {
    let (start, end) = ORACLE.get().copied().unwrap_or_default();
    addresses.iter().any(|address| (start..end).contains(address))
}

extern "C" fn handler(_: i32) {
    INTERRUPTED.fetch_add(1, Relaxed);
    let mut addresses = [0; support::DEPTH];
    let walked = culeak_walker::walk(culeak_walker::Registers::here(), &mut addresses);
    if raises_an_exception(&addresses[..walked.count]) {
        NOT_ASKED.fetch_add(1, Relaxed);
    } else {
        compare();
    }
}

fn mapped_code(library: &str) -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps
        .lines()
        .find(|line| line.contains(library) && line.contains(" r-xp "))
        .expect(library);
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    (
        u64::from_str_radix(start, 16).unwrap(),
        u64::from_str_radix(end, 16).unwrap(),
    )
}

/// Interrupts this thread with `signal` every few microseconds while `work` runs, `times` times in all.
fn interrupt(signal: i32, flags: i32, times: u64, mut work: impl FnMut(u64)) {
    let before = INTERRUPTED.load(Relaxed);
    ORACLE.get_or_init(|| mapped_code("libgcc_s.so"));
    // SAFETY: the handler only compares stacks; the interrupted thread outlives the sender.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags | libc::SA_RESTART;
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
    // SAFETY: no preconditions.
    let target = unsafe { libc::pthread_self() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                // SAFETY: the target waits for this thread.
                unsafe { libc::pthread_kill(target, signal) };
                let until = Instant::now() + Duration::from_micros(25);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
        });
        let mut round = 0;
        while INTERRUPTED.load(Relaxed) - before < times {
            round += 1;
            work(round);
        }
        stop.store(true, Relaxed);
    });
}

fn work_of(library: usize) -> extern "C" fn(u64) {
    // SAFETY: the library's function of this type.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64)>(game().libraries[library].symbol("work")) }
}

#[test]
#[ignore = "needs g++"]
fn signals_at_arbitrary_instructions() {
    let before = INTERRUPTED.load(Relaxed);
    for library in 0..game().libraries.len() {
        let work = work_of(library);
        interrupt(libc::SIGPROF, 0, 250, |round| work(round % 7 + 1));
    }
    let count = INTERRUPTED.load(Relaxed) - before;
    println!(
        "{count} signals, {} of them where libgcc could not be called",
        NOT_ASKED.load(Relaxed)
    );
    expect_no_difference();
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl trap_from_here",
    "trap_from_here:",
    ".cfi_startproc",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "or qword ptr [rsp], 256",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".globl trap_no_more",
    "trap_no_more:",
    ".cfi_startproc",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "and qword ptr [rsp], -257",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
);

/// Every single instruction, by the processor's trap flag: prologues, epilogues, linkage stubs, the loader's lazy
/// binding, library calls.
#[test]
#[cfg(target_arch = "x86_64")]
#[ignore = "needs g++"]
fn stopped_at_every_instruction() {
    extern "C" fn nothing() {}
    unsafe extern "C" {
        safe fn trap_from_here();
        safe fn trap_no_more();
    }
    // A new game: its functions have not been called yet, so they are bound here.
    let game = Game::new();
    ORACLE.get_or_init(|| mapped_code("libgcc_s.so"));
    // SAFETY: the handler only compares stacks.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
    }
    let before = INTERRUPTED.load(Relaxed);
    let count = || INTERRUPTED.load(Relaxed) - before;
    // A few seconds' worth: all shapes together take more than a million instructions.
    let limit = std::env::var("INSTRUCTIONS").map_or(40_000, |limit| limit.parse().expect("a number"));
    for seed in (0..game.shapes.len() as u64).cycle() {
        trap_from_here();
        game.play(seed * 7, (seed % 3) as i32, nothing);
        trap_no_more();
        if count() > limit {
            break;
        }
    }
    println!("{} instructions", count());
    expect_no_difference();
}

/// A program that supplies its own return from signal handlers, without unwind information.
#[test]
#[cfg(target_arch = "x86_64")]
#[ignore = "needs g++"]
fn a_signal_trampoline_that_is_not_libcs() {
    #[repr(C)]
    struct KernelAction {
        handler: extern "C" fn(i32),
        flags: u64,
        restorer: *mut c_void,
        mask: u64,
    }
    const SA_RESTORER: u64 = 0x0400_0000;
    // mov rax, 15; syscall
    const CODE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    extern "C" fn raise() {
        // SAFETY: the handler is installed.
        unsafe { libc::raise(libc::SIGURG) };
    }
    game();
    // SAFETY: a new page for the trampoline, never unmapped; the kernel's structure for this architecture.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            7,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(CODE.as_ptr(), page.cast(), CODE.len());
        let action = KernelAction {
            handler,
            flags: SA_RESTORER,
            restorer: page,
            mask: 0,
        };
        assert_eq!(libc::syscall(libc::SYS_rt_sigaction, libc::SIGURG, &action, 0, 8), 0);
    }
    let before = INTERRUPTED.load(Relaxed);
    for seed in 0..200 {
        game().play(seed, (seed % 20) as i32, raise);
    }
    assert!(INTERRUPTED.load(Relaxed) - before >= 200);
    expect_no_difference();
}

#[test]
#[ignore = "needs g++"]
fn signals_on_a_signal_stack() {
    let mut memory = vec![0u64; 1 << 15];
    let stack = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: memory.len() * 8,
    };
    let none = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    let work = work_of(0);
    // SAFETY: the memory outlives its use as a signal stack, which ends below.
    unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
    interrupt(libc::SIGUSR1, libc::SA_ONSTACK, 500, |round| work(round % 7 + 1));
    // SAFETY: as above.
    unsafe { libc::sigaltstack(&none, std::ptr::null_mut()) };
    expect_no_difference();
}

/// The loader's own code: lazy binding, relocation, module lists.
#[test]
#[ignore = "needs g++"]
fn signals_while_libraries_are_opened_and_closed() {
    let folder = support::folder().join("loading");
    std::fs::create_dir_all(&folder).unwrap();
    let library = folder.join("libopened.so");
    support::compile(&support::source("shapes.cpp"), &library, &["-O2", "-Wl,-z,lazy"]);
    let name = CString::new(library.to_str().unwrap()).unwrap();
    interrupt(libc::SIGUSR2, 0, 500, |round| {
        // SAFETY: a library of the tests and its function of that type; nothing of it is used after it is closed.
        unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY);
            assert!(!handle.is_null());
            let work: extern "C" fn(u64) = std::mem::transmute(libc::dlsym(handle, c"work".as_ptr()));
            work(round % 2 + 1);
            culeak_walker::closing_began();
            libc::dlclose(handle);
            culeak_walker::generation_changed();
            culeak_walker::closing_ended();
        }
    });
    std::fs::remove_dir_all(folder).ok();
    expect_no_difference();
}
