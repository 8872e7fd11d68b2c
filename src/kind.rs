//! The kinds of memory culeak tells apart, said once.

macro_rules! kinds {
    ($( $(#[doc = $doc:literal])* $name:ident = $number:literal, $text:literal, $place:ident; )*) => {
        /// What sort of memory (or claim on memory) a record stands for. The numbers are part of the recording format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "read", derive(serde::Serialize, serde::Deserialize))]
        #[repr(u8)]
        pub enum Kind {
            $( $(#[doc = $doc])* #[cfg_attr(feature = "read", serde(rename = $text))] $name = $number, )*
        }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];

            /// The kind with this number in a recording.
            pub const fn from_number(number: u8) -> Option<Kind> {
                match number { $( $number => Some(Kind::$name), )* _ => None }
            }

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
    /// Stream-ordered allocations out of a memory pool.
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
    /// Multicast object: an address range over several devices, 0 bytes of its own.
    Multicast = 20, "multicast", Nowhere;
    /// A block that PyTorch's caching allocator handed out of its segments.
    Tensor = 21, "tensor", Within;
    /// A buffer of XLA's (JAX), out of its own pool.
    Buffer = 22, "buffer", Within;
    /// A block of any other allocator, told by the program itself (`culeak.h`, NVTX); `domain` says which.
    Block = 23, "block", Within;
}

/// Whose memory a kind counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    Device,
    /// Migrates; counted for its device, since that is where it is asked for.
    Managed,
    Host,
    /// Holds no memory of its own: a claim, a name or a window.
    Nowhere,
    /// A framework's block: part of memory that is recorded already at the driver level, so never added to its totals.
    Within,
}

impl Place {
    /// Whether bytes of this place are memory of their own, as opposed to a name for it or a part of it.
    pub const fn holds_memory(self) -> bool {
        !matches!(self, Place::Nowhere | Place::Within)
    }

    /// The device that memory of this place counts against, given the one whose context asked for it: memory of the
    /// host counts against none.
    pub fn counts_against<D>(self, asked: Option<D>) -> Option<D> {
        asked.filter(|_| self != Place::Host)
    }

    /// Whether bytes of this place count towards a device's total.
    pub const fn on_device(self) -> bool {
        matches!(self, Place::Device | Place::Managed)
    }
}

const _: () = assert!(
    Kind::ALL.len() == 23,
    "counters are arrays of KIND_SLOTS, see recording.rs"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back_to_the_kind() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::from_number(0), None);
        assert_eq!(Kind::from_name("tape"), None);
    }
}
