//! Where the stacks of a call site part: the nearest callers that differ, each with its share.
//!
//! ```text
//! make_tensor  tensor.cpp:12   12 MiB      the site
//!   from run  train.cpp:80                 callers that all of its stacks share
//!     8 MiB  ← put  cache.cpp:19           where they part: one share for each caller
//!     4 MiB  ← step  train.cpp:31
//! ```
//!
//! All stacks count, on both sides of a diff: a caller is shared if no stack lacks it. Shares are for the reader alone. Nothing is matched
//! by them, because where stacks part depends on which stacks there are.

use foldhash::HashMap;

use crate::analysis::site::{CallStack, Frame, file_name, is_comprehension, module_stem};

/// The share of one caller. `None`: the stacks that end here.
pub type Share<'a, T> = (Option<Frame<'a>>, T);

/// The number of innermost callers that all stacks of a call site share, and the shares of the callers behind them, in the order of
/// `stacks`; none if the stacks do not part. `add` joins what two stacks hold. `is_one_build`: lines tell callers of one function apart; in
/// another build they may have moved.
pub fn shares<'a, T: Copy>(
    stacks: &[(&CallStack<'a>, T)],
    is_one_build: bool,
    add: impl Fn(&mut T, T),
) -> (usize, Vec<Share<'a, T>>) {
    let identity = |frame: &Frame<'a>| identity(frame, is_one_build);
    let callers = |stack| callers(stack, is_one_build);
    let Some((first, _)) = stacks.first() else {
        return (0, Vec::new());
    };
    let mut shared: Vec<&Frame> = callers(first).collect();
    for (stack, _) in &stacks[1..] {
        let same = shared.iter().zip(callers(stack));
        let same = same.take_while(|(a, b)| identity(a) == identity(b)).count();
        shared.truncate(same);
    }
    let mut shares: Vec<Share<T>> = Vec::new();
    let mut numbers = HashMap::default();
    for (stack, held) in stacks {
        let caller = callers(stack).nth(shared.len());
        let next = shares.len();
        match *numbers.entry(caller.map(identity)).or_insert(next) {
            known if known < next => add(&mut shares[known].1, *held),
            _ => shares.push((caller.copied(), *held)),
        }
    }
    if shares.len() < 2 {
        shares.clear();
    }
    (shared.len(), shares)
}

/// The callers of a call site; in another build without what is a frame in some versions of CPython alone: comprehensions are part of the
/// functions around them.
fn callers<'s, 'a>(stack: &'s CallStack<'a>, is_one_build: bool) -> impl Iterator<Item = &'s Frame<'a>> {
    let is_apart = move |frame: &Frame| !is_one_build && is_comprehension(frame);
    let around = usize::from(stack.site().is_some_and(is_apart));
    stack.callers().filter(move |frame| !is_apart(frame)).skip(around)
}

/// What a caller is recognized by, wherever it was built: its function and line, or its code if it has no name.
fn identity<'a>(
    frame: &Frame<'a>,
    is_one_build: bool,
) -> (Option<&'a str>, Option<&'a str>, Option<u32>, &'a str, u64) {
    let is_code = frame.function.is_none() && !frame.module_name().is_empty();
    let address = if is_code { frame.address } else { 0 };
    let line = frame.line.filter(|_| is_one_build);
    let module = match is_one_build {
        true => frame.module_name(),
        false => module_stem(frame.module_name()),
    };
    (frame.function, frame.file.map(file_name), line, module, address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::site::CallStacks;
    use crate::sample::{FrameText, MAIN, PYTHON, RUNTIME, Sample};

    const SITE: FrameText = ("make(int)", "/src/tensor.cpp:12", "/opt/app");
    const PUT: FrameText = ("put(int)", "/src/cache.cpp:19", "/opt/app");
    const STEP: FrameText = ("step(int)", "/src/train.cpp:31", "/opt/app");
    const RUN: FrameText = ("run(int)", "/src/train.cpp:80", "/opt/app");

    fn of(stacks: &[&[FrameText]]) -> (usize, Vec<(String, u64)>) {
        let stacks = stacks.iter().map(|frames| [&[SITE], *frames].concat());
        of_sites(&stacks.collect::<Vec<_>>(), true)
    }

    fn of_sites(stacks: &[Vec<FrameText>], is_one_build: bool) -> (usize, Vec<(String, u64)>) {
        let mut sample = Sample::new();
        for frames in stacks {
            sample.stack(&[&[RUNTIME], frames.as_slice(), &[MAIN]].concat());
        }
        let snapshot = sample.finish(0, 0);
        let stacks = CallStacks::of(&snapshot);
        let all: Vec<(&CallStack, u64)> = stacks.all().zip([1, 10, 100, 1000]).collect();
        let (shared, shares) = shares(&all, is_one_build, |sum, more| *sum += more);
        let name = |frame: Option<Frame>| frame.map_or_else(String::new, |frame| frame.name());
        (
            shared,
            shares.into_iter().map(|(frame, held)| (name(frame), held)).collect(),
        )
    }

    #[test]
    fn in_another_build_a_comprehension_is_part_of_the_function_around_it() {
        let comprehension = ("load.<locals>.<listcomp>", "/src/train.py:8", PYTHON);
        let load = ("load", "/src/train.py:8", PYTHON);
        let module = ("<module>", "/src/train.py:20", PYTHON);
        let stacks = [vec![comprehension, load, module], vec![load, module]];
        assert_eq!(of_sites(&stacks, false), (2, vec![]));
        assert_eq!(of_sites(&stacks, true).1.len(), 2);
    }

    #[test]
    fn stacks_part_at_the_nearest_caller_that_is_not_shared() {
        let (shared, shares) = of(&[&[RUN, PUT], &[RUN, STEP], &[RUN, PUT]]);
        assert_eq!(
            (shared, shares),
            (1, vec![(PUT.0.to_owned(), 101), (STEP.0.to_owned(), 10)])
        );
        let (shared, shares) = of(&[&[PUT], &[STEP], &[RUN]]);
        assert_eq!((shared, shares.len()), (0, 3));
        assert_eq!(of(&[&[RUN, PUT], &[RUN, PUT]]), (3, vec![]));
        // Another line of one function, and a stack that ends where the others go on.
        let other = ("put(int)", "/src/cache.cpp:20", "/opt/app");
        assert_eq!(of(&[&[PUT], &[other]]).1.len(), 2);
    }
}
