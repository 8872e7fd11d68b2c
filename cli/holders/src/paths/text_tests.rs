//! Paths made by hand, and how they read.

use culeak::snapshot::RootKind;

use super::names::{Beginning, Kind, Part, Place};
use super::text::{Style, append, words};
use crate::graph::{Edge, EdgeKind};
use crate::python::Label;

struct Made(Vec<Part>);

/// A label is written as `shape|concrete`, or as the text of both; in parentheses it is hidden.
fn label(text: &str) -> Label {
    let hidden = text.starts_with('(');
    let text = text.trim_matches(['(', ')']);
    let (shape, concrete) = text.split_once('|').unwrap_or((text, text));
    Label {
        shape: shape.to_owned(),
        concrete: concrete.to_owned(),
        hidden,
    }
}

impl Made {
    fn from(beginning: Beginning) -> Made {
        let mut made = Made(Vec::new()).then(Kind::Root, "", "");
        made.0[0].beginning = Some(beginning);
        made
    }

    fn module(name: &str) -> Made {
        Made::from(Beginning::Modules)
            .then(Kind::Dict, "dict", &format!("[*]|['{name}']"))
            .then(Kind::Module, "module", "(.__dict__)")
    }

    fn then(mut self, kind: Kind, name: &str, by: &str) -> Made {
        let edge_kind = match by {
            _ if by.starts_with("[*]|['") => EdgeKind::Value,
            _ if by.starts_with('[') => EdgeKind::Item,
            "" | "5" | "6" => EdgeKind::Word,
            _ => EdgeKind::Field,
        };
        let label = match by {
            "5" | "6" => Label::default(),
            _ => label(by),
        };
        let place = match self.0.last() {
            Some(before) if before.label.hidden => Place::Attributes,
            Some(before) if before.label.shape == ".__closure__" => Place::Closure,
            Some(before) if before.label.shape == ".__defaults__" => Place::Defaults,
            _ => Place::Plain,
        };
        self.0.push(Part {
            kind,
            place,
            beginning: None,
            name: name.to_owned(),
            detail: format!("{name} in detail"),
            label,
            edge: Edge::new(edge_kind, by.parse().unwrap_or(0)),
            omitted: (0, 0),
        });
        self
    }

    fn tensor(self) -> Made {
        self.then(Kind::Object, "Tensor", "").tail()
    }

    fn tail(self) -> Made {
        self.then(Kind::Tensor, "TensorImpl", "")
            .then(Kind::Storage, "StorageImpl", "")
    }

    fn reads_as(&self, style: Style) -> String {
        let words = words(&self.0, style);
        let mut text = words.origin;
        append(&mut text, &words.steps);
        text
    }

    fn reads(&self, expected: &str) {
        assert_eq!(self.reads_as(Style::default()), expected);
    }
}

#[test]
fn a_global_list_of_tensors() {
    let made = Made::module("__main__")
        .then(Kind::Dict, "dict", "[*]|['keep']")
        .then(Kind::Container, "list", "[*]|[3]")
        .tensor();
    made.reads("__main__.keep[*] → Tensor → storage");
    let concrete = Style {
        concrete: true,
        ..Style::default()
    };
    assert_eq!(made.reads_as(concrete), "__main__.keep[3] → Tensor → storage");
    let words = words(&made.0, Style::default());
    assert_eq!(
        (words.root, words.origin_type.as_str()),
        (RootKind::Module, "list in detail")
    );
}

#[test]
fn parameters_are_written_as_named_parameters_spells_them() {
    let module = |made: Made, class: &str, table: &str, key: &str| {
        made.then(Kind::Object, class, "(.__dict__)")
            .then(Kind::Dict, "dict", &format!("[*]|['{table}']"))
            .then(Kind::Dict, "dict", &format!("[*]|['{key}']"))
    };
    let model = || Made::module("__main__").then(Kind::Dict, "dict", "[*]|['model']");
    let layers = |made| module(module(made, "Net", "_modules", "layers"), "ModuleList", "_modules", "3");
    let weight = module(layers(model()), "Linear", "_parameters", "weight");
    let parameter = weight.then(Kind::Object, "Parameter", "").tail();
    parameter.reads("__main__.model.layers.*.weight → Parameter → storage");
    let concrete = Style {
        concrete: true,
        ..Style::default()
    };
    assert_eq!(
        parameter.reads_as(concrete),
        "__main__.model.layers.3.weight → Parameter → storage"
    );
    // Other attributes of a module are named after its class.
    layers(model())
        .then(Kind::Object, "Attention", "(.__dict__)")
        .then(Kind::Dict, "dict", "[*]|['cache']")
        .tensor()
        .reads("__main__.model.layers.* → Attention.cache → Tensor → storage");
    // Adapters by name, and a module that is held by something else.
    let adapters = module(
        module(model(), "Lora", "_modules", "lora_B"),
        "ModuleDict",
        "_modules",
        "mine",
    );
    module(adapters, "Linear", "_parameters", "weight")
        .then(Kind::Object, "Parameter", "")
        .tail()
        .reads("__main__.model.lora_B.*.weight → Parameter → storage");
}

#[test]
fn attributes_of_objects_are_written_as_in_python() {
    Made::module("train")
        .then(Kind::Dict, "dict", "[*]|['trainer']")
        .then(Kind::Object, "Trainer", "(.__dict__)")
        .then(Kind::Dict, "dict", "[*]|['history']")
        .then(Kind::Container, "list", "[*]|[3]")
        .then(Kind::Dict, "dict", "[*]|['loss']")
        .tensor()
        .reads("train.trainer.history[*][*] → Tensor → storage");
    Made::module("__main__")
        .then(Kind::Dict, "dict", "[*]|['c']")
        .then(Kind::Object, "Cache", ".store")
        .then(Kind::Object, "Inner", ".x")
        .tensor()
        .reads("__main__.c.store → Inner.x → Tensor → storage");
}

#[test]
fn classes_and_functions_belong_to_the_origin() {
    Made::module("train")
        .then(Kind::Dict, "dict", "[*]|['C']")
        .then(Kind::Class, "class C", "(.__dict__)")
        .then(Kind::Dict, "dict", "[*]|['cache']")
        .tensor()
        .reads("train.C.cache → storage");
    Made::module("train")
        .then(Kind::Dict, "dict", "[*]|['f']")
        .then(Kind::Function, "function f", ".__defaults__")
        .then(Kind::Container, "tuple", "[*]|[0]")
        .tensor()
        .reads("train.f.__defaults__[0] → storage");
    Made::module("train")
        .then(Kind::Dict, "dict", "[*]|['fn']")
        .then(Kind::Function, "function fn", ".__closure__")
        .then(Kind::Container, "tuple", "closure x")
        .then(Kind::Cell, "cell", "contents")
        .then(Kind::Container, "list", "[*]|[0]")
        .tensor()
        .reads("train.fn closure x[*] → Tensor → storage");
}

#[test]
fn functions_inside_of_a_path() {
    Made::module("m")
        .then(Kind::Dict, "dict", "[*]|['hooks']")
        .then(Kind::Container, "list", "[*]|[0]")
        .then(Kind::Function, "function fn", ".__closure__")
        .then(Kind::Container, "tuple", "closure x")
        .then(Kind::Cell, "cell", "contents")
        .tensor()
        .reads("m.hooks[*] → function fn, closure x → Tensor → storage");
}

#[test]
fn frames_name_their_locals_and_threads() {
    Made::from(Beginning::Frame(String::new()))
        .then(Kind::Frame, "frame of main, train.py:62", "local t")
        .tensor()
        .reads("frame of main, train.py:62, local t → storage");
    Made::from(Beginning::Frame("thread 7 (loader), ".to_owned()))
        .then(Kind::Frame, "frame of work, train.py:9", "local batch")
        .then(Kind::Container, "dict", "[*]|['x']")
        .tensor()
        .reads("thread 7 (loader), frame of work, train.py:9, local batch[*] → Tensor → storage");
}

#[test]
fn generators_and_exceptions_lead_to_frames() {
    let list = || Made::module("__main__").then(Kind::Dict, "dict", "[*]|['keep']");
    list()
        .then(Kind::Container, "list", "[*]|[3]")
        .then(Kind::Generator, "frame of generator gen, train.py:62", "local t")
        .tensor()
        .reads("__main__.keep[*] → frame of generator gen, train.py:62, local t → Tensor → storage");
    list()
        .then(Kind::Object, "ValueError", ".__traceback__")
        .then(Kind::Traceback, "traceback", ".tb_next")
        .then(Kind::Traceback, "traceback", ".tb_frame")
        .then(Kind::Frame, "frame of boom, zoo.py:59", "local b")
        .tensor()
        .reads("__main__.keep.__traceback__ → frame of boom, zoo.py:59, local b → Tensor → storage");
}

#[test]
fn autograd_is_written_by_class() {
    let loss = || {
        Made::module("__main__")
            .then(Kind::Dict, "dict", "[*]|['keep']")
            .then(Kind::Container, "list", "[*]|[0]")
    };
    let graph = |made: Made| {
        made.then(Kind::Object, "Tensor", "")
            .then(Kind::Tensor, "TensorImpl", "")
            .then(Kind::AutogradMeta, "AutogradMeta", "6")
            .then(Kind::GradNode, "SumBackward0", "")
            .then(Kind::Unnamed, "native memory", "")
            .then(Kind::GradNode, "ExpBackward0", "")
            .tail()
    };
    graph(loss()).reads("__main__.keep[*] → Tensor.grad_fn → SumBackward0 → ExpBackward0, saved result");
    // PyTorch 2.6 from PyPI has it at word 2.
    for word in ["5", "2"] {
        loss()
            .then(Kind::Object, "Parameter", "")
            .then(Kind::Tensor, "TensorImpl", "")
            .then(Kind::AutogradMeta, "AutogradMeta", word)
            .tail()
            .reads("__main__.keep[*] → Parameter.grad → Tensor → storage");
    }
    loss()
        .then(Kind::Object, "Tensor", "")
        .then(Kind::Tensor, "TensorImpl", "")
        .then(Kind::AutogradMeta, "AutogradMeta", "6")
        .then(Kind::PyNode, "PyNode", "")
        .then(Kind::Object, "MyFBackward", "")
        .then(Kind::Unnamed, "native memory", "")
        .tail()
        .reads("__main__.keep[*] → Tensor.grad_fn → MyFBackward, saved tensor");
}

#[test]
fn equal_nodes_in_a_row_are_counted() {
    let mut made = Made::module("__main__")
        .then(Kind::Dict, "dict", "[*]|['loss']")
        .then(Kind::Object, "Tensor", "")
        .then(Kind::Tensor, "TensorImpl", "")
        .then(Kind::AutogradMeta, "AutogradMeta", "6");
    for _ in 0..300 {
        made = made
            .then(Kind::GradNode, "MulBackward0", "")
            .then(Kind::Unnamed, "native memory", "");
    }
    let made = made.then(Kind::GradNode, "PowBackward0", "").tail();
    made.reads("__main__.loss.grad_fn → … 300 × MulBackward0 … → PowBackward0, saved self");
    let varies = Style {
        varies: true,
        ..Style::default()
    };
    assert!(made.reads_as(varies).contains("… up to 300 × MulBackward0 …"));
}

#[test]
fn a_run_may_have_a_period_of_several_steps() {
    let mut made = Made::module("m")
        .then(Kind::Dict, "dict", "[*]|['x']")
        .then(Kind::Object, "Tensor", "");
    for _ in 0..50 {
        made = made
            .then(Kind::Tensor, "TensorImpl", "")
            .then(Kind::AutogradMeta, "AutogradMeta", "6")
            .then(Kind::GradNode, "MulBackward0", "");
    }
    made.tail().reads(
        "m.x → … 48 × .grad_fn → MulBackward0, saved tensor → Tensor … → MulBackward0, saved tensor → Tensor.grad_fn → \
         MulBackward0, saved tensor",
    );
}

#[test]
fn the_variable_of_a_leaf_is_no_saved_tensor() {
    Made::module("m")
        .then(Kind::Dict, "dict", "[*]|['y']")
        .then(Kind::Object, "Tensor", "")
        .then(Kind::Tensor, "TensorImpl", "")
        .then(Kind::AutogradMeta, "AutogradMeta", "6")
        .then(Kind::GradNode, "ExpBackward0", "")
        .then(Kind::Unnamed, "native memory", "")
        .then(Kind::GradNode, "AccumulateGrad", "")
        .tail()
        .reads("m.y.grad_fn → ExpBackward0 → AccumulateGrad.variable → Tensor → storage");
}

#[test]
fn linked_objects_are_counted_with_their_attribute() {
    let mut made = Made::module("m").then(Kind::Dict, "dict", "[*]|['head']");
    for _ in 0..1000 {
        made = made
            .then(Kind::Object, "Node", "(.__dict__)")
            .then(Kind::Dict, "dict", "[*]|['next']");
    }
    made.tensor()
        .reads("m.head → … 998 × .next → Node … → Node.next → Tensor → storage");
}

#[test]
fn long_paths_are_cut_in_the_middle() {
    let mut made = Made::module("m").then(Kind::Dict, "dict", "[*]|['head']");
    for number in 0..500 {
        made = made.then(Kind::Object, &format!("T{number}"), ".a");
    }
    let text = made.tensor().reads_as(Style::default());
    assert!(text.contains("T12 → … 478 steps … → T491.a"), "{text}");
    assert!(text.len() < 400, "{text}");
}

#[test]
fn globals_of_native_code() {
    let word = |is_vector| Beginning::Word("g_cache in libext.so".to_owned(), RootKind::Global, is_vector);
    let vector = Made::from(word(true))
        .then(Kind::Unnamed, "native memory", "[*]")
        .tail();
    vector.reads("g_cache in libext.so[*] → Tensor → storage");
    assert_eq!(words(&vector.0, Style::default()).origin_type, "std::vector");
    Made::from(word(false))
        .then(Kind::Unnamed, "native memory", "")
        .then(Kind::Unnamed, "native memory", "")
        .reads("g_cache in libext.so → native memory");
    Made::from(word(false))
        .then(Kind::Native, "foo::Cache", "")
        .then(Kind::Unnamed, "native memory", "")
        .tail()
        .reads("g_cache in libext.so → Tensor → storage");
}

#[test]
fn damaged_paths_are_read_without_a_panic() {
    for beginning in [
        Beginning::Modules,
        Beginning::Namespace("sys".to_owned()),
        Beginning::Frame(String::new()),
        Beginning::ThreadLocal(String::new()),
        Beginning::Context(String::new()),
        Beginning::Object,
        Beginning::Word("g".to_owned(), RootKind::Global, true),
    ] {
        let made = Made::from(beginning);
        for to_object in [false, true] {
            words(
                &made.0,
                Style {
                    to_object,
                    ..Style::default()
                },
            );
        }
        let kinds = [
            Kind::Dict,
            Kind::Module,
            Kind::Function,
            Kind::Context,
            Kind::ThreadLocal,
            Kind::Unnamed,
            Kind::Cell,
        ];
        for first in kinds {
            for second in kinds {
                let made = Made(made.0.clone())
                    .then(first, "a", "(b)")
                    .then(second, "c", ".__closure__");
                for to_object in [false, true] {
                    words(
                        &made.0,
                        Style {
                            to_object,
                            ..Style::default()
                        },
                    );
                }
            }
        }
    }
    words(&[], Style::default());
}
