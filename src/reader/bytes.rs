//! Elements of a section, or the header, as they are in the file.

use std::mem::offset_of;

use crate::format::{Field, Header, Loss, Row, Section};

/// A copy of a part of the file: an array of equal elements.
#[derive(PartialEq)]
pub(super) struct Bytes {
    pub bytes: Vec<u8>,
    pub element: usize,
}

impl Bytes {
    /// An empty section.
    pub fn none(section: Section) -> Bytes {
        Bytes {
            bytes: Vec::new(),
            element: section.element_bytes(),
        }
    }

    pub fn len(&self) -> usize {
        self.bytes.len().checked_div(self.element).unwrap_or(0)
    }

    /// The element with this number; zeros, which always mean "not published", if there is none.
    pub fn row<R: Row>(&self, number: usize) -> R::Values {
        debug_assert_eq!(self.element, size_of::<R>());
        let at = number.saturating_mul(self.element);
        R::read(self.bytes.get(at..at.saturating_add(self.element)).unwrap_or_default())
    }

    /// All elements, in order.
    pub fn rows<R: Row>(&self) -> impl Iterator<Item = R::Values> {
        debug_assert_eq!(self.element, size_of::<R>());
        self.bytes.chunks_exact(self.element).map(R::read)
    }

    /// The field of the header at this offset.
    pub fn field<F: Field>(&self, offset: usize) -> F {
        F::read(self.bytes.get(offset..).unwrap_or_default())
    }

    /// A loss that the header counts.
    pub fn loss(&self, loss: Loss) -> u64 {
        self.field(offset_of!(Header, losses) + loss as usize * size_of::<u64>())
    }
}
