//! The requests by which the CUDA driver obtains memory from NVIDIA's kernel driver: `ioctl` on a file of major number 195.
//!
//! ```text
//! request    33 bits are unused, then 2 bits direction, 14 bits size of the argument, 8 bits 'F', 8 bits number
//!
//! NV_ESC_RM_ALLOC       0x2b  32 or 48 bytes   client 0, parent 4, object 8, class 12, parameters 16, status 28 or 40
//!                             of memory        in the parameters: size 64, limit 88
//! NV_ESC_RM_FREE        0x29  16 bytes         client 0, parent 4, object 8, status 12
//! NV_ESC_RM_DUP_OBJECT  0x34  28 bytes         client 0, parent 4, object 8, client and object of the source 12 and 16, status 24
//! NV_ESC_RM_VID_HEAP_CONTROL
//!                       0x4a  184 bytes        function 8, status 20, flags 52, attributes 56
//! NV_ESC_IOCTL_XFER_CMD 0xd3  16 bytes         another request: number 0, size of its argument 4, its argument 8
//! ```
//!
//! The process's memory on a device, as NVML reports it, is the sum of the sizes of its objects of class 0x40. The layouts
//! are those of NVIDIA's open kernel modules of the branches in [`COMPARED`] (`tests/data/driver-branches.txt`); in older ones
//! `NV_ESC_RM_ALLOC` has 40 bytes. An argument of another size or direction, or sizes of memory that cannot be or that the limit,
//! which the driver sets to the last byte, contradicts, mean that a driver has another layout: then nothing is recorded any more,
//! and [`Unknown`] says why. `NV_ESC_RM_VID_HEAP_CONTROL` is another way to allocate, which CUDA drivers of these branches are not
//! known to use: it counts as a loss.

use crate::format::{halves, pack};

/// The low 16 bits of the requests.
pub const FREE: u16 = 0x4629;
pub const ALLOC: u16 = 0x462b;
pub const DUPLICATE: u16 = 0x4634;
pub const HEAP: u16 = 0x464a;
pub const TRANSFER: u16 = 0x46d3;

/// The branch of NVIDIA's driver that culeak is tested with on GPUs: the first number of the driver's version.
pub const TESTED: u32 = 580;
/// The branches whose published sources have the layouts that are read here.
pub const COMPARED: [u32; 11] = [535, 545, 550, 555, 560, 565, 570, 575, 580, 590, 595];

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
    let bytes = number >> 16 & 0x3fff;
    let known = match (number as u16, bytes) {
        (ALLOC, 32) => Request::Alloc { status: 7 },
        (ALLOC, 48) => Request::Alloc { status: 10 },
        (FREE, 16) => Request::Free,
        (DUPLICATE, 28) => Request::Duplicate,
        (HEAP, 184) => Request::Heap,
        (TRANSFER, 16) => return None,
        (ALLOC | FREE | DUPLICATE | HEAP | TRANSFER, _) => {
            return Some(Err(Unknown::Argument {
                request: number as u8,
                bytes,
            }));
        }
        _ => return None,
    };
    Some(match number >> 30 {
        READ_AND_WRITE => Ok(known),
        _ => Err(Unknown::Direction { request: number as u8 }),
    })
}

/// The number and the argument's address of the request that `NV_ESC_IOCTL_XFER_CMD` makes, from its argument. A number
/// of [`request`]; 0 if the request cannot be a known one.
pub const fn transferred(words: [u32; 4]) -> (u32, u64) {
    let [request, bytes, low, high] = words;
    let is_possible = request <= 0xff && bytes <= 0x3fff;
    let number = if is_possible {
        3 << 30 | bytes << 16 | 0x4600 | request
    } else {
        0
    };
    (number, pack(low, high))
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

/// Offset of the words that [`memory_size`] reads in the parameters of memory.
pub const SIZE_OFFSET: u64 = 64;

/// The size in bytes of new memory of this class, from the words of its parameters: the size, three others, and the limit, which
/// the driver sets to the last byte of all memory that it gives.
///
/// # Errors
/// The words are no size and its limit, so the layout is another one: the size that they would be.
pub const fn memory_size(class: u32, words: [u32; 8]) -> Result<u64, u64> {
    let (bytes, limit) = (pack(words[0], words[1]), pack(words[6], words[7]));
    match is_plausible(class, bytes) && limit == bytes - 1 {
        true => Ok(bytes),
        false => Err(bytes),
    }
}

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
const fn is_plausible(class: u32, bytes: u64) -> bool {
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
    /// A request whose argument is not both read and written.
    Direction { request: u8 },
}

impl Unknown {
    const ARGUMENT: u64 = 1;
    const SIZE: u64 = 2;
    const DIRECTION: u64 = 3;
    const SHIFT: u32 = 56;

    /// Not 0.
    pub const fn to_word(self) -> u64 {
        match self {
            Unknown::Argument { request, bytes } => {
                Unknown::ARGUMENT << Unknown::SHIFT | (bytes as u64) << 8 | request as u64
            }
            Unknown::Size { bytes } => Unknown::SIZE << Unknown::SHIFT | bytes & ((1 << 48) - 1),
            Unknown::Direction { request } => Unknown::DIRECTION << Unknown::SHIFT | request as u64,
        }
    }
}

#[cfg(feature = "read")]
impl Unknown {
    /// In words, from a word that a recording holds; `None` for 0.
    pub fn text(word: u64) -> Option<String> {
        let (name, known) = match word as u8 {
            0x2b => ("NV_ESC_RM_ALLOC", "32 and 48"),
            0x29 => ("NV_ESC_RM_FREE", "16"),
            0x4a => ("NV_ESC_RM_VID_HEAP_CONTROL", "184"),
            0xd3 => ("NV_ESC_IOCTL_XFER_CMD", "16"),
            _ => ("NV_ESC_RM_DUP_OBJECT", "28"),
        };
        let reason = match word >> Unknown::SHIFT {
            0 if word == 0 => return None,
            Unknown::ARGUMENT => {
                let found = word >> 8 & 0xffff_ffff;
                format!("{name} has an argument of {found} bytes, where {known} are known")
            }
            Unknown::SIZE => {
                let found = word & ((1 << 48) - 1);
                format!(
                    "NV_ESC_RM_ALLOC reports memory of {found} bytes, which cannot be or is not what its limit says"
                )
            }
            Unknown::DIRECTION => format!("{name} does not both read and write its argument"),
            other => return Some(format!("reason {other}, which this build does not know")),
        };
        let [oldest, .., newest] = COMPARED;
        Some(format!("{reason}; culeak knows drivers {oldest} to {newest}"))
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
        assert_eq!(request(number(HEAP, 184)), Some(Ok(Request::Heap)));
        for (low, bytes) in [
            (ALLOC, 40),
            (ALLOC, 0),
            (FREE, 24),
            (DUPLICATE, 32),
            (HEAP, 100),
            (TRANSFER, 24),
        ] {
            let argument = Unknown::Argument {
                request: low as u8,
                bytes,
            };
            assert_eq!(request(number(low, bytes)), Some(Err(argument)), "{low:#x} {bytes}");
        }
        for (low, bytes) in [(ALLOC, 48), (FREE, 16), (DUPLICATE, 28), (HEAP, 184)] {
            let direction = Unknown::Direction { request: low as u8 };
            for other in 0..3 {
                assert_eq!(
                    request(other << 30 | number(low, bytes) & !(3 << 30)),
                    Some(Err(direction)),
                    "{other}"
                );
            }
        }
        // FBIOGET_VSCREENINFO, a request of NVIDIA's that is not read, and one that makes another.
        for other in [0x4600, number(0x462a, 32), number(TRANSFER, 16)] {
            assert_eq!(request(other), None, "{other:#x}");
        }
    }

    #[test]
    fn a_request_within_another_has_its_number_and_its_argument() {
        assert_eq!(
            transferred([0x2b, 48, 0x1000, 7]),
            (number(ALLOC, 48), 7 << 32 | 0x1000)
        );
        for words in [[0x12b, 48, 0, 0], [0x2b, 0x4000, 0, 0], [0x2b, 48 + (1 << 14), 0, 0]] {
            assert_eq!(request(transferred(words).0), None, "{words:?}");
        }
    }

    #[test]
    fn every_reason_has_a_text() {
        let argument = Unknown::Argument {
            request: 0x2b,
            bytes: 56,
        };
        assert_eq!(
            Unknown::text(argument.to_word()).as_deref(),
            Some(
                "NV_ESC_RM_ALLOC has an argument of 56 bytes, where 32 and 48 are known; culeak knows drivers 535 to 595"
            )
        );
        for (request, name) in [(0x4a, "NV_ESC_RM_VID_HEAP_CONTROL"), (0xd3, "NV_ESC_IOCTL_XFER_CMD")] {
            let direction = Unknown::Direction { request };
            assert!(Unknown::text(direction.to_word()).is_some_and(|text| text.starts_with(name)));
        }
        let size = Unknown::Size { bytes: 12345 };
        assert!(Unknown::text(size.to_word()).is_some_and(|text| text.contains("12345 bytes")));
        assert_eq!(Unknown::text(0), None);
        assert!(Unknown::text(u64::MAX).is_some());
    }

    #[test]
    fn sizes_of_memory_are_whole_pages_up_to_the_limit() {
        let size = |class, bytes: u64, limit: u64| {
            let [low, high] = [bytes as u32, (bytes >> 32) as u32];
            memory_size(class, [low, high, 9, 9, 9, 9, limit as u32, (limit >> 32) as u32])
        };
        let local = |bytes, limit| size(class::LOCAL_MEMORY, bytes, limit);
        assert_eq!(local(2 << 20, (2 << 20) - 1), Ok(2 << 20));
        assert_eq!(local(120 << 30, (120 << 30) - 1), Ok(120 << 30));
        for bytes in [0, 4097, (1 << 40) + 4096, u64::MAX] {
            assert_eq!(local(bytes, bytes.wrapping_sub(1)), Err(bytes));
        }
        // Fields of another layout: an alignment, nothing, the size itself.
        for limit in [4096, 0, 2 << 20, u64::MAX] {
            assert_eq!(local(2 << 20, limit), Err(2 << 20), "{limit}");
        }
        assert_eq!(size(class::SYSTEM_MEMORY, 100, 99), Ok(100));
        assert_eq!(size(class::SYSTEM_MEMORY, 0, u64::MAX), Err(0));
    }
}
