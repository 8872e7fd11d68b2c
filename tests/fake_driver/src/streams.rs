//! Streams, events, and which stream is captured into which graph.
//!
//! Work is done immediately, so every stream is always idle and every event has always happened.

use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use crate::graphs::Graph;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::thread::ThreadId;

pub struct Stream {
    pub context: Handle,
    pub flags: c_uint,
    pub priority: c_int,
    pub id: u64,
    pub capture: Option<Capture>,
}

/// A capture in progress. Its end returns `graph`.
#[derive(Clone)]
pub struct Capture {
    pub graph: Handle,
    pub id: u64,
    mode: c_uint,
    thread: ThreadId,
    invalid: bool,
    /// The graph belongs to the program (cuStreamBeginCaptureToGraph).
    borrowed: bool,
    /// The node of the graph that the next operation of a recapture must repeat.
    pub repeats: Option<usize>,
    /// Streams that joined through events end with the stream on which the capture began.
    origin: bool,
}

const GLOBAL: c_uint = 0;
const RELAXED: c_uint = 2;
const NON_BLOCKING: c_uint = 1;
const STREAM_LEGACY: Handle = 1;
const STREAM_PER_THREAD: Handle = 2;

thread_local! {
    static MODE: Cell<c_uint> = const { Cell::new(GLOBAL) };
}

/// What a stream argument means: null is a default stream, the per-thread one in `_ptsz` functions.
fn resolve(stream: CUstream, called: &str) -> Handle {
    match stream as Handle {
        0 if called.ends_with("_ptsz") => STREAM_PER_THREAD,
        0 => STREAM_LEGACY,
        handle => handle,
    }
}

impl Driver {
    /// Accepts default streams and existing ones.
    pub fn check_stream(&self, stream: CUstream) -> Outcome {
        let known = (stream as Handle) <= STREAM_PER_THREAD || self.streams.contains_key(&(stream as Handle));
        if known { Ok(()) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
    }

    pub fn create_stream(&mut self, out: Out<CUstream>, flags: c_uint, priority: c_int) -> Outcome {
        out.check()?;
        let context = self.current()?;
        self.in_kernel(|kernel| kernel.create_stream(context))?;
        let (handle, id) = (self.new_handle(), self.next_serial() + 2);
        self.streams.insert(
            handle,
            Stream {
                context,
                flags,
                priority,
                id,
                capture: None,
            },
        );
        out.put(handle as CUstream)
    }

    pub fn destroy_stream(&mut self, stream: CUstream) -> Outcome {
        let gone = self.streams.remove(&(stream as Handle));
        let context = gone.ok_or(CUDA_ERROR_INVALID_HANDLE)?.context;
        if let Some(kernel) = &mut self.kernel {
            kernel.destroy_stream(context);
        }
        self.drop_handle(stream as Handle);
        Ok(())
    }

    fn stream_fact<T>(&self, stream: CUstream, of_default: T, fact: impl Fn(&Stream) -> T) -> Outcome<T> {
        match self.streams.get(&(stream as Handle)) {
            Some(stream) => Ok(fact(stream)),
            None => self.check_stream(stream).map(|()| of_default),
        }
    }

    pub fn forget_streams_of(&mut self, context: Handle) {
        let owned: Vec<Handle> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.context == context)
            .map(|(handle, _)| *handle)
            .collect();
        for handle in owned {
            self.streams.remove(&handle);
            self.drop_handle(handle);
        }
    }

    pub fn capture_of(&self, stream: CUstream) -> Option<&Capture> {
        self.streams.get(&(stream as Handle))?.capture.as_ref()
    }

    /// The graph of a stream's capture, for an operation on that stream.
    pub fn valid_capture_of(&self, stream: CUstream) -> Outcome<Option<Handle>> {
        match self.capture_of(stream) {
            Some(capture) if capture.invalid => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            capture => Ok(capture.map(|capture| capture.graph)),
        }
    }

    /// Fails calls that are prohibited during a capture, by the rules of cuThreadExchangeStreamCaptureMode.
    /// Such a call also invalidates the capture.
    pub fn refuse_while_capturing(&mut self) -> Outcome {
        let (mode, thread) = (MODE.get(), std::thread::current().id());
        let invalidates = |capture: &Capture| match (mode, capture.thread == thread) {
            (RELAXED, _) => false,
            (_, true) => capture.mode != RELAXED,
            (GLOBAL, false) => capture.mode == GLOBAL,
            _ => false,
        };
        let mut prohibited = false;
        for capture in self.streams.values_mut().filter_map(|stream| stream.capture.as_mut()) {
            if invalidates(capture) {
                capture.invalid = true;
                prohibited = true;
            }
        }
        if prohibited {
            Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    /// The same for stream-ordered calls on a stream that is not captured itself.
    pub fn refuse_beside_capture(&mut self, stream: CUstream) -> Outcome {
        let result = self.refuse_while_capturing();
        if (stream as Handle) <= STREAM_LEGACY && self.legacy_is_involved() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        result
    }

    /// The legacy default stream waits for every blocking stream, including a captured one.
    fn legacy_is_involved(&self) -> bool {
        self.streams
            .values()
            .any(|stream| stream.capture.is_some() && stream.flags & NON_BLOCKING == 0)
    }

    pub fn begin_capture(&mut self, stream: CUstream, mode: c_uint, into: Option<CUgraph>) -> Outcome {
        let context = self.current()?;
        if (stream as Handle) <= STREAM_LEGACY {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream as Handle == STREAM_PER_THREAD {
            let per_thread = Stream {
                context,
                flags: 0,
                priority: 0,
                id: 2,
                capture: None,
            };
            self.streams.entry(STREAM_PER_THREAD).or_insert(per_thread);
        }
        self.check_stream(stream)?;
        if self.capture_of(stream).is_some() || mode > RELAXED {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        let graph = match into {
            Some(graph) if !self.graphs.contains_key(&(graph as Handle)) => return Err(CUDA_ERROR_INVALID_VALUE),
            Some(graph) => graph as Handle,
            None => self.new_graph(Graph::default()),
        };
        self.captures += 1;
        let capture = Capture {
            graph,
            id: self.captures,
            mode,
            thread: std::thread::current().id(),
            invalid: false,
            borrowed: into.is_some(),
            repeats: None,
            origin: true,
        };
        self.streams
            .get_mut(&(stream as Handle))
            .ok_or(CUDA_ERROR_INVALID_HANDLE)?
            .capture = Some(capture);
        Ok(())
    }

    pub fn begin_recapture(&mut self, stream: CUstream, mode: c_uint, graph: CUgraph) -> Outcome {
        self.begin_capture(stream, mode, Some(graph))?;
        self.capture_mut(stream).ok_or(CUDA_ERROR_INVALID_HANDLE)?.repeats = Some(0);
        Ok(())
    }

    pub fn capture_mut(&mut self, stream: CUstream) -> Option<&mut Capture> {
        self.streams.get_mut(&(stream as Handle))?.capture.as_mut()
    }

    pub fn end_capture(&mut self, stream: CUstream, out: Out<CUgraph>) -> Outcome {
        out.check()?;
        let slot = self
            .streams
            .get_mut(&(stream as Handle))
            .map(|stream| &mut stream.capture);
        let Some(capture) = slot.and_then(Option::take) else {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        };
        if !capture.origin {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        for stream in self.streams.values_mut() {
            if stream.capture.as_ref().is_some_and(|other| other.id == capture.id) {
                stream.capture = None;
            }
        }
        if capture.invalid {
            if !capture.borrowed {
                self.destroy_graph(capture.graph as CUgraph)?;
            }
            out.put(std::ptr::null_mut())?;
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        out.put(capture.graph as CUgraph)
    }

    /// Status, id and graph as the three capture queries report them.
    fn capture_status(&self, stream: CUstream) -> Outcome<(c_uint, u64, Handle)> {
        let stream = resolve(stream, self.called) as CUstream;
        self.check_stream(stream)?;
        if stream as Handle == STREAM_LEGACY && self.legacy_is_involved() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        Ok(match self.capture_of(stream) {
            None => (0, 0, 0),
            Some(capture) if capture.invalid => (2, capture.id, 0),
            Some(capture) => (1, capture.id, capture.graph),
        })
    }

    fn synchronize(&mut self, stream: CUstream) -> Outcome {
        self.check_stream(stream)?;
        if let Some(capture) = self
            .streams
            .get_mut(&(stream as Handle))
            .and_then(|stream| stream.capture.as_mut())
        {
            capture.invalid = true;
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    /// An event recorded in a capturing stream carries the capture to the streams that wait for it.
    fn record_event(&mut self, event: CUevent, stream: CUstream) -> Outcome {
        self.check_event(event)?;
        self.check_stream(stream)?;
        match self.capture_of(stream).cloned() {
            Some(capture) if capture.invalid => return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            Some(capture) => self.captured_events.insert(
                event as Handle,
                Capture {
                    origin: false,
                    ..capture
                },
            ),
            None => self.captured_events.remove(&(event as Handle)),
        };
        Ok(())
    }

    fn wait_for_event(&mut self, stream: CUstream, event: CUevent) -> Outcome {
        self.check_stream(stream)?;
        self.check_event(event)?;
        let Some(capture) = self.captured_events.get(&(event as Handle)).cloned() else {
            return Ok(());
        };
        let goes_on = |stream: &Stream| stream.capture.as_ref().is_some_and(|other| other.id == capture.id);
        if self.streams.values().any(goes_on)
            && let Some(joined) = self.streams.get_mut(&(stream as Handle))
        {
            joined.capture.get_or_insert(capture);
        }
        Ok(())
    }

    fn check_event(&self, event: CUevent) -> Outcome {
        if self.plain.contains_key(&(event as Handle)) {
            Ok(())
        } else {
            Err(CUDA_ERROR_INVALID_HANDLE)
        }
    }
}

exports! {
    fn [cuStreamSynchronize, cuStreamSynchronize_ptsz] (stream: CUstream) |driver| { driver.synchronize(stream) }
    fn [cuStreamQuery, cuStreamQuery_ptsz] (stream: CUstream) |driver| { driver.synchronize(stream) }
    fn [cuStreamGetFlags, cuStreamGetFlags_ptsz] (stream: CUstream, out: Out<c_uint>) |driver| {
        out.put(driver.stream_fact(stream, 0, |stream| stream.flags)?)
    }
    fn [cuStreamGetPriority, cuStreamGetPriority_ptsz] (stream: CUstream, out: Out<c_int>) |driver| {
        out.put(driver.stream_fact(stream, 0, |stream| stream.priority)?)
    }
    fn [cuStreamGetId, cuStreamGetId_ptsz] (stream: CUstream, out: Out<u64>) |driver| {
        out.put(driver.stream_fact(stream, resolve(stream, driver.called), |stream| stream.id)?)
    }
    fn [cuStreamGetCtx, cuStreamGetCtx_ptsz] (stream: CUstream, out: Out<CUcontext>) |driver| {
        let current = driver.current();
        let context = driver.stream_fact(stream, current, |stream| Ok(stream.context))??;
        out.put(context as CUcontext)
    }
    fn [cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz] (stream: CUstream, out: Out<CUcontext>, green: Out<*mut c_void>) |driver| {
        let current = driver.current();
        let context = driver.stream_fact(stream, current, |stream| Ok(stream.context))??;
        green.put_if_wanted(std::ptr::null_mut());
        out.put(context as CUcontext)
    }
    fn [cuStreamGetDevice, cuStreamGetDevice_ptsz] (stream: CUstream, out: Out<CUdevice>) |driver| {
        let current = driver.current();
        let context = driver.stream_fact(stream, current, |stream| Ok(stream.context))??;
        out.put(driver.contexts[&context].device as CUdevice)
    }
    fn [cuStreamWaitEvent, cuStreamWaitEvent_ptsz] (stream: CUstream, event: CUevent, _flags: c_uint) |driver| {
        driver.wait_for_event(stream, event)
    }
    fn [cuStreamAddCallback, cuStreamAddCallback_ptsz] (stream: CUstream, callback: Option<extern "C" fn(CUstream, c_uint, *mut c_void)>, data: *mut c_void, _flags: c_uint) |driver| {
        driver.check_stream(stream)?;
        let callback = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (stream, data) = (stream as usize, data as usize);
        driver.after.push(Box::new(move || callback(stream as CUstream, 0, data as *mut c_void)));
        Ok(())
    }
    fn [cuLaunchHostFunc, cuLaunchHostFunc_ptsz] (stream: CUstream, callback: Option<extern "C" fn(*mut c_void)>, data: *mut c_void) |driver| {
        driver.check_stream(stream)?;
        let callback = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let data = data as usize;
        if driver.capture_of(stream).is_none() {
            driver.after.push(Box::new(move || callback(data as *mut c_void)));
        }
        Ok(())
    }
    fn [cuStreamIsCapturing, cuStreamIsCapturing_ptsz] (stream: CUstream, out: Out<c_uint>) |driver| {
        out.put(driver.capture_status(stream)?.0)
    }
    fn [cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz] (stream: CUstream, status: Out<c_uint>, id: Out<u64>) |driver| {
        let capture = driver.capture_status(stream)?;
        id.put_if_wanted(capture.1);
        status.put(capture.0)
    }
    fn [cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz] (
        stream: CUstream, status: Out<c_uint>, id: Out<u64>, graph: Out<CUgraph>, nodes: Out<*const CUgraphNode>, count: Out<usize>
    ) |driver| {
        let capture = driver.capture_status(stream)?;
        id.put_if_wanted(capture.1);
        graph.put_if_wanted(capture.2 as CUgraph);
        nodes.put_if_wanted(std::ptr::null());
        count.put_if_wanted(0);
        status.put(capture.0)
    }
    fn [cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz] (
        stream: CUstream, status: Out<c_uint>, id: Out<u64>, graph: Out<CUgraph>, nodes: Out<*const CUgraphNode>,
        edges: Out<*const c_void>, count: Out<usize>
    ) |driver| {
        let capture = driver.capture_status(stream)?;
        id.put_if_wanted(capture.1);
        graph.put_if_wanted(capture.2 as CUgraph);
        nodes.put_if_wanted(std::ptr::null());
        edges.put_if_wanted(std::ptr::null());
        count.put_if_wanted(0);
        status.put(capture.0)
    }
    fn [cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz] (stream: CUstream, _nodes: In<CUgraphNode>, _count: usize, _flags: c_uint) |driver| {
        driver.capture_of(stream).map(|_| ()).ok_or(CUDA_ERROR_ILLEGAL_STATE)
    }
    fn [cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz] (
        stream: CUstream, _nodes: In<CUgraphNode>, _edges: In<c_void>, _count: usize, _flags: c_uint
    ) |driver| {
        driver.capture_of(stream).map(|_| ()).ok_or(CUDA_ERROR_ILLEGAL_STATE)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) |_driver| {
        let wanted = mode.get()?;
        if wanted > RELAXED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        mode.put(MODE.replace(wanted))
    }
    fn [cuEventRecord, cuEventRecord_ptsz] (event: CUevent, stream: CUstream) |driver| {
        driver.record_event(event, stream)
    }
    fn [cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz] (event: CUevent, stream: CUstream, _flags: c_uint) |driver| {
        driver.record_event(event, stream)
    }
    fn cuEventQuery(event: CUevent) |driver| { driver.check_event(event) }
    fn cuEventSynchronize(event: CUevent) |driver| { driver.check_event(event) }
    fn [cuEventElapsedTime, cuEventElapsedTime_v2] (out: Out<f32>, start: CUevent, end: CUevent) |driver| {
        driver.check_event(start)?;
        driver.check_event(end)?;
        out.put(0.0)
    }
}
