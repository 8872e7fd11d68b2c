use std::path::Path;

use super::*;
use crate::process_tests::{Victim, compile, pages};
use crate::source::PAGE;

fn word(process: &Process, address: u64) -> u64 {
    let mut buffer = [0; 8];
    assert_eq!(process.read(&[address..address + 8], &mut buffer), 8, "{address:#x}");
    u64::from_le_bytes(buffer)
}

#[test]
fn ranges_are_read_one_after_the_other() {
    let memory = pages(3);
    for (place, word) in memory.iter_mut().enumerate() {
        *word = place as u64;
    }
    let start = memory.as_ptr() as u64;
    let victim = Victim::fork();
    let process = victim.process();
    let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
    // More ranges than one system call takes.
    let ranges: Vec<_> = (0..1500).map(|nth| start + nth * 8..start + nth * 8 + 3).collect();
    let expected: Vec<u8> = (0..1500).flat_map(|nth| bytes[nth * 8..nth * 8 + 3].to_vec()).collect();
    for only_file in [false, true] {
        process.only_file.store(only_file, Relaxed);
        let mut buffer = vec![0; 4500];
        assert_eq!(process.read(&ranges, &mut buffer), 4500);
        assert_eq!(buffer, expected);
        assert_eq!(process.read(&[], &mut buffer), 0);
        let empty = [
            start..start,
            start..start + 8,
            start + 8..start + 8,
            start + 16..start + 24,
        ];
        assert_eq!(process.read(&empty, &mut buffer), 16);
        assert_eq!(&buffer[8..16], &bytes[16..24]);
    }
}

#[test]
fn a_copy_for_which_there_is_no_time_is_none() {
    let victim = Victim::fork();
    let process = victim.process().until(Instant::now());
    let copied = crate::copy::Image::take(&process, &[]);
    let is_late = |error: &Error| matches!(error, Error::Read(_, why) if why.kind() == io::ErrorKind::TimedOut);
    assert!(copied.is_err_and(|error| is_late(&error)));
    let hour = std::time::Duration::from_secs(3600);
    let process = victim.process().until(Instant::now() + hour);
    assert!(crate::copy::Image::take(&process, &[]).is_ok());
}

#[test]
fn reading_ends_where_memory_ends() {
    let memory = pages(4);
    memory.fill(9);
    let start = memory.as_ptr() as u64;
    // SAFETY: a page of our own mapping, which is not used any more.
    unsafe { libc::munmap((start + 2 * PAGE) as *mut libc::c_void, PAGE as usize) };
    let victim = Victim::fork();
    let process = victim.process();
    for only_file in [false, true] {
        process.only_file.store(only_file, Relaxed);
        let mut buffer = vec![0; 4 << 12];
        assert_eq!(process.read(&[start..start + 4 * PAGE], &mut buffer), 2 << 12);
        assert_eq!(process.read(&[start + 2 * PAGE..start + 3 * PAGE], &mut buffer), 0);
        let ranges = [start..start + 8, start + 3 * PAGE..start + 4 * PAGE];
        assert_eq!(process.read(&ranges, &mut buffer), 8 + (1 << 12));
    }
}

#[test]
fn untouched_memory_is_not_present_and_stays_so() {
    let memory = pages(1000);
    memory[5 * 512] = 1;
    let start = memory.as_ptr() as u64;
    let range = start..start + 1000 * PAGE;
    let victim = Victim::fork();
    let process = victim.process();
    for _ in 0..2 {
        assert_eq!(process.present(range.clone()), [start + 5 * PAGE..start + 6 * PAGE]);
        crate::copy::Image::take(&process, &[]).expect("readable");
    }
}

#[test]
fn without_the_page_map_only_reservations_are_left_out() {
    let memory = pages(1000);
    let start = memory.as_ptr() as u64;
    let victim = Victim::fork();
    let mut process = victim.process();
    process.pagemap = None;
    let small = start..start + 2 * PAGE;
    assert_eq!(process.present(small.clone()), [small]);
    assert_eq!(process.limits(), Vec::<String>::new());
    assert_eq!(process.present(start..start + (1 << 40)), []);
    assert!(
        process.limits()[0].starts_with("1048576 MiB at "),
        "{:?}",
        process.limits()
    );
}

#[test]
fn a_process_that_does_not_exist_is_an_error() {
    // Above the largest process id.
    let Err(error) = Process::new(1 << 23) else {
        panic!("no such process")
    };
    assert_eq!(error.to_string(), "process 8388608: no such process");
}

#[test]
fn a_process_that_has_ended_is_an_error() {
    let victim = Victim::fork();
    let process = victim.process();
    // SAFETY: our child, which is reaped when `victim` is dropped.
    unsafe {
        libc::kill(victim.pid() as libc::pid_t, libc::SIGKILL);
        let mut info = std::mem::zeroed();
        libc::waitid(libc::P_PID, victim.pid(), &mut info, libc::WEXITED | libc::WNOWAIT);
    }
    let error = process.regions().expect_err("a zombie has no memory");
    assert!(error.to_string().contains("it has ended"), "{error}");
    assert!(crate::copy::Image::take(&process, &[]).is_err());
    assert!(Process::new(victim.pid()).is_err());
}

#[test]
fn files_are_opened_where_the_process_sees_them() {
    let victim = Victim::fork();
    let process = victim.process();
    assert_eq!(process.file(Path::new("/proc/self/maps")), Path::new("/proc/self/maps"));
    assert_eq!(process.file(Path::new("/no/such/file")), Path::new("/no/such/file"));
}

const THREADS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile long counter, signals, born;
static void on_signal(int number) { signals++; }
static void *nothing(void *unused) { return unused; }
static void *sleeper(void *unused) {
    pthread_setname_np(pthread_self(), "sleeper");
    volatile long local = 0x1234567890;
    for (;;) pause();
    return (void *)local;
}
static void *worker(void *unused) {
    pthread_setname_np(pthread_self(), "worker");
#ifdef __x86_64__
    __asm__ volatile("movabs $0x1122334455667788, %%r15\n1: incq %0\njmp 1b" : "+m"(counter) : : "r15");
#else
    for (;;) counter++;
#endif
    return unused;
}
static void *parent(void *unused) {
    for (;;) {
        pthread_t thread;
        if (!pthread_create(&thread, 0, nothing, 0)) pthread_join(thread, 0), born++;
    }
    return unused;
}
int main(int count, char **arguments) {
    pthread_t threads[3];
    signal(SIGUSR1, on_signal);
    pthread_create(&threads[0], 0, sleeper, 0);
    pthread_create(&threads[1], 0, worker, 0);
    pthread_create(&threads[2], 0, parent, 0);
    while (!counter || !born) usleep(1000);
    usleep(20000);
    printf("%p %p %p %p\n", (void *)&counter, (void *)&signals, (void *)&born, (void *)threads[1]);
    fflush(stdout);
    for (;;) pause();
}
"#;

struct Busy {
    _folder: tempfile::TempDir,
    victim: Victim,
    counter: u64,
    signals: u64,
    born: u64,
    worker: u64,
}

fn busy() -> Busy {
    let folder = tempfile::tempdir().expect("a folder");
    let victim = Victim::start(&compile(folder.path(), "busy", THREADS, &["-pthread"]));
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address");
    let addresses: Vec<u64> = victim.line.split(' ').map(hex).collect();
    Busy {
        _folder: folder,
        victim,
        counter: addresses[0],
        signals: addresses[1],
        born: addresses[2],
        worker: addresses[3],
    }
}

/// Waits until the word differs from `old`.
fn changes(process: &Process, address: u64, old: u64) -> bool {
    let mut left = 10_000;
    while word(process, address) == old && left > 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        left -= 1;
    }
    left > 0
}

fn named(threads: &[Thread], name: &str) -> Thread {
    let thread = threads.iter().find(|thread| thread.name == name);
    thread.unwrap_or_else(|| panic!("{name} in {threads:?}")).clone()
}

#[test]
fn waiting_threads_have_a_stack_pointer_and_running_threads_have_none() {
    let busy = busy();
    let process = busy.victim.process();
    let pid = busy.victim.pid();
    // The threads may be on their way to what they wait for.
    let waiting = |_| {
        let threads = process.threads();
        let main = threads.iter().find(|thread| thread.id == pid)?.stack_pointer;
        let pointers = main.zip(named(&threads, "sleeper").stack_pointer);
        if pointers.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        pointers.map(|(main, sleeper)| (threads, main, sleeper))
    };
    let (threads, main, sleeper) = (0..10_000).find_map(waiting).expect("both wait");
    let regions = process.regions().expect("readable");
    let stack_of = |pointer: u64| {
        regions
            .iter()
            .find(|region| region.range.contains(&pointer))
            .expect("mapped")
    };
    let words = (sleeper..stack_of(sleeper).range.end.min(sleeper + (64 << 10))).step_by(8);
    assert!(
        words.into_iter().any(|at| word(&process, at) == 0x12_3456_7890),
        "the local variable"
    );
    assert_eq!(stack_of(main).name, "[stack]");
    assert_eq!(named(&threads, "worker").stack_pointer, None);
}

#[test]
#[ignore = "needs ptrace"]
fn a_paused_process_stands_still_and_goes_on() {
    let busy = busy();
    let process = busy.victim.process();
    assert!(process.is_running());
    for _ in 0..3 {
        process.pause(true).expect("our child");
        process.pause(true).expect("nothing to do");
        assert!(!process.is_running());
        let before = (word(&process, busy.counter), word(&process, busy.born));
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!((word(&process, busy.counter), word(&process, busy.born)), before);
        let threads = process.threads();
        let regions = process.regions().expect("readable");
        for thread in &threads {
            let pointer = thread.stack_pointer.expect("all are stopped");
            assert!(
                regions
                    .iter()
                    .any(|region| region.range.contains(&pointer) && region.writable)
            );
            assert!(thread.registers.len() >= 15);
        }
        if cfg!(target_arch = "x86_64") {
            let worker = named(&threads, "worker");
            assert!(worker.registers.contains(&0x1122_3344_5566_7788), "{worker:x?}");
            assert_eq!(worker.thread_pointer, Some(busy.worker));
        }
        process.pause(false).expect("it goes on");
        assert!(process.is_running());
        assert!(changes(&process, busy.counter, before.0) && changes(&process, busy.born, before.1));
    }
}

#[test]
#[ignore = "needs ptrace"]
fn a_paused_process_goes_on_when_the_source_is_dropped() {
    let busy = busy();
    let process = busy.victim.process();
    process.pause(true).expect("our child");
    let counter = word(&process, busy.counter);
    drop(process);
    let process = busy.victim.process();
    assert!(changes(&process, busy.counter, counter));
}

#[test]
#[ignore = "needs ptrace"]
fn a_paused_process_goes_on_when_the_reader_is_killed() {
    let busy = busy();
    let process = busy.victim.process();
    // SAFETY: the child only traces, reads files and waits; the test's other threads hold no lock of its.
    let reader = unsafe { libc::fork() };
    if reader == 0 {
        let mut reading = [0; 8];
        let paused = Process::new(busy.victim.pid()).expect("readable");
        let is_paused = paused.pause(true).is_ok();
        paused.read(&[busy.counter..busy.counter + 8], &mut reading);
        // SAFETY: ends without destructors, as if killed.
        unsafe {
            if is_paused {
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
            libc::_exit(1);
        }
    }
    let mut status = 0;
    // SAFETY: our child.
    unsafe { libc::waitpid(reader, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status), "it paused the process and was killed");
    let counter = word(&process, busy.counter);
    assert!(changes(&process, busy.counter, counter));
}

#[test]
#[ignore = "needs ptrace"]
fn a_signal_during_a_pause_is_delivered_after_it() {
    let busy = busy();
    let process = busy.victim.process();
    process.pause(true).expect("our child");
    // SAFETY: our child, which handles this signal.
    unsafe { libc::kill(busy.victim.pid() as libc::pid_t, libc::SIGUSR1) };
    assert_eq!(word(&process, busy.signals), 0);
    process.pause(false).expect("it goes on");
    assert!(changes(&process, busy.signals, 0));
    assert_eq!(word(&process, busy.signals), 1);
}

#[test]
#[ignore = "needs ptrace"]
fn signals_before_a_pause_are_not_lost() {
    let busy = busy();
    let process = busy.victim.process();
    for nth in 0..20 {
        // SAFETY: as above.
        unsafe { libc::kill(busy.victim.pid() as libc::pid_t, libc::SIGUSR1) };
        process.pause(true).expect("our child");
        process.pause(false).expect("it goes on");
        assert!(changes(&process, busy.signals, nth), "signal {nth}");
    }
}

#[test]
#[ignore = "needs ptrace"]
fn a_process_that_another_one_traces_cannot_be_paused() {
    let busy = busy();
    let first = busy.victim.process();
    let second = busy.victim.process();
    first.pause(true).expect("our child");
    let error = second.pause(true).expect_err("it is traced");
    assert!(error.to_string().starts_with("access is refused: process "), "{error}");
    // Reading needs no tracing.
    word(&second, busy.counter);
    first.pause(false).expect("it goes on");
    second.pause(true).expect("free again");
}
