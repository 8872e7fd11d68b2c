//! Graphs and their memory: addresses belong to the graph, bytes are held only from a launch to a free.
//!
//! ```text
//! capture / add node   addresses reserved      no bytes
//! launch               allocation enters the table
//! free node, cuMemFree, relaunch with auto-free     it leaves the table
//! ```
//! The reserved addresses are released once no graph, no executable and no live allocation needs them, so a program may
//! destroy the graph and free its memory afterwards.

use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use crate::memory::{Allocation, Room};
use crate::pools::Location;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use culeak::kind::Kind;
use std::ffi::{c_uint, c_void};
use std::mem::offset_of;

#[derive(Default)]
pub struct Graph {
    nodes: Vec<Node>,
}

struct Node {
    handle: Handle,
    work: Work,
}

#[derive(Clone)]
enum Work {
    Allocate {
        address: u64,
    },
    Free {
        address: u64,
    },
    /// A child graph's work, copied when it was added.
    Child(Vec<Work>),
    Other {
        node_type: c_uint,
    },
}

pub struct Exec {
    graph: Handle,
    steps: Vec<Work>,
    auto_free: bool,
}

pub struct NodeOwner {
    graph: Handle,
}

/// Addresses that belong to an allocation node.
pub struct GraphRange {
    device: usize,
    bytes: u64,
    /// The number of graphs, executables and live allocations that need them.
    users: u64,
}

const NODE_CHILD: c_uint = 4;
const NODE_EMPTY: c_uint = 5;
const NODE_ALLOC: c_uint = 10;
const NODE_FREE: c_uint = 11;
const AUTO_FREE_ON_LAUNCH: u64 = 1;

fn addresses(works: &[Work]) -> Vec<u64> {
    let mut found = Vec::new();
    for work in works {
        match work {
            Work::Allocate { address } => found.push(*address),
            Work::Child(works) => found.extend(addresses(works)),
            _ => {}
        }
    }
    found
}

impl Graph {
    fn works(&self) -> Vec<Work> {
        self.nodes.iter().map(|node| node.work.clone()).collect()
    }
}

impl Driver {
    pub fn new_graph(&mut self, graph: Graph) -> Handle {
        let handle = self.new_handle();
        self.graphs.insert(handle, graph);
        handle
    }

    pub fn create_graph(&mut self, out: Out<CUgraph>) -> Outcome {
        out.check()?;
        out.put(self.new_graph(Graph::default()) as CUgraph)
    }

    pub fn clone_graph(&mut self, out: Out<CUgraph>, graph: CUgraph) -> Outcome {
        out.check()?;
        let works = self.graph(graph as Handle)?.works();
        if !addresses(&works).is_empty() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let clone = self.new_graph(Graph::default());
        for work in works {
            self.add_work(clone, work)?;
        }
        out.put(clone as CUgraph)
    }

    fn graph(&mut self, handle: Handle) -> Outcome<&mut Graph> {
        self.graphs.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn add_work(&mut self, graph: Handle, work: Work) -> Outcome<Handle> {
        self.graph(graph)?;
        let handle = self.new_handle();
        self.nodes.insert(handle, NodeOwner { graph });
        self.graph(graph)?.nodes.push(Node { handle, work });
        Ok(handle)
    }

    /// An allocation node: its handle and the address its memory will have.
    pub fn add_alloc_node(&mut self, graph: Handle, device: usize, bytes: u64) -> Outcome<(Handle, u64)> {
        self.graph(graph)?;
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let address = self.devices[device]
            .addresses
            .take(bytes)
            .ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.graph_ranges.insert(
            address,
            GraphRange {
                device,
                bytes,
                users: 1,
            },
        );
        Ok((self.add_work(graph, Work::Allocate { address })?, address))
    }

    pub fn add_free_node(&mut self, graph: Handle, address: u64) -> Outcome<Handle> {
        if !self.graph_ranges.contains_key(&address) && !self.memory.contains_key(&address) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let same = |node: &Node| matches!(node.work, Work::Free { address: other } if other == address);
        if self.graph(graph)?.nodes.iter().any(same) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.add_work(graph, Work::Free { address })
    }

    /// In a recapture: the next node of the graph, which the captured operation must repeat.
    fn next_repeated(&mut self, stream: CUstream, graph: Handle) -> Outcome<Option<Work>> {
        let Some(next) = self.capture_mut(stream).and_then(|capture| capture.repeats.as_mut()) else {
            return Ok(None);
        };
        let index = *next;
        *next += 1;
        let node = self.graph(graph)?.nodes.get(index);
        node.map(|node| Some(node.work.clone())).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// The address of an allocation node; `None` if this is no recapture.
    pub fn repeat_alloc_node(&mut self, stream: CUstream, graph: Handle, bytes: u64) -> Outcome<Option<u64>> {
        match self.next_repeated(stream, graph)? {
            None => Ok(None),
            Some(Work::Allocate { address }) if self.graph_ranges[&address].bytes == bytes => Ok(Some(address)),
            Some(_) => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub fn repeat_free_node(&mut self, stream: CUstream, graph: Handle, freed: u64) -> Outcome<bool> {
        match self.next_repeated(stream, graph)? {
            None => Ok(false),
            Some(Work::Free { address }) if address == freed => Ok(true),
            Some(_) => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn use_ranges(&mut self, of: &[u64]) {
        for address in of {
            if let Some(range) = self.graph_ranges.get_mut(address) {
                range.users += 1;
            }
        }
    }

    fn unuse_ranges(&mut self, of: &[u64]) {
        for address in of {
            let Some(range) = self.graph_ranges.get_mut(address) else {
                continue;
            };
            range.users -= 1;
            if range.users == 0 {
                let (device, bytes) = (range.device, range.bytes);
                self.graph_ranges.remove(address);
                self.devices[device].addresses.give_back(*address, bytes);
            }
        }
    }

    /// Called after a graph's allocation has left the table.
    pub fn graph_memory_freed(&mut self, address: u64) {
        self.unuse_ranges(&[address]);
    }

    pub fn destroy_graph(&mut self, handle: CUgraph) -> Outcome {
        let graph = self
            .graphs
            .remove(&(handle as Handle))
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.drop_handle(handle as Handle);
        // Its handle may be reused for another graph.
        self.execs
            .values_mut()
            .filter(|exec| exec.graph == handle as Handle)
            .for_each(|exec| exec.graph = 0);
        for node in &graph.nodes {
            self.nodes.remove(&node.handle);
            self.drop_handle(node.handle);
        }
        self.unuse_ranges(&addresses(&graph.works()));
        Ok(())
    }

    pub fn instantiate(&mut self, out: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> Outcome {
        out.check()?;
        let steps = self.graph(graph as Handle)?.works();
        let held = addresses(&steps);
        // A graph with memory nodes has one executable at a time.
        if !held.is_empty() && self.execs.values().any(|exec| exec.graph == graph as Handle) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let context = self.current().unwrap_or(0);
        self.in_kernel(|kernel| kernel.create_exec(context))?;
        self.use_ranges(&held);
        let handle = self.new_handle();
        self.execs.insert(
            handle,
            Exec {
                graph: graph as Handle,
                steps,
                auto_free: flags & AUTO_FREE_ON_LAUNCH != 0,
            },
        );
        out.put(handle as CUgraphExec)
    }

    pub fn destroy_exec(&mut self, exec: CUgraphExec) -> Outcome {
        let removed = self.execs.remove(&(exec as Handle)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let context = self.current().unwrap_or(0);
        if let Some(kernel) = &mut self.kernel {
            kernel.destroy_exec(context);
        }
        self.drop_handle(exec as Handle);
        self.unuse_ranges(&addresses(&removed.steps));
        Ok(())
    }

    pub fn launch(&mut self, exec: CUgraphExec, stream: CUstream) -> Outcome {
        self.current()?;
        self.check_stream(stream)?;
        let exec = self.execs.get(&(exec as Handle)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (steps, auto_free) = (exec.steps.clone(), exec.auto_free);
        if let Some(graph) = self.valid_capture_of(stream)? {
            return self.add_work(graph, Work::Other { node_type: NODE_EMPTY }).map(|_| ());
        }
        let live: Vec<u64> = addresses(&steps)
            .into_iter()
            .filter(|address| self.memory.contains_key(address))
            .collect();
        if !live.is_empty() && !auto_free {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for address in live {
            self.leave(address);
        }
        self.run(&steps)
    }

    fn run(&mut self, steps: &[Work]) -> Outcome {
        for step in steps {
            match step {
                Work::Allocate { address } => self.materialize(*address)?,
                Work::Free { address } => self.leave(*address).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)?,
                Work::Child(works) => self.run(works)?,
                Work::Other { .. } => {}
            }
        }
        Ok(())
    }

    fn materialize(&mut self, address: u64) -> Outcome {
        let range = self.graph_ranges.get_mut(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (device, bytes) = (range.device, range.bytes);
        range.users += 1;
        let charged = bytes.next_multiple_of(512);
        if let Err(error) = self.charge(device, charged) {
            self.unuse_ranges(&[address]);
            return Err(error);
        }
        let (kind, room, id) = (Kind::Graph, Room::Elsewhere, self.next_serial());
        let allocation = Allocation {
            kind,
            bytes,
            charged,
            device,
            context: None,
            room,
            pool: None,
            opened: 0,
            id,
        };
        self.memory.insert(address, allocation);
        Ok(())
    }

    pub fn add_child(&mut self, graph: Handle, child: Handle) -> Outcome<Handle> {
        let works = self.graph(child)?.works();
        self.graph(graph)?;
        self.use_ranges(&addresses(&works));
        self.add_work(graph, Work::Child(works))
    }

    /// An allocation node's parameters have the same place in both versions of CUDA_MEM_ALLOC_NODE_PARAMS.
    pub fn add_alloc_node_from(&mut self, graph: CUgraph, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>) -> Outcome<Handle> {
        params.check()?;
        let location_at = offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, poolProps) + offset_of!(CUmemPoolProps, location);
        let location: Location = params.field(location_at).get()?;
        let bytes: usize = params.field(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize)).get()?;
        let device = location.device(self)?.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (node, address) = self.add_alloc_node(graph as Handle, device, bytes as u64)?;
        params
            .field(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, dptr))
            .put(address)?;
        Ok(node)
    }

    /// cuGraphAddNode in any version: a node type, then a union of parameters.
    pub fn add_node_from(&mut self, graph: CUgraph, params: Out<CUgraphNodeParams>) -> Outcome<Handle> {
        let node_type: c_uint = params.cast().get()?;
        let union_at = offset_of!(CUgraphNodeParams, __bindgen_anon_1);
        match node_type {
            NODE_ALLOC => self.add_alloc_node_from(graph, params.field(union_at)),
            NODE_FREE => self.add_free_node(graph as Handle, params.field(union_at).get()?),
            NODE_CHILD => self.add_child(graph as Handle, params.field(union_at).get()?),
            _ => self.add_work(graph as Handle, Work::Other { node_type }),
        }
    }

    fn node(&self, node: CUgraphNode) -> Outcome<&Node> {
        let owner = self.nodes.get(&(node as Handle)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let nodes = &self.graphs.get(&owner.graph).ok_or(CUDA_ERROR_INVALID_VALUE)?.nodes;
        nodes
            .iter()
            .find(|known| known.handle == node as Handle)
            .ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn add_other(&mut self, out: Out<CUgraphNode>, graph: CUgraph, node_type: c_uint) -> Outcome {
        out.put(self.add_work(graph as Handle, Work::Other { node_type })? as CUgraphNode)
    }

    /// Adds the node of a captured operation that does not affect memory.
    pub fn note_captured(&mut self, stream: CUstream, node_type: c_uint) {
        if let Some(graph) = self.capture_of(stream).map(|capture| capture.graph) {
            let _ = self.add_work(graph, Work::Other { node_type });
        }
    }
}

exports! {
    fn cuGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) |driver| {
        let known = &driver.graph(graph as Handle)?.nodes;
        if nodes.is_null() {
            return count.put(known.len());
        }
        let room = count.get()?;
        for index in 0..room {
            nodes.at(index).put(known.get(index).map_or(0, |node| node.handle) as CUgraphNode)?;
        }
        count.put(known.len().min(room))
    }
    fn cuGraphGetRootNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) |driver| {
        let first = driver.graph(graph as Handle)?.nodes.first().map(|node| node.handle);
        if let (Some(first), false) = (first, nodes.is_null()) {
            nodes.put(first as CUgraphNode)?;
        }
        count.put(first.is_some() as usize)
    }
    fn cuGraphNodeGetType(node: CUgraphNode, out: Out<c_uint>) |driver| {
        out.put(match driver.node(node)?.work {
            Work::Allocate { .. } => NODE_ALLOC,
            Work::Free { .. } => NODE_FREE,
            Work::Child(_) => NODE_CHILD,
            Work::Other { node_type } => node_type,
        })
    }
    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, out: Out<CUDA_MEM_ALLOC_NODE_PARAMS>) |driver| {
        out.check()?;
        let Work::Allocate { address } = driver.node(node)?.work else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let bytes = driver.graph_ranges.get(&address).map_or(0, |range| range.bytes as usize);
        out.field(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize)).put(bytes)?;
        out.field(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, dptr)).put(address)
    }
    fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, out: Out<CUdeviceptr>) |driver| {
        let Work::Free { address } = driver.node(node)?.work else { return Err(CUDA_ERROR_INVALID_VALUE) };
        out.put(address)
    }
    fn cuGraphDestroyNode(node: CUgraphNode) |driver| {
        let work = driver.node(node)?.work.clone();
        if matches!(work, Work::Allocate { .. } | Work::Free { .. }) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if let Some(owner) = driver.nodes.remove(&(node as Handle)) {
            driver.graph(owner.graph)?.nodes.retain(|known| known.handle != node as Handle);
        }
        driver.drop_handle(node as Handle);
        driver.unuse_ranges(&addresses(&[work]));
        Ok(())
    }
    fn cuGraphAddEmptyNode(out: Out<CUgraphNode>, graph: CUgraph, _on: In<CUgraphNode>, _count: usize) |driver| {
        driver.add_other(out, graph, NODE_EMPTY)
    }
    fn [cuGraphAddKernelNode, cuGraphAddKernelNode_v2] (out: Out<CUgraphNode>, graph: CUgraph, _on: In<CUgraphNode>, _count: usize, _params: In<c_void>) |driver| {
        driver.add_other(out, graph, 0)
    }
    fn cuGraphAddMemcpyNode(out: Out<CUgraphNode>, graph: CUgraph, _on: In<CUgraphNode>, _count: usize, _params: In<c_void>, _context: CUcontext) |driver| {
        driver.add_other(out, graph, 1)
    }
    fn cuGraphAddMemsetNode(out: Out<CUgraphNode>, graph: CUgraph, _on: In<CUgraphNode>, _count: usize, _params: In<c_void>, _context: CUcontext) |driver| {
        driver.add_other(out, graph, 2)
    }
    fn cuGraphAddHostNode(out: Out<CUgraphNode>, graph: CUgraph, _on: In<CUgraphNode>, _count: usize, _params: In<c_void>) |driver| {
        driver.add_other(out, graph, 3)
    }
    fn cuGraphAddDependencies(graph: CUgraph, _from: In<CUgraphNode>, _to: In<CUgraphNode>, _count: usize) |driver| {
        driver.graph(graph as Handle).map(|_| ())
    }
    fn cuGraphAddDependencies_v2(graph: CUgraph, _from: In<CUgraphNode>, _to: In<CUgraphNode>, _edges: In<c_void>, _count: usize) |driver| {
        driver.graph(graph as Handle).map(|_| ())
    }
    fn [cuGraphUpload, cuGraphUpload_ptsz] (exec: CUgraphExec, stream: CUstream) |driver| {
        driver.check_stream(stream)?;
        driver.execs.get(&(exec as Handle)).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
    fn cuGraphExecGetFlags(exec: CUgraphExec, out: Out<u64>) |driver| {
        let exec = driver.execs.get(&(exec as Handle)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        out.put(if exec.auto_free { AUTO_FREE_ON_LAUNCH } else { 0 })
    }
    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: c_uint, out: Out<u64>) |driver| {
        let device = driver.ordinal(device)?;
        let live = driver.memory.values().filter(|found| found.kind == Kind::Graph && found.device == device);
        let used: u64 = live.map(|found| found.charged).sum();
        if attribute < 4 { out.put(used) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
    fn cuDeviceSetGraphMemAttribute(device: CUdevice, _attribute: c_uint, _value: In<u64>) |driver| {
        driver.ordinal(device).map(|_| ())
    }
}
