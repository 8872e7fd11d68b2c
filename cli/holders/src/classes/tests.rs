//! Searches that stop, and when another copy is needed.

use std::sync::Mutex;

use culeak::snapshot::Stop;

use super::*;
use crate::process_tests::{Victim, compile};
use crate::source::copied::MemoryCopy;
use crate::source::{Region, Thread};

/// Two arrays that lead into the other one. The last word of one leads to the block.
const ARRAYS: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>
    enum { WORDS = 1 << 18 };
    static void **first;
    int main(void) {
        void **other = malloc(WORDS * sizeof *other);
        first = malloc(WORDS * sizeof *first);
        for (long i = 0; i < WORDS; i++) {
            first[i] = &other[i * 7919 % WORDS];
            other[i] = &first[i * 7919 % WORDS];
        }
        other[WORDS - 1] = (void *)0x500000000000;
        puts("ready");
        fflush(stdout);
        pause();
    }"#;
const ARRAY_BYTES: u64 = 2 << 20;
const BLOCK: Block = Block {
    address: 0x5000_0000_0000,
    bytes: 4096,
    time_ns: 1,
    of_torch: false,
    is_handle: false,
};

#[test]
fn a_search_stops_within_a_large_array_and_knows_what_it_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let victim = Victim::start(&compile(folder.path(), "arrays", ARRAYS, &[]));
    let process = victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let index = BlockIndex::new(&[BLOCK], &[]);
    let options = Options::default();
    let searched = |looks| examine(&copy, &options, &index, &[false], true, Deadline::Looks(looks)).expect("searched");
    let mut left: Vec<u64> = Vec::new();
    for looks in 0.. {
        let searched = searched(looks);
        let Some(stopped) = searched.stopped else {
            assert_eq!(searched.found[0].class, Class::Held);
            assert_eq!(searched.left_out_by_stop, LeftOut::default());
            break;
        };
        assert_eq!(stopped, Stop::Time);
        if searched.found[0].class == Class::Held {
            // What comes after the arrays was not searched.
            assert!((1..).contains(&left.len()));
            continue;
        }
        assert_eq!(searched.found[0].class, Class::Lost);
        left.push(searched.left_out_by_stop.bytes);
    }
    // The globals come before; each look at the clock allows half of an array.
    let within = left.iter().filter(|left| (1..ARRAY_BYTES).contains(*left)).count();
    assert!(within >= 1, "{left:?}");
}

#[test]
fn blocks_that_a_stopped_search_did_not_reach_have_no_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let victim = Victim::start(&compile(folder.path(), "arrays", ARRAYS, &[]));
    let options = |limit| Options {
        limit,
        ..Options::default()
    };
    let found = crate::search(&victim.process(), &[BLOCK], &options(Duration::ZERO)).expect("searched");
    assert!(found.blocks.is_empty(), "{:?}", found.blocks);
    assert_eq!(found.search.stopped, Some(Stop::Time));
    let sentence = &found.search.limits[0];
    assert!(
        sentence.starts_with("the search stopped after 0 ns, with ") && sentence.contains("culeak why --limit TIME"),
        "{sentence}"
    );
    let found = crate::search(&victim.process(), &[BLOCK], &options(Duration::MAX)).expect("searched");
    assert_eq!(found.paths[found.blocks[0].path].class, Class::Held);
    assert_eq!(found.search.stopped, None);
}

/// A copy of a process whose thread ran.
struct Running {
    taken: MemoryCopy,
    threads: Vec<Thread>,
    /// What it has when it is copied for the first time, and later other threads.
    at_first: Mutex<Option<Vec<Thread>>>,
}

impl Running {
    fn of(taken: MemoryCopy, threads: Vec<Thread>) -> Running {
        Running {
            taken,
            threads,
            at_first: Mutex::new(None),
        }
    }
}

impl Source for Running {
    fn regions(&self) -> std::io::Result<Vec<Region>> {
        self.taken.regions()
    }
    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.taken.present(range)
    }
    fn read_part(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.taken.read_part(address, buffer)
    }
    fn threads(&self) -> Vec<Thread> {
        let at_first = self.at_first.lock().expect("not poisoned").take();
        at_first.unwrap_or_else(|| self.threads.clone())
    }
    fn is_running(&self) -> bool {
        true
    }
    fn file(&self, path: &std::path::Path) -> std::path::PathBuf {
        self.taken.file(path)
    }
}

#[test]
fn no_block_is_lost_if_a_stack_was_not_found() {
    const LOCAL: &str = r#"
        #include <stdio.h>
        #include <unistd.h>
        int main(int count, char **arguments) {
            void *volatile local = (void *)0x500000000000;
            puts("ready");
            fflush(stdout);
            pause();
            return local == arguments;
        }"#;
    const OTHER: Block = Block {
        address: BLOCK.address + (1 << 20),
        ..BLOCK
    };
    let folder = tempfile::tempdir().expect("a folder");
    let victim = Victim::start(&compile(folder.path(), "local", LOCAL, &["-O1"]));
    let process = victim.process();
    let running = |is_main| {
        let taken = MemoryCopy::of(&process, &[]).expect("readable");
        let thread = |thread: Thread| Thread {
            is_main,
            stack_pointer: None,
            ..thread
        };
        Running::of(taken, process.threads().into_iter().map(thread).collect())
    };
    let search = |source: Running| crate::search(&source, &[BLOCK, OTHER], &Options::default()).expect("searched");
    let whole = search(running(true));
    let classes: Vec<Class> = whole.blocks.iter().map(|block| whole.paths[block.path].class).collect();
    assert_eq!(
        classes,
        [Class::Held, Class::Lost],
        "all of the first thread's stack is searched"
    );
    assert_eq!(whole.search.stopped, None);
    let partial = search(running(false));
    assert!(partial.blocks.is_empty(), "{:?}", partial.blocks);
    assert_eq!(partial.search.stopped, Some(Stop::Stack));
    let expected = format!("the stack of thread {} was not found, ", victim.pid());
    let limits = &partial.search.limits;
    assert!(
        limits
            .iter()
            .any(|limit| limit.starts_with(&expected) && !limit.contains("--pause")),
        "{limits:?}"
    );
    let later = running(true);
    later
        .at_first
        .lock()
        .expect("not poisoned")
        .replace(running(false).threads);
    let found = search(later);
    let classes: Vec<Class> = found.blocks.iter().map(|block| found.paths[block.path].class).collect();
    assert_eq!(classes, [Class::Held, Class::Lost], "a later copy has all stacks");
    let limits = &found.search.limits;
    assert!(!limits.iter().any(|limit| limit.contains("not found")), "{limits:?}");
    assert_eq!(found.search.stopped, None);
}

#[test]
fn what_a_library_stored_for_a_thread_is_no_holder_if_a_variable_is() {
    const STORED: &str = r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        static void **keep;
        static void libcudart_static_1a2b(void *data) { free(data); }
        int main(void) {
            pthread_key_t both, only, of_runtime;
            keep = malloc(sizeof *keep);
            *keep = (void *)0x500000000000;
            if (pthread_key_create(&both, NULL) || pthread_setspecific(both, *keep)) return 1;
            if (pthread_key_create(&only, NULL) || pthread_setspecific(only, (char *)*keep + 0x100000)) return 1;
            if (pthread_key_create(&of_runtime, libcudart_static_1a2b)) return 1;
            if (pthread_setspecific(of_runtime, (char *)*keep + 0x200000)) return 1;
            puts("ready");
            fflush(stdout);
            pause();
        }"#;
    let [other, of_runtime] = [1 << 20, 2 << 20].map(|further| Block {
        address: BLOCK.address + further,
        ..BLOCK
    });
    let folder = tempfile::tempdir().expect("a folder");
    let victim = Victim::start(&compile(folder.path(), "stored", STORED, &["-pthread"]));
    let blocks = [BLOCK, other, of_runtime];
    let found = crate::search(&victim.process(), &blocks, &Options::default()).expect("searched");
    let origins = found.blocks.iter().map(|block| found.paths[block.path].origin.as_str());
    let origins: Vec<&str> = origins.collect();
    assert!(
        origins[0].starts_with("keep in stored")
            && origins[1].starts_with("thread-specific data, perhaps of CUDA's runtime, of thread"),
        "{origins:?}"
    );
    // A word of the stack may be left.
    assert!(!origins[2].starts_with("thread-specific data"), "{origins:?}");
    let possibly: Vec<bool> = found
        .blocks
        .iter()
        .map(|block| found.paths[block.path].possibly)
        .collect();
    assert_eq!(possibly[..2], [false, true]);
}

#[test]
fn a_block_that_was_freed_needs_no_further_copy_although_its_path_changed() {
    let held = Some((Class::Held, false));
    assert!(is_open(&held, true, false) && !is_open(&held, true, true) && !is_open(&held, false, false));
    assert!(is_open(&None, false, false) && !is_open(&None, false, true));
}

#[test]
fn garbage_that_may_be_alive_is_looked_for_in_a_further_copy() {
    assert!(is_final(&Some((Class::Cycle, false))) && !is_final(&Some((Class::Cycle, true))));
    assert!((Class::Held, false) < (Class::Cycle, true) && (Class::Cycle, false) < (Class::Cycle, true));
}
