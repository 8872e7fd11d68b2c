//! The call sites of a process that have series of their own: those with most bytes, in a choice that lasts.
//!
//! If each pass chose the largest, two call sites of nearly the same size would take turns, and each series would
//! have gaps. So a chosen call site stays until another one has twice its bytes. All that are not chosen are one sum.

use std::collections::BTreeMap;

use culeak::analysis::report::Tally;

use crate::label::OTHER;

/// The chosen call sites of one process.
#[derive(Debug, Clone, Default)]
pub struct Choice(Vec<String>);

impl Choice {
    /// Chooses among these sums by call site. `first` are chosen in any case, as far as there is room.
    pub fn update(&mut self, all: &BTreeMap<String, Tally>, first: &[String], most: usize) {
        let bytes = |site: &str| all.get(site).map_or(0, |sum| sum.bytes);
        self.0.truncate(most);
        let mut order: Vec<&String> = all.keys().collect();
        order.sort_by(|a, b| {
            let is_later = |site| !first.contains(site);
            (is_later(a), std::cmp::Reverse(bytes(a)), a).cmp(&(is_later(b), std::cmp::Reverse(bytes(b)), b))
        });
        for site in order.into_iter().take(most.saturating_mul(2)) {
            if self.0.contains(site) {
                continue;
            }
            if self.0.len() < most {
                self.0.push(site.clone());
                continue;
            }
            let replaceable = self.0.iter_mut().filter(|chosen| !first.contains(chosen));
            let Some(least) = replaceable.min_by_key(|chosen| bytes(chosen)) else {
                break;
            };
            if first.contains(site) || bytes(site) > bytes(least).saturating_mul(2) {
                least.clone_from(site);
            }
        }
    }

    pub fn contains(&self, site: &str) -> bool {
        self.0.iter().any(|chosen| chosen == site)
    }

    /// The sums of the chosen call sites, and of the others together.
    pub fn split(&self, all: &BTreeMap<String, Tally>) -> BTreeMap<String, Tally> {
        let mut split: BTreeMap<String, Tally> = self.0.iter().map(|site| (site.clone(), Tally::default())).collect();
        split.insert(OTHER.to_owned(), Tally::default());
        for (site, sum) in all {
            let name = if self.contains(site) { site } else { OTHER };
            split.entry(name.to_owned()).or_default().join(*sum);
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(rows: &[(&str, u64)]) -> BTreeMap<String, Tally> {
        let sum = |(site, bytes): &(&str, u64)| (site.to_string(), Tally::new(*bytes, 1));
        rows.iter().map(sum).collect()
    }

    fn chosen(choice: &Choice) -> Vec<&str> {
        let mut all: Vec<&str> = choice.0.iter().map(String::as_str).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn the_choice_lasts_until_another_site_has_twice_as_much() {
        let mut choice = Choice::default();
        choice.update(&sums(&[("a", 100), ("b", 90), ("c", 80)]), &[], 2);
        assert_eq!(chosen(&choice), ["a", "b"]);
        choice.update(&sums(&[("a", 100), ("b", 90), ("c", 179)]), &[], 2);
        assert_eq!(chosen(&choice), ["a", "b"]);
        choice.update(&sums(&[("a", 100), ("b", 90), ("c", 181)]), &[], 2);
        assert_eq!(chosen(&choice), ["a", "c"]);
        // A site that holds nothing keeps its series until another one needs the place.
        choice.update(&sums(&[("c", 181)]), &[], 2);
        assert_eq!(chosen(&choice), ["a", "c"]);
        choice.update(&sums(&[("c", 181), ("d", 1)]), &[], 2);
        assert_eq!(chosen(&choice), ["c", "d"]);
    }

    #[test]
    fn what_is_not_chosen_is_one_sum() {
        let all: BTreeMap<String, Tally> = (0..10_000u64)
            .map(|n| (format!("site {n}"), Tally { bytes: n, count: 1 }))
            .collect();
        let mut choice = Choice::default();
        choice.update(&all, &["site 3".to_owned()], 10);
        let split = choice.split(&all);
        assert_eq!(split.len(), 11);
        assert!(choice.contains("site 3") && choice.contains("site 9999"));
        let total: u64 = split.values().map(|sum| sum.bytes).sum();
        assert_eq!(total, (0..10_000).sum::<u64>());
        assert_eq!(split[OTHER].count, 9_990);
    }

    #[test]
    fn no_room_is_no_choice() {
        let mut choice = Choice::default();
        choice.update(&sums(&[("a", 1)]), &["a".to_owned()], 0);
        assert_eq!(choice.split(&sums(&[("a", 1)])).len(), 1);
    }
}
