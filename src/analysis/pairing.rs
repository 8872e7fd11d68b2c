//! Matches the call sites of two snapshots of a program.
//!
//! Function and module identify a site; its line decides only between several sites of one function. First, sites with
//! the same line are paired. The remaining sites of a function are paired in the order of their lines, because edits
//! move lines and rarely change their order. CPython knows the classes of methods from 3.11 on: if only one side has any, those of the
//! other are ignored. If libraries have other versions ([`pair_across`]), the program's own lines identify a site. Deliberately absent:
//! similarity of names; a renamed function is a new one.

use std::collections::HashMap;

use crate::analysis::report::{By, Row};
use crate::analysis::site::{CallStack, Fingerprint};
use crate::kind::Kind;

/// What a row is matched by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// With lines.
    pub exact: Fingerprint,
    /// Without lines.
    pub loose: Fingerprint,
    /// Without lines and the classes of Python's methods; equal to `loose` if there are none.
    pub unqualified: Fingerprint,
    pub line: Option<u32>,
    /// Cached memory never matches held memory.
    pub pool: bool,
}

impl Key {
    /// As if no caching allocator held the memory.
    pub fn of_call_site(stack: &CallStack) -> Key {
        Key {
            exact: stack.site_fingerprint,
            loose: stack.loose_site_fingerprint,
            unqualified: stack.unqualified_site_fingerprint(),
            line: stack.site().and_then(|site| site.line),
            pool: false,
        }
    }

    /// Objects of different kinds never match.
    pub fn of_kind(self, kind: Kind) -> Key {
        let apart = |print: Fingerprint| Fingerprint(print.0 ^ (kind as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Key {
            exact: apart(self.exact),
            loose: apart(self.loose),
            unqualified: apart(self.unqualified),
            ..self
        }
    }

    /// As if no caching allocator held the memory.
    pub fn of_forward_line(stack: &CallStack) -> Key {
        let [exact, loose, unqualified] = stack.forward_fingerprints();
        Key {
            exact,
            loose,
            unqualified,
            line: stack.gradient().and_then(|line| line.line),
            pool: false,
        }
    }

    /// The program's own lines alone, for a process with other versions of libraries.
    pub fn own(by: By, row: &Row) -> Key {
        if by == By::Forward {
            return Key::by(by, row);
        }
        let [exact, loose, unqualified] = row.stack().own_fingerprints(by != By::Stack);
        let key = Key {
            exact,
            loose,
            unqualified,
            ..Key::of_call_site(row.stack())
        };
        key.apart(row)
    }

    /// Of a row by stack or by forward line, or else by call site.
    pub fn by(by: By, row: &Row) -> Key {
        let stack = row.stack();
        match by {
            By::Forward => Key::of_forward_line(stack),
            By::Stack => {
                let key = Key {
                    exact: stack.fingerprint,
                    loose: stack.loose_fingerprint,
                    unqualified: stack.unqualified_fingerprint(),
                    ..Key::of_call_site(stack)
                };
                key.apart(row)
            }
            _ => Key::of_call_site(stack).apart(row),
        }
    }

    /// Apart from rows that never match: cached memory from held memory, and each kind of object.
    fn apart(self, row: &Row) -> Key {
        let key = Key { pool: row.pool, ..self };
        row.kind_of_objects().map_or(key, |kind| key.of_kind(kind))
    }

    fn is_qualified(&self) -> bool {
        self.loose != self.unqualified
    }
}

/// For each key of `after`, the index of its partner in `before`. Each partner is used once. `moved`: lines may have
/// moved between the two.
pub fn pair(before: &[Key], after: &[Key], moved: bool) -> Vec<Option<usize>> {
    let are_qualified = |keys: &[Key]| keys.iter().any(Key::is_qualified);
    let passes: [Pass<Key>; 4] = [
        &|key| (key.exact, key.pool, None),
        &|key| (key.loose, key.pool, None),
        &|key| (key.unqualified, key.pool, key.line.map(|line| Fingerprint(line.into()))),
        &|key| (key.unqualified, key.pool, None),
    ];
    let count = match moved {
        false => 1,
        // One of the two is of CPython 3.10 or older, or of no methods.
        true if are_qualified(before) != are_qualified(after) => 4,
        true => 2,
    };
    pair_by(before, after, |key| key.line, &passes[..count])
}

/// As [`pair`], if libraries have other versions. Each row has two keys: that of all its frames, and that of the program's own lines.
pub fn pair_across(before: &[[Key; 2]], after: &[[Key; 2]]) -> Vec<Option<usize>> {
    let are_qualified = |keys: &[[Key; 2]]| keys.iter().any(|[whole, _]| whole.is_qualified());
    let passes: [Pass<[Key; 2]>; 6] = [
        &|[whole, _]| (whole.exact, whole.pool, None),
        // The same lines of the program, through the same functions of libraries.
        &|[whole, own]| (own.exact, own.pool, Some(whole.loose)),
        &|[_, own]| (own.exact, own.pool, None),
        &|[whole, _]| (whole.loose, whole.pool, None),
        &|[_, own]| (own.loose, own.pool, None),
        &|[_, own]| (own.unqualified, own.pool, None),
    ];
    let count = 5 + usize::from(are_qualified(before) != are_qualified(after));
    pair_by(before, after, |[whole, _]| whole.line, &passes[..count])
}

/// What rows are matched by in one pass.
type Print = (Fingerprint, bool, Option<Fingerprint>);
type Pass<'p, K> = &'p dyn Fn(&K) -> Print;

/// Matches in one pass after the other what no earlier one matched, in the order of lines.
fn pair_by<K>(before: &[K], after: &[K], line: impl Fn(&K) -> Option<u32>, passes: &[Pass<K>]) -> Vec<Option<usize>> {
    let mut partners: Vec<Option<usize>> = vec![None; after.len()];
    let mut taken = vec![false; before.len()];
    let mut order: Vec<usize> = (0..after.len()).collect();
    order.sort_by_key(|&index| (line(&after[index]), index));
    for print in passes {
        let mut free: HashMap<Print, Vec<usize>> = HashMap::new();
        for (index, key) in before.iter().enumerate().filter(|(index, _)| !taken[*index]) {
            free.entry(print(key)).or_default().push(index);
        }
        // The first line is last, where `pop` takes it.
        for indices in free.values_mut() {
            indices.sort_by_key(|&index| std::cmp::Reverse((line(&before[index]), index)));
        }
        order.retain(|&index| {
            partners[index] = free.get_mut(&print(&after[index])).and_then(Vec::pop);
            partners[index].inspect(|&partner| taken[partner] = true).is_none()
        });
    }
    partners
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(function: u64, line: u32) -> Key {
        Key {
            exact: Fingerprint(function * 1000 + u64::from(line)),
            loose: Fingerprint(function),
            unqualified: Fingerprint(function),
            line: Some(line),
            pool: false,
        }
    }

    #[test]
    fn unmoved_lines_pair_first_and_moved_ones_in_order() {
        let before = [key(1, 8), key(1, 12)];
        assert_eq!(pair(&before, &[key(1, 14), key(1, 10)], true), [Some(1), Some(0)]);
        assert_eq!(pair(&before, &[key(1, 12), key(1, 20)], true), [Some(1), Some(0)]);
        assert_eq!(pair(&before, &[key(1, 12), key(1, 20)], false), [Some(1), None]);
        assert_eq!(pair(&before, &[key(2, 8)], true), [None]);
    }

    #[test]
    fn cached_memory_never_pairs_with_held_memory() {
        let cached = Key {
            pool: true,
            ..key(1, 8)
        };
        assert_eq!(pair(&[key(1, 8)], &[cached], true), [None]);
    }

    #[test]
    fn methods_pair_with_those_of_an_interpreter_that_knows_no_classes() {
        let method = |class: u64, line: u32| Key {
            exact: Fingerprint(class * 1000 + u64::from(line)),
            loose: Fingerprint(class),
            ..key(1, line)
        };
        let (bare, qualified) = ([key(1, 8), key(1, 12)], [method(71, 12), method(72, 20)]);
        assert_eq!(pair(&bare, &qualified, true), [Some(1), Some(0)]);
        assert_eq!(pair(&qualified, &bare, true), [Some(1), Some(0)]);
        assert_eq!(pair(&bare, &qualified, false), [None, None]);
        // Under one interpreter, the method of another class is another.
        assert_eq!(pair(&[method(71, 12)], &[method(72, 12)], true), [None]);
    }

    proptest! {
        #[test]
        fn each_partner_is_used_once_and_has_the_same_function(
            before in proptest::collection::vec((0u64..4, 0u32..6), 0..20),
            after in proptest::collection::vec((0u64..4, 0u32..6), 0..20),
            moved in any::<bool>(),
        ) {
            let keys = |rows: Vec<(u64, u32)>| rows.into_iter().map(|(f, l)| key(f, l)).collect::<Vec<_>>();
            let (before, after) = (keys(before), keys(after));
            let partners = pair(&before, &after, moved);
            let mut taken: Vec<usize> = partners.iter().flatten().copied().collect();
            taken.sort_unstable();
            let count = taken.len();
            taken.dedup();
            prop_assert_eq!(taken.len(), count);
            for (key, partner) in after.iter().zip(partners) {
                if let Some(partner) = partner {
                    prop_assert_eq!(key.loose, before[partner].loose);
                    prop_assert!(moved || key.exact == before[partner].exact);
                }
            }
        }
    }
}
