//! Pools of pages and their owners, as the program says.

use super::{Model, Pages};
use crate::support::script::Line;

impl Model {
    /// `value`: the id of what has begun; 0: none has.
    pub(super) fn take_pages(&mut self, line: &Line, value: u64) {
        let number = |index: usize| line.arguments.get(index).copied().unwrap_or(0) as u64;
        let id = self.value(line, 0);
        let begun = Pages {
            id: value,
            name: line.name.clone(),
            page_bytes: number(0),
            pages: [0; 4],
            has_ended: false,
            begun: 0,
            owners: Vec::new(),
        };
        match &*line.verb {
            "pagepool" if value != 0 => self.page_pools.push(begun),
            "owner" if value != 0 => {
                let pool = self.page_pools.iter_mut().find(|pool| pool.id == id);
                let pool = pool.expect("the pool of an owner");
                pool.begun += 1;
                pool.owners.push(Pages { page_bytes: 0, ..begun });
            }
            "setpages" => self.each_pages(|each| {
                if each.id == id {
                    each.pages = [1, 2, 3, 4].map(number);
                }
            }),
            "endowner" => {
                self.page_pools.retain(|pool| pool.id != id);
                self.each_pages(|each| each.has_ended |= each.id == id);
            }
            _ => {}
        }
        // An owner that has ended stays as long as it has pages.
        for pool in &mut self.page_pools {
            pool.owners.retain(|owner| !owner.has_ended || owner.pages != [0; 4]);
        }
    }

    fn each_pages(&mut self, mut change: impl FnMut(&mut Pages)) {
        for pool in &mut self.page_pools {
            change(pool);
            pool.owners.iter_mut().for_each(&mut change);
        }
    }
}
