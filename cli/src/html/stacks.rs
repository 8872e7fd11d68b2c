//! Stacks for the page: sorted, each stored as the suffix that differs from the stack before.
//!
//! In sorted order, stacks with a common prefix are adjacent. So a frame of the graph is a range of stacks, and its
//! callees are the runs within that range: the page builds no tree and draws only visible frames.

use culeak::analysis::site::CallStack;

use super::data::Data;
use crate::names::Distinct;

/// One stack, outermost frame first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stack {
    pub frames: Vec<u32>,
    /// The recorder cut the stack.
    pub truncated: bool,
}

/// Distinct stacks, numbered in order of arrival.
#[derive(Default)]
pub struct Stacks(Distinct<Stack>);

impl Stacks {
    pub fn add(&mut self, stack: Stack) -> usize {
        self.0.number(stack)
    }

    /// Adds the frames that a report shows, or all with `full`.
    pub fn add_call_stack<'a>(&mut self, data: &mut Data<'a>, stack: &CallStack<'a>, full: bool) -> usize {
        let mut frames: Vec<u32> = if full {
            stack.frames.iter().map(|frame| data.frame(frame)).collect()
        } else {
            stack.shown().map(|frame| data.frame(frame)).collect()
        };
        frames.reverse();
        // A missing stack does not count as cut.
        let truncated = stack.truncated && !frames.is_empty();
        self.add(Stack { frames, truncated })
    }

    /// Writes the stacks and returns the new number of each.
    pub fn write(self, data: &mut Data, prefix: &str) -> Vec<u64> {
        let stacks = self.0.items;
        let mut order: Vec<usize> = (0..stacks.len()).collect();
        order.sort_by(|&a, &b| stacks[a].frames.cmp(&stacks[b].frames));
        let mut shared = Vec::with_capacity(order.len());
        let mut added = Vec::new();
        let mut before: &[u32] = &[];
        for &stack in &order {
            let frames = &stacks[stack].frames;
            let alike = before.iter().zip(frames).take_while(|(a, b)| a == b).count();
            shared.push(alike as u64);
            added.extend(frames[alike..].iter().map(|&frame| u64::from(frame)));
            before = frames;
        }
        let depths = order.iter().map(|&stack| stacks[stack].frames.len() as u64);
        let truncated = order.iter().map(|&stack| stacks[stack].truncated.into());
        data.columns.add(format!("{prefix}.shared"), shared);
        data.columns.add(format!("{prefix}.depth"), depths);
        data.columns.add(format!("{prefix}.frames"), added);
        data.columns.add(format!("{prefix}.truncated"), truncated);
        let mut places = vec![0; stacks.len()];
        for (place, &stack) in order.iter().enumerate() {
            places[stack] = place as u64;
        }
        places
    }
}
