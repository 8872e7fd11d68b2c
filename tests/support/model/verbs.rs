//! What each verb of a script calls, makes or frees.

use culeak::kind::Kind;

use super::Space;

/// The function that each verb calls, what it makes, and where.
pub(super) fn making(verb: &str) -> Option<(Kind, Space, &'static str)> {
    use Kind::*;
    let object = |kind| Space::Object(kind);
    Some(match verb {
        "alloc" | "deep" | "pass" => (Device, Space::Pointer, "cuMemAlloc_v2"),
        "alloc32" => (Device, Space::Pointer, "cuMemAlloc"),
        "pitch" => (Pitched, Space::Pointer, "cuMemAllocPitch_v2"),
        "managed" => (Managed, Space::Pointer, "cuMemAllocManaged"),
        "host" => (HostPinned, Space::Pointer, "cuMemHostAlloc"),
        "hostv2" => (HostPinned, Space::Pointer, "cuMemAllocHost_v2"),
        "register" => (HostRegistered, Space::Registered, "cuMemHostRegister_v2"),
        "array" => (Array, Space::Array, "cuArrayCreate_v2"),
        "array3d" => (Array, Space::Array, "cuArray3DCreate_v2"),
        "mipmap" => (Mipmapped, Space::Array, "cuMipmappedArrayCreate"),
        "async" => (Async, Space::Pointer, "cuMemAllocAsync"),
        "asyncptsz" => (Async, Space::Pointer, "cuMemAllocAsync_ptsz"),
        "frompool" => (Async, Space::Pointer, "cuMemAllocFromPoolAsync"),
        "pool" => (Pool, Space::Pool, "cuMemPoolCreate"),
        "reserve" => (Reserved, Space::Reserved, "cuMemAddressReserve"),
        "physical" => (Physical, Space::Physical, "cuMemCreate"),
        "map" => (Mapping, Space::Mapping, "cuMemMap"),
        "import" => (Imported, Space::Physical, "cuMemImportFromShareableHandle"),
        "multicast" => (Multicast, Space::Physical, "cuMulticastCreate"),
        "open" => (Ipc, Space::Pointer, "cuIpcOpenMemHandle_v2"),
        "external" => (External, Space::External, "cuImportExternalMemory"),
        "external_map" => (ExternalMapping, Space::Pointer, "cuExternalMemoryGetMappedBuffer"),
        "graph" => (GraphObject, object(GraphObject), "cuGraphCreate"),
        "endcapture" => (GraphObject, object(GraphObject), "cuStreamEndCapture"),
        "instantiate" => (GraphExec, object(GraphExec), "cuGraphInstantiateWithFlags"),
        "context" => (Context, object(Context), "cuCtxCreate_v2"),
        "stream" => (Stream, object(Stream), "cuStreamCreate"),
        "event" => (Event, object(Event), "cuEventCreate"),
        "module" => (Module, object(Module), "cuModuleLoadData"),
        "library" => (Library, object(Library), "cuLibraryLoadData"),
        "userobject" => (UserObject, object(UserObject), "cuUserObjectCreate"),
        "texture" => (Texture, object(Texture), "cuTexObjectCreate"),
        _ => return None,
    })
}

/// What each verb frees whose first argument is an address or handle.
pub(super) fn freeing(verb: &str) -> Option<Space> {
    use Kind::*;
    Some(match verb {
        "free" | "freehost" => Space::Pointer,
        "unregister" => Space::Registered,
        "freearray" | "freemipmap" => Space::Array,
        "freepool" => Space::Pool,
        "unreserve" => Space::Reserved,
        "freeexternal" => Space::External,
        "freestream" => Space::Object(Stream),
        "freeevent" => Space::Object(Event),
        "unload" => Space::Object(Module),
        "unloadlibrary" => Space::Object(Library),
        "freetexture" => Space::Object(Texture),
        "freeexec" => Space::Object(GraphExec),
        "freegraph" => Space::Object(GraphObject),
        _ => return None,
    })
}

pub(super) const STEP: u64 = 512;
pub(super) const OUT_OF_MEMORY: i32 = 2;
pub(super) const PER_THREAD: u64 = 2;

pub(super) fn is_freed_with_context(kind: Kind) -> bool {
    use Kind::*;
    let survives = [
        UserObject,
        Async,
        Physical,
        HostPhysical,
        Graph,
        Pool,
        Reserved,
        Mapping,
        Imported,
        Multicast,
        Library,
        GraphObject,
        GraphExec,
        Context,
        Block,
    ];
    !survives.contains(&kind)
}
