//! Snapshots of whole programs.

use super::*;

/// A server that instantiates a graph for each request, and keeps a few other objects.
pub fn serving() -> Snapshot {
    let mut sample = Sample::new();
    let frame = |function, place| (function, place, "/opt/app");
    let serve = frame("Server::decode(Request const&)", "/src/server.cu:88");
    let run = frame("Server::run()", "/src/server.cu:140");
    let decode = sample.stack(&[RUNTIME, serve, run, MAIN, START]);
    let connect = frame("Server::connect()", "/src/server.cu:61");
    let connect = sample.stack(&[RUNTIME, connect, run, MAIN, START]);
    let load = sample.stack(&[
        RUNTIME,
        frame("Model::load(char const*)", "/src/model.cu:33"),
        MAIN,
        START,
    ]);
    let cublas = ("", "", "/usr/local/cuda/lib64/libcublas.so.13");
    let create = frame("Model::prepare()", "/src/model.cu:47");
    let library = sample.stack(&[RUNTIME, cublas, ("cublasCreate_v2", "", cublas.2), create, MAIN, START]);
    sample.holds(Kind::Device, "cudaMalloc", 64 * MIB, 1, load);
    sample.makes(Kind::GraphExec, "cudaGraphInstantiateWithFlags", 40, decode);
    sample.makes(Kind::Stream, "cudaStreamCreate", 12, connect);
    sample.makes(Kind::Event, "cudaEventCreateWithFlags", 12, connect);
    sample.makes(Kind::Stream, "cuStreamCreateWithPriority", 4, library);
    sample.makes(Kind::Library, "cuLibraryLoadData", 1, load);
    sample.finish(64 * MIB, 3)
}

/// Gradients of two forward lines, one of which two lines ran backward for, and other memory, in MiB 4, 3, 2 and 1. `moved`: the
/// number of lines above those of the forward pass.
pub fn gradients(moved: u32) -> Snapshot {
    let mut sample = Sample::new();
    let [first, second] = [31, 32].map(|line| format!("/home/me/model.py:{}", line + moved));
    let forward = ("gradient of Net.forward", first.as_str(), PYTHON);
    let inner = ("gradient of Net.forward", second.as_str(), PYTHON);
    let train = ("train", "/home/me/train.py:88", PYTHON);
    let tune = ("tune", "/home/me/train.py:99", PYTHON);
    for (bytes, frames) in [
        (4, &[forward, RUNTIME, train][..]),
        (3, &[forward, RUNTIME, tune]),
        (2, &[inner, RUNTIME, train]),
        (1, &[RUNTIME, train]),
    ] {
        let stack = sample.stack(frames);
        sample.holds(Kind::Device, "cudaMalloc", bytes * MIB, 1, stack);
    }
    sample.finish(0, 0)
}

/// A training program that leaks in several ways.
pub fn leaky() -> Snapshot {
    let mut sample = Sample::new();
    let step = sample.stack(&[
        RUNTIME,
        (
            "cudaError cudaMalloc<float>(float**, unsigned long)",
            "/usr/local/cuda/include/cuda_runtime.h:100",
            "/opt/app",
        ),
        ("Trainer::step(int, float*)", "/src/train.cu:212", "/opt/app"),
        ("Trainer::run()", "/src/train.cu:90", "/opt/app"),
        MAIN,
        START,
    ]);
    let load = sample.stack(&[
        RUNTIME,
        (
            "thrust::detail::vector_base<float>::allocate(unsigned long)",
            "/usr/include/thrust/vector.inl:9",
            "/opt/app",
        ),
        ("load_weights(std::string const&)", "/src/weights.cu:40", "/opt/app"),
        MAIN,
        START,
    ]);
    let plugin = sample.stack(&[RUNTIME, ("", "", "/opt/plugins/libfancy.so"), MAIN, START]);
    let torch = sample.stack(&[
        RUNTIME,
        (
            "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_block(int)",
            "",
            "/venv/torch/lib/libc10_cuda.so",
        ),
        ("at::empty_cuda(long)", "", "/venv/torch/lib/libtorch_cuda.so"),
        MAIN,
        START,
    ]);
    let window = sample.stack(&[
        ("cuMemMap", "", "/opt/app"),
        ("map_window", "/src/vmm.cu:7", "/opt/app"),
        MAIN,
        START,
    ]);
    sample
        .holds(Kind::Device, "cudaMalloc", 9 * MIB, 128, step)
        .holds(Kind::HostPinned, "cudaMallocHost", 64 * MIB, 1, load)
        .holds(Kind::Managed, "cudaMallocManaged", 4096, 3, plugin)
        .holds(Kind::Async, "cudaMallocAsync", 20 * MIB, 2, torch)
        .holds(Kind::Mapping, "cuMemMap", 2 * MIB, 1, window)
        .fails(1 << 46, 2, load);
    sample.0.losses.unknown_frees = 40;
    sample.finish(6_871_947_674, 500)
}

/// The same without its pool: how much of that is in use is unknown, so no check of it passes.
pub fn leaky_without_pool() -> Snapshot {
    let mut snapshot = leaky();
    snapshot.allocations.retain(|row| row.kind != Kind::Async);
    snapshot.counters.retain(|counter| counter.kind != Kind::Async);
    snapshot
}

/// A training program on PyTorch: two tensors in a segment, a pinned buffer, a workspace of cuBLAS, and memory of its
/// own.
pub fn training() -> Sample {
    let mut sample = Sample::new();
    let lib = "/venv/lib/python3.12/site-packages/torch/lib/libc10_cuda.so";
    let python = "/usr/bin/python3.12";
    let caching = "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int)";
    let inside = [
        (caching, "", lib),
        (
            "at::native::empty_cuda(long)",
            "",
            "/venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so",
        ),
        ("_PyEval_EvalFrameDefault", "", python),
    ];
    let linear = "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py:125";
    let lines = [
        ("Linear.forward", linear, PYTHON),
        ("training_step", "/home/me/train.py:212", PYTHON),
        ("<module>", "/home/me/train.py:300", PYTHON),
        ("Py_BytesMain", "", python),
        START,
    ];
    let load = [("load", "/home/me/data.py:31", PYTHON), lines[2], lines[3], START];
    let pinned = [
        RUNTIME,
        ("at::CachingHostAllocatorImpl::allocate(unsigned long)", "", lib),
    ];
    let cublas = [
        RUNTIME,
        (
            "",
            "",
            "/venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.13",
        ),
    ];
    let segment = sample.stack(&[&[RUNTIME][..], &inside, &lines].concat());
    let tensor = sample.stack(&[&inside[..], &lines].concat());
    let pinned = sample.stack(&[&pinned[..], &load].concat());
    let cublas = sample.stack(&[&cublas[..], &lines].concat());
    let own = sample.stack(&[&[RUNTIME][..], &load].concat());
    sample
        .holds(Kind::Physical, "cuMemCreate", 20 * MIB, 1, segment)
        .holds(Kind::Mapping, "cuMemMap", 20 * MIB, 1, segment)
        .holds(Kind::Tensor, "CUDACachingAllocator", 4 * MIB, 2, tensor)
        .holds(Kind::HostPinned, "cudaHostAlloc", MIB, 1, pinned)
        .holds(Kind::Device, "cudaMalloc", 32 * MIB, 1, cublas)
        .holds(Kind::Device, "cudaMalloc", 2 * MIB, 1, own);
    sample.0.allocators.push(Allocator {
        domain: "pytorch".to_owned(),
        device: Some(0),
        live_bytes: 8 * MIB,
        reserved_bytes: 20 * MIB,
        events: 40,
        mismatches: 0,
        unseen_bytes: 0,
    });
    sample.0.marks.push(Mark {
        time_ns: 50 * SECOND,
        name: "epoch 3".to_owned(),
        thread: 0,
    });
    let segment = sample.0.allocations.at(1).address;
    let mut tensors = 0;
    sample.0.allocations.change(|_, tensor, call| {
        if call.kind == Kind::Tensor {
            tensor.address = segment + tensors * 8 * MIB;
            (call.device, call.context, call.domain) = (Some(0), None, Some("pytorch".to_owned()));
            tensors += 1;
        }
    });
    sample
}

/// The figures of the driver while that program ran.
pub fn usage_while_training() -> Usage {
    Usage {
        source: "NVML 580.65.06".to_owned(),
        devices: vec![DeviceUsage {
            device: 0,
            total_bytes: 140 * GIB,
            used_bytes: 700 * MIB,
            limits: culeak::snapshot::GroupLimits::default(),
            reserved_bytes: 600 * MIB,
            process_bytes: Some(574 * MIB),
            others: Some(OtherProcesses {
                bytes: 100 * MIB,
                count: 1,
            }),
        }],
        missing: None,
    }
}

/// A script on PyTorch whose model and a list of tensors were live at its end, 50 s after the start. The interpreter freed
/// them while it shut down. Two other blocks were never freed.
pub fn shut_down() -> Snapshot {
    let mut sample = training();
    sample.0.process.executable = "/usr/bin/python3.12".to_owned();
    sample.0.process.command_line = vec!["python".to_owned(), "train.py".to_owned()];
    let (segment, tensor) = (0, 1);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 1, 4);
    sample.0.allocations.change_last(|late, _| late.time_ns = 55 * SECOND);
    let mut snapshot = sample.finish(64 * MIB, 9);
    let is_tensor = |allocation: &Allocation| allocation.kind == Kind::Tensor;
    snapshot.freed_after_end = snapshot.allocations.clone();
    snapshot.freed_after_end.retain(|allocation| is_tensor(&allocation));
    snapshot.allocations.retain(|allocation| !is_tensor(&allocation));
    for counter in &mut snapshot.counters {
        counter.device = counter.device.or(Some(0).filter(|_| counter.kind == Kind::Tensor));
        if counter.kind == Kind::Tensor {
            (counter.freed_count, counter.live_count, counter.live_bytes) = (counter.live_count, 0, 0);
            (counter.peak_bytes, counter.peak_ns, counter.total_bytes) = (12 * MIB, 40 * SECOND, 12 * MIB);
        }
    }
    snapshot.end = Some(End {
        of: EndOf::Script,
        time_ns: 50 * SECOND,
    });
    snapshot.device_peaks[0].time_ns = 40 * SECOND + SECOND / 2;
    let at_peak = |stack, kind, api: &str, bytes, count| AtPeak {
        stack: Some(stack),
        kind,
        device: Some(0),
        domain: (kind == Kind::Tensor).then(|| "pytorch".to_owned()),
        api: api.to_owned(),
        bytes,
        count,
    };
    snapshot.at_peaks = vec![
        at_peak(3, Kind::Device, "cudaMalloc", 32 * MIB, 1),
        at_peak(segment, Kind::Physical, "cuMemCreate", 20 * MIB, 1),
        at_peak(4, Kind::Device, "cudaMalloc", 12 * MIB, 6),
        at_peak(tensor, Kind::Tensor, "CUDACachingAllocator", 12 * MIB - 4096, 3),
    ];
    snapshot.phases = vec![
        Phase {
            name: "epoch 3".to_owned(),
            domain: None,
            thread: 0,
            begin_ns: 30 * SECOND,
            end_ns: Some(50 * SECOND),
            parent: None,
        },
        Phase {
            name: "backward".to_owned(),
            domain: None,
            thread: 0,
            begin_ns: 39 * SECOND,
            end_ns: Some(41 * SECOND),
            parent: Some(0),
        },
    ];
    snapshot.validate().expect("a sample is valid");
    snapshot
}

/// A snapshot and a timeline: a step that allocates workspace again and again for a short time, and a growing list.
pub fn busy() -> (Snapshot, culeak::timeline::Timeline) {
    use culeak::timeline::{Event, Op, Site, Timeline};

    let mut sample = Sample::new();
    let step = sample.stack(&[RUNTIME, ("workspace", "/src/gemm.cu:40", "/opt/app"), MAIN, START]);
    let keep = sample.stack(&[RUNTIME, ("Cache::put", "/src/cache.cu:7", "/opt/app"), MAIN, START]);
    sample.holds(Kind::Device, "cudaMalloc", 3 * MIB, 20, keep);
    let site = |stack| Site {
        stack: Some(stack),
        kind: Kind::Device,
        device: Some(0),
        domain: None,
        api: "cudaMalloc".to_owned(),
    };
    let event = |time_ns, op, address, bytes, site| Event {
        time_ns,
        op,
        address,
        bytes,
        site,
        lifetime_ns: 0,
        thread: (op != Op::Freed).then_some(0),
    };
    let mut events = Vec::new();
    for round in 0..1000 {
        // The second half of the rounds is three times as fast.
        let begin = SECOND + if round < 500 { 3 * round } else { 1000 + round } * SECOND / 50;
        events.push(event(begin, Op::Allocated, 0x7f00_0000_0000, 64 * MIB, 0));
        events.push(Event {
            lifetime_ns: 800_000 + 4_000 * round,
            ..event(begin + 2_000_000, Op::Freed, 0x7f00_0000_0000, 64 * MIB, 0)
        });
        if round % 50 == 0 {
            let address = 0x7f10_0000_0000 + round * MIB;
            events.push(event(begin + 4_000_000, Op::Allocated, address, 3 * MIB, 1));
        }
    }
    let timeline = Timeline::new(0, 60 * SECOND, vec![site(step), site(keep)], events);
    (sample.finish(124 * MIB, 1000), timeline)
}

/// A path of these steps: `(how, what)`.
fn path(class: Class, root: RootKind, origin: &str, origin_type: &str, steps: &[(&str, &str)]) -> HolderPath {
    let steps = steps.iter().map(|(via, holder)| Step {
        via: (*via).to_owned(),
        holder: (*holder).to_owned(),
    });
    HolderPath {
        class,
        root,
        origin: origin.to_owned(),
        origin_type: origin_type.to_owned(),
        steps: steps.collect(),
        ..HolderPath::default()
    }
}

/// A running script on PyTorch, with one group of blocks for each class of holders, and a block that was allocated after the
/// search.
pub fn held() -> Snapshot {
    let mut sample = Sample::new().running();
    sample.0.process.executable = "/usr/bin/python3.12".to_owned();
    sample.0.process.command_line = vec!["python".to_owned(), "train.py".to_owned()];
    let caching = (
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int)",
        "",
        "/venv/torch/lib/libc10_cuda.so",
    );
    let top = ("<module>", "/home/me/train.py:90", PYTHON);
    let line = |sample: &mut Sample, function: &str, place: &str| {
        sample.stack(&[caching, (function, &format!("/home/me/{place}"), PYTHON), top, START])
    };
    let segment = sample.stack(&[RUNTIME, caching, top, START]);
    let graph = line(&mut sample, "graph_in_list", "train.py:8");
    let cycle = line(&mut sample, "cycle", "train.py:29");
    let generator = line(&mut sample, "gen", "train.py:62");
    let native = sample.stack(&[
        RUNTIME,
        ("make_cache()", "/src/ext.cpp:14", "/opt/libext.so"),
        MAIN,
        START,
    ]);
    let pool = sample.stack(&[
        RUNTIME,
        ("fill_pool()", "/src/pool.cu:77", "/opt/libext.so"),
        MAIN,
        START,
    ]);
    let late = line(&mut sample, "load", "data.py:31");
    let tensor = "CUDACachingAllocator";
    sample
        .holds(Kind::Device, "cudaMalloc", 64 * MIB, 1, segment)
        .holds(Kind::Tensor, tensor, MIB, 20, graph)
        .holds(Kind::Tensor, tensor, MIB / 2, 40, graph)
        .holds(Kind::Tensor, tensor, 4 * MIB, 2, cycle)
        .holds(Kind::Tensor, tensor, 2 * MIB, 1, generator)
        .holds(Kind::Tensor, tensor, MIB / 4, 1, generator)
        .holds(Kind::Device, "cudaMalloc", 2 * MIB, 1, native)
        .holds(Kind::Device, "cudaMalloc", MIB / 2, 1, native)
        .holds(Kind::Device, "cudaMalloc", MIB, 1, pool)
        .holds(Kind::Tensor, tensor, MIB / 8, 1, late);
    let mut free = sample.0.allocations.at(0).address;
    sample.0.allocations.change(|_, block, call| {
        if call.kind == Kind::Tensor {
            block.address = free;
            free += block.bytes;
            (call.device, call.context, call.domain) = (Some(0), None, Some("pytorch".to_owned()));
        }
    });
    let tail = [("", "storage"), ("", "")];
    let to_tensor = |steps: &[(&'static str, &'static str)]| [steps, &tail].concat();
    let keep = "__main__.keep";
    let global = path(
        Class::Held,
        RootKind::Global,
        "g_cache in libext.so",
        "std::vector",
        &[("[*]", "")],
    );
    let frame = "frame of generator gen, train.py:62, local t";
    let mut cycle = path(
        Class::Cycle,
        RootKind::None,
        "cycle Node.o → Node.o",
        "",
        &to_tensor(&[(".t", "Tensor")]),
    );
    cycle.note = Some("gc is disabled".to_owned());
    let mut buffer = path(Class::NativeHolder, RootKind::None, "Buffer", "", &[(" +24", "")]);
    buffer.possibly = true;
    let saved = [
        (".grad_fn", "SumBackward0"),
        ("", "ExpBackward0"),
        ("saved result", "storage"),
        ("", ""),
    ];
    let paths = vec![
        path(
            Class::Held,
            RootKind::Module,
            keep,
            "list of 60",
            &to_tensor(&[("[*]", "Tensor")]),
        ),
        path(
            Class::Held,
            RootKind::Module,
            keep,
            "list of 60",
            &[&[("[*]", "Tensor")][..], &saved].concat(),
        ),
        cycle,
        path(Class::Held, RootKind::Frame, frame, "Tensor", &tail),
        path(
            Class::OverCounted,
            RootKind::None,
            "Tensor",
            "2 of 3 references found",
            &tail,
        ),
        global,
        buffer,
        path(Class::Lost, RootKind::None, "", "", &[]),
    ];
    let retainer = |name: &str, root, parent, bytes, count| Retainer {
        name: name.to_owned(),
        root,
        parent,
        bytes,
        count,
        ..Retainer::default()
    };
    let retainers = vec![
        retainer("__main__.keep (list of 60)", RootKind::Module, None, 40 * MIB, 60),
        retainer("keep[7] (Tensor)", RootKind::Module, Some(0), MIB, 1),
        retainer(frame, RootKind::Frame, None, 2 * MIB, 1),
        retainer("g_cache in libext.so (std::vector)", RootKind::Global, None, 2 * MIB, 1),
    ];
    let searched = |nth: usize, block: &Allocation| {
        let path = match nth {
            0..20 => 0,
            20..60 => 1,
            60 | 61 => 2,
            nth => nth - 59,
        };
        HeldBlock {
            address: block.address,
            time_ns: block.time_ns,
            bytes: block.bytes,
            path,
            retainer: [Some(0), Some(0), None, Some(2), None, Some(3)]
                .get(path)
                .copied()
                .flatten(),
            module: None,
            tensor: match nth {
                0..20 => Some(0),
                20..50 => Some(nth % 3),
                _ => None,
            },
        }
    };
    let blocks = sample.0.allocations.iter().skip(1).take(67).enumerate();
    let mut blocks: Vec<HeldBlock> = blocks.map(|(nth, block)| searched(nth, &block)).collect();
    blocks.sort_unstable_by_key(|block| block.address);
    sample.0.holders = Some(Holders {
        search: Search {
            at_ns: 59 * SECOND,
            took_ns: 640_000_000,
            copy_ns: 210_000_000,
            copies: 2,
            copied_bytes: 640 * MIB,
            visited: 1_204_511,
            python: Some("3.12.3".to_owned()),
            changed: 3,
            limits: vec!["2 blocks lie within other blocks, whose holders are shown instead".to_owned()],
            ..Search::default()
        },
        paths,
        retainers,
        modules: Vec::new(),
        tensors: [("float32", vec![512, 1024]), ("float32", vec![]), ("int64", vec![7, 1])]
            .map(|(dtype, shape)| HeldTensor {
                dtype: dtype.to_owned(),
                shape,
            })
            .into(),
        blocks,
        ..Holders::default()
    });
    sample.finish(64 * MIB, 12)
}

/// As [`held`], and modules of PyTorch own blocks: a model of six layers, one of which has a cache, and a smaller one.
pub fn modelled() -> Snapshot {
    let mut snapshot = held();
    let holders = snapshot.holders.as_mut().expect("searched");
    let mut add = |name: &str, class: &str, parent: Option<usize>| {
        holders.modules.push(OwnerModule {
            name: name.to_owned(),
            class: class.to_owned(),
            parent,
            also: (name == "embed").into(),
        });
        holders.modules.len() - 1
    };
    let model = add("__main__.model", "Model", None);
    let mut owners = vec![add("embed", "Embedding", Some(model))];
    let body = add("body", "Body", Some(model));
    let layers = add("layers", "ModuleList", Some(body));
    for nth in 0..6 {
        let layer = add(&nth.to_string(), "Layer", Some(layers));
        owners.extend([
            add("linear1", "Linear", Some(layer)),
            add("linear2", "Linear", Some(layer)),
        ]);
        if nth == 3 {
            owners.extend([layer; 4]);
        }
    }
    owners.push(add("__main__.critic", "Sequential", None));
    // The first 60 blocks of the line are as large as each other.
    let of_line = holders.blocks.iter_mut().filter(|block| block.path < 2);
    for (block, owner) in of_line.zip(owners) {
        block.module = Some(owner);
    }
    snapshot
}
