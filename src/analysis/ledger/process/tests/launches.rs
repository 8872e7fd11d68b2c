//! Memory for launches from kernels, with the sizes of an H200.

use super::*;

const MODULE: [FrameText; 2] = [RUNTIME, KERNEL];

#[test]
fn memory_for_launches_is_not_code() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, None);
    sample.takes(
        "cuLibraryLoadData",
        &MODULE,
        &[2 * MIB, 492 * MIB, 4 * MIB, 2 * MIB, 14 * MIB],
    );
    let shown = lines(&sample);
    assert_eq!(
        shown,
        [
            (What::LocalMemory, 492 * MIB, 1, false),
            (What::DynamicParallelism, 20 * MIB, 3, false),
            (What::Code, 2 * MIB, 1, false),
            (What::Context, 104 * MIB, 1, true),
        ]
    );
}

#[test]
fn what_a_large_limit_takes_is_not_the_pool_for_local_memory() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(492 * MIB));
    let pieces = [128 * MIB, 2 * MIB, 448 * MIB, 10 * MIB];
    sample.takes("cuCtxSetLimit", &[RUNTIME, MAIN], &pieces);
    let shown = lines(&sample);
    assert_eq!(
        shown,
        [
            (What::LocalMemory, 492 * MIB, 1, true),
            (What::DynamicParallelism, 588 * MIB, 4, false),
            (What::Context, 104 * MIB, 1, true),
        ]
    );
}
