//! The class of each block, over all copies.
//!
//! ```text
//! reached from Python's roots, globals, thread-local variables, stacks   held
//!   … through a Python object that only native words point to            native holder
//! reached from garbage                                                   uncollected cycle
//! reached from an object whose count is not explained                    native holder, if an unexplained word points to the
//!                                                                        object; else over-counted
//! none of these                                                          lost
//! ```
//!
//! Being held in one copy and being garbage that the second look did not change are final. The other classes hold only if no
//! further copy contradicts them, because objects that move while they are copied are reached in most copies, but not in each.

mod copying;
mod limits;

use std::ops::Range;
use std::time::{Duration, Instant};

use culeak::snapshot::{Class, Holders, Search, Stop};

use copying::copied;
use limits::{stopped_early, threads_running, what_may_hold};

use crate::blocks::BlockIndex;
use crate::budget::{Budget, Deadline, LeftOut, UNFINISHED};
use crate::copy::selection::{merged, without};
use crate::copy::{Image, PAGE};
use crate::counted;
use crate::evidence::Evidence;
use crate::findings::{CIRCLE, Explanation, Findings};
use crate::garbage::{Garbage, Unreached};
use crate::graph::{Edge, Graph, NodeId, Pairs, Phase, Root};
use crate::groups;
use crate::host;
use crate::modules::Modules;
use crate::native::{Chunk, Heap, Native, NativeRoot, RootSort};
use crate::paths::Paths;
use crate::python::Python;
use crate::records::Records;
use crate::source::Source;
use crate::variables;
use crate::walk::{Pointer, UsualPlaces, Walk};
use crate::{Block, Error, Map, Options, Set, Stopped, starts_with_one};

const ONLY_RECORDS: &str = "only the caching allocator's records point to it";
const FROZEN: &str = "gc.collect() frees it only after gc.unfreeze()";
const ONLY_NUMBER: &str = "held as a number";
const ONLY_END: &str = "the pointer may be the end of the block before it";
const SHARED: &str = "in memory shared with other processes";
const ONLY_SHARED: &str = "only shared memory that nothing points to has a pointer to it";

/// # Errors
/// See [`crate::search`].
pub fn search(
    source: &dyn Source,
    mut stopped: Option<Stopped>,
    blocks: &[Block],
    options: &Options,
) -> Result<Holders, Error> {
    let mut search = Search::default();
    if blocks.is_empty() && !options.host {
        return Ok(Paths::new(blocks, options).finish(search));
    }
    let started = Instant::now();
    let mut until: Option<Deadline> = None;
    let index = BlockIndex::new(blocks, &options.reserved);
    let mut paths = Paths::new(blocks, options);
    paths.was_stopped = stopped.is_some();
    let mut limits: Vec<String> = Vec::new();
    let mut changed = Vec::new();
    let mut best: Vec<Option<Answer>> = vec![None; blocks.len()];
    let mut is_freed = vec![false; blocks.len()];
    let mut missing_stacks = None;
    let mut left_out = 0;
    let mut left_out_by_stop = LeftOut::default();
    // A block is lost if it is so in each copy, so the copy in which the fewest threads ran decides.
    let mut running = usize::MAX;
    // Copies in succession that explained no further block.
    let mut idle = 0;
    loop {
        let (copied, is_consistent) = match stopped.take() {
            Some(stopped) => (stopped, true),
            None => match copied(source, options) {
                Err(error) if search.copies > 0 => {
                    limits.push(format!("the memory was not copied again: {error}"));
                    break;
                }
                copied => copied?,
            },
        };
        let copy = copied.copy;
        let deadline = *until.get_or_insert_with(|| Deadline::after(options.limit));
        search.copies += 1;
        if search.copies == 1 {
            search.copy_ns = nanoseconds(copied.copied);
            search.copied_bytes = copy.copied_bytes();
        }
        search.paused_ns += nanoseconds(copied.paused);
        let is_done = |(block, answer): (usize, &Option<Answer>)| {
            !is_open(answer, changed.binary_search(&block).is_ok(), is_freed[block])
        };
        let done: Vec<bool> = best.iter().enumerate().map(is_done).collect();
        let mut searched = match examine(&copy, options, &index, &done, is_consistent, deadline) {
            Err(error) if search.copies > 1 => {
                limits.push(format!("a further copy was not searched: {error}"));
                break;
            }
            searched => searched?,
        };
        if options.host && search.copies == 1 {
            search.host = host::usage(&mut searched, &options.excluded);
        }
        search.visited += searched.graph.len() as u64 - 1;
        search.torn += searched.torn;
        search.python = searched.python.as_ref().map(Python::version);
        missing_stacks = searched.native.missing_stacks(source.pid().is_some());
        let is_partial = searched.stopped.is_some() || missing_stacks.is_some();
        let is_better = |block: &usize| {
            // The part that was not searched may hold it.
            if is_partial && searched.found[*block].class == Class::Lost {
                return false;
            }
            let answer = answer(&searched.found[*block]);
            best[*block].is_none_or(|known| answer < known || answer == known && changed.binary_search(block).is_ok())
        };
        let better: Vec<usize> = (0..blocks.len()).filter(is_better).collect();
        if options.host || better.iter().any(|block| searched.found[*block].class != Class::Lost) {
            complete(&mut searched, is_consistent);
        }
        let explained = |best: &[Option<Answer>]| best.iter().filter(|answer| is_final(answer)).count();
        let explained_before = explained(&best);
        for block in &better {
            best[*block] = Some(answer(&searched.found[*block]));
        }
        idle = if explained(&best) > explained_before && search.copies > 1 {
            0
        } else {
            idle + 1
        };
        // In order.
        changed = paths.add(&mut searched, &better);
        limits.extend_from_slice(&searched.native.limits);
        limits
            .extend((searched.budget.stopped()).map(|_| format!("the types and holders of host memory: {UNFINISHED}")));
        // A later copy may have been searched to its end.
        search.stopped = searched
            .stopped
            .or((missing_stacks.is_some() && best.contains(&None)).then_some(Stop::Stack));
        left_out_by_stop = searched.left_out_by_stop;
        left_out = left_out.max(searched.left_out);
        running = running.min(threads_running(&copy));
        (is_freed.iter_mut().zip(blocks)).for_each(|(is_freed, block)| *is_freed |= block.is_handle);
        let mut answers = best.iter().zip(&is_freed);
        let all_final = answers.all(|(answer, is_freed)| *is_freed || is_final(answer));
        let is_done = match all_final {
            // A path that changed is looked for once more.
            true => changed.is_empty() || search.copies > 1,
            false => idle >= options.copies || search.copies >= ROUNDS * options.copies,
        };
        if is_done || is_consistent || until.as_mut().is_some_and(Deadline::is_over) {
            break;
        }
        if let Some(still_live) = &options.still_live {
            let are_live = still_live.0(blocks).into_iter().zip(blocks);
            is_freed = are_live.map(|(is_live, block)| !is_live || block.is_handle).collect();
            let may_change =
                |block: usize| is_open(&best[block], changed.binary_search(&block).is_ok(), is_freed[block]);
            if !(0..blocks.len()).any(may_change) {
                break;
            }
        }
    }
    let is_answered = |(answer, is_freed): (&Option<Answer>, &bool)| *is_freed || answer.is_some();
    let has_all = best.iter().zip(&is_freed).all(is_answered);
    search.stopped.take_if(|why| *why == Stop::Stack && has_all);
    limits.extend(missing_stacks.filter(|_| !has_all));
    let of_memory = best.iter().zip(blocks).filter(|(_, block)| !block.is_handle);
    let mut answers = of_memory.flat_map(|(answer, _)| answer);
    if answers.any(|(class, _)| *class == Class::Lost) {
        limits.extend(what_may_hold(left_out, running, source.pid().is_some()));
    }
    limits.extend((search.stopped).and_then(|why| stopped_early(why, left_out_by_stop, options.limit)));
    limits.extend(source.limits());
    for limit in limits {
        if !search.limits.contains(&limit) {
            search.limits.push(limit);
        }
    }
    search.took_ns = nanoseconds(started.elapsed());
    Ok(paths.finish(search))
}

/// If copies go on to explain blocks, the search takes this many times the copies of [`Options::copies`] at most: references
/// that move all the time are missing from many copies.
const ROUNDS: u32 = 4;

/// A class, and whether another copy can contradict it although it is final otherwise. Better ones are smaller.
type Answer = (Class, bool);

fn answer(found: &Explanation) -> Answer {
    (found.class, found.class == Class::Cycle && found.possibly)
}

/// Whether a further copy may say more about a block.
fn is_open(answer: &Option<Answer>, has_changed: bool, is_freed: bool) -> bool {
    !is_freed && (has_changed || !is_final(answer))
}

/// No other copy can contradict these.
fn is_final(answer: &Option<Answer>) -> bool {
    matches!(answer, Some((Class::Held, _) | (Class::Cycle, false)))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Searches one copy. `done`: blocks that need no further answer, by index.
fn examine<'c, 's>(
    copy: &'c Image<'s>,
    options: &Options,
    index: &BlockIndex,
    done: &[bool],
    is_consistent: bool,
    deadline: Deadline,
) -> Result<Findings<'c, 's>, Error> {
    let modules = Modules::find(copy).with_debug_files(options.debug_files.clone());
    let mut python = Python::find(copy, &modules)?;
    let mut native = Native::find(copy, &modules, python.as_ref().map(Python::pool_bytes));
    native.find_records(copy, &index.of_driver());
    let (globals, stacks): (Vec<NativeRoot>, Vec<NativeRoot>) =
        (native.roots(&modules).into_iter()).partition(|root| root.sort.is_static());
    let states = python.as_ref().map_or_else(Vec::new, |python| {
        [python.globals(&modules), python.states(copy)].concat()
    });
    // Pointers to static memory are constants too, and lead on.
    let is_made = |value| copy.granule(value).is_some() && modules.with_global(value).is_none();
    let is_block = |value| index.find(value).is_some() || index.find_reserved(value).is_some();
    let constants = modules.constants(copy, |value| is_block(value) || is_made(value));
    let no_roots = merged([&states[..], &native.locals_without_holders(copy, &modules), &constants].concat());
    // PyTorch and JAX.
    let has_classes =
        (modules.all().iter()).any(|module| starts_with_one(module.file_name(), &["libc10", "_jax.", "xla_extension"]));

    let usual = match &mut python {
        Some(python) => UsualPlaces::find(copy, python, &mut native, index),
        None => UsualPlaces::default(),
    };
    let unreached: Unreached;
    let mut garbage = Garbage::default();
    let mut walk = Walk::new(copy, python.as_mut(), &mut native, index, has_classes, deadline);
    walk.usual = usual;
    walk.done = done.to_vec();
    walk.search_python();
    let has_python = walk.python.is_some();
    if walk.unexplained() {
        let found = match (walk.budget.stopped(), walk.python.as_deref_mut()) {
            // What was not searched would look like garbage.
            (Some(stop), _) => Err(stop),
            (None, Some(python)) => Unreached::find(copy, python, walk.native, &walk.graph, deadline),
            (None, None) => Ok(Unreached::default()),
        };
        let stop = found.as_ref().err().copied();
        unreached = found.unwrap_or_default();
        // Without the counts, no word that may be stale leads to an object.
        match stop {
            Some(stop) => walk.budget.stop(stop),
            None => walk.counted = Some(&unreached),
        }
        walk.search_entries();
        walk.search_native(Phase::Globals, &globals, &no_roots);
        walk.search_records();
        if has_python && walk.unexplained() {
            if let Some(python) = walk.python.as_deref_mut() {
                match unreached.garbage(copy, python, !is_consistent, deadline) {
                    Ok(found) => garbage = found,
                    Err(stop) => walk.budget.stop(stop),
                }
            }
            walk.search_objects(Phase::Garbage, Root::Garbage, &mut garbage.members.iter().copied());
            walk.search_records();
            walk.search_tails(true);
            let recorded = walk.recorded();
            let mut counted = unreached.counted(&walk.graph);
            counted.retain(|object| !recorded.contains(object));
            walk.search_objects(Phase::Counted, Root::Counted, &mut counted.into_iter());
            walk.search_remaining_records();
        }
        if walk.unexplained() {
            walk.search_tails(false);
        }
        if walk.unexplained() {
            walk.search_native(Phase::Stacks, &stacks, &[]);
        }
        if walk.unexplained() {
            walk.search_tails(false);
            walk.search_late();
            walk.search_states(&states);
            walk.search_late();
            walk.search_tails(false);
            // Memory of the driver, which that puts off.
            walk.search_late();
        }
        if walk.may_be_apart() {
            walk.search_apart();
        }
    } else {
        // Paths are known; the edges from globals show what does not depend on Python alone.
        unreached = Unreached::default();
        walk.search_native(Phase::Globals, &globals, &no_roots);
    }

    walk.keep_tails();
    let by_range = walk.share_ranges();
    let mut found: Vec<Option<Explanation>> = (walk.found.iter())
        .map(|pointer| pointer.map(|pointer| of_pointer(&walk.graph, pointer)))
        .collect();
    for block in by_range {
        found[block] = found[block].map(|found| Explanation {
            by_range: true,
            interior: false,
            ..found
        });
    }
    for found in found.iter_mut().flatten().filter(|found| found.phase == Phase::Rest) {
        // The path leads through memory that is searched apart.
        let mut path = walk.graph.way_up(found.last.0);
        let is_shared = path.any(|node| walk.apart.entered.contains(&node));
        found.note = found.note.or(is_shared.then_some(SHARED));
    }
    // What begins on a stack is only possible, too, so a variable is named before it.
    for (found, end) in found.iter_mut().zip(&walk.ends) {
        if let (Some(by_stack), Some(end)) = (&found, end)
            && end.phase == Phase::Globals
            && is_of_stack(&walk.graph, by_stack.last.0)
        {
            *found = Some(by_end(&walk.graph, *end));
        }
    }
    let doubtful = reached_from(
        copy,
        &walk.graph,
        &garbage.doubtful(copy, walk.python.as_deref(), &mut walk.refused()),
    );
    let frozen = match walk.python.as_deref_mut() {
        Some(python) if !garbage.members.is_empty() => python.frozen(copy),
        _ => Vec::new(),
    };
    let frozen = reached_from(copy, &walk.graph, &frozen);
    for found in found.iter_mut().flatten().filter(|found| found.phase == Phase::Garbage) {
        found.possibly |= !garbage.is_stable || doubtful.contains(&found.last.0);
        found.note = frozen.contains(&found.last.0).then_some(FROZEN).or(found.note);
    }
    let statics: Vec<Range<u64>> = (globals.iter())
        .flat_map(|root| without(&root.range, &no_roots))
        .collect();
    let evidence = Evidence::find(&mut walk, &unreached, &found, &statics);
    let by_native = |found: &&mut Explanation| found.class == Class::NativeHolder;
    let limits = [&walk.native.limits[..], &copy.source().limits()].concat();
    let has_stacks = walk.native.missing_stacks(false).is_none();
    let is_whole = limits.is_empty() && has_stacks && walk.apart.left_out == 0 && walk.budget.stopped().is_none();
    for found in found.iter_mut().flatten().filter(by_native) {
        evidence.judge(&walk.graph, found, is_whole);
    }
    let has_records: Vec<bool> = (found.iter().zip(&walk.records))
        .zip(done)
        .map(|((found, record), is_done)| found.is_none() && record.is_some() && !is_done)
        .collect();
    let records = Records::find(&mut walk, &has_records);
    let found = (found.into_iter().enumerate())
        .map(|(block, found)| found.unwrap_or_else(|| unreached_block(&mut walk, &evidence, &records, block)))
        .collect();
    Ok(Findings {
        stopped: walk.budget.stopped(),
        left_out_by_stop: walk.left_out(),
        left_out: walk.apart.left_out,
        torn: walk.torn,
        graph: walk.graph,
        unusual: walk.unusual,
        copy,
        modules,
        native,
        python,
        garbage,
        found,
        stale: Pairs::default(),
        circles: Set::default(),
        rings: Map::default(),
        budget: Budget::new(copy, deadline),
    })
}

/// Finds what the paths and the retained bytes of this copy need beyond the classes of the blocks.
fn complete(searched: &mut Findings, is_consistent: bool) {
    variables::split(searched);
    let (mut stale, circles) = counted::stale(searched);
    for (from, to) in std::mem::take(&mut searched.unusual) {
        stale.add(from, to);
    }
    counted::mend(&stale, searched);
    searched.stale = stale;
    searched.circles = circles;
    searched.rings = groups::find(searched, is_consistent);
    for found in &mut searched.found {
        if searched.circles.contains(&found.last.0)
            && !found.possibly
            && !matches!(found.class, Class::Cycle | Class::Lost)
        {
            found.note.get_or_insert(CIRCLE);
        }
    }
}

/// The nodes of garbage that these objects lead to.
fn reached_from(copy: &Image, graph: &Graph, objects: &[u64]) -> Set<NodeId> {
    let is_garbage = |node: &NodeId| graph.phase(*node) == Phase::Garbage;
    let mut open: Vec<NodeId> = (objects.iter())
        .filter_map(|object| graph.find(copy, *object))
        .filter(is_garbage)
        .collect();
    let mut reached: Set<NodeId> = open.iter().copied().collect();
    while let Some(node) = open.pop() {
        for target in graph.targets(node).iter().filter(|target| is_garbage(target)) {
            if reached.insert(*target) {
                open.push(*target);
            }
        }
    }
    reached
}

/// The class by the first pointer that the walk found.
fn of_pointer(graph: &Graph, pointer: Pointer) -> Explanation {
    let class = match pointer.phase {
        Phase::None | Phase::Python => Class::Held,
        Phase::Garbage => Class::Cycle,
        Phase::Counted => Class::NativeHolder,
        Phase::Globals | Phase::Stacks | Phase::Rest => {
            let is_of_python = matches!(
                graph.way_up(pointer.node).last().and_then(|root| graph.root(root)),
                Some(Root::Python(_))
            );
            if !is_of_python && graph.first_object(pointer.node).is_some() {
                Class::NativeHolder
            } else {
                Class::Held
            }
        }
    };
    Explanation {
        class,
        last: (pointer.node, pointer.edge),
        interior: pointer.interior,
        by_range: false,
        phase: pointer.phase,
        possibly: pointer.weak,
        pointer: None,
        note: None,
    }
}

/// The class by a pointer that may be the end of the block before it.
fn by_end(graph: &Graph, end: Pointer) -> Explanation {
    Explanation {
        note: Some(ONLY_END),
        ..of_pointer(graph, end)
    }
}

/// Whether the path to a node begins on a native stack.
fn is_of_stack(graph: &Graph, node: NodeId) -> bool {
    let root = graph.way_up(node).last().and_then(|root| graph.root(root));
    matches!(root, Some(Root::Native(root)) if matches!(root.sort, RootSort::Stack | RootSort::WholeStack))
}

/// The class of a block that no walk reached.
fn unreached_block(walk: &mut Walk, evidence: &Evidence, records: &Records, block: usize) -> Explanation {
    let lost = Explanation {
        class: Class::Lost,
        last: (NodeId::NONE, Edge::default()),
        interior: false,
        by_range: false,
        phase: Phase::None,
        possibly: false,
        pointer: None,
        note: None,
    };
    if walk.records[block].is_some() {
        return match records.holder(walk, block) {
            None => Explanation {
                note: Some(ONLY_RECORDS),
                ..lost
            },
            Some(holder) => of_pointer(&walk.graph, holder),
        };
    }
    if let Some(end) = walk.ends[block] {
        return by_end(&walk.graph, end);
    }
    if let Some(number) = walk.numbers[block]
        && !walk.index.is_of_torch(block)
    {
        return Explanation {
            note: Some(ONLY_NUMBER),
            ..of_pointer(&walk.graph, number)
        };
    }
    for &address in evidence.to_blocks.get(&block).into_iter().flatten() {
        let Some(chunk) = walk.native.around(walk.copy, address) else {
            continue;
        };
        if is_of_driver(walk, chunk, address) {
            continue;
        }
        if chunk.heap == Heap::Unknown {
            let root = walk.graph.add_root(Root::Heap, Phase::Rest);
            let pointed = walk.index.find(walk.copy.word(address));
            return Explanation {
                class: Class::Held,
                last: (root, Edge::word(0)),
                interior: pointed.is_some_and(|pointed| pointed.1),
                by_range: false,
                phase: Phase::Rest,
                possibly: true,
                pointer: Some(address),
                note: None,
            };
        }
        if walk.graph.reached(walk.copy, chunk.start).is_none() && !walk.contains_object(chunk) {
            // Memory that nothing reaches is no holder.
            return Explanation {
                pointer: Some(address),
                ..lost
            };
        }
    }
    Explanation {
        note: walk.apart.pointed.contains(&block).then_some(ONLY_SHARED),
        ..lost
    }
}

/// Whether this word is the CUDA driver's. In memory of an unknown allocator it belongs to what begins last before it: something
/// that was reached, or something of the driver.
fn is_of_driver(walk: &Walk, chunk: Chunk, address: u64) -> bool {
    let is_reached = |at: u64| walk.graph.reached(walk.copy, at).is_some();
    let is_driver = |at: u64| walk.native.is_driver_although_reached(walk.copy, at);
    let mut before = (0..PAGE.min(address) / 8).map(|words| (address & !7) - words * 8);
    let nearest = match chunk.heap {
        Heap::Unknown => before.find(|at| is_reached(*at) || is_driver(*at)),
        _ => None,
    };
    !nearest.is_some_and(is_reached) && (nearest.is_some() || walk.native.is_driver(walk.copy, chunk.start))
}

#[cfg(test)]
mod tests;
