//! The requests by which the CUDA driver obtains memory from NVIDIA's kernel driver: `ioctl` on a file of major number 195.
//!
//! ```text
//! request    33 bits are unused, then 2 bits direction, 14 bits size of the argument, 8 bits 'F', 8 bits number
//!
//! NV_ESC_RM_ALLOC       0x2b  32 or 48 bytes   client 0, parent 4, object 8, class 12, parameters 16, status 28 or 40
//! NV_ESC_RM_FREE        0x29  16 bytes         client 0, parent 4, object 8, status 12
//! NV_ESC_RM_DUP_OBJECT  0x34  28 bytes         client 0, parent 4, object 8, client and object of the source 12 and 16, status 24
//! NV_ESC_RM_VID_HEAP_CONTROL
//!                       0x4a  184 bytes        function 8, status 20, flags 52, attributes 56
//! ```
//!
//! The process's memory on a device, as NVML reports it, is the sum of the sizes of its objects of class 0x40. The layouts
//! are those of NVIDIA's open kernel modules, unchanged since driver 515. An argument of another size, or sizes of memory that
//! cannot be, mean that a driver has another layout: then nothing is recorded any more, and [`Unknown`] says why. The last
//! request is another way to allocate, which CUDA drivers are not known to use: it counts as a loss.

use crate::format::{halves, pack};

/// The low 16 bits of the requests.
pub const FREE: u16 = 0x4629;
pub const ALLOC: u16 = 0x462b;
pub const DUPLICATE: u16 = 0x4634;
pub const HEAP: u16 = 0x464a;

/// The major number of NVIDIA's character devices.
pub const MAJOR: u32 = 195;

/// Classes of objects.
pub mod class {
    /// Memory on a device.
    pub const LOCAL_MEMORY: u32 = 0x40;
    /// Memory of the host.
    pub const SYSTEM_MEMORY: u32 = 0x3e;
    pub const CLIENTS: [u32; 3] = [0, 1, 0x41];
    pub const DEVICE: u32 = 0x80;
    pub const SUBDEVICE: u32 = 0x2080;
    pub const CHANNEL_GROUP: u32 = 0xa06c;

    /// Every generation of GPUs has a class of channels; their numbers end alike.
    pub const fn is_channel(class: u32) -> bool {
        class & 0xff == 0x6f && class >= 0x506f
    }
}

/// A known request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// The index of the status among the 32-bit words of the argument.
    Alloc {
        status: usize,
    },
    Free,
    Duplicate,
    Heap,
}

/// The request with this number; `None` if it is another one.
pub const fn request(number: u32) -> Option<Result<Request, Unknown>> {
    const READ_AND_WRITE: u32 = 3;
    if number >> 30 != READ_AND_WRITE {
        return None;
    }
    let bytes = number >> 16 & 0x3fff;
    Some(Ok(match (number as u16, bytes) {
        (ALLOC, 32) => Request::Alloc { status: 7 },
        (ALLOC, 48) => Request::Alloc { status: 10 },
        (FREE, 16) => Request::Free,
        (DUPLICATE, 28) => Request::Duplicate,
        (HEAP, 184) => Request::Heap,
        (ALLOC | FREE | DUPLICATE, _) => {
            return Some(Err(Unknown::Argument {
                request: number as u8,
                bytes,
            }));
        }
        _ => return None,
    }))
}

/// An object of the kernel driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Object {
    pub client: u32,
    pub handle: u32,
}

impl Object {
    /// As one word: the address of a segment's key.
    pub const fn to_word(self) -> u64 {
        pack(self.handle, self.client)
    }

    pub const fn from_word(word: u64) -> Object {
        let (handle, client) = halves(word);
        Object { client, handle }
    }
}

/// The argument of `NV_ESC_RM_ALLOC` after the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocated {
    pub object: Object,
    pub parent: u32,
    pub class: u32,
    /// Address of the class's own parameters; 0: none.
    pub parameters: u64,
}

/// Offset of the size in the parameters of memory: 64 bits.
pub const SIZE_OFFSET: u64 = 64;

impl Allocated {
    /// From the words of the argument, of which there are `status + 1` at least. `None`: the request failed.
    pub fn of(words: &[u32; 11], status: usize) -> Option<Allocated> {
        let [client, parent, handle, class, low, high, ..] = *words;
        let parent_is_client = class::CLIENTS.contains(&class);
        (words[status] == 0).then_some(Allocated {
            object: Object {
                client: if parent_is_client { handle } else { client },
                handle,
            },
            parent,
            class,
            parameters: pack(low, high),
        })
    }
}

/// Whether `NV_ESC_RM_VID_HEAP_CONTROL` has allocated memory of a device: a size, neither addresses alone nor memory of the host.
pub const fn is_heap_allocation(words: &[u32; 15]) -> bool {
    const ALLOC_SIZE: u32 = 2;
    const VIRTUAL: u32 = 0x0008_0000;
    const LOCATION: u32 = 3 << 25;
    words[2] == ALLOC_SIZE && words[5] == 0 && words[13] & VIRTUAL == 0 && words[14] & LOCATION == 0
}

/// Whether memory of this class can have this size in bytes.
pub const fn is_plausible(class: u32, bytes: u64) -> bool {
    match class {
        class::LOCAL_MEMORY => bytes != 0 && bytes.is_multiple_of(4096) && bytes <= 1 << 40,
        _ => bytes != 0 && bytes <= 1 << 44,
    }
}

/// Why segments are no longer recorded: the driver's layouts are not the known ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// A request whose argument has another size.
    Argument { request: u8, bytes: u32 },
    /// Sizes of memory that cannot be; this is the last one, of which the low 48 bits are kept.
    Size { bytes: u64 },
}

impl Unknown {
    const ARGUMENT: u64 = 1;
    const SIZE: u64 = 2;
    const SHIFT: u32 = 56;

    /// Not 0.
    pub const fn to_word(self) -> u64 {
        match self {
            Unknown::Argument { request, bytes } => {
                Unknown::ARGUMENT << Unknown::SHIFT | (bytes as u64) << 8 | request as u64
            }
            Unknown::Size { bytes } => Unknown::SIZE << Unknown::SHIFT | bytes & ((1 << 48) - 1),
        }
    }
}

#[cfg(feature = "read")]
impl Unknown {
    /// In words, from a word that a recording holds; `None` for 0.
    pub fn text(word: u64) -> Option<String> {
        let known = |request: u64| match request as u8 {
            0x2b => ("NV_ESC_RM_ALLOC", "32 and 48"),
            0x29 => ("NV_ESC_RM_FREE", "16"),
            _ => ("NV_ESC_RM_DUP_OBJECT", "28"),
        };
        match word >> Unknown::SHIFT {
            0 if word == 0 => None,
            Unknown::ARGUMENT => {
                let (name, bytes) = known(word & 0xff);
                let found = word >> 8 & 0xffff_ffff;
                Some(format!(
                    "{name} has an argument of {found} bytes, where {bytes} are known"
                ))
            }
            Unknown::SIZE => {
                let found = word & ((1 << 48) - 1);
                Some(format!(
                    "NV_ESC_RM_ALLOC reports memory of {found} bytes, which cannot be"
                ))
            }
            other => Some(format!("reason {other}, which this build does not know")),
        }
    }
}

#[cfg(all(test, feature = "read"))]
mod tests {
    use super::*;

    const fn number(low: u16, bytes: u32) -> u32 {
        3 << 30 | bytes << 16 | low as u32
    }

    #[test]
    fn known_requests_are_told_from_unknown_layouts_and_from_other_files_requests() {
        assert_eq!(request(number(ALLOC, 32)), Some(Ok(Request::Alloc { status: 7 })));
        assert_eq!(request(number(ALLOC, 48)), Some(Ok(Request::Alloc { status: 10 })));
        assert_eq!(request(number(FREE, 16)), Some(Ok(Request::Free)));
        assert_eq!(request(number(DUPLICATE, 28)), Some(Ok(Request::Duplicate)));
        for (low, bytes) in [(ALLOC, 40), (ALLOC, 0), (FREE, 24), (DUPLICATE, 32)] {
            assert!(matches!(request(number(low, bytes)), Some(Err(_))), "{low:#x} {bytes}");
        }
        // FBIOGET_VSCREENINFO, and the same number without a direction.
        assert_eq!(request(0x4600), None);
        assert_eq!(request(ALLOC.into()), None);
        assert_eq!(request(number(0x462a, 32)), None);
        assert_eq!(request(number(HEAP, 184)), Some(Ok(Request::Heap)));
        assert_eq!(request(number(HEAP, 100)), None);
    }

    #[test]
    fn every_reason_has_a_text() {
        let argument = Unknown::Argument {
            request: 0x2b,
            bytes: 56,
        };
        assert_eq!(
            Unknown::text(argument.to_word()).as_deref(),
            Some("NV_ESC_RM_ALLOC has an argument of 56 bytes, where 32 and 48 are known")
        );
        let size = Unknown::Size { bytes: 12345 };
        assert!(Unknown::text(size.to_word()).is_some_and(|text| text.contains("12345 bytes")));
        assert_eq!(Unknown::text(0), None);
        assert!(Unknown::text(u64::MAX).is_some());
    }

    #[test]
    fn sizes_of_memory_are_whole_pages() {
        assert!(is_plausible(class::LOCAL_MEMORY, 2 << 20));
        for bytes in [0, 4097, (1 << 40) + 4096, u64::MAX] {
            assert!(!is_plausible(class::LOCAL_MEMORY, bytes), "{bytes}");
        }
        assert!(is_plausible(class::SYSTEM_MEMORY, 100) && !is_plausible(class::SYSTEM_MEMORY, 0));
    }
}
