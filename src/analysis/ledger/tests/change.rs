use super::*;
use crate::analysis::categories::{Categories, Category};

#[test]
fn a_change_divides_blocks_by_what_they_are_for_and_adds_up_to_the_ledgers() {
    let before = training().finish(0, 0);
    let mut sample = training();
    let to = (
        "torch::nn::Module::to_impl(c10::Device)",
        "",
        "/v/site-packages/torch/lib/libtorch_cpu.so",
    );
    let weights = sample.stack(&[RUNTIME, CACHING, to, MAIN]);
    tensor(&mut sample, 0x1000_0000 + 12 * MIB, 3 * MIB, weights);
    let after = sample.finish(0, 0);
    let change = LedgerDiff::of(&before, &after, &Categories::default());
    let device = &change.devices[0];
    let line = |what, category: Option<Category>| {
        let mut lines = device
            .lines
            .iter()
            .filter(|line| line.what == what && line.category == category);
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("{what:?} {category:?}: {:#?}", device.lines));
        (line.bytes_delta, line.count_delta)
    };
    assert_eq!(
        line(LineKind::Blocks, Some(Category::Parameters)),
        (i128::from(3 * MIB), 1)
    );
    let blocks = device.lines.iter().filter(|line| line.what == LineKind::Blocks);
    assert!(
        blocks.clone().all(|line| line.category.is_some()) && blocks.map(|line| line.count_delta).sum::<i128>() == 1
    );
    assert_eq!(line(LineKind::Cached, None).0, -i128::from(3 * MIB));
    assert_eq!(device.lines.iter().map(|line| line.bytes_delta).sum::<i128>(), 0);
    for (nth, snapshot) in [&before, &after].into_iter().enumerate() {
        assert_eq!(device.process[nth], ledger(snapshot).devices[0].known);
    }
}

#[test]
fn a_change_keeps_lines_of_one_side_and_blocks_without_stacks_have_no_category() {
    let before = Sample::new().running().finish(0, 0);
    let mut sample = training();
    sample.0.sampling = Some(crate::snapshot::Sampling {
        bytes: 512 << 10,
        most_bytes: 0,
        left_out: None,
    });
    let after = sample.finish(0, 0);
    let change = LedgerDiff::of(&before, &after, &Categories::default());
    let lines = &change.devices[0].lines;
    assert!(
        lines
            .iter()
            .all(|line| line.category.is_none() && line.before.is_none()),
        "{lines:#?}"
    );
    let gained: i128 = lines.iter().map(|line| line.bytes_delta).sum();
    assert_eq!(gained, ledger(&after).devices[0].known);
}
