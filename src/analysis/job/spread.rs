//! A spread: the values of one quantity over many processes, in memory that does not grow with their number.
//!
//! ```text
//! value ──► bucket ──► how many processes, their sum, and up to EXAMPLES of them with their exact values
//! ```
//!
//! Up to [`EXACT`] different values have a bucket each, and the median is exact. With more, a bucket contains all values with
//! the same seven leading bits, which differ by less than 1/64. Equal processes share one bucket, so a hundred thousand of them
//! need no more memory than a hundred; rare values, which are those that matter, keep their processes.
//!
//! The result does not depend on the order in which values are added: examples are those of the lowest numbers, and whether
//! buckets are exact depends on the set of values alone.

/// Different values with a bucket of their own.
pub const EXACT: usize = 512;
/// Processes that a bucket keeps.
pub const EXAMPLES: usize = 16;

/// A process, by its number in the job, and its value.
pub type Example = (u32, u64);

#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    key: u64,
    pub count: u64,
    sum: u128,
    /// The highest number among the examples if there is no room for more, so that most processes need not look at them.
    bar: u32,
    /// Those with the lowest numbers, ascending.
    pub examples: Vec<Example>,
}

impl Bucket {
    fn new(key: u64) -> Bucket {
        Bucket {
            key,
            count: 0,
            sum: 0,
            bar: u32::MAX,
            examples: Vec::new(),
        }
    }

    fn add(&mut self, member: u32, value: u64) {
        self.count += 1;
        self.sum += u128::from(value);
        if member > self.bar {
            return;
        }
        let at = self.examples.partition_point(|example| example.0 < member);
        self.examples.insert(at, (member, value));
        self.limit();
    }

    fn join(&mut self, other: &Bucket) {
        self.count += other.count;
        self.sum += other.sum;
        self.examples.extend(&other.examples);
        self.examples.sort_unstable();
        self.limit();
    }

    fn limit(&mut self) {
        self.examples.truncate(EXAMPLES);
        if let Some(last) = self.examples.get(EXAMPLES - 1) {
            self.bar = last.0;
        }
    }

    /// The mean of its values, which is exact if they are equal.
    pub fn value(&self) -> u64 {
        (self.sum / u128::from(self.count.max(1))) as u64
    }
}

/// The values of some processes; others have no value, which counts as 0.
#[derive(Debug, Clone, Default)]
pub struct Spread {
    /// By key.
    buckets: Vec<Bucket>,
    coarse: bool,
    pub sum: u128,
    min: u64,
    pub max: u64,
    pub members: Members,
    /// The values are estimates: the largest variance for each byte of one. 0: they are exact.
    pub scatter: f64,
}

impl Spread {
    /// Adds the value of a process. Each process is added once.
    pub fn add(&mut self, member: u32, value: u64) {
        self.min = if self.members.is_empty() {
            value
        } else {
            self.min.min(value)
        };
        self.max = self.max.max(value);
        self.sum += u128::from(value);
        self.members.add(member);
        let key = if self.coarse { coarse(value) } else { value };
        self.bucket(key).add(member, value);
        if self.buckets.len() > EXACT && !self.coarse {
            self.coarsen();
        }
    }

    /// A value that was added is an estimate with this variance for each byte.
    pub fn scatters(&mut self, scatter: f64) {
        self.scatter = self.scatter.max(scatter);
    }

    fn bucket(&mut self, key: u64) -> &mut Bucket {
        let at = match self.buckets.binary_search_by_key(&key, |bucket| bucket.key) {
            Ok(at) => at,
            Err(at) => {
                self.buckets.insert(at, Bucket::new(key));
                at
            }
        };
        &mut self.buckets[at]
    }

    fn coarsen(&mut self) {
        self.coarse = true;
        for bucket in std::mem::take(&mut self.buckets) {
            self.bucket(coarse(bucket.key)).join(&bucket);
        }
    }

    /// Adds the values of other processes.
    pub fn join(&mut self, other: &Spread) {
        self.min = match (self.members.len(), other.members.len()) {
            (0, _) => other.min,
            (_, 0) => self.min,
            _ => self.min.min(other.min),
        };
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.members.join(&other.members);
        self.scatters(other.scatter);
        if other.coarse && !self.coarse {
            self.coarsen();
        }
        for bucket in &other.buckets {
            let key = if self.coarse { coarse(bucket.key) } else { bucket.key };
            self.bucket(key).join(bucket);
        }
        if self.buckets.len() > EXACT && !self.coarse {
            self.coarsen();
        }
    }

    /// The number of processes with a value.
    pub fn have(&self) -> u64 {
        self.members.len()
    }

    /// The least value of `of` processes.
    pub fn min(&self, of: u64) -> u64 {
        if self.have() < of { 0 } else { self.min }
    }

    /// Buckets in ascending order, including one of the processes without a value.
    fn all(&self, of: u64) -> impl Iterator<Item = (u64, u64)> {
        let absent = of.saturating_sub(self.have());
        let zeros = (absent > 0).then_some((0, absent));
        let buckets = self.buckets.iter().map(|bucket| (bucket.value(), bucket.count));
        zeros.into_iter().chain(buckets)
    }

    /// The lower median of `of` processes, and whether it is exact.
    pub fn median(&self, of: u64) -> (u64, bool) {
        (weighted(self.all(of), of.div_ceil(2)), !self.coarse)
    }

    /// The upper median of the distances from a value: the median itself has none, so the lower one is too small for few
    /// processes.
    pub fn deviation(&self, of: u64, from: u64) -> u64 {
        let mut distances: Vec<(u64, u64)> = self
            .all(of)
            .map(|(value, count)| (value.abs_diff(from), count))
            .collect();
        distances.sort_unstable();
        weighted(distances.into_iter(), of / 2 + 1)
    }

    /// The value of a process, if it is kept.
    pub fn example(&self, member: u32) -> Option<u64> {
        let mut examples = self.buckets.iter().flat_map(|bucket| &bucket.examples);
        examples.find(|example| example.0 == member).map(|example| example.1)
    }

    /// Buckets of processes that have a value, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter()
    }
}

/// The value at this place, counted from 1, of values with counts in ascending order.
fn weighted(values: impl Iterator<Item = (u64, u64)>, place: u64) -> u64 {
    let (mut seen, mut last) = (0, 0);
    for (value, count) in values {
        (seen, last) = (seen + count, value);
        if seen >= place {
            break;
        }
    }
    last
}

/// The seven leading bits of a value.
fn coarse(value: u64) -> u64 {
    let dropped = 57_u32.saturating_sub(value.leading_zeros());
    value >> dropped << dropped
}

/// A set of processes, by their numbers: few in a list, many in a bit map.
#[derive(Debug, Clone)]
pub enum Members {
    Few(Vec<u32>),
    Many { words: Vec<u64>, count: u64 },
}

impl Default for Members {
    fn default() -> Members {
        Members::Few(Vec::new())
    }
}

impl Members {
    const FEW: usize = 64;

    pub fn add(&mut self, member: u32) {
        match self {
            Members::Few(list) if list.len() < Members::FEW => list.push(member),
            Members::Few(list) => {
                let list = std::mem::take(list);
                *self = Members::Many {
                    words: Vec::new(),
                    count: 0,
                };
                list.into_iter().for_each(|member| self.add(member));
                self.add(member);
            }
            Members::Many { words, count } => {
                let (word, bit) = (member as usize / 64, member % 64);
                if words.len() <= word {
                    words.resize(word + 1, 0);
                }
                *count += u64::from(words[word] >> bit & 1 == 0);
                words[word] |= 1 << bit;
            }
        }
    }

    fn join(&mut self, other: &Members) {
        other.ascending().into_iter().for_each(|member| self.add(member));
    }

    pub fn len(&self) -> u64 {
        match self {
            Members::Few(list) => list.len() as u64,
            Members::Many { count, .. } => *count,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn contains(&self, member: u32) -> bool {
        match self {
            Members::Few(list) => list.contains(&member),
            Members::Many { words, .. } => words
                .get(member as usize / 64)
                .is_some_and(|word| word >> (member % 64) & 1 == 1),
        }
    }

    /// In ascending order.
    pub fn ascending(&self) -> Vec<u32> {
        match self {
            Members::Few(list) => {
                let mut list = list.clone();
                list.sort_unstable();
                list
            }
            Members::Many { words, .. } => {
                let bits = |(nth, word): (usize, &u64)| {
                    let word = *word;
                    (0..64)
                        .filter(move |bit| word >> bit & 1 == 1)
                        .map(move |bit| nth as u32 * 64 + bit)
                };
                words.iter().enumerate().flat_map(bits).collect()
            }
        }
    }
}

/// A number that depends on the seed alone.
#[cfg(test)]
pub fn scattered(seed: u64) -> u64 {
    crate::lockfree::index::mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spread(values: &[(u32, u64)]) -> Spread {
        let mut spread = Spread::default();
        values.iter().for_each(|&(member, value)| spread.add(member, value));
        spread
    }

    fn sorted(values: &[u64]) -> Vec<u64> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        sorted
    }

    fn exact_median(values: &[u64]) -> u64 {
        sorted(values)[(values.len() - 1) / 2]
    }

    /// Values of one site in up to 2,000 processes: few different ones, or any.
    fn values() -> impl Strategy<Value = Vec<u64>> {
        let few = proptest::collection::vec(0_u64..40, 1..300);
        let any = proptest::collection::vec(0_u64..1 << 40, 1..2000);
        prop_oneof![few, any]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_spread_agrees_with_an_exact_computation(values in values(), absent in 0_u64..50) {
            let numbered: Vec<(u32, u64)> = (0..).zip(values.iter().copied()).collect();
            let spread = spread(&numbered);
            let mut all = values.clone();
            all.extend((0..absent).map(|_| 0));
            let of = all.len() as u64;
            prop_assert_eq!(spread.sum, all.iter().map(|&value| u128::from(value)).sum::<u128>());
            prop_assert_eq!(spread.min(of), *all.iter().min().unwrap());
            prop_assert_eq!(spread.max, *all.iter().max().unwrap());
            prop_assert_eq!(spread.have(), values.len() as u64);
            let (median, is_exact) = spread.median(of);
            let expected = exact_median(&all);
            if is_exact {
                prop_assert_eq!(median, expected);
                let distances: Vec<u64> = all.iter().map(|value| value.abs_diff(median)).collect();
                prop_assert_eq!(spread.deviation(of, median), sorted(&distances)[distances.len() / 2]);
            } else {
                prop_assert!(median.abs_diff(expected) <= expected / 64 + 1, "{} for {}", median, expected);
            }
            let different: std::collections::BTreeSet<u64> = values.iter().copied().collect();
            prop_assert_eq!(is_exact, different.len() <= EXACT);
        }

        #[test]
        fn the_order_of_adding_does_not_matter(values in values(), seed: u64, cut in 0.0..1.0) {
            let numbered: Vec<(u32, u64)> = (0..).zip(values.iter().copied()).collect();
            let mut shuffled = numbered.clone();
            shuffled.sort_by_key(|&(member, _)| scattered(seed ^ u64::from(member)));
            let (one, other) = (spread(&numbered), spread(&shuffled));
            prop_assert_eq!(&one.buckets, &other.buckets);
            let (first, second) = shuffled.split_at((shuffled.len() as f64 * cut) as usize);
            let mut joined = spread(first);
            joined.join(&spread(second));
            prop_assert_eq!(&one.buckets, &joined.buckets);
            prop_assert_eq!((joined.sum, joined.max, joined.min(0)), (one.sum, one.max, one.min(0)));
            prop_assert_eq!(joined.members.ascending(), one.members.ascending());
        }

        #[test]
        fn members_are_those_that_were_added(numbers in proptest::collection::btree_set(0_u32..5000, 0..200)) {
            let mut members = Members::default();
            numbers.iter().rev().for_each(|&number| members.add(number));
            prop_assert_eq!(members.ascending(), numbers.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(members.len(), numbers.len() as u64);
            prop_assert!((0..5000).all(|number| members.contains(number) == numbers.contains(&number)));
        }
    }

    #[test]
    fn equal_values_need_one_bucket() {
        let values: Vec<(u32, u64)> = (0..100_000).map(|member| (member, 4096)).collect();
        let spread = spread(&values);
        assert_eq!(spread.buckets.len(), 1);
        assert_eq!(
            spread.buckets().next().map(|bucket| bucket.examples.len()),
            Some(EXAMPLES)
        );
    }

    #[test]
    fn any_values_need_a_bounded_number_of_buckets() {
        let values: Vec<(u32, u64)> = (0..100_000).map(|member| (member, scattered(member.into()))).collect();
        assert!(spread(&values).buckets.len() <= 64 * 128);
    }
}
