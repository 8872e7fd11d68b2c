//! The kinds of memory, and of objects without an address, that culeak distinguishes.

use crate::numbered::numbered;

macro_rules! kinds {
    ($( $(#[doc = $doc:literal])* $name:ident = $number:literal, $text:literal, $place:ident; )*) => {
        numbered! {
            /// The kind of memory (or of a claim on memory) of a record. The numbers are part of the recording format.
            #[derive(Hash, PartialOrd, Ord)]
            #[cfg_attr(feature = "read", derive(serde::Serialize, serde::Deserialize))]
            #[cfg_attr(all(test, feature = "read"), derive(schemars::JsonSchema))]
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
    /// Memory on a device that the kernel driver gave to the process: what all other memory on it lies in.
    Segment = 24, "segment", Segment;
    /// Host memory that the kernel driver pinned for the process.
    HostSegment = 25, "host-segment", Segment;
    /// A channel, by which the driver sends work to a device. Counts 0 bytes.
    Channel = 26, "channel", Segment;
    Stream = 32, "stream", Object;
    Event = 33, "event", Object;
    Module = 34, "module", Object;
    Library = 35, "library", Object;
    /// A graph as it is built or captured.
    GraphObject = 36, "graph-object", Object;
    /// An executable graph.
    GraphExec = 37, "graph-exec", Object;
    GreenContext = 38, "green-context", Object;
    Texture = 39, "texture", Object;
    Surface = 40, "surface", Object;
    ExternalSemaphore = 41, "external-semaphore", Object;
    /// A user object of graphs, while the program itself has a reference to it.
    UserObject = 42, "user-object", Object;
    /// The state of a just-in-time linker.
    Linker = 43, "linker", Object;
    /// A buffer or image of OpenGL, EGL or VDPAU that CUDA may use.
    GraphicsResource = 44, "graphics-resource", Object;
    /// A context that the program created; a primary context is the device's.
    Context = 46, "context", Object;
}

impl Kind {
    /// Whether this is an object that a program creates and destroys, and that holds no memory of its own by its kind.
    pub const fn is_object(self) -> bool {
        matches!(self.place(), Place::Object) || matches!(self, Kind::Pool | Kind::External | Kind::Multicast)
    }

    /// What one and several of this kind are called in a sentence: `executable graph`, `executable graphs`.
    pub const fn nouns(self) -> [&'static str; 2] {
        use Kind::*;
        match self {
            Pool => ["memory pool", "memory pools"],
            Reserved => ["address range", "address ranges"],
            Mapping => ["mapping", "mappings"],
            Imported => ["imported handle", "imported handles"],
            Ipc => ["IPC handle", "IPC handles"],
            PoolImport => ["import from a pool", "imports from a pool"],
            External => ["external memory object", "external memory objects"],
            ExternalMapping => ["mapping of external memory", "mappings of external memory"],
            Multicast => ["multicast object", "multicast objects"],
            Stream => ["stream", "streams"],
            Event => ["event", "events"],
            Module => ["module", "modules"],
            Library => ["library", "libraries"],
            GraphObject => ["graph", "graphs"],
            GraphExec => ["executable graph", "executable graphs"],
            GreenContext => ["green context", "green contexts"],
            Texture => ["texture", "textures"],
            Surface => ["surface", "surfaces"],
            ExternalSemaphore => ["external semaphore", "external semaphores"],
            UserObject => ["user object", "user objects"],
            Linker => ["linker", "linkers"],
            GraphicsResource => ["graphics resource", "graphics resources"],
            Context => ["context", "contexts"],
            Channel => ["channel", "channels"],
            Segment | HostSegment => ["segment", "segments"],
            Tensor => ["tensor", "tensors"],
            Buffer => ["buffer", "buffers"],
            Device | Pitched | Array | Mipmapped | Async | Physical | Graph | Managed | HostPinned | HostRegistered
            | HostPhysical | Block => ["block", "blocks"],
        }
    }

    /// The kinds of objects.
    pub fn objects() -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(|kind| kind.is_object())
    }

    /// Whether its bytes count towards a device's total.
    #[inline]
    pub const fn on_device(self) -> bool {
        const SET: u64 = Kind::set_of(Place::Device) | Kind::set_of(Place::Managed);
        SET >> self as u8 & 1 != 0
    }

    /// Whether this is a block of a framework allocator.
    #[inline]
    pub const fn is_within(self) -> bool {
        const SET: u64 = Kind::set_of(Place::Within);
        SET >> self as u8 & 1 != 0
    }

    /// The kinds in this place, one bit each: a constant of the code, unlike the table that `place` reads.
    const fn set_of(place: Place) -> u64 {
        let (mut set, mut next) = (0, 0);
        while next < Kind::ALL.len() {
            let kind = Kind::ALL[next];
            set |= ((kind.place() as u8 == place as u8) as u64) << kind as u8;
            next += 1;
        }
        set
    }

    /// The kinds of memory and of claims on it.
    pub fn of_memory() -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(|kind| kind.place().is_memory())
    }
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
    /// Memory that the driver's own memory lies in, so never added to the totals.
    Segment,
    /// An object without an address, which takes 0 bytes: what the driver allocates for it is in segments.
    Object,
}

impl Place {
    /// The device that memory of this place counts against, given the device of the context that allocated it: host memory
    /// counts against none.
    pub fn counts_against<D>(self, device: Option<D>) -> Option<D> {
        device.filter(|_| self != Place::Host)
    }

    /// Whether this is memory that the program requested, or a claim on such memory.
    pub const fn is_memory(self) -> bool {
        !matches!(self, Place::Segment | Place::Object)
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
    fn sets_of_kinds_agree_with_their_places() {
        for kind in Kind::ALL {
            assert_eq!(kind.on_device(), kind.place().on_device(), "{kind:?}");
            assert_eq!(kind.is_within(), kind.place() == Place::Within, "{kind:?}");
        }
    }

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
