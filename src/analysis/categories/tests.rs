use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::analysis::filter::{Filter, Filtering};
use crate::analysis::groups::Groups;
use crate::analysis::report::{By, Options, Report};
use crate::kind::Kind;
use crate::sample::{FrameText, MAIN, PYTHON, RUNTIME, START, Sample, leaky, training};
use crate::snapshot::Thread;

const TORCH: &str = "/venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so";
const ALLOCATOR: FrameText = (
    "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
    "",
    TORCH,
);
const OPERATOR: FrameText = (
    "torch::autograd::VariableType::(anonymous namespace)::addmm(int)",
    "",
    TORCH,
);
const ENGINE: FrameText = ("torch::autograd::Engine::thread_main(int)", "", TORCH);
const WORKSPACE: FrameText = ("at::cuda::getCUDABlasLtWorkspace()", "", TORCH);
const CALL: FrameText = ("Module._call_impl", "/venv/torch/nn/modules/module.py:1790", PYTHON);
const STEP: FrameText = ("AdamW.step", "/venv/torch/optim/adamw.py:238", PYTHON);
const STATE: FrameText = ("AdamW._init_group", "/venv/torch/optim/adamw.py:178", PYTHON);
const SCRIPT: FrameText = ("train", "/home/me/train.py:212", PYTHON);

const fn native(function: &'static str) -> FrameText<'static> {
    (function, "", TORCH)
}

const fn python(function: &'static str, place: &'static str) -> FrameText<'static> {
    (function, place, PYTHON)
}

/// One tensor of this stack, on a thread of this name.
fn one(frames: &[FrameText], thread: &str) -> Snapshot {
    let mut sample = Sample::new();
    let stack = sample.stack(frames);
    sample.holds(Kind::Tensor, "CUDACachingAllocator", 512, 1, stack);
    thread.clone_into(&mut sample.0.threads[0].name);
    sample.finish(0, 0)
}

/// The category, and the text of the rule that decides.
fn decide(categories: &Categories, snapshot: &Snapshot) -> (Category, String) {
    let stacks = CallStacks::of(snapshot);
    let sorter = Sorter::new(categories, snapshot);
    let allocation = snapshot.allocations.at(0);
    let rule = sorter.rule(allocation.stack, allocation.call.into(), &stacks);
    let text = rule.map_or(String::new(), |rule| categories.rules[rule].text.clone());
    (sorter.category(allocation.stack, allocation.call, &stacks), text)
}

fn category(frames: &[FrameText]) -> Category {
    decide(&Categories::default(), &one(frames, "python3")).0
}

/// By the rules of this file alone.
fn by(rules: &str, snapshot: &Snapshot) -> Category {
    let mut categories = Categories::none();
    categories.add(rules, "mine.txt").expect("valid rules");
    decide(&categories, snapshot).0
}

/// For each built-in rule except those on libraries and threads: a frame that it matches, and a similar frame that it does
/// not match.
#[rustfmt::skip]
const EXAMPLES: &[(&str, FrameText, FrameText)] = &[
    ("workspace: function run_conv_plan", native("at::native::run_conv_plan(int)"), ("at::f", "/src/run_conv_plan.cpp:1", TORCH)),
    ("workspace: function run_single_conv", native("at::native::run_single_conv(int)"), native("at::native::cudnn_convolution(int)")),
    ("workspace: function generate_and_filter_plans", native("at::native::generate_and_filter_plans(int)"), native("at::native::plans(int)")),
    ("workspace: at::cuda::ThrustAllocator", native("at::cuda::ThrustAllocator::allocate(long)"), native("thrust::allocate(long)")),
    ("workspace: at::cuda::cub::", native("void at::cuda::cub::detail::radix_sort_pairs_impl<int>(int)"), native("cub::DeviceRadixSort(int)")),
    ("workspace: get_empty_cache_for_benchmark", python("CudaDriver.get_empty_cache_for_benchmark", "/venv/triton/backends/nvidia/driver.py:9"), python("benchmark", "/home/me/b.py:9")),
    ("workspace: do_bench in /triton/", python("do_bench", "/venv/triton/testing.py:9"), python("do_bench", "/home/me/testing.py:9")),
    ("workspace: /torch/_inductor/runtime/benchmarking.py", python("Benchmarker.benchmark", "/venv/torch/_inductor/runtime/benchmarking.py:9"), python("benchmark", "/home/me/benchmarking.py:9")),
    ("gradients: foreach_reduce in /torch/distributed/fsdp/", python("foreach_reduce", "/venv/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:9"), python("foreach_reduce", "/home/me/fsdp.py:9")),
    ("communication: c10d::Reducer::", native("c10d::Reducer::initialize_buckets(int)"), native("c10d::Store::wait(int)")),
    ("communication: c10d::ProcessGroup", native("c10d::ProcessGroupNCCL::allreduce(int)"), native("c10d::Logger::log(int)")),
    ("communication: c10d::symmetric_memory", native("c10d::symmetric_memory::empty(int)"), native("c10d::empty(int)")),
    ("communication: /torch/distributed/distributed_c10d.py", python("all_gather_object", "/venv/torch/distributed/distributed_c10d.py:9"), python("all_gather_object", "/home/me/d.py:9")),
    ("communication: /torch/distributed/_functional_collectives.py", python("all_gather_tensor", "/venv/torch/distributed/_functional_collectives.py:9"), python("all_gather", "/home/me/d.py:9")),
    ("communication: /torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", python("foreach_all_gather", "/venv/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:9"), python("foreach_all_gather", "/home/me/d.py:9")),
    ("communication: /torch/distributed/_symmetric_memory/", python("get", "/venv/torch/distributed/_symmetric_memory/__init__.py:9"), python("get", "/home/me/d.py:9")),
    ("kv-cache: /transformers/cache_utils.py", python("DynamicLayer.update", "/venv/transformers/cache_utils.py:146"), python("update", "/home/me/cache_utils.py:146")),
    ("kv-cache: function allocate_kv_cache", python("GPUModelRunner._allocate_kv_cache_tensors", "/venv/vllm/runner.py:9"), python("allocate", "/home/me/allocate_kv_cache.py:9")),
    ("kv-cache: function initialize_kv_cache", python("GPUModelRunner.initialize_kv_cache", "/venv/vllm/runner.py:9"), python("initialize", "/home/me/initialize_kv_cache.py:9")),
    ("kv-cache: function KVCache", python("KVCache.__init__", "/home/me/model.py:9"), python("f", "/home/KVCache/model.py:9")),
    ("kv-cache: /sglang/srt/mem_cache/", python("Pool._create", "/venv/sglang/srt/mem_cache/memory_pool.py:9"), python("Pool._create", "/home/me/mem.py:9")),
    ("parameters: _apply in /torch/nn/modules/module.py", python("Module._apply", "/venv/torch/nn/modules/module.py:934"), python("Module.apply", "/venv/torch/nn/modules/module.py:900")),
    ("parameters: load_state_dict in /torch/nn/modules/module.py", python("Module.load_state_dict", "/venv/torch/nn/modules/module.py:9"), python("Scheduler.load_state_dict", "/home/me/s.py:9")),
    ("parameters: __init__ in /torch/nn/modules/", python("Linear.__init__", "/venv/torch/nn/modules/linear.py:106"), python("Linear.extra_repr", "/venv/torch/nn/modules/linear.py:140")),
    ("parameters: /torch/nn/parameter.py", python("Parameter.__deepcopy__", "/venv/torch/nn/parameter.py:9"), python("f", "/home/me/parameter.py:9")),
    ("parameters: /torch/nn/init.py", python("kaiming_uniform_", "/venv/torch/nn/init.py:9"), python("f", "/home/me/init.py:9")),
    ("parameters: function from_pretrained", python("PreTrainedModel.from_pretrained", "/venv/transformers/modeling_utils.py:9"), python("f", "/home/me/from_pretrained.py:9")),
    ("parameters: /transformers/core_model_loading.py", python("materialize", "/venv/transformers/core_model_loading.py:9"), python("f", "/home/me/core_model_loading.py:9")),
    ("parameters: /vllm/model_executor/model_loader/", python("load", "/venv/vllm/model_executor/model_loader/base.py:9"), python("load", "/venv/vllm/config.py:9")),
    ("parameters: /safetensors/", python("load_file", "/venv/safetensors/torch.py:9"), python("load_file", "/home/me/torch.py:9")),
    ("parameters: /torch/distributed/fsdp/_flat_param.py", python("shard", "/venv/torch/distributed/fsdp/_flat_param.py:9"), python("shard", "/home/me/_flat_param.py:9")),
    ("parameters: /torch/distributed/fsdp/_fully_shard/_fsdp_param.py", python("f", "/venv/torch/distributed/fsdp/_fully_shard/_fsdp_param.py:9"), python("f", "/home/me/_fsdp_param.py:9")),
    ("parameters: torch::nn::Module::to_impl", native("void torch::nn::Module::to_impl<c10::Device&>(int)"), native("torch::nn::Module::eval()")),
    ("parameters: torch::nn::*Impl::reset", native("torch::nn::LinearImpl::reset()"), native("torch::nn::LinearImpl::pretty_print()")),
    ("optimizer-state: _init_group in /torch/optim/", STATE, python("_init_group", "/home/me/o.py:9")),
    ("optimizer-state: load_state_dict in /torch/optim/", python("Optimizer.load_state_dict", "/venv/torch/optim/optimizer.py:9"), python("Scheduler.load_state_dict", "/home/me/o.py:9")),
    ("inputs: _prepare_inputs in /transformers/trainer", python("Trainer._prepare_inputs", "/venv/transformers/trainer.py:9"), python("_prepare_inputs", "/home/me/t.py:9")),
    ("inputs: send_to_device in /accelerate/", python("send_to_device", "/venv/accelerate/utils/operations.py:9"), python("send_to_device", "/home/me/t.py:9")),
    ("activations: _call_impl in /torch/nn/modules/module.py", CALL, python("_call_impl", "/home/me/module.py:9")),
    ("activations: torch::nn::*::forward", native("torch::nn::Conv2dImpl::forward(at::Tensor const&)"), native("Net::forward(at::Tensor const&)")),
    ("activations: /torch/nn/functional.py", python("cross_entropy", "/venv/torch/nn/functional.py:9"), python("f", "/home/me/functional.py:9")),
    ("activations: function training_step", python("Net.training_step", "/home/me/t.py:9"), python("step", "/home/me/training_step.py:9")),
    ("activations: function closure$", python("fit.<locals>.closure", "/home/me/t.py:9"), python("closure_of", "/home/me/t.py:9")),
    ("optimizer-state: /torch/optim/", STEP, python("step", "/home/me/adamw.py:9")),
    ("optimizer-state: torch::optim::", native("torch::optim::Adam::step(int)"), native("Adam::step(int)")),
    ("optimizer-state: /torch/amp/grad_scaler.py", python("GradScaler._lazy_init", "/venv/torch/amp/grad_scaler.py:9"), python("f", "/home/me/grad_scaler.py:9")),
    ("optimizer-state: /bitsandbytes/optim/", python("init_state", "/venv/bitsandbytes/optim/optimizer.py:9"), python("init_state", "/venv/bitsandbytes/nn/modules.py:9")),
    ("optimizer-state: /apex/optimizers/", python("step", "/venv/apex/optimizers/fused_adam.py:9"), python("step", "/venv/apex/other.py:9")),
    ("optimizer-state: /megatron/core/optimizer/", python("step", "/venv/megatron/core/optimizer/distrib_optimizer.py:9"), python("step", "/venv/megatron/core/model.py:9")),
    ("optimizer-state: /deepspeed/ops/adam/", python("step", "/venv/deepspeed/ops/adam/fused_adam.py:9"), python("step", "/venv/deepspeed/engine.py:9")),
    ("gradients: torch::autograd::Engine::", ENGINE, native("torch::autograd::Engines(int)")),
    ("gradients: torch::autograd::AccumulateGrad", native("torch::autograd::AccumulateGrad::apply(int)"), native("torch::autograd::Node::name()")),
    ("gradients: _make_grads in /torch/autograd/__init__.py", python("_make_grads", "/venv/torch/autograd/__init__.py:9"), python("_make_grads", "/home/me/t.py:9")),
    ("gradients: /torch/nn/utils/clip_grad.py", python("clip_grad_norm_", "/venv/torch/nn/utils/clip_grad.py:9"), python("clip", "/home/me/clip_grad.py:9")),
    ("gradients: /megatron/core/distributed/param_and_grad_buffer.py", python("f", "/venv/megatron/core/distributed/param_and_grad_buffer.py:9"), python("f", "/home/me/param_and_grad_buffer.py:9")),
    ("inputs: /torch/utils/data/", python("pin_memory", "/venv/torch/utils/data/_utils/pin_memory.py:9"), python("pin_memory", "/home/me/data.py:9")),
    ("inputs: /transformers/generation/", python("generate", "/venv/transformers/generation/utils.py:9"), python("generate", "/home/me/generation/utils.py:9")),
    ("inputs: move_data_to_device in /lightning", python("move_data_to_device", "/venv/lightning_fabric/utilities/apply_func.py:9"), python("move_data_to_device", "/home/me/t.py:9")),
    ("inputs: device_put in /jax/", python("device_put", "/venv/jax/_src/api.py:9"), python("device_put", "/home/me/t.py:9")),
    ("parameters: function .__init__$", python("Net.__init__", "/home/me/net.py:9"), python("Net.__init__.<locals>.later", "/home/me/net.py:9")),
    ("parameters: function ^__init__$", python("__init__", "/home/me/net.py:9"), python("my__init__", "/home/me/net.py:9")),
    ("parameters: /torch/serialization.py", python("load", "/venv/torch/serialization.py:9"), python("load", "/home/me/serialization.py:9")),
    ("inputs: torch::autograd::THPVariable_to", native("torch::autograd::THPVariable_to(_object*)"), native("torch::autograd::THPVariable_add(_object*)")),
    ("inputs: torch::autograd::THPVariable_cuda", native("torch::autograd::THPVariable_cuda(_object*)"), native("torch::autograd::THPVariable_cpu(_object*)")),
    ("inputs: torch::autograd::THPVariable_rand", native("torch::autograd::THPVariable_randint(_object*)"), native("torch::autograd::THPVariable_zeros(_object*)")),
    ("inputs: torch::autograd::THPVariable_arange", native("torch::autograd::THPVariable_arange(_object*)"), native("torch::autograd::THPVariable_ones(_object*)")),
    ("inputs: torch::autograd::THPVariable_tensor", native("torch::autograd::THPVariable_tensor(_object*)"), native("torch::autograd::THPVariable_empty(_object*)")),
    ("inputs: torch::autograd::THPVariable_as_tensor", native("torch::autograd::THPVariable_as_tensor(_object*)"), native("torch::autograd::THPVariable_as_strided(_object*)")),
    ("inputs: torch::autograd::THPVariable_from_numpy", native("torch::autograd::THPVariable_from_numpy(_object*)"), native("torch::autograd::THPVariable_full(_object*)")),
    ("activations: /torch/_inductor/", python("CompiledFxGraph.__call__", "/venv/torch/_inductor/output_code.py:9"), python("call", "/home/me/output_code.py:9")),
    ("activations: torch::jit::", native("torch::jit::InterpreterState::run(int)"), native("torch::jitter(int)")),
    ("activations: torch::autograd::VariableType::", OPERATOR, native("torch::autograd::VariableInfo::zeros(int)")),
];

#[test]
fn every_built_in_rule_decides_its_example_and_not_a_similar_stack() {
    let categories = Categories::default();
    for (rule, matching, similar) in EXAMPLES {
        let stack = |frame: FrameText<'static>| [ALLOCATOR, frame, SCRIPT, MAIN, START];
        let (category, decided) = decide(&categories, &one(&stack(*matching), "python3"));
        assert_eq!(
            (decided.as_str(), rule.split(':').next()),
            (*rule, Some(category.name()))
        );
        let (_, other) = decide(&categories, &one(&stack(*similar), "python3"));
        assert_ne!(other, *rule, "{similar:?}");
    }
    let shown: BTreeSet<&str> = EXAMPLES.iter().map(|(rule, ..)| *rule).collect();
    let in_frames = |rule: &&Rule| {
        rule.conditions
            .iter()
            .all(|condition| matches!(condition, Condition::Frame(_)))
    };
    let all: BTreeSet<&str> = categories
        .rules
        .iter()
        .filter(in_frames)
        .map(|rule| rule.text.as_str())
        .collect();
    assert_eq!(shown, all, "rules with an example, and built-in rules");
    assert!(categories.tests.len() > 64, "more tests than one word has bits");
}

#[test]
fn the_library_that_requested_the_memory_decides_for_memory_outside_the_framework() {
    let library = |module| {
        let mut sample = Sample::new();
        let stack = sample.stack(&[RUNTIME, ("", "", module), CALL, MAIN]);
        sample.holds(Kind::Device, "cudaMalloc", 512, 1, stack);
        decide(&Categories::default(), &sample.finish(0, 0))
    };
    assert_eq!(
        library("/lib/libcublasLt.so.13"),
        (Category::Workspace, "workspace: library cu".to_owned())
    );
    assert_eq!(library("/lib/libcudnn.so.9").0, Category::Workspace);
    assert_eq!(
        library("/lib/libnccl.so.2"),
        (Category::Communication, "communication: library NCCL".to_owned())
    );
    assert_eq!(library("/lib/libnvshmem_host.so.3").1, "communication: library NVSHMEM");
    assert_eq!(library("/lib/libmine.so").0, Category::Other);
}

#[test]
fn functions_decide_for_blocks_of_frameworks_and_not_for_memory_of_the_driver() {
    let stacks: [&[FrameText]; 4] = [
        &[python("KVCache.__init__", "/home/me/serve.py:9"), SCRIPT],
        &[python("fit.<locals>.closure", "/home/me/t.py:9"), SCRIPT],
        &[python("Net.__init__", "/home/me/net.py:9"), SCRIPT],
        &[ALLOCATOR, WORKSPACE, CALL, SCRIPT],
    ];
    let of_blocks = [
        Category::KvCache,
        Category::Activations,
        Category::Parameters,
        Category::Workspace,
    ];
    for (frames, of_block) in stacks.into_iter().zip(of_blocks) {
        for &kind in Kind::ALL {
            let mut snapshot = one(frames, "python3");
            snapshot.allocations.change(|_, _, call| call.kind = kind);
            let expected = match kind.place() {
                Place::Within => of_block,
                // Of cuBLAS, wherever the memory is.
                _ if of_block == Category::Workspace => of_block,
                _ => Category::Other,
            };
            let (found, rule) = decide(&Categories::default(), &snapshot);
            assert_eq!(found, expected, "{kind:?}, {rule}");
        }
    }
    // A rule of the user is for all memory.
    let mut snapshot = one(stacks[0], "python3");
    snapshot.allocations.change(|_, _, call| call.kind = Kind::Device);
    assert_eq!(by("kv-cache: function KVCache", &snapshot), Category::KvCache);
}

#[test]
fn the_thread_of_autograd_decides_if_the_stack_was_cut_off() {
    let frames = [ALLOCATOR, native("at::_ops::mm::call(int)")];
    let on = |thread| decide(&Categories::default(), &one(&frames, thread));
    assert_eq!(
        on("pt_autograd_0"),
        (Category::Gradients, "gradients: thread ^pt_autograd_".to_owned())
    );
    assert_eq!(on("my_pt_autograd_0").0, Category::Other);
}

#[test]
fn the_order_of_the_rules_tells_nested_work_apart() {
    let stacks: [(&str, &[FrameText], Category); 9] = [
        (
            "forward in a step's closure",
            &[ALLOCATOR, OPERATOR, CALL, STEP, SCRIPT],
            Category::Activations,
        ),
        (
            "loss in a step's closure",
            &[OPERATOR, python("run.<locals>.closure", "/home/me/t.py:1"), STEP],
            Category::Activations,
        ),
        (
            "state created within a module",
            &[ALLOCATOR, STATE, STEP, CALL, SCRIPT],
            Category::OptimizerState,
        ),
        (
            "temporaries of a step",
            &[ALLOCATOR, OPERATOR, STEP, SCRIPT],
            Category::OptimizerState,
        ),
        (
            "a step in a gradient's hook",
            &[ALLOCATOR, STATE, STEP, ENGINE],
            Category::OptimizerState,
        ),
        (
            "recomputation in the backward pass",
            &[ALLOCATOR, OPERATOR, CALL, ENGINE],
            Category::Activations,
        ),
        (
            "a cache within a module",
            &[OPERATOR, python("update", "/venv/transformers/cache_utils.py:1"), CALL],
            Category::KvCache,
        ),
        (
            "a workspace in the backward pass",
            &[ALLOCATOR, WORKSPACE, OPERATOR, ENGINE],
            Category::Workspace,
        ),
        (
            "a module moved within a constructor",
            &[
                ALLOCATOR,
                python("Module._apply", "/venv/torch/nn/modules/module.py:9"),
                python("Trainer.__init__", "/home/me/t.py:9"),
            ],
            Category::Parameters,
        ),
    ];
    for (what, frames, expected) in stacks {
        assert_eq!(category(frames), expected, "{what}");
    }
    assert_eq!(category(&[ALLOCATOR, SCRIPT, MAIN]), Category::Other);
    assert_eq!(category(&[]), Category::Other);
}

#[test]
fn conditions_compare_frames_threads_kinds_domains_and_functions() {
    let snapshot = one(&[ALLOCATOR, CALL, STEP, SCRIPT], "worker-7");
    for (rule, expected) in [
        ("inputs: train in train.py", true),
        ("inputs: train in other.py", false),
        ("inputs: _call_impl in train.py", false),
        ("inputs: _call_impl and train.py", true),
        ("inputs: _call_impl and absent", false),
        ("inputs: _call_impl and not absent", true),
        ("inputs: not _call_impl in /torch/nn/", false),
        ("inputs: not not train.py", true),
        ("inputs: function train.py", false),
        ("inputs: function ^train$", true),
        ("inputs: thread ^worker-*7$", true),
        ("inputs: thread python", false),
        ("inputs: kind tensor", true),
        ("inputs: kind device", false),
        ("inputs: domain pytorch", false),
        ("inputs: library cuBLAS", false),
        ("inputs: \\not", false),
        ("inputs: kind tensor and thread worker and not /torch/optim/ in x", true),
    ] {
        let category = by(rule, &snapshot);
        assert_eq!(category == Category::Inputs, expected, "{rule}");
    }
    let mut snapshot = snapshot;
    snapshot
        .allocations
        .change(|_, _, call| call.domain = Some("pytorch".to_owned()));
    assert_eq!(by("inputs: domain ^pytorch$", &snapshot), Category::Inputs);
}

#[test]
fn a_request_of_an_unknown_thread_matches_no_name() {
    let snapshot = one(&[ALLOCATOR, SCRIPT], "pt_autograd_0");
    let stacks = CallStacks::of(&snapshot);
    let categories = Categories::default();
    let sorter = Sorter::new(&categories, &snapshot);
    let request = Request {
        kind: Kind::Tensor,
        domain: None,
        thread: Some(0),
    };
    assert_eq!(sorter.category(Some(0), request, &stacks), Category::Gradients);
    let unknown = Request {
        thread: None,
        ..request
    };
    assert_eq!(sorter.category(Some(0), unknown, &stacks), Category::Other);
    let filter = Filter {
        categories: vec![Category::Gradients],
        ..Filter::default()
    };
    let mut filtering = Filtering::new(&filter, &snapshot);
    assert!(filtering.passes_at_any_time(request, None, Some(0), &stacks));
    assert!(!filtering.passes_at_any_time(unknown, None, Some(0), &stacks));
}

#[test]
fn the_users_rules_come_first_and_can_replace_the_built_in_ones() {
    let snapshot = one(&[ALLOCATOR, OPERATOR, CALL, SCRIPT], "python3");
    let mut categories = Categories::none();
    assert_eq!(decide(&categories, &snapshot).0, Category::Other);
    categories
        .add("# mine\n\ncommunication: train.py\n", "mine.txt")
        .expect("valid");
    categories.add_built_in();
    assert_eq!(
        decide(&categories, &snapshot),
        (Category::Communication, "communication: train.py".to_owned())
    );
    assert_eq!(decide(&Categories::default(), &snapshot).0, Category::Activations);
    // A rule may also send memory to the remainder.
    assert_eq!(by("other: train.py\ninputs: train.py", &snapshot), Category::Other);
}

#[test]
fn the_page_names_every_category_and_its_rules_are_valid() {
    let page = include_str!("../../../docs/categories.md");
    for category in Category::ALL {
        assert!(page.contains(&format!("\n| `{}` | ", category.name())), "{category:?}");
    }
    let is_rule = |line: &&str| {
        line.starts_with("    ")
            && Category::ALL
                .iter()
                .any(|category| line.trim().starts_with(&format!("{}: ", category.name())))
    };
    let rules: Vec<&str> = page.lines().filter(is_rule).collect();
    assert_eq!(rules.len(), 3, "{rules:?}");
    Categories::none()
        .add(&rules.join("\n"), "docs/categories.md")
        .expect("valid rules");
}

#[test]
fn an_invalid_rule_is_reported_with_line_and_column() {
    for (text, place, words) in [
        (
            "inputs: a\n  weights: b",
            "2:3",
            "no such category: \"weights\"; use one of parameters, gradients",
        ),
        ("train.py", "1:1", "expected CATEGORY: CONDITION"),
        ("inputs:", "1:8", "expected a condition"),
        ("inputs: a and ", "1:14", "expected a condition after"),
        ("inputs: and b", "1:8", "expected a condition"),
        (
            "inputs: a and not",
            "1:15",
            "expected something after \"not\"; write \\not",
        ),
        ("inputs: thread", "1:9", "expected something after \"thread\""),
        ("inputs: kind tape", "1:14", "no such kind of memory: \"tape\""),
        ("inputs: *", "1:9", "would match everything"),
        ("inputs: ä and not f in *", "1:24", "would match everything"),
        ("\n# c\ninputs: function *", "3:18", "would match everything"),
    ] {
        let error = Categories::none().add(text, "mine.txt").expect_err(text).to_string();
        assert!(
            error.starts_with(&format!("mine.txt:{place}: ")) && error.contains(words),
            "{text:?}: {error}"
        );
    }
}

proptest! {
    #[test]
    fn any_text_is_a_rule_or_an_error_within_its_line(line in "(inputs|other)?:?( ?(and|not|in|thread|kind|function|a\\*?|ä|\\\\|[ -~])){0,8}") {
        let mut categories = Categories::none();
        match categories.add(&line, "any.txt") {
            Ok(()) => {
                let snapshot = one(&[ALLOCATOR, CALL, SCRIPT], "python3");
                decide(&categories, &snapshot);
            }
            Err(error) => prop_assert!(error.line == 1 && error.column <= line.chars().count() + 1, "{error}"),
        }
    }
}

#[test]
fn one_stack_on_two_threads_may_have_two_categories() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[ALLOCATOR, SCRIPT]);
    sample.holds(Kind::Tensor, "CUDACachingAllocator", 512, 2, stack);
    let thread = Thread {
        name: "loader".to_owned(),
        ..sample.0.threads[0].clone()
    };
    sample.0.threads.push(thread);
    let mut nth = 0;
    sample.0.allocations.change(|_, _, call| {
        call.thread = nth;
        nth += 1;
    });
    let snapshot = sample.finish(0, 0);
    let mut categories = Categories::none();
    categories.add("inputs: thread loader", "mine.txt").expect("valid");
    let options = Options {
        by: By::Category,
        categories,
        ..Options::default()
    };
    let report = Report::of(&snapshot, &options);
    let rows: Vec<_> = report.rows.iter().map(|row| (row.label.as_str(), row.bytes)).collect();
    assert_eq!(rows, [("inputs", 512), ("other", 512)]);
}

#[test]
fn categories_add_up_to_the_listed_memory_and_to_the_tensors() {
    for snapshot in [leaky(), training().finish(0, 3), Sample::new().finish(0, 0)] {
        let stacks = CallStacks::of(&snapshot);
        let groups = Groups::of(&snapshot, &stacks);
        let categories = Categories::default();
        let totals = Sorter::new(&categories, &snapshot).totals(groups.listed(), &stacks);
        let listed = Tally::total(groups.listed().map(Group::tally));
        assert_eq!(Tally::total(totals.iter().map(|total| total.memory)), listed);
        let tensors = groups.listed().filter(|group| group.call.kind.place() == Place::Within);
        let tensors = Tally::total(tensors.map(Group::tally));
        assert_eq!(Tally::total(totals.iter().map(|total| total.blocks)), tensors);
        for total in &totals {
            let by_rules = Tally::total(total.rules.iter().map(|decided| decided.memory));
            assert!(
                by_rules == total.memory || total.category == Category::Other,
                "{total:?}"
            );
        }
    }
}

#[test]
fn rows_by_category_are_the_totals_of_the_categories() {
    let snapshot = training().finish(0, 3);
    let options = |by| Options {
        by,
        categorized: true,
        ..Options::default()
    };
    let by_category = options(By::Category);
    let report = Report::of(&snapshot, &by_category);
    let rows: Vec<_> = report.rows.iter().map(|row| (row.label.clone(), row.tally())).collect();
    let mut totals: Vec<_> = report
        .categories
        .iter()
        .map(|total| (total.category.name().to_owned(), total.memory))
        .collect();
    totals.sort_by_key(|(_, memory)| std::cmp::Reverse(memory.bytes));
    assert_eq!(rows, totals);
    assert!(rows.len() > 2, "{rows:?}");
    for by in [By::Site, By::Size] {
        assert_eq!(
            Report::of(&snapshot, &options(by)).categories,
            report.categories,
            "{by:?}"
        );
    }
    assert!(Report::of(&snapshot, &Options::default()).categories.is_empty());
}

#[test]
fn a_filter_divides_the_memory_into_a_category_and_the_rest() {
    let snapshot = training().finish(0, 3);
    let all = Report::of(
        &snapshot,
        &Options {
            categorized: true,
            ..Options::default()
        },
    );
    assert!(
        Filter {
            category_rules: Categories::none(),
            ..Filter::default()
        }
        .is_empty()
    );
    for total in &all.categories {
        let filter = Filter {
            categories: vec![total.category],
            ..Filter::default()
        };
        assert!(!filter.is_empty());
        let report = Report::of(
            &snapshot,
            &Options {
                filter,
                categorized: true,
                ..Options::default()
            },
        );
        assert_eq!(report.categories, std::slice::from_ref(total));
        let rows = Tally::total(report.rows.iter().map(|row| row.tally()));
        assert_eq!(rows, total.memory, "{total:?}");
    }
}

#[test]
fn who_called_backward_does_not_decide_what_it_computes() {
    let engine = [native("torch::autograd::generated::MulBackward0::apply(int)"), ENGINE];
    let thread = ("clone3", "", "/usr/lib/libc.so.6");
    let callers = [
        native("torch::autograd::Engine::execute(int)"),
        python("training_step", "/home/me/train.py:9"),
        python("closure", "/home/me/train.py:10"),
        STEP,
        CALL,
    ];
    let stack = [&engine[..], &[thread], &callers].concat();
    assert_eq!(category(&stack), Category::Gradients);
    let forward = python("gradient of gelu", "/venv/torch/nn/functional.py:9");
    assert_eq!(category(&[&[forward], &stack[..]].concat()), Category::Gradients);
    // A module that the thread itself calls is a recomputation.
    assert_eq!(category(&[&[CALL], &stack[..]].concat()), Category::Activations);
}
