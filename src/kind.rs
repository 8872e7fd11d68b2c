//! The kinds of memory that culeak distinguishes.

use crate::numbered::numbered;

macro_rules! kinds {
    ($( $(#[doc = $doc:literal])* $name:ident = $number:literal, $text:literal, $place:ident; )*) => {
        numbered! {
            /// The kind of memory (or of a claim on memory) of a record. The numbers are part of the recording format.
            #[derive(Hash, PartialOrd, Ord)]
            #[cfg_attr(feature = "read", derive(serde::Serialize, serde::Deserialize))]
            pub enum Kind: u8 {
                $( $(#[doc = $doc])* #[cfg_attr(feature = "read", serde(rename = $text))] $name = $number, )*
            }
        }

        impl Kind {
            /// The word used in reports, `--kind` and JSON.
            pub const fn name(self) -> &'static str {
                match self { $( Kind::$name => $text, )* }
            }

            pub const fn place(self) -> Place {
                match self { $( Kind::$name => Place::$place, )* }
            }

            pub fn from_name(name: &str) -> Option<Kind> {
                match name { $( $text => Some(Kind::$name), )* _ => None }
            }
        }
    };
}

kinds! {
    /// cuMemAlloc, cudaMalloc.
    Device = 1, "device", Device;
    /// cuMemAllocPitch, cudaMallocPitch, cudaMalloc3D.
    Pitched = 2, "pitched", Device;
    /// CUDA arrays.
    Array = 3, "array", Device;
    /// Mipmapped arrays.
    Mipmapped = 4, "mipmapped", Device;
    /// Stream-ordered allocations from a memory pool.
    Async = 5, "async", Device;
    /// Physical memory from cuMemCreate: lives while a handle or a mapping does.
    Physical = 6, "physical", Device;
    /// Memory of a launched graph.
    Graph = 7, "graph", Device;
    /// Unified memory: on the device, on the host, or on neither yet.
    Managed = 8, "managed", Managed;
    /// Page-locked host memory from CUDA.
    HostPinned = 9, "pinned", Host;
    /// The program's own host memory, page-locked with cuMemHostRegister.
    HostRegistered = 10, "registered", Host;
    /// Physical memory from cuMemCreate placed in host memory.
    HostPhysical = 11, "host-physical", Host;
    /// A memory pool object.
    Pool = 12, "pool", Nowhere;
    /// Reserved virtual address range.
    Reserved = 13, "reserved", Nowhere;
    /// Mapping of a VMM handle into an address range.
    Mapping = 14, "mapping", Nowhere;
    /// VMM handle imported from another process.
    Imported = 15, "imported", Nowhere;
    /// Opened IPC handle.
    Ipc = 16, "ipc", Nowhere;
    /// Pointer or pool imported from another process's pool.
    PoolImport = 17, "pool-import", Nowhere;
    /// External memory object (Vulkan, D3D, NvSci …).
    External = 18, "external", Nowhere;
    /// Buffer or mipmap mapped from an external memory object.
    ExternalMapping = 19, "external-mapping", Nowhere;
    /// Multicast object: an address range over several devices. Counts 0 bytes.
    Multicast = 20, "multicast", Nowhere;
    /// A block that PyTorch's caching allocator allocated from its segments.
    Tensor = 21, "tensor", Within;
    /// An XLA (JAX) buffer, from XLA's memory pool.
    Buffer = 22, "buffer", Within;
    /// A block of any other allocator, reported by the program (`culeak.h`, NVTX); `domain` names the allocator.
    Block = 23, "block", Within;
}

/// The memory that a kind counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    Device,
    /// Migrates; counted for the device of the context that allocated it.
    Managed,
    Host,
    /// Holds no memory: a reservation, a handle or a mapping.
    Nowhere,
    /// A block of a framework allocator: part of memory that is recorded at the driver level, so never added to the totals.
    Within,
}

impl Place {
    /// The device that memory of this place counts against, given the device of the context that allocated it: host memory
    /// counts against none.
    pub fn counts_against<D>(self, device: Option<D>) -> Option<D> {
        device.filter(|_| self != Place::Host)
    }

    /// Whether bytes of this place count towards a device's total.
    pub const fn on_device(self) -> bool {
        matches!(self, Place::Device | Place::Managed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_identify_the_kind() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::from_number(0), None);
        assert_eq!(Kind::from_name("tape"), None);
    }
}
