//! Names of PyTorch's C++ classes. They decide how a path is printed, never whether it is found.

use super::names::Kind;
use super::text::{Pace, attribute};
use crate::native::kinds::Kind as ClassKind;
use crate::starts_with_one;

/// How paths call what is known about a class.
pub(super) fn kind_of(class: ClassKind) -> Kind {
    match class {
        ClassKind::Unnamed => Kind::Unnamed,
        ClassKind::Named | ClassKind::Leaf => Kind::Native,
        ClassKind::Tensor | ClassKind::PlainTensor => Kind::Tensor,
        ClassKind::TensorMeta => Kind::AutogradMeta,
        ClassKind::AutogradNode | ClassKind::WrappingNode | ClassKind::LeafNode => Kind::GradNode,
        ClassKind::PythonNode => Kind::PyNode,
        ClassKind::Storage => Kind::Storage,
    }
}

/// The steps with modules and parameters as `named_parameters()` spells them: `.layers.*.weight → Parameter` for
/// `._modules['layers'] → ModuleList._modules['3'] → Linear._parameters['weight'] → Parameter`.
pub(super) fn through_modules(steps: Vec<Pace>) -> Vec<Pace> {
    /// Deeper modules begin a step of their own.
    const DEEPEST: usize = 16;
    let mut out: Vec<Pace> = Vec::with_capacity(steps.len());
    // How many modules the last step of `out` goes through.
    let mut depth = 0;
    for mut step in steps {
        let Some(key) = key_of_module(&step.concrete) else {
            depth = 0;
            out.push(step);
            continue;
        };
        let before = out.last_mut().filter(|_| depth > 0);
        // Programs choose the keys of these as data; other modules have attributes or indices.
        let has_free_keys = |before: &Pace| matches!(before.holder.as_str(), "ModuleDict" | "ParameterDict");
        let mut inner = key.trim_matches(['[', ']', '\'']).bytes();
        let is_index = inner.all(|byte| byte.is_ascii_digit());
        let name = attribute(key);
        step.shape = match is_index || before.as_deref().is_some_and(has_free_keys) {
            true => ".*".to_owned(),
            false => name.clone(),
        };
        step.concrete = name;
        match before {
            Some(before) if depth < DEEPEST && before.omitted.0 == 0 => {
                before.shape.push_str(&step.shape);
                before.concrete.push_str(&step.concrete);
                (before.holder, before.omitted) = (step.holder, step.omitted);
                depth += 1;
            }
            _ => {
                out.push(step);
                depth = 1;
            }
        }
    }
    out
}

/// `['layers']` of `._modules['layers']`.
fn key_of_module(step: &str) -> Option<&str> {
    let tables = ["._modules", "._parameters", "._buffers"];
    let key = tables.iter().find_map(|table| step.strip_prefix(table))?;
    let is_one = key.starts_with('[') && key.find(']') == Some(key.len() - 1);
    is_one.then_some(key)
}

/// Without the namespaces of PyTorch, and without long template arguments: `ExpBackward0`, `foo::Cache<…>`.
pub(super) fn short_class(class: &str) -> String {
    let is_torch = starts_with_one(class, &["torch::", "c10::", "c10d::", "at::"]);
    let name = if is_torch { last_component(class) } else { class };
    match name.split_once('<') {
        Some((template, _)) if name.len() > 40 => format!("{template}<…>"),
        _ => name.to_owned(),
    }
}

/// After the last `::` outside of template arguments.
fn last_component(class: &str) -> &str {
    let end = class.find('<').unwrap_or(class.len());
    class[..end].rfind("::").map_or(class, |place| &class[place + 2..])
}

/// What a node of autograd's graph saves, if it saves one tensor only.
pub(super) fn saved_tensor(node: &str) -> &'static str {
    match node.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "ExpBackward" | "SigmoidBackward" | "TanhBackward" | "SoftmaxBackward" | "LogSoftmaxBackward"
        | "SqrtBackward" | "RsqrtBackward" | "ReciprocalBackward" | "ReluBackward" => "saved result",
        "PowBackward" | "LogBackward" | "SinBackward" | "CosBackward" | "AbsBackward" | "GeluBackward"
        | "SiluBackward" => "saved self",
        _ => "saved tensor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_lose_the_namespaces_of_torch_only() {
        for (class, short) in [
            ("torch::autograd::generated::ExpBackward0", "ExpBackward0"),
            ("c10::StorageImpl", "StorageImpl"),
            ("foo::Cache", "foo::Cache"),
            (
                "foo::Map<std::string, std::vector<int>, std::less<std::string> >",
                "foo::Map<…>",
            ),
            ("", ""),
            ("<<<<", "<<<<"),
        ] {
            assert_eq!(short_class(class), short);
        }
    }
}
