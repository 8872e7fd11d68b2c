//! Every CUDA function that culeak hooks, one row each.
//!
//! The exported hooks, the look-ups by name and address, the signature check against cudarc's bindings, the fake driver and
//! the coverage test are generated from these rows. A row is the C signature and one verb for the effect of the call on
//! memory; how a verb is recorded is written once, in the shim (`effects.rs`), and how it is imitated, once, in the fake
//! driver.
//!
//! ```text
//! cuMemAlloc_v2 = cuMemAlloc_v2 (out: *mut CUdeviceptr, bytes: usize) => allocates(Device, out, bytes);
//! │               │              │                                       └ verb: the effect, and its arguments
//! │               │              └ types are cudarc's; `Enum<T>` is T, passed as an integer since newer programs pass newer values
//! │               └ cudarc binding with the same signature (`none`: cudarc has none for this CUDA version)
//! └ exported symbol; each ABI version (`_v2`, `_ptsz`) has a row
//! ```
//!
//! Driver functions return a CUresult, runtime functions a cudaError_t; hooks pass both as plain integers.
//!
//! Deliberately absent: version tables (a function is found again by the address the driver returned), and runtime
//! functions whose one exported name has different arguments in CUDA 11, 12 and 13 (`cudaGraphAddNode`,
//! `cudaGraphInstantiate`, `cudaStreamGetCaptureInfo`, `cudaGetDriverEntryPoint`): the driver layer sees those calls
//! under distinct names.

/// Calls `$then! { rows }` with every driver function.
#[macro_export]
macro_rules! driver_functions {
    ($then:ident) => {
        $then! {
            // Look-ups and start-up.
            cuInit = cuInit (flags: c_uint) => initializes();
            cuGetProcAddress = none (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) => looks_up(symbol, function);
            cuGetProcAddress_v2 = cuGetProcAddress_v2 (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut CUdriverProcAddressQueryResult) => looks_up(symbol, function);
            cuGetExportTable = cuGetExportTable (table: *mut *const c_void, id: *const CUuuid) => hands_out_table(id);

            // Linear memory. The unsuffixed names are the 32-bit ABI of CUDA 2: they read and write 4 bytes.
            cuMemAlloc = none (out: *mut c_uint, bytes: c_uint) => allocates(Device, out, bytes);
            cuMemAlloc_v2 = cuMemAlloc_v2 (out: *mut CUdeviceptr, bytes: usize) => allocates(Device, out, bytes);
            cuMemAllocPitch = none (out: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) => allocates_pitched(out, pitch, width, height);
            cuMemAllocPitch_v2 = cuMemAllocPitch_v2 (out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) => allocates_pitched(out, pitch, width, height);
            cuMemAllocManaged = cuMemAllocManaged (out: *mut CUdeviceptr, bytes: usize, flags: c_uint) => allocates(Managed, out, bytes);
            cuMemFree = none (address: c_uint) => frees(address);
            cuMemFree_v2 = cuMemFree_v2 (address: CUdeviceptr) => frees(address);

            // Page-locked host memory.
            cuMemAllocHost = none (out: *mut *mut c_void, bytes: c_uint) => allocates(HostPinned, out, bytes);
            cuMemAllocHost_v2 = cuMemAllocHost_v2 (out: *mut *mut c_void, bytes: usize) => allocates(HostPinned, out, bytes);
            cuMemHostAlloc = cuMemHostAlloc (out: *mut *mut c_void, bytes: usize, flags: c_uint) => allocates(HostPinned, out, bytes);
            cuMemFreeHost = cuMemFreeHost (address: *mut c_void) => frees(address);
            cuMemHostRegister = none (address: *mut c_void, bytes: usize, flags: c_uint) => registers(address, bytes);
            cuMemHostRegister_v2 = cuMemHostRegister_v2 (address: *mut c_void, bytes: usize, flags: c_uint) => registers(address, bytes);
            cuMemHostUnregister = cuMemHostUnregister (address: *mut c_void) => unregisters(address);

            // Arrays: handles, not addresses.
            cuArrayCreate = none (out: *mut CUarray, descriptor: *const ArrayDescriptorV1) => creates_array(out, descriptor);
            cuArrayCreate_v2 = cuArrayCreate_v2 (out: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) => creates_array(out, descriptor);
            cuArray3DCreate = none (out: *mut CUarray, descriptor: *const Array3dDescriptorV1) => creates_array(out, descriptor);
            cuArray3DCreate_v2 = cuArray3DCreate_v2 (out: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) => creates_array(out, descriptor);
            cuArrayDestroy = cuArrayDestroy (array: CUarray) => destroys_array(array);
            cuMipmappedArrayCreate = cuMipmappedArrayCreate (out: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) => creates_mipmap(out, descriptor, levels);
            cuMipmappedArrayDestroy = cuMipmappedArrayDestroy (array: CUmipmappedArray) => destroys_array(array);

            // Stream-ordered memory. In `_ptsz` functions stream 0 is the per-thread default stream.
            cuMemAllocAsync = cuMemAllocAsync (out: *mut CUdeviceptr, bytes: usize, stream: CUstream) => allocates_async(out, bytes, CURRENT_POOL, stream, Legacy);
            cuMemAllocAsync_ptsz = cuMemAllocAsync (out: *mut CUdeviceptr, bytes: usize, stream: CUstream) => allocates_async(out, bytes, CURRENT_POOL, stream, PerThread);
            cuMemAllocFromPoolAsync = cuMemAllocFromPoolAsync (out: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) => allocates_async(out, bytes, pool, stream, Legacy);
            cuMemAllocFromPoolAsync_ptsz = cuMemAllocFromPoolAsync (out: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) => allocates_async(out, bytes, pool, stream, PerThread);
            cuMemFreeAsync = cuMemFreeAsync (address: CUdeviceptr, stream: CUstream) => frees_async(address, stream, Legacy);
            cuMemFreeAsync_ptsz = cuMemFreeAsync (address: CUdeviceptr, stream: CUstream) => frees_async(address, stream, PerThread);

            // Pools.
            cuMemPoolCreate = cuMemPoolCreate (out: *mut CUmemoryPool, properties: *const CUmemPoolProps) => creates_pool(out, properties);
            cuMemPoolDestroy = cuMemPoolDestroy (pool: CUmemoryPool) => destroys_pool(pool);
            cuMemPoolTrimTo = cuMemPoolTrimTo (pool: CUmemoryPool, keep: usize) => observes();
            cuDeviceSetMemPool = cuDeviceSetMemPool (device: CUdevice, pool: CUmemoryPool) => sets_pool(device, pool);
            cuMemSetMemPool = cuMemSetMemPool (location: *mut CUmemLocation, kind: Enum<CUmemAllocationType>, pool: CUmemoryPool) => sets_pool_of(location, kind, pool);
            cuMemPoolExportToShareableHandle = cuMemPoolExportToShareableHandle (out: *mut c_void, pool: CUmemoryPool, handle_type: Enum<CUmemAllocationHandleType>, flags: u64) => observes();
            cuMemPoolImportFromShareableHandle = cuMemPoolImportFromShareableHandle (out: *mut CUmemoryPool, handle: *mut c_void, handle_type: Enum<CUmemAllocationHandleType>, flags: u64) => imports_pool(out);
            cuMemPoolImportPointer = cuMemPoolImportPointer (out: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData) => imports_pointer(out, pool);

            // Virtual memory management: physical memory lives while a handle reference or a mapping does.
            cuMemAddressReserve = cuMemAddressReserve (out: *mut CUdeviceptr, bytes: usize, alignment: usize, wish: CUdeviceptr, flags: u64) => reserves(out, bytes);
            cuMemAddressFree = cuMemAddressFree (address: CUdeviceptr, bytes: usize) => unreserves(address);
            cuMemCreate = cuMemCreate (out: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: u64) => creates_physical(out, bytes, properties);
            cuMemRelease = cuMemRelease (handle: CUmemGenericAllocationHandle) => releases_physical(handle);
            cuMemRetainAllocationHandle = cuMemRetainAllocationHandle (out: *mut CUmemGenericAllocationHandle, address: *mut c_void) => retains_physical(out, address);
            cuMemMap = cuMemMap (address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) => maps(address, bytes, handle);
            cuMemUnmap = cuMemUnmap (address: CUdeviceptr, bytes: usize) => unmaps(address, bytes);
            cuMemMapArrayAsync = cuMemMapArrayAsync (list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream) => observes();
            cuMemMapArrayAsync_ptsz = cuMemMapArrayAsync (list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream) => observes();
            cuMemExportToShareableHandle = cuMemExportToShareableHandle (out: *mut c_void, handle: CUmemGenericAllocationHandle, handle_type: Enum<CUmemAllocationHandleType>, flags: u64) => observes();
            cuMemImportFromShareableHandle = cuMemImportFromShareableHandle (out: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void, handle_type: Enum<CUmemAllocationHandleType>) => imports_physical(out);

            // Multicast objects: an address range over several devices. They count 0 bytes.
            cuMulticastCreate = cuMulticastCreate (out: *mut CUmemGenericAllocationHandle, properties: *const CUmulticastObjectProp) => creates_multicast(out, properties);
            cuMulticastBindMem = cuMulticastBindMem (multicast: CUmemGenericAllocationHandle, offset: usize, handle: CUmemGenericAllocationHandle, handle_offset: usize, bytes: usize, flags: u64) => observes();
            cuMulticastBindMem_v2 = cuMulticastBindMem_v2 (multicast: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, handle: CUmemGenericAllocationHandle, handle_offset: usize, bytes: usize, flags: u64) => observes();
            cuMulticastBindAddr = cuMulticastBindAddr (multicast: CUmemGenericAllocationHandle, offset: usize, address: CUdeviceptr, bytes: usize, flags: u64) => observes();
            cuMulticastBindAddr_v2 = cuMulticastBindAddr_v2 (multicast: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, address: CUdeviceptr, bytes: usize, flags: u64) => observes();
            cuMulticastUnbind = cuMulticastUnbind (multicast: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, bytes: usize) => observes();

            // Logical endpoints: memory that is bound to one can be reached from other machines. They count 0 bytes.
            cuLogicalEndpointIdReserve = cuLogicalEndpointIdReserve (out: *mut CUlogicalEndpointId, count: c_uint) => observes();
            cuLogicalEndpointIdRelease = cuLogicalEndpointIdRelease (first: CUlogicalEndpointId, count: c_uint) => observes();
            cuLogicalEndpointCreate = cuLogicalEndpointCreate (endpoint: CUlogicalEndpointId, properties: *const CUlogicalEndpointProp) => observes();
            cuLogicalEndpointImport = cuLogicalEndpointImport (endpoint: CUlogicalEndpointId, handle: *const c_void, handle_type: Enum<CUlogicalEndpointIpcHandleType>) => observes();
            cuLogicalEndpointDestroy = cuLogicalEndpointDestroy (endpoint: CUlogicalEndpointId) => observes();
            cuLogicalEndpointBindMem = cuLogicalEndpointBindMem (endpoint: CUlogicalEndpointId, device: CUdevice, offset: u64, handle: CUmemGenericAllocationHandle, handle_offset: u64, bytes: u64, flags: u64) => observes();
            cuLogicalEndpointBindAddr = cuLogicalEndpointBindAddr (endpoint: CUlogicalEndpointId, device: CUdevice, offset: u64, address: *mut c_void, bytes: u64, flags: u64) => observes();
            cuLogicalEndpointUnbind = cuLogicalEndpointUnbind (endpoint: CUlogicalEndpointId, device: CUdevice, offset: u64, bytes: u64) => observes();
            cuMemGetLocationInfo = cuMemGetLocationInfo (address: CUdeviceptr, bytes: usize, granularity: usize, sampling: usize, out: *mut CUmemLocation) => observes();

            // An opened IPC handle maps another process's memory and counts 0 bytes. The handle's bytes tell which memory it is.
            cuIpcGetMemHandle = cuIpcGetMemHandle (out: *mut CUipcMemHandle, address: CUdeviceptr) => exports_ipc(out, address);
            cuIpcOpenMemHandle = cuIpcOpenMemHandle_v2 (out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) => opens_ipc(out, handle);
            cuIpcOpenMemHandle_v2 = cuIpcOpenMemHandle_v2 (out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) => opens_ipc(out, handle);
            cuIpcCloseMemHandle = cuIpcCloseMemHandle (address: CUdeviceptr) => closes_ipc(address);

            // A checkpoint with custom storage maps another process's memory here until it is complete. It counts 0 bytes.
            cuCheckpointProcessCheckpoint = none (pid: c_int, arguments: *mut CUcheckpointCheckpointArgs) => observes();
            cuCheckpointProcessRestore = none (pid: c_int, arguments: *mut CUcheckpointRestoreArgs) => observes();
            cuCheckpointOperationComplete = none (operation: *mut c_void) => observes();

            // Memory of other APIs.
            cuImportExternalMemory = cuImportExternalMemory (out: *mut CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC) => imports_external(out, descriptor);
            cuExternalMemoryGetMappedBuffer = cuExternalMemoryGetMappedBuffer (out: *mut CUdeviceptr, external: CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC) => maps_external(out, descriptor);
            cuExternalMemoryGetMappedMipmappedArray = cuExternalMemoryGetMappedMipmappedArray (out: *mut CUmipmappedArray, external: CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC) => maps_external_mipmap(out);
            cuDestroyExternalMemory = cuDestroyExternalMemory (external: CUexternalMemory) => destroys_external(external);

            // Graph memory is live from a launch, not from a capture.
            cuGraphAddMemAllocNode = cuGraphAddMemAllocNode (node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS) => adds_alloc_node(graph, params);
            cuGraphAddMemFreeNode = cuGraphAddMemFreeNode (node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, address: CUdeviceptr) => adds_free_node(graph, address);
            cuGraphAddNode = none (node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *mut CUgraphNodeParams) => adds_node(graph, params);
            cuGraphAddNode_v2 = cuGraphAddNode_v2 (node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, params: *mut CUgraphNodeParams) => adds_node(graph, params);
            cuGraphAddNode_v3 = cuGraphAddNode_v3 (node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, params: *mut CUgraphNodeParams) => adds_node(graph, params);
            cuGraphAddChildGraphNode = cuGraphAddChildGraphNode (node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, child: CUgraph) => adds_child(graph, child);
            // The parameters of memory nodes cannot be set.
            cuGraphNodeSetParams = cuGraphNodeSetParams (node: CUgraphNode, params: *mut CUgraphNodeParams) => observes();
            cuGraphNodeSetParams_v2 = cuGraphNodeSetParams_v2 (node: CUgraphNode, params: *mut CUgraphNodeParams) => observes();
            cuGraphExecNodeSetParams = cuGraphExecNodeSetParams (exec: CUgraphExec, node: CUgraphNode, params: *mut CUgraphNodeParams) => observes();
            cuGraphInstantiate = none (out: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char, log_bytes: usize) => instantiates(out, graph);
            cuGraphInstantiate_v2 = none (out: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char, log_bytes: usize) => instantiates(out, graph);
            cuGraphInstantiateWithFlags = cuGraphInstantiateWithFlags (out: *mut CUgraphExec, graph: CUgraph, flags: u64) => instantiates(out, graph);
            cuGraphInstantiateWithParams = cuGraphInstantiateWithParams (out: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) => instantiates(out, graph);
            cuGraphInstantiateWithParams_ptsz = cuGraphInstantiateWithParams (out: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) => instantiates(out, graph);
            cuGraphLaunch = cuGraphLaunch (exec: CUgraphExec, stream: CUstream) => launches(exec, stream, Legacy);
            cuGraphLaunch_ptsz = cuGraphLaunch (exec: CUgraphExec, stream: CUstream) => launches(exec, stream, PerThread);
            cuGraphExecDestroy = cuGraphExecDestroy (exec: CUgraphExec) => destroys_exec(exec);
            cuGraphDestroy = cuGraphDestroy (graph: CUgraph) => destroys_graph(graph);
            cuDeviceGraphMemTrim = cuDeviceGraphMemTrim (device: CUdevice) => observes();
            cuStreamBeginCapture = none (stream: CUstream) => begins_capture(stream, Legacy);
            cuStreamBeginCapture_ptsz = none (stream: CUstream) => begins_capture(stream, PerThread);
            cuStreamBeginCapture_v2 = cuStreamBeginCapture_v2 (stream: CUstream, mode: Enum<CUstreamCaptureMode>) => begins_capture(stream, Legacy);
            cuStreamBeginCapture_v2_ptsz = cuStreamBeginCapture_v2 (stream: CUstream, mode: Enum<CUstreamCaptureMode>) => begins_capture(stream, PerThread);
            cuStreamBeginCaptureToGraph = cuStreamBeginCaptureToGraph (stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: Enum<CUstreamCaptureMode>) => begins_capture_to_graph();
            cuStreamBeginCaptureToGraph_ptsz = cuStreamBeginCaptureToGraph (stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: Enum<CUstreamCaptureMode>) => begins_capture_to_graph();
            // A recapture repeats the memory nodes that the graph has.
            cuStreamBeginRecaptureToGraph = cuStreamBeginRecaptureToGraph (stream: CUstream, mode: Enum<CUstreamCaptureMode>, graph: CUgraph, callback: CUgraphRecaptureCallback, data: *mut c_void) => begins_capture_to_graph();
            cuStreamBeginRecaptureToGraph_ptsz = cuStreamBeginRecaptureToGraph (stream: CUstream, mode: Enum<CUstreamCaptureMode>, graph: CUgraph, callback: CUgraphRecaptureCallback, data: *mut c_void) => begins_capture_to_graph();
            cuStreamEndCapture = cuStreamEndCapture (stream: CUstream, graph: *mut CUgraph) => ends_capture(stream, graph, Legacy);
            cuStreamEndCapture_ptsz = cuStreamEndCapture (stream: CUstream, graph: *mut CUgraph) => ends_capture(stream, graph, PerThread);

            // Contexts: destroying one frees its linear, host and managed memory and its arrays, but no pool or VMM memory.
            cuCtxCreate = none (out: *mut CUcontext, flags: c_uint, device: CUdevice) => creates_context(out, device);
            cuCtxCreate_v2 = none (out: *mut CUcontext, flags: c_uint, device: CUdevice) => creates_context(out, device);
            cuCtxCreate_v3 = none (out: *mut CUcontext, affinity: *mut CUexecAffinityParam, count: c_int, flags: c_uint, device: CUdevice) => creates_context(out, device);
            cuCtxCreate_v4 = cuCtxCreate_v4 (out: *mut CUcontext, params: *mut CUctxCreateParams, flags: c_uint, device: CUdevice) => creates_context(out, device);
            cuCtxSetLimit = cuCtxSetLimit (limit: Enum<CUlimit>, value: usize) => sets_limit(limit, value);
            cuCtxDestroy = none (context: CUcontext) => destroys_context(context);
            cuCtxDestroy_v2 = cuCtxDestroy_v2 (context: CUcontext) => destroys_context(context);
            cuCtxAttach = cuCtxAttach (out: *mut CUcontext, flags: c_uint) => attaches_context(out);
            cuCtxDetach = cuCtxDetach (context: CUcontext) => detaches_context(context);
            cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain (out: *mut CUcontext, device: CUdevice) => retains_primary(out, device);
            cuDevicePrimaryCtxRelease = none (device: CUdevice) => releases_primary(device);
            cuDevicePrimaryCtxRelease_v2 = cuDevicePrimaryCtxRelease_v2 (device: CUdevice) => releases_primary(device);
            cuDevicePrimaryCtxReset = none (device: CUdevice) => resets_primary(device);
            cuDevicePrimaryCtxReset_v2 = cuDevicePrimaryCtxReset_v2 (device: CUdevice) => resets_primary(device);

            // Objects without an address.
            cuStreamCreate = cuStreamCreate (out: *mut CUstream, flags: c_uint) => creates(Stream, out);
            cuStreamCreateWithPriority = cuStreamCreateWithPriority (out: *mut CUstream, flags: c_uint, priority: c_int) => creates(Stream, out);
            cuGreenCtxStreamCreate = cuGreenCtxStreamCreate (out: *mut CUstream, context: CUgreenCtx, flags: c_uint, priority: c_int) => creates(Stream, out);
            cuStreamDestroy = none (stream: CUstream) => destroys(Stream, stream);
            cuStreamDestroy_v2 = cuStreamDestroy_v2 (stream: CUstream) => destroys(Stream, stream);
            cuEventCreate = cuEventCreate (out: *mut CUevent, flags: c_uint) => creates(Event, out);
            cuEventDestroy = none (event: CUevent) => destroys(Event, event);
            cuEventDestroy_v2 = cuEventDestroy_v2 (event: CUevent) => destroys(Event, event);
            cuEventCreateFromEGLSync = none (out: *mut CUevent, sync: *mut c_void, flags: c_uint) => creates(Event, out);
            cuIpcOpenEventHandle = cuIpcOpenEventHandle (out: *mut CUevent, handle: CUipcEventHandle) => creates(Event, out);
            cuModuleLoad = cuModuleLoad (out: *mut CUmodule, path: *const c_char) => creates(Module, out);
            cuModuleLoadData = cuModuleLoadData (out: *mut CUmodule, image: *const c_void) => creates(Module, out);
            cuModuleLoadDataEx = cuModuleLoadDataEx (out: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void) => creates(Module, out);
            cuModuleLoadFatBinary = cuModuleLoadFatBinary (out: *mut CUmodule, image: *const c_void) => creates(Module, out);
            cuModuleUnload = cuModuleUnload (module: CUmodule) => destroys(Module, module);
            cuLibraryLoadData = cuLibraryLoadData (out: *mut CUlibrary, image: *const c_void, options: *mut CUjit_option, values: *mut *mut c_void, count: c_uint, library_options: *mut CUlibraryOption, library_values: *mut *mut c_void, library_count: c_uint) => creates(Library, out);
            cuLibraryLoadFromFile = cuLibraryLoadFromFile (out: *mut CUlibrary, path: *const c_char, options: *mut CUjit_option, values: *mut *mut c_void, count: c_uint, library_options: *mut CUlibraryOption, library_values: *mut *mut c_void, library_count: c_uint) => creates(Library, out);
            cuLibraryUnload = cuLibraryUnload (library: CUlibrary) => destroys(Library, library);
            cuModuleGetFunction = cuModuleGetFunction (out: *mut CUfunction, module: CUmodule, name: *const c_char) => names_kernel(Module, module, name);
            cuLibraryGetKernel = cuLibraryGetKernel (out: *mut CUkernel, library: CUlibrary, name: *const c_char) => names_kernel(Library, library, name);
            cuLinkCreate = none (count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void, out: *mut CUlinkState) => creates(Linker, out);
            cuLinkCreate_v2 = cuLinkCreate_v2 (count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void, out: *mut CUlinkState) => creates(Linker, out);
            cuLinkDestroy = cuLinkDestroy (linker: CUlinkState) => destroys(Linker, linker);
            cuGraphCreate = cuGraphCreate (out: *mut CUgraph, flags: c_uint) => creates(GraphObject, out);
            cuGraphClone = cuGraphClone (out: *mut CUgraph, original: CUgraph) => creates(GraphObject, out);
            cuUserObjectCreate = cuUserObjectCreate (out: *mut CUuserObject, pointer: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint) => creates_user_object(out, count);
            cuUserObjectRetain = cuUserObjectRetain (object: CUuserObject, count: c_uint) => retains_user_object(object, count);
            cuUserObjectRelease = cuUserObjectRelease (object: CUuserObject, count: c_uint) => releases_user_object(object, count);
            cuGraphRetainUserObject = cuGraphRetainUserObject (graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) => gives_user_object(object, count, flags);
            cuGreenCtxCreate = cuGreenCtxCreate (out: *mut CUgreenCtx, resources: CUdevResourceDesc, device: CUdevice, flags: c_uint) => creates_on(GreenContext, out, device);
            cuGreenCtxDestroy = cuGreenCtxDestroy (context: CUgreenCtx) => destroys(GreenContext, context);
            cuTexObjectCreate = cuTexObjectCreate (out: *mut CUtexObject, resource: *const CUDA_RESOURCE_DESC, texture: *const CUDA_TEXTURE_DESC, view: *const CUDA_RESOURCE_VIEW_DESC) => creates(Texture, out);
            cuTexObjectDestroy = cuTexObjectDestroy (texture: CUtexObject) => destroys(Texture, texture);
            cuSurfObjectCreate = cuSurfObjectCreate (out: *mut CUsurfObject, resource: *const CUDA_RESOURCE_DESC) => creates(Surface, out);
            cuSurfObjectDestroy = cuSurfObjectDestroy (surface: CUsurfObject) => destroys(Surface, surface);
            cuImportExternalSemaphore = cuImportExternalSemaphore (out: *mut CUexternalSemaphore, descriptor: *const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC) => creates(ExternalSemaphore, out);
            cuDestroyExternalSemaphore = cuDestroyExternalSemaphore (semaphore: CUexternalSemaphore) => destroys(ExternalSemaphore, semaphore);
            cuGraphicsGLRegisterBuffer = none (out: *mut CUgraphicsResource, buffer: c_uint, flags: c_uint) => creates(GraphicsResource, out);
            cuGraphicsGLRegisterImage = none (out: *mut CUgraphicsResource, image: c_uint, target: c_uint, flags: c_uint) => creates(GraphicsResource, out);
            cuGraphicsEGLRegisterImage = none (out: *mut CUgraphicsResource, image: *mut c_void, flags: c_uint) => creates(GraphicsResource, out);
            cuGraphicsVDPAURegisterVideoSurface = none (out: *mut CUgraphicsResource, surface: c_uint, flags: c_uint) => creates(GraphicsResource, out);
            cuGraphicsVDPAURegisterOutputSurface = none (out: *mut CUgraphicsResource, surface: c_uint, flags: c_uint) => creates(GraphicsResource, out);
            cuGraphicsUnregisterResource = cuGraphicsUnregisterResource (resource: CUgraphicsResource) => destroys(GraphicsResource, resource);
        }
    };
}

/// Calls `$then! { rows }` with every runtime function. They label what the driver layer records, and record
/// themselves (`labels_allocation`: kind, address, bytes; `labels_free`: space, address) when that layer saw nothing.
#[macro_export]
macro_rules! runtime_functions {
    ($then:ident) => {
        $then! {
            cudaMalloc = cudaMalloc (out: *mut *mut c_void, bytes: usize) => labels_allocation(Device, { *out as u64 }, { bytes as u64 });
            cudaMallocManaged = cudaMallocManaged (out: *mut *mut c_void, bytes: usize, flags: c_uint) => labels_allocation(Managed, { *out as u64 }, { bytes as u64 });
            cudaMallocPitch = cudaMallocPitch (out: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) => labels_allocation(Pitched, { *out as u64 }, { (*pitch as u64).saturating_mul(height as u64) });
            cudaMalloc3D = cudaMalloc3D (out: *mut cudaPitchedPtr, extent: cudaExtent) => labels_allocation(Pitched, { (*out).ptr as u64 }, { ((*out).pitch as u64).saturating_mul(extent.height as u64).saturating_mul(extent.depth as u64) });
            cudaMallocArray = cudaMallocArray (out: *mut cudaArray_t, channels: *const cudaChannelFormatDesc, width: usize, height: usize, flags: c_uint) => labels_allocation(Array, { *out as u64 }, { channel_bytes(channels, [width, height, 0], 1, flags) });
            cudaMalloc3DArray = cudaMalloc3DArray (out: *mut cudaArray_t, channels: *const cudaChannelFormatDesc, extent: cudaExtent, flags: c_uint) => labels_allocation(Array, { *out as u64 }, { channel_bytes(channels, [extent.width, extent.height, extent.depth], 1, flags) });
            cudaMallocMipmappedArray = cudaMallocMipmappedArray (out: *mut cudaMipmappedArray_t, channels: *const cudaChannelFormatDesc, extent: cudaExtent, levels: c_uint, flags: c_uint) => labels_allocation(Mipmapped, { *out as u64 }, { channel_bytes(channels, [extent.width, extent.height, extent.depth], levels, flags) });
            cudaFree = cudaFree (address: *mut c_void) => labels_free(Pointer, address);
            cudaFreeArray = cudaFreeArray (array: cudaArray_t) => labels_free(Array, array);
            cudaFreeMipmappedArray = cudaFreeMipmappedArray (array: cudaMipmappedArray_t) => labels_free(Array, array);
            cudaMallocHost = cudaMallocHost (out: *mut *mut c_void, bytes: usize) => labels_allocation(HostPinned, { *out as u64 }, { bytes as u64 });
            cudaHostAlloc = cudaHostAlloc (out: *mut *mut c_void, bytes: usize, flags: c_uint) => labels_allocation(HostPinned, { *out as u64 }, { bytes as u64 });
            cudaFreeHost = cudaFreeHost (address: *mut c_void) => labels_free(Pointer, address);
            cudaHostRegister = cudaHostRegister (address: *mut c_void, bytes: usize, flags: c_uint) => labels_allocation(HostRegistered, { address as u64 }, { bytes as u64 });
            cudaHostUnregister = cudaHostUnregister (address: *mut c_void) => labels_free(Registered, address);
            cudaMallocAsync = cudaMallocAsync (out: *mut *mut c_void, bytes: usize, stream: cudaStream_t) => labels_allocation(Async, { *out as u64 }, { bytes as u64 });
            cudaMallocAsync_ptsz = cudaMallocAsync (out: *mut *mut c_void, bytes: usize, stream: cudaStream_t) => labels_allocation(Async, { *out as u64 }, { bytes as u64 });
            cudaMallocFromPoolAsync = cudaMallocFromPoolAsync (out: *mut *mut c_void, bytes: usize, pool: cudaMemPool_t, stream: cudaStream_t) => labels_allocation(Async, { *out as u64 }, { bytes as u64 });
            cudaMallocFromPoolAsync_ptsz = cudaMallocFromPoolAsync (out: *mut *mut c_void, bytes: usize, pool: cudaMemPool_t, stream: cudaStream_t) => labels_allocation(Async, { *out as u64 }, { bytes as u64 });
            cudaFreeAsync = cudaFreeAsync (address: *mut c_void, stream: cudaStream_t) => labels_free(Pointer, address);
            cudaFreeAsync_ptsz = cudaFreeAsync (address: *mut c_void, stream: cudaStream_t) => labels_free(Pointer, address);
            cudaMemPoolCreate = cudaMemPoolCreate (out: *mut cudaMemPool_t, properties: *const cudaMemPoolProps) => labels_allocation(Pool, { *out as u64 }, { 0 });
            cudaMemPoolDestroy = cudaMemPoolDestroy (pool: cudaMemPool_t) => labels_free(Pool, pool);
            cudaMemPoolTrimTo = cudaMemPoolTrimTo (pool: cudaMemPool_t, keep: usize) => labels();
            cudaMemPoolExportToShareableHandle = cudaMemPoolExportToShareableHandle (out: *mut c_void, pool: cudaMemPool_t, handle_type: Enum<cudaMemAllocationHandleType>, flags: c_uint) => labels();
            cudaMemPoolImportFromShareableHandle = cudaMemPoolImportFromShareableHandle (out: *mut cudaMemPool_t, handle: *mut c_void, handle_type: Enum<cudaMemAllocationHandleType>, flags: c_uint) => labels_allocation(Pool, { *out as u64 }, { 0 });
            cudaMemPoolImportPointer = cudaMemPoolImportPointer (out: *mut *mut c_void, pool: cudaMemPool_t, data: *mut cudaMemPoolPtrExportData) => labels_allocation(PoolImport, { *out as u64 }, { 0 });
            cudaIpcOpenMemHandle = cudaIpcOpenMemHandle (out: *mut *mut c_void, handle: cudaIpcMemHandle_t, flags: c_uint) => labels_allocation(Ipc, { *out as u64 }, { 0 });
            cudaIpcCloseMemHandle = cudaIpcCloseMemHandle (address: *mut c_void) => labels_free(Pointer, address);
            cudaImportExternalMemory = cudaImportExternalMemory (out: *mut cudaExternalMemory_t, descriptor: *const cudaExternalMemoryHandleDesc) => labels_allocation(External, { *out as u64 }, { 0 });
            cudaExternalMemoryGetMappedBuffer = cudaExternalMemoryGetMappedBuffer (out: *mut *mut c_void, external: cudaExternalMemory_t, descriptor: *const cudaExternalMemoryBufferDesc) => labels_allocation(ExternalMapping, { *out as u64 }, { 0 });
            cudaExternalMemoryGetMappedMipmappedArray = cudaExternalMemoryGetMappedMipmappedArray (out: *mut cudaMipmappedArray_t, external: cudaExternalMemory_t, descriptor: *const cudaExternalMemoryMipmappedArrayDesc) => labels();
            cudaDestroyExternalMemory = cudaDestroyExternalMemory (external: cudaExternalMemory_t) => labels_free(External, external);
            cudaGraphAddMemAllocNode = cudaGraphAddMemAllocNode (node: *mut cudaGraphNode_t, graph: cudaGraph_t, dependencies: *const cudaGraphNode_t, count: usize, params: *mut cudaMemAllocNodeParams) => labels();
            cudaGraphAddMemFreeNode = cudaGraphAddMemFreeNode (node: *mut cudaGraphNode_t, graph: cudaGraph_t, dependencies: *const cudaGraphNode_t, count: usize, address: *mut c_void) => labels();
            cudaDeviceGraphMemTrim = cudaDeviceGraphMemTrim (device: c_int) => labels();
            cudaGraphLaunch = cudaGraphLaunch (exec: cudaGraphExec_t, stream: cudaStream_t) => labels();
            cudaGraphLaunch_ptsz = cudaGraphLaunch (exec: cudaGraphExec_t, stream: cudaStream_t) => labels();
            cudaDeviceReset = cudaDeviceReset () => labels();
            cudaThreadExit = none () => labels();
            cudaStreamCreate = cudaStreamCreate (out: *mut cudaStream_t) => labels();
            cudaStreamCreateWithFlags = cudaStreamCreateWithFlags (out: *mut cudaStream_t, flags: c_uint) => labels();
            cudaStreamCreateWithPriority = cudaStreamCreateWithPriority (out: *mut cudaStream_t, flags: c_uint, priority: c_int) => labels();
            cudaEventCreate = cudaEventCreate (out: *mut cudaEvent_t) => labels();
            cudaEventCreateWithFlags = cudaEventCreateWithFlags (out: *mut cudaEvent_t, flags: c_uint) => labels();
            cudaGraphCreate = cudaGraphCreate (out: *mut cudaGraph_t, flags: c_uint) => labels();
            cudaGraphClone = cudaGraphClone (out: *mut cudaGraph_t, original: cudaGraph_t) => labels();
            cudaStreamEndCapture = cudaStreamEndCapture (stream: cudaStream_t, out: *mut cudaGraph_t) => labels();
            cudaGraphInstantiateWithFlags = cudaGraphInstantiateWithFlags (out: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: u64) => labels();
            cudaGraphInstantiateWithParams = cudaGraphInstantiateWithParams (out: *mut cudaGraphExec_t, graph: cudaGraph_t, params: *mut cudaGraphInstantiateParams) => labels();
            cudaCreateTextureObject = cudaCreateTextureObject (out: *mut cudaTextureObject_t, resource: *const cudaResourceDesc, texture: *const cudaTextureDesc, view: *const cudaResourceViewDesc) => labels();
            cudaCreateSurfaceObject = cudaCreateSurfaceObject (out: *mut cudaSurfaceObject_t, resource: *const cudaResourceDesc) => labels();
            cudaUserObjectCreate = cudaUserObjectCreate (out: *mut cudaUserObject_t, pointer: *mut c_void, destroy: cudaHostFn_t, count: c_uint, flags: c_uint) => labels();
        }
    };
}

macro_rules! names {
    ($( $name:ident = $checked:ident ( $($argument:ident : $type:ty),* ) => $verb:ident ( $($what:tt)* ); )*) => {
        &[$( stringify!($name) ),*]
    };
}

/// Exported symbols of all driver rows, in order; a row's place is its [`Api`] number.
pub const DRIVER_NAMES: &[&str] = driver_functions!(names);
/// Exported symbols of all runtime rows, in order; numbered after the driver rows.
pub const RUNTIME_NAMES: &[&str] = runtime_functions!(names);

/// The functions and APIs through which frameworks report their blocks; numbered after the runtime rows. They are not CUDA functions,
/// and no hook replaces them.
pub const FRAMEWORK_NAMES: &[&str] = &[
    "CUDACachingAllocator",
    "culeak_alloc",
    "nvtxMemRegionsRegister",
    "PJRT_Client_BufferFromHostBuffer",
    "PJRT_Client_CreateUninitializedBuffer",
    "PJRT_LoadedExecutable_Execute",
    "PJRT_Buffer_CopyToDevice",
    "PJRT_Buffer_CopyToMemory",
    "PJRT_Buffer_DonateWithControlDependency",
    "PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer",
];

/// Requests of the CUDA driver to the kernel driver; numbered after the frameworks' functions.
pub const KERNEL_NAMES: &[&str] = &["NV_ESC_RM_ALLOC", "NV_ESC_RM_DUP_OBJECT"];

/// All lists, in the order of the numbers.
const LISTS: [&[&str]; 4] = [DRIVER_NAMES, RUNTIME_NAMES, FRAMEWORK_NAMES, KERNEL_NAMES];

const CUDA_COUNT: usize = DRIVER_NAMES.len() + RUNTIME_NAMES.len();

/// Number of a function in this list. Recordings also store the name, so a reader needs no list of the same version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Api(pub u16);

impl Api {
    pub const COUNT: usize = CUDA_COUNT + FRAMEWORK_NAMES.len() + KERNEL_NAMES.len();

    /// The function with this exported name. In a constant, a misspelt name does not compile.
    pub const fn of(name: &str) -> Api {
        match Api::find(name.as_bytes()) {
            Some(api) => api,
            None => panic!("not in the list of CUDA functions"),
        }
    }

    pub const fn find(name: &[u8]) -> Option<Api> {
        let mut index = 0;
        while index < Api::COUNT {
            if equal(Api(index as u16).name().as_bytes(), name) {
                return Some(Api(index as u16));
            }
            index += 1;
        }
        None
    }

    pub const fn name(self) -> &'static str {
        let (mut list, mut index) = (0, self.0 as usize);
        while index >= LISTS[list].len() {
            index -= LISTS[list].len();
            list += 1;
        }
        LISTS[list][index]
    }

    /// Whether this is a function of the CUDA driver or runtime.
    pub const fn is_cuda(self) -> bool {
        (self.0 as usize) < CUDA_COUNT
    }

    pub const fn is_driver(self) -> bool {
        (self.0 as usize) < DRIVER_NAMES.len()
    }
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut index = 0;
    while index < a.len() {
        if a[index] != b[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_name_is_unique_and_identifies_its_number() {
        let names: Vec<&str> = LISTS.concat();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        for (index, name) in names.iter().enumerate() {
            assert_eq!(Api::find(name.as_bytes()), Some(Api(index as u16)));
        }
        assert_eq!(Api::find(b"cuMemAlloc_v9"), None);
    }
}
