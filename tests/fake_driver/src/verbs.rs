//! The functions of the list, each exported with its own signature and implemented by its verb.
//!
//! A row passes its name, its arguments and its verb's details to the arm of the verb. Most arms need only the arguments.

use crate::arguments::{In, Out};
use crate::arrays::{Array3dDescriptorV1, ArrayDescriptorV1};
use crate::driver::{Driver, Handle};
use crate::{gate, lookups, tables};
use cudarc::driver::sys::*;
use culeak::kind::Kind;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The type of an argument that C declares as an enum: an integer, since programs may pass values unknown to Rust.
type Enum<T> = <T as Numbered>::Number;

pub trait Numbered {
    type Number;
}

impl<T> Numbered for T {
    type Number = c_uint;
}

macro_rules! export_rows {
    ($( $name:ident = $checked:ident ( $($argument:ident : $type:ty),* ) => $verb:ident ( $($what:tt)* ); )*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, unused_variables)]
            unsafe extern "C" fn $name( $($argument: $type),* ) -> c_uint {
                behaviour! { $verb $name [ $($argument)* ] $($what)* }
            }
        )*

        pub static EXPORTS: &[&[crate::exports::Export]] = &[ $( crate::exports::addresses!($name) ),* ];
    };
}

/// A pointer argument of the exported function around it.
macro_rules! out {
    ($pointer:ident) => {{
        // SAFETY: a result pointer of an exported C function: null, or valid for one value during the call.
        unsafe { Out::new($pointer) }
    }};
}
macro_rules! input {
    ($pointer:ident) => {{
        // SAFETY: an argument pointer of an exported C function: null, or valid for one value during the call.
        unsafe { In::new($pointer) }
    }};
}

/// A function that needs the driver; the rest is an expression over it.
macro_rules! driving {
    ($name:ident, |$driver:ident| $body:expr) => {
        gate::enter(stringify!($name), |$driver: &mut Driver| $body)
    };
}

macro_rules! behaviour {
    // Lookups and start-up.
    (initializes $name:ident [$flags:ident] $($what:tt)*) => {
        gate::enter_early(stringify!($name), || gate::initialize($flags))
    };
    (looks_up $name:ident [$symbol:ident $out:ident $version:ident $flags:ident] $($what:tt)*) => {
        gate::enter_early(stringify!($name), || lookups::look_up(input!($symbol), out!($out), $version, $flags))
    };
    (looks_up $name:ident [$symbol:ident $out:ident $version:ident $flags:ident $status:ident] $($what:tt)*) => {
        gate::enter_early(stringify!($name), || {
            lookups::look_up_v2(input!($symbol), out!($out), $version, $flags, out!($status).cast())
        })
    };
    (hands_out_table $name:ident [$table:ident $id:ident] $($what:tt)*) => {
        gate::enter_early(stringify!($name), || tables::hand_out(out!($table), input!($id)))
    };

    // Linear memory.
    (allocates cuMemAllocManaged [$out:ident $bytes:ident $flags:ident] $($what:tt)*) => {
        driving!(cuMemAllocManaged, |driver| driver.allocate_managed(out!($out), $bytes as u64, $flags))
    };
    (allocates $name:ident [$out:ident $bytes:ident $($flags:ident)?] $kind:ident $($what:tt)*) => {
        driving!($name, |driver| driver.allocate(Kind::$kind, out!($out), $bytes as u64))
    };
    (allocates_pitched $name:ident [$out:ident $pitch:ident $width:ident $height:ident $element:ident] $($what:tt)*) => {
        driving!($name, |driver| {
            driver.allocate_pitched(out!($out), out!($pitch), $width as u64, $height as u64, $element)
        })
    };
    (frees cuMemFreeHost [$address:ident] $($what:tt)*) => {
        driving!(cuMemFreeHost, |driver| driver.free($address as u64, true))
    };
    (frees $name:ident [$address:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.free($address as u64, false))
    };
    (registers $name:ident [$address:ident $bytes:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.register($address as u64, $bytes as u64))
    };
    (unregisters $name:ident [$address:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.unregister($address as u64))
    };

    // Arrays.
    (creates_array $name:ident [$out:ident $descriptor:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_array(out!($out).cast(), input!($descriptor), None))
    };
    (creates_mipmap $name:ident [$out:ident $descriptor:ident $levels:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_array(out!($out).cast(), input!($descriptor), Some($levels)))
    };
    (destroys_array cuMipmappedArrayDestroy [$array:ident] $($what:tt)*) => {
        driving!(cuMipmappedArrayDestroy, |driver| driver.destroy_array($array as Handle, true))
    };
    (destroys_array $name:ident [$array:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.destroy_array($array as Handle, false))
    };

    // Stream-ordered memory and pools.
    (allocates_async $name:ident [$out:ident $bytes:ident $stream:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.allocate_async(out!($out), $bytes as u64, None, $stream))
    };
    (allocates_async $name:ident [$out:ident $bytes:ident $pool:ident $stream:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.allocate_async(out!($out), $bytes as u64, Some($pool), $stream))
    };
    (frees_async $name:ident [$address:ident $stream:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.free_async($address, $stream))
    };
    (creates_pool $name:ident [$out:ident $properties:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_pool(out!($out), input!($properties)))
    };
    (destroys_pool $name:ident [$pool:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.destroy_pool($pool))
    };
    (sets_pool $name:ident [$device:ident $pool:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.set_pool($device, $pool))
    };
    (sets_pool_of $name:ident [$location:ident $kind:ident $pool:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.set_pool_of(input!($location), $kind, $pool))
    };
    (imports_pool $name:ident [$out:ident $handle:ident $type:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.import_pool(out!($out), $handle, $type))
    };
    (imports_pointer $name:ident [$out:ident $pool:ident $data:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.import_pointer(out!($out), $pool, input!($data)))
    };

    // Virtual memory management.
    (reserves $name:ident [$out:ident $bytes:ident $alignment:ident $wish:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.reserve(out!($out), $bytes as u64))
    };
    (unreserves $name:ident [$address:ident $bytes:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.unreserve($address, $bytes as u64))
    };
    (creates_physical $name:ident [$out:ident $bytes:ident $properties:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_physical(out!($out), $bytes as u64, input!($properties)))
    };
    (releases_physical $name:ident [$handle:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.release_physical($handle))
    };
    (retains_physical $name:ident [$out:ident $address:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.retain_physical(out!($out), $address as u64))
    };
    (maps $name:ident [$address:ident $bytes:ident $offset:ident $handle:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.map($address, $bytes as u64, $offset as u64, $handle))
    };
    (unmaps $name:ident [$address:ident $bytes:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.unmap($address, $bytes as u64))
    };
    (imports_physical $name:ident [$out:ident $os_handle:ident $type:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.import_physical(out!($out), $os_handle, $type))
    };
    (creates_multicast $name:ident [$out:ident $properties:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_multicast(out!($out), input!($properties)))
    };

    // Other processes and other APIs.
    (exports_ipc $name:ident [$out:ident $address:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.export_ipc(out!($out), $address))
    };
    (opens_ipc $name:ident [$out:ident $handle:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.open_ipc(out!($out), $handle))
    };
    (closes_ipc $name:ident [$address:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.close_ipc($address))
    };
    (imports_external $name:ident [$out:ident $descriptor:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.import_external(out!($out), input!($descriptor)))
    };
    (maps_external $name:ident [$out:ident $external:ident $descriptor:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.map_external(out!($out), $external, input!($descriptor)))
    };
    (maps_external_mipmap $name:ident [$out:ident $external:ident $descriptor:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.map_external_mipmap(out!($out), $external, input!($descriptor)))
    };
    (destroys_external $name:ident [$external:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.destroy_external($external))
    };

    // Graphs and captures.
    (adds_alloc_node $name:ident [$node:ident $graph:ident $dependencies:ident $count:ident $params:ident] $($what:tt)*) => {
        driving!($name, |driver| {
            out!($node).check()?;
            out!($node).put(driver.add_alloc_node_from($graph, out!($params))? as CUgraphNode)
        })
    };
    (adds_free_node $name:ident [$node:ident $graph:ident $dependencies:ident $count:ident $address:ident] $($what:tt)*) => {
        driving!($name, |driver| {
            out!($node).check()?;
            out!($node).put(driver.add_free_node($graph as Handle, $address)? as CUgraphNode)
        })
    };
    (adds_node $name:ident [$node:ident $graph:ident $dependencies:ident $edges:ident $count:ident $params:ident] $($what:tt)*) => {
        behaviour! { adds_node $name [$node $graph $dependencies $count $params] $($what)* }
    };
    (adds_node $name:ident [$node:ident $graph:ident $dependencies:ident $count:ident $params:ident] $($what:tt)*) => {
        driving!($name, |driver| {
            out!($node).check()?;
            out!($node).put(driver.add_node_from($graph, out!($params))? as CUgraphNode)
        })
    };
    (adds_child $name:ident [$node:ident $graph:ident $dependencies:ident $count:ident $child:ident] $($what:tt)*) => {
        driving!($name, |driver| {
            out!($node).check()?;
            out!($node).put(driver.add_child($graph as Handle, $child as Handle)? as CUgraphNode)
        })
    };
    (instantiates $name:ident [$out:ident $graph:ident $error:ident $log:ident $log_bytes:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.instantiate(out!($out), $graph, 0))
    };
    (instantiates cuGraphInstantiateWithFlags [$out:ident $graph:ident $flags:ident] $($what:tt)*) => {
        driving!(cuGraphInstantiateWithFlags, |driver| driver.instantiate(out!($out), $graph, $flags))
    };
    (instantiates $name:ident [$out:ident $graph:ident $params:ident] $($what:tt)*) => {
        driving!($name, |driver| {
            // The flags come first in CUDA_GRAPH_INSTANTIATE_PARAMS.
            driver.instantiate(out!($out), $graph, out!($params).cast().get()?)
        })
    };
    (launches $name:ident [$exec:ident $stream:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.launch($exec, $stream))
    };
    (destroys_exec $name:ident [$exec:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.destroy_exec($exec))
    };
    (destroys_graph $name:ident [$graph:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.destroy_graph($graph))
    };
    (begins_capture $name:ident [$stream:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.begin_capture($stream, 0, None))
    };
    (begins_capture $name:ident [$stream:ident $mode:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.begin_capture($stream, $mode, None))
    };
    (begins_capture_to_graph $name:ident [$stream:ident $mode:ident $graph:ident $callback:ident $data:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.begin_recapture($stream, $mode, $graph))
    };
    (begins_capture_to_graph $name:ident [$stream:ident $graph:ident $dependencies:ident $edges:ident $count:ident $mode:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.begin_capture($stream, $mode, Some($graph)))
    };
    (ends_capture $name:ident [$stream:ident $graph:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.end_capture($stream, out!($graph)))
    };

    // Contexts.
    (creates_context cuCtxCreate_v3 [$out:ident $affinity:ident $count:ident $flags:ident $device:ident] $($what:tt)*) => {
        driving!(cuCtxCreate_v3, |driver| driver.create_context(out!($out), $flags, $device))
    };
    (creates_context $name:ident [$out:ident $params:ident $flags:ident $device:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_context(out!($out), $flags, $device))
    };
    (creates_context $name:ident [$out:ident $flags:ident $device:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_context(out!($out), $flags, $device))
    };
    (destroys_context $name:ident [$context:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.destroy_context($context))
    };
    (attaches_context $name:ident [$out:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.attach_context(out!($out)))
    };
    (detaches_context $name:ident [$context:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.detach_context($context))
    };
    (retains_primary $name:ident [$out:ident $device:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.retain_primary(out!($out), $device))
    };
    (releases_primary $name:ident [$device:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.release_primary($device))
    };
    (resets_primary $name:ident [$device:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.reset_primary($device))
    };

    // Objects without an address.
    (creates $name:ident [$out:ident $flags:ident $priority:ident] Stream, $($what:tt)*) => {
        driving!($name, |driver| driver.create_stream(out!($out), $flags, $priority))
    };
    (creates $name:ident [$out:ident $context:ident $flags:ident $priority:ident] Stream, $($what:tt)*) => {
        driving!($name, |driver| driver.create_stream(out!($out), $flags, $priority))
    };
    (creates $name:ident [$out:ident $flags:ident] Stream, $($what:tt)*) => {
        driving!($name, |driver| driver.create_stream(out!($out), $flags, 0))
    };
    (creates $name:ident [$out:ident $($rest:ident)*] Module, $($what:tt)*) => {
        driving!($name, |driver| driver.load_module(out!($out)))
    };
    (creates $name:ident [$out:ident $($rest:ident)*] Library, $($what:tt)*) => {
        driving!($name, |driver| driver.load_library(out!($out)))
    };
    (sets_limit $name:ident [$limit:ident $value:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.set_limit($limit, $value))
    };
    (names_kernel $name:ident [$out:ident $module:ident $text:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.find_function(out!($out), $module as Handle, input!($text)))
    };
    (creates cuGraphClone [$out:ident $graph:ident] $($what:tt)*) => {
        driving!(cuGraphClone, |driver| driver.clone_graph(out!($out), $graph))
    };
    (creates $name:ident [$out:ident $flags:ident] GraphObject, $($what:tt)*) => {
        driving!($name, |driver| driver.create_graph(out!($out)))
    };
    (creates $name:ident [$count:ident $options:ident $values:ident $out:ident] Linker, $($what:tt)*) => {
        driving!($name, |driver| driver.create_plain(out!($out), |handle| handle as _))
    };
    (creates $name:ident [$out:ident $($rest:ident)*] $kind:ident, $($what:tt)*) => {
        driving!($name, |driver| driver.create_plain(out!($out), |handle| handle as _))
    };
    (creates_on $name:ident [$out:ident $resources:ident $device:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_plain(out!($out), |handle| handle as _))
    };
    (creates_user_object $name:ident [$out:ident $pointer:ident $destroy:ident $count:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.create_plain(out!($out), |handle| handle as _))
    };
    (retains_user_object $name:ident [$object:ident $count:ident] $($what:tt)*) => {
        driving!($name, |_driver| Ok(()))
    };
    (releases_user_object $name:ident [$object:ident $count:ident] $($what:tt)*) => {
        driving!($name, |_driver| Ok(()))
    };
    (gives_user_object $name:ident [$graph:ident $object:ident $count:ident $flags:ident] $($what:tt)*) => {
        driving!($name, |_driver| Ok(()))
    };
    (destroys $name:ident [$stream:ident] Stream, $($what:tt)*) => {
        driving!($name, |driver| driver.destroy_stream($stream))
    };
    (destroys $name:ident [$module:ident] Module, $($what:tt)*) => {
        driving!($name, |driver| driver.unload($module as Handle))
    };
    (destroys $name:ident [$library:ident] Library, $($what:tt)*) => {
        driving!($name, |driver| driver.unload($library as Handle))
    };
    (destroys $name:ident [$handle:ident] $($what:tt)*) => {
        driving!($name, |driver| driver.drop_plain($handle as Handle))
    };

    // Functions that the list only observes: they do not change what is live, so each is implemented by name.
    (observes cuMemPoolTrimTo [$pool:ident $keep:ident] $($what:tt)*) => {
        driving!(cuMemPoolTrimTo, |driver| driver.trim_pool($pool, $keep as u64))
    };
    (observes cuMemPoolExportToShareableHandle [$out:ident $pool:ident $type:ident $flags:ident] $($what:tt)*) => {
        driving!(cuMemPoolExportToShareableHandle, |driver| driver.export_pool(out!($out), $pool, $type))
    };
    (observes cuMemExportToShareableHandle [$out:ident $handle:ident $type:ident $flags:ident] $($what:tt)*) => {
        driving!(cuMemExportToShareableHandle, |driver| driver.export_physical(out!($out), $handle, $type))
    };
    (observes $name:ident [$($argument:ident)*] $($what:tt)*) => {
        driving!($name, |driver| {
            $( let _ = $argument; )*
            driver.current().map(|_| ())
        })
    };
}

culeak::driver_functions!(export_rows);
