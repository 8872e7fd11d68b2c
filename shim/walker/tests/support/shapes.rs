//! Rust functions that call one another at random, together with those of `shapes.cpp`.

use super::Run;
use std::hint::black_box;

/// # Safety
/// `run` is the pointer that the game passes to each shape.
unsafe fn go_on(run: *mut Run, depth: i32) {
    // SAFETY: the game's own state, used by one thread.
    unsafe {
        if depth <= 0 {
            return ((*run).probe)();
        }
        let random = &mut (*run).random;
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let next = *(*run).shapes.add((*random % (*run).count) as usize);
        next(run, depth - 1)
    }
}

macro_rules! shape {
    ($name:ident, $body:expr) => {
        extern "C" fn $name(run: *mut Run, depth: i32) {
            #[allow(clippy::redundant_closure_call)]
            // SAFETY: only the game calls it.
            ($body)(&mut || unsafe { go_on(run, depth) })
        }
    };
}

shape!(plain, |call: &mut dyn FnMut()| call());
shape!(large, |call: &mut dyn FnMut()| {
    let buffer = black_box([1u8; 20_000]);
    call();
    black_box(&buffer);
});
shape!(cleanup, |call: &mut dyn FnMut()| {
    let text = black_box(String::from("kept until the end"));
    let numbers = black_box(vec![1; 30]);
    call();
    black_box((&text, &numbers));
});
shape!(catching, |call: &mut dyn FnMut()| {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    black_box(result.is_ok());
});
shape!(aligned, |call: &mut dyn FnMut()| {
    #[repr(align(128))]
    struct Aligned([u8; 256]);
    let buffer = black_box(Aligned([3; 256]));
    call();
    black_box(&buffer.0);
});
shape!(sorting, |call: &mut dyn FnMut()| {
    let mut first = true;
    let mut numbers: Vec<i32> = (0..50).rev().collect();
    numbers.sort_by(|left, right| {
        if std::mem::take(&mut first) {
            call();
        }
        left.cmp(right)
    });
    black_box(&numbers);
});
shape!(iterating, |call: &mut dyn FnMut()| {
    let boxed: Box<dyn FnMut(i32) -> i32> = Box::new(|i| {
        if i == 3 {
            call();
        }
        i
    });
    black_box((0..5).map(boxed).filter(|i| i % 2 == 0).sum::<i32>());
});
shape!(many_values, |call: &mut dyn FnMut()| {
    let values: [u64; 9] = black_box([1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let [a, b, c, d, e, f, g, h, i] = values;
    call();
    black_box((a + b, c * d, e ^ f, g | h, i, a ^ i, b & h));
});

pub const ALL: [extern "C" fn(*mut Run, i32); 8] = [
    plain,
    large,
    cleanup,
    catching,
    aligned,
    sorting,
    iterating,
    many_values,
];
