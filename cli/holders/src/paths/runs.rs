//! Steps that are written as one: runs of equal ones, `… 300 × MulBackward0 …`, and modules of PyTorch.

use culeak::snapshot::Step;

use super::text::{Pace, Style, attribute};

/// The longest period of a run that is looked for, in steps.
const PERIOD: usize = 8;

/// Steps printed at each end of a path that is cut.
const SHOWN: usize = 12;

/// Collapses runs and cuts what is still too long.
pub(super) fn collapse(steps: Vec<Pace>, style: Style) -> Vec<Step> {
    let up_to = if style.varies { "up to " } else { "" };
    let mut out: Vec<Step> = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        let (period, times, count) = run(&steps[at..]);
        if times < 3 {
            out.push(step(&steps[at], style));
            let (periods, length) = steps[at].omitted;
            if periods > 0 {
                out.push(gap(format!("… {up_to}{} references …", periods * length as u64)));
            }
            at += 1;
            continue;
        }
        // A reference with a name belongs to the last period, which is then written out.
        let end = at + period * times;
        let keeps_last = steps.get(end).is_some_and(|next| !next.shape.is_empty());
        let count = count - u64::from(keeps_last);
        let names = name(&steps[at..at + period]);
        // The first of a run may be referred to in another way.
        match out.last_mut().filter(|last| period == 1 && last.holder == names) {
            Some(last) => last.holder = format!("… {up_to}{} × {names} …", count + 1),
            None => out.push(gap(format!("… {up_to}{count} × {names} …"))),
        }
        if keeps_last {
            out.push(gap(steps[end - period].holder.clone()));
            out.extend(steps[end - period + 1..end].iter().map(|pace| step(pace, style)));
        }
        at = end;
    }
    if out.len() > 2 * SHOWN + 1 {
        let left_out = out.len() - 2 * SHOWN;
        out[SHOWN + left_out].via.clear();
        out.splice(SHOWN..SHOWN + left_out, [gap(format!("… {up_to}{left_out} steps …"))]);
    }
    out
}

/// A step that is not referred to by name.
fn gap(holder: String) -> Step {
    Step {
        via: String::new(),
        holder,
    }
}

fn step(pace: &Pace, style: Style) -> Step {
    Step {
        via: if style.concrete { &pace.concrete } else { &pace.shape }.clone(),
        holder: pace.holder.clone(),
    }
}

/// The words of one period.
fn name(period: &[Pace]) -> String {
    let mut words = String::new();
    for pace in period {
        let step = step(pace, Style::default());
        super::text::append(&mut words, &[step]);
    }
    words.trim_start_matches(" → ").to_owned()
}

/// The best run at the beginning: its period, how often the period occurs, and how often it does with what was left out.
fn run(steps: &[Pace]) -> (usize, usize, u64) {
    let equal = |a: &Pace, b: &Pace| a.shape == b.shape && a.holder == b.holder && !a.holder.is_empty();
    for period in 1..=PERIOD.min(steps.len() / 3) {
        let mut length = period;
        while length < steps.len() && equal(&steps[length], &steps[length - period]) {
            length += 1;
        }
        let times = length / period;
        if times >= 3 {
            let omitted: u64 = steps[..times * period].iter().map(|step| step.omitted.0).sum();
            return (period, times, times as u64 + omitted);
        }
    }
    (1, 1, 1)
}

/// The steps with modules and parameters as `named_parameters()` spells them: `.layers.*.weight → Parameter` for
/// `._modules['layers'] → ModuleList._modules['3'] → Linear._parameters['weight'] → Parameter`.
pub(super) fn through_modules(steps: Vec<Pace>) -> Vec<Pace> {
    /// Deeper modules begin a step of their own.
    const DEEPEST: usize = 16;
    let mut out: Vec<Pace> = Vec::with_capacity(steps.len());
    // How many modules the last step of `out` goes through.
    let mut depth = 0;
    for mut step in steps {
        let Some(key) = key_of_module(&step.concrete) else {
            depth = 0;
            out.push(step);
            continue;
        };
        let before = out.last_mut().filter(|_| depth > 0);
        // Programs choose the keys of these as data; other modules have attributes or indices.
        let has_free_keys = |before: &Pace| matches!(before.holder.as_str(), "ModuleDict" | "ParameterDict");
        let mut inner = key.trim_matches(['[', ']', '\'']).bytes();
        let is_index = inner.all(|byte| byte.is_ascii_digit());
        let name = attribute(key);
        step.shape = match is_index || before.as_deref().is_some_and(has_free_keys) {
            true => ".*".to_owned(),
            false => name.clone(),
        };
        step.concrete = name;
        match before {
            Some(before) if depth < DEEPEST && before.omitted.0 == 0 => {
                before.shape.push_str(&step.shape);
                before.concrete.push_str(&step.concrete);
                (before.holder, before.omitted) = (step.holder, step.omitted);
                depth += 1;
            }
            _ => {
                out.push(step);
                depth = 1;
            }
        }
    }
    out
}

/// `['layers']` of `._modules['layers']`.
fn key_of_module(step: &str) -> Option<&str> {
    let tables = ["._modules", "._parameters", "._buffers"];
    let key = tables.iter().find_map(|table| step.strip_prefix(table))?;
    let is_one = key.starts_with('[') && key.find(']') == Some(key.len() - 1);
    is_one.then_some(key)
}
