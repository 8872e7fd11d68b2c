//! The requests of a run, given to the model: what it reserves for them, and how far it is from what was recorded.

use foldhash::HashMap;

use super::FailedRequest;
use super::model::{self, Model};
use super::settings::Settings;
use super::trace::{Step, Trace};

/// How to replay.
#[derive(Clone, Copy, Default)]
pub struct Plan {
    /// The most that the driver gives to the allocator.
    pub limit: Option<u64>,
    /// The memory of the device, for the allocator and everything else.
    pub device_bytes: Option<u64>,
    /// Gives the cache back where the run did because the driver had no more.
    pub forced: bool,
    /// Gives the cache back at this mark too.
    pub empty_at: Option<usize>,
    /// Blocks that are just too large to be split, and may be so only because they were not split in the run, were requested
    /// smaller.
    pub smaller: bool,
}

pub struct Replayed {
    pub model: Model,
    /// The most bytes after any request in segments that only the model or only the recording has.
    pub error: u64,
    pub failed_request: Option<FailedRequest>,
    /// By mark, the most that giving the cache back there gives.
    pub idle_at_marks: Vec<u64>,
}

/// Segments that only the model has, and those that only the recording has.
#[derive(Default)]
struct Difference {
    /// By size, how many more the model has.
    more: HashMap<u64, i64>,
    /// Bytes of each side.
    bytes: [u64; 2],
}

impl Difference {
    fn count(&mut self, size: u64, more: i64) {
        let of_size = self.more.entry(size).or_default();
        let bytes = |more: i64| [more, -more].map(|more| size.saturating_mul(more.max(0) as u64));
        let (before, after) = (bytes(*of_size), bytes(*of_size + more));
        *of_size += more;
        for side in 0..2 {
            self.bytes[side] = self.bytes[side]
                .saturating_sub(before[side])
                .saturating_add(after[side]);
        }
    }
}

pub fn replay(trace: &Trace, settings: &Settings, classes: &[u32], plan: Plan) -> Replayed {
    let limit = plan.device_bytes.or(plan.limit);
    let mut model = Model::new(settings.clone(), limit, trace.addresses.clone());
    let mut blocks: HashMap<u32, u32> = HashMap::default();
    let (mut error, mut failed_request, mut idle_at_marks) = (0, None, vec![0; trace.marks.len()]);
    let unsplit = settings.max_split..settings.max_split.saturating_add(model::SMALL);
    let (mut difference, mut changed) = (Difference::default(), trace.changed.iter().peekable());
    for (nth, &(step, recorded)) in trace.steps.iter().enumerate() {
        match step {
            Step::Allocate(of) => {
                let class = classes.get(of.segment as usize).copied().unwrap_or(0);
                let may_be_smaller = of.is_whole && unsplit.contains(&of.bytes) && !trace.cut_sizes.contains(&of.bytes);
                let bytes = match plan.smaller && may_be_smaller {
                    true => settings.max_split - model::SMALLEST,
                    false => of.bytes,
                };
                blocks.insert(of.block, model.allocate(bytes, class));
            }
            Step::Free(block) => {
                blocks.remove(&block).into_iter().for_each(|id| model.free(id));
            }
            Step::Release { by_force } if !by_force || plan.forced => model.release_cached(),
            Step::Mark(mark) if plan.empty_at == Some(mark) => model.release_cached(),
            Step::Mark(mark) => idle_at_marks[mark] = model.idle().max(idle_at_marks[mark]),
            Step::Failed(bytes) => failed_request = Some(of_failed(&model, settings, bytes, recorded)),
            Step::OtherMemory(bytes) => {
                if let Some(device_bytes) = plan.device_bytes {
                    model.limit = Some(device_bytes.saturating_sub(bytes));
                    model.failed += u64::from(model.limit < Some(model.reserved));
                }
            }
            Step::Release { .. } => continue,
        }
        if matches!(step, Step::Allocate(_) | Step::Free(_) | Step::Release { .. }) {
            model
                .changed
                .drain(..)
                .for_each(|(size, more)| difference.count(size, more));
            while let Some(&(_, size, more)) = changed.next_if(|of| of.0 <= nth) {
                difference.count(size, -more);
            }
            error = error.max(difference.bytes[0]).max(difference.bytes[1]);
        }
    }
    Replayed {
        model,
        error,
        failed_request,
        idle_at_marks,
    }
}

/// Whether a request fits if the driver gives no more than was reserved when it failed.
fn of_failed(model: &Model, settings: &Settings, bytes: u64, recorded: u64) -> FailedRequest {
    let mut model = model.clone();
    model.limit = None;
    model.release_cached();
    model.allocate(bytes, 0);
    match model.reserved {
        needed if needed <= recorded => FailedRequest::Fits,
        needed if needed < recorded.saturating_add(settings.segment_for(bytes)) => FailedRequest::Perhaps,
        _ => FailedRequest::Fails,
    }
}
