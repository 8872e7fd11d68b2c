//! Every interleaving of two threads that need the same extent at once.

use super::*;
use crate::lockfree::sync::modelled::{Proof, models};
use ::loom::thread::spawn;

const BACKING: Backing = Backing::Private(1, 2);

fn two_threads_get_the_same_element() {
    let array: &SegmentedArray<AtomicU64> = Box::leak(Box::default());
    let add = || array.ensure(BACKING, 1).unwrap().fetch_add(1, Relaxed);
    let other = spawn(add);
    let (mine, other) = (add(), other.join().unwrap());
    assert_eq!(mine + other, 1, "one was first, and the other saw it");
    assert_eq!(array.get(BACKING, 1).unwrap().load(Relaxed), 2);
}

fn an_element_exists_completely_or_not_at_all() {
    let array: &SegmentedArray<AtomicU64> = Box::leak(Box::default());
    spawn(|| array.ensure(BACKING, 0).unwrap().store(7, Relaxed));
    if let Some(element) = array.get(BACKING, 0) {
        assert!([0, 7].contains(&element.load(Relaxed)));
    }
}

const PROOF: Proof = Proof {
    files: &["src/lockfree/segmented.rs"],
    models: models![
        two_threads_get_the_same_element,
        an_element_exists_completely_or_not_at_all,
    ],
    harmless: &[],
};

#[test]
fn loom_the_segmented_array_holds_and_every_mistake_in_it_is_noticed() {
    PROOF.check();
}
