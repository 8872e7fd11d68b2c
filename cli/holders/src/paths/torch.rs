//! Names of PyTorch's C++ classes. They decide how a path is printed, never whether it is found.

use super::names::Kind;
use crate::native::kinds::Kind as ClassKind;
use crate::starts_with_one;

/// The words of an `AutogradMeta` in which the gradient may be. It follows a `std::string`, which takes one word in libraries with GCC's
/// older ABI, such as PyTorch from PyPI up to 2.6.
pub(super) const GRADIENT: [u64; 2] = [2, 5];

/// The attributes of a module in which its hooks are.
pub(super) const HOOKS: [&str; 4] = [
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
];

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
