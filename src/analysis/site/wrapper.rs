//! Functions of the program that request memory for their callers, by their names.
//!
//! `gpu_alloc`, `checked_malloc` and the constructor of `DeviceBuffer` say by their names that somebody else needs the memory, so the
//! call site is their caller. Everything that compares two recordings, or one recording with a file, compares call sites: diffs,
//! baselines, suppressions, jobs, metrics. So a call site must follow from its own stack: a rule that counted the callers of a
//! function would find other wrappers in a run that calls it from fewer places, and a baseline of the one would not match the other.
//!
//! A name is split into words at `_`, at digits and at capitals. Its function is a wrapper in two cases:
//!
//! ```text
//! every word is general, and one allocates          gpu_alloc(size_t)   mallocHost    try_alloc_bytes
//! a container's constructor, or what makes it grow  Tensor::Tensor      Buffer.zeros  DeviceArray::resize
//! ```
//!
//! A word of the program's own (`alloc_kv_cache`, `Model::Model`, `RingBuffer::grow`) says what the memory is for, so the function is no
//! wrapper; nor is a C++ function without parameters that is in no container, because it chooses the size itself. culeak.toml names
//! other wrappers, and functions that are none.

use super::Frame;
use crate::analysis::function_name::plain;

/// Words that request memory.
const ALLOCATES: &str = "alloc allocate malloc calloc realloc reallocate xmalloc memalloc";

/// Words for what is requested and how, in any program.
const GENERAL: &str = "\
    cuda cu hip gpu device dev host cpu pinned managed unified mem memory buffer buf byte bytes array tensor \
    vector matrix block chunk storage object ptr pointer checked check safe unchecked unsafe try retry do or die fail \
    throw must impl internal raw typed aligned align pitched pitch async stream zeroed zero zeros new get my our \
    helper wrapper wrapped wrap on in at for from with to of and x d n size pool arena";

/// Words of which one names a container.
const CONTAINERS: &str = "buffer array tensor vector matrix storage memory mem ptr pointer allocator arena pool";

/// Functions of a container by which it gets memory, besides its constructor; every word is one of these or general.
const GROWS: &str = "\
    init initialize create make build resize reserve grow expand ensure capacity empty full ones like clone copy \
    assign reset set";

/// Whether a function is a wrapper by its name. Methods of Python are known with their class from Python 3.11 on.
pub(super) fn is_one(frame: &Frame) -> bool {
    let Some(function) = frame.function else { return false };
    let name = plain(function);
    let separator = if frame.is_python() { "." } else { "::" };
    let mut parts = name.rsplit(separator);
    let own = parts.next().unwrap_or_default();
    let class = parts.next().filter(|class| is_made_of(CONTAINERS, class));
    if let Some(class) = class
        && (own == class || grows(own))
    {
        return true;
    }
    let chooses_size = class.is_none() && ["()", "() const"].iter().any(|end| function.ends_with(end));
    !chooses_size && is_made_of(ALLOCATES, own)
}

fn grows(function: &str) -> bool {
    function == "operator=" || each_word(function, |word| is_in(GROWS, word) || is_in(GENERAL, word))
}

/// Whether each word of a name is one of these or a general one, and one of these is there.
fn is_made_of(words: &str, name: &str) -> bool {
    let mut found = false;
    let known = each_word(name, |word| {
        let is_one = is_in(words, word);
        found |= is_one;
        is_one || is_in(GENERAL, word)
    });
    known && found
}

fn is_in(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|known| known == word)
}

/// Whether the name has words, and `holds` is true of each, in small letters. `holds` is asked up to the first of which it is not.
fn each_word(name: &str, mut holds: impl FnMut(&str) -> bool) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic();
    if !name.chars().all(|c| is_letter(c) || c.is_ascii_digit() || c == '_') {
        return false;
    }
    let (mut word, mut some) = (String::new(), false);
    let mut last = ' ';
    let mut characters = name.chars().chain(['_']).peekable();
    while let Some(c) = characters.next() {
        // `newGPUBuffer`: the capital before a small letter begins a word, and so does the first of several.
        let next_is_small = characters.peek().is_some_and(char::is_ascii_lowercase);
        let begins = c.is_ascii_uppercase() && (!last.is_ascii_uppercase() || next_is_small);
        if (begins || !is_letter(c)) && !word.is_empty() {
            if !holds(&word) {
                return false;
            }
            some = true;
            word.clear();
        }
        if is_letter(c) {
            word.push(c.to_ascii_lowercase());
        }
        last = c;
    }
    some
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::site::CallStacks;
    use crate::sample::{MAIN, PYTHON, RUNTIME, Sample};

    fn is_wrapper(function: &str, module: &str) -> bool {
        let mut sample = Sample::new();
        let stack = sample.stack(&[RUNTIME, (function, "/src/a.cu:1", module), MAIN]);
        let snapshot = sample.finish(0, 0);
        let stacks = CallStacks::of(&snapshot);
        is_one(&stacks.get(Some(stack)).frames[1])
    }

    #[test]
    fn general_words_that_allocate_are_a_wrapper() {
        for function in [
            "gpu_alloc(unsigned long)",
            "checked_malloc",
            "cudaMallocChecked(void**, unsigned long)",
            "float* device_alloc<float>(unsigned long)",
            "mem::tryAllocBytes(int)",
            "allocGPUBuffer(int)",
            "my_malloc",
            "alloc_with_retry",
            "xmalloc",
            "alloc2D(int, int)",
            "(anonymous namespace)::alloc(unsigned long)",
            "model::Tensor::allocate()",
        ] {
            assert!(is_wrapper(function, "/opt/app"), "{function}");
        }
        for function in ["alloc", "gpu_alloc", "Trainer.allocate", "make.<locals>.alloc"] {
            assert!(is_wrapper(function, PYTHON), "{function}");
        }
    }

    #[test]
    fn a_word_of_the_program_or_a_size_that_the_function_chooses_is_none() {
        for function in [
            "alloc_kv_cache(int)",
            "preallocate(int)",
            "allocation(int)",
            "get_buffer(int)",
            "allocate_device_memory()",
            "main",
            "alloc(int)::{lambda()#1}::operator()() const",
            "",
        ] {
            assert!(!is_wrapper(function, "/opt/app"), "{function}");
        }
        for function in [
            "Cache.put",
            "alloc.<locals>.<lambda>",
            "alloc.<locals>.fill",
            "<module>",
        ] {
            assert!(!is_wrapper(function, PYTHON), "{function}");
        }
    }

    #[test]
    fn what_a_container_gets_memory_by_is_a_wrapper() {
        for function in [
            "Tensor::Tensor(int)",
            "model::DeviceBuffer<float>::DeviceBuffer(unsigned long)",
            "Buffer::Buffer()",
            "GpuArray::resize(unsigned long)",
            "CudaMemoryPool::create(int)",
            "Tensor::operator=(Tensor const&)",
            "DeviceBuffer<int>::ensure_capacity(unsigned long)",
        ] {
            assert!(is_wrapper(function, "/opt/app"), "{function}");
        }
        for function in ["Tensor.__init__", "DeviceArray.zeros", "GPUBuffer.__new__"] {
            assert!(is_wrapper(function, PYTHON), "{function}");
        }
        for function in [
            "Model::Model(int)",
            "Block::Block(int)",
            "RingBuffer::grow(int)",
            "Tensor::matmul(Tensor const&)",
            "Cache::resize(int)",
            "Trainer::create()",
        ] {
            assert!(!is_wrapper(function, "/opt/app"), "{function}");
        }
        assert!(!is_wrapper("Model.__init__", PYTHON) && !is_wrapper("__init__", PYTHON));
    }
}
