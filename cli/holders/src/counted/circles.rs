//! Objects that own each other, which counting references never frees.
//!
//! ```text
//! x ─ gradient ─► tensor ─► MulBackward0 ─► AccumulateGrad ─► x      after backward(create_graph=True)
//! ```

use crate::graph::NodeId;
use crate::{Map, Set};

/// The objects of circles, and all that they own. `owns`: all owning references to the objects that have them, from and to; those
/// from objects without such references count as references from outside.
pub(super) fn circles(owns: &[(NodeId, NodeId)]) -> Set<NodeId> {
    let mut owners: Map<NodeId, usize> = owns.iter().map(|(_, to)| (*to, 0)).collect();
    let inside = owns.iter().filter(|(from, _)| owners.contains_key(from));
    let mut inside: Vec<(NodeId, NodeId)> = inside.copied().collect();
    inside.sort_unstable();
    for (_, to) in &inside {
        *owners.entry(*to).or_default() += 1;
    }
    // What has no owner here is freed with its references from outside, and then what it owns.
    let open = owners.iter().filter(|(_, owners)| **owners == 0);
    let mut open: Vec<NodeId> = open.map(|(node, _)| *node).collect();
    while let Some(freed) = open.pop() {
        owners.remove(&freed);
        let first = inside.partition_point(|(from, _)| *from < freed);
        for (_, to) in inside[first..].iter().take_while(|(from, _)| *from == freed) {
            if let Some(left) = owners.get_mut(to) {
                *left -= 1;
                if *left == 0 {
                    open.push(*to);
                }
            }
        }
    }
    owners.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(owns: &[(u32, u32)]) -> Vec<u32> {
        let owns: Vec<(NodeId, NodeId)> = owns.iter().map(|(from, to)| (NodeId(*from), NodeId(*to))).collect();
        let mut found: Vec<u32> = circles(&owns).into_iter().map(|node| node.0).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn circles_and_what_they_own_are_found() {
        assert!(found(&[]).is_empty());
        // 1 is no such object: it owns a chain and a diamond.
        assert!(found(&[(1, 2), (2, 3), (1, 3), (3, 4), (2, 4)]).is_empty());
        assert_eq!(found(&[(1, 2), (2, 3), (3, 2)]), [2, 3]);
        assert_eq!(found(&[(1, 2), (2, 3), (3, 4), (4, 3), (4, 5), (2, 6)]), [3, 4, 5]);
        // Two references from one to the other.
        assert_eq!(found(&[(2, 3), (2, 3), (3, 2)]), [2, 3]);
        assert!(found(&[(1, 2), (2, 3), (2, 3), (3, 4)]).is_empty());
    }
}
