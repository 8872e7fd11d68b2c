//! What is known about C++ classes by their names: what their objects hold, and how paths call them.
//!
//! The fields of most classes are not known. What is listed here has words that hold nothing, or counts its owners.

/// What the class of a chunk says about its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Unnamed,
    Named,
    /// Classes derived from `c10::TensorImpl`. Among native objects, only tensors hold a storage.
    Tensor,
    /// `c10::TensorImpl` itself. Its sizes and strides are partly uninitialised; the rest leads to a storage and to what
    /// autograd keeps of the tensor.
    PlainTensor,
    /// What autograd keeps of a tensor.
    TensorMeta,
    /// A node of autograd's graph. Only counted pointers refer to it: those of a vector of the previous node, and others of
    /// which many are stale.
    AutogradNode,
    /// As above, with a pointer of its own to a node that it wraps.
    WrappingNode,
    /// As above, of a function that is written in Python, with a pointer to its context.
    PythonNode,
    /// As above, for a leaf. The leaf itself has a weak pointer to it.
    LeafNode,
    /// `c10::StorageImpl`: it alone holds blocks of PyTorch's allocator. Its words lead to nothing else: the data of a tensor
    /// in host memory are numbers.
    Storage,
    /// Its words hold nothing.
    Leaf,
}

impl Kind {
    /// Its objects count the pointers that own them.
    pub fn is_counted(self) -> bool {
        self.is_node() || matches!(self, Kind::Tensor | Kind::PlainTensor | Kind::Storage)
    }

    /// Of autograd's graph.
    pub fn is_node(self) -> bool {
        matches!(
            self,
            Kind::AutogradNode | Kind::WrappingNode | Kind::PythonNode | Kind::LeafNode
        )
    }
}

/// The kind of a class, given its mangled name and how to demangle it. Most names need not be demangled.
pub fn kind_of_class<'n>(mangled: &str, name: impl FnOnce() -> &'n str) -> Kind {
    match PARTS.iter().any(|part| mangled.contains(part)) {
        true => kind_of(name()),
        false => Kind::Named,
    }
}

/// The names of all kinds but [`Kind::Named`] contain one of these.
const PARTS: [&str; 6] = ["c10", "torch", "TensorImpl", "executor", "tsl", "xla"];

fn kind_of(class: &str) -> Kind {
    // Counts of tensors' versions. What autograd has yet to visit is held by its graph, too, and what it has visited stays in
    // the queue's memory. Its pool of threads has weak pointers to tasks, in a queue whose unused words are not cleared. Nor are those
    // of an operator, which is one of two types.
    const HOLDS_NOTHING: [&str; 4] = [
        "c10::VariableVersion::VersionCounter",
        "torch::autograd::ReadyQueue",
        "torch::autograd::Engine::ThreadPoolShared",
        "torch::jit::Operator",
    ];
    // Counts of shared pointers to PyTorch's objects, which are elsewhere. Those to others may own what the pointers do not
    // show: a deleter with captured variables, the owner of a part.
    const COUNTS: [&str; 2] = ["std::_Sp_counted_deleter<", "std::_Sp_counted_ptr<"];
    let is_count = || {
        let object = COUNTS.iter().find_map(|counts| class.strip_prefix(counts));
        object.is_some_and(|object| object.starts_with("torch::") || object.starts_with("c10::"))
    };
    const NODES: [&str; 2] = ["::GraphRoot", "::CppNode"];
    match class {
        "c10::StorageImpl" => Kind::Storage,
        "c10::TensorImpl" => Kind::PlainTensor,
        _ if class.ends_with("TensorImpl") => Kind::Tensor,
        "torch::autograd::AccumulateGrad" => Kind::LeafNode,
        "torch::autograd::CopySlices" => Kind::WrappingNode,
        "torch::autograd::PyNode" => Kind::PythonNode,
        _ if class.ends_with("AutogradMeta") || class.ends_with("DifferentiableViewMeta") => Kind::TensorMeta,
        _ if HOLDS_NOTHING.contains(&class) || is_count() || is_of_runtime(class) => Kind::Leaf,
        _ if class.starts_with("torch::autograd::")
            && (class.contains("Backward") || NODES.iter().any(|node| class.contains(node))) =>
        {
            Kind::AutogradNode
        }
        _ => Kind::Named,
    }
}

/// What all buffers of XLA share: clients, devices, streams and allocators. They have records of all memory, and the programs
/// refer to buffers by other objects.
fn is_of_runtime(class: &str) -> bool {
    let is_allocator = || class.starts_with("tsl::") && class.contains("Allocator");
    const SHARED: [&str; 4] = ["Client", "Device", "MemorySpace", "Shape"];
    let is_shared = || class.starts_with("xla::") && SHARED.iter().any(|end| class.ends_with(end));
    class.starts_with("stream_executor::") || is_allocator() || is_shared()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_pointers_to_objects_of_pytorch_hold_nothing_and_others_hold() {
        assert_eq!(kind_of("std::_Sp_counted_deleter<Block*, Free>"), Kind::Named);
        assert_eq!(kind_of("std::_Sp_counted_ptr<Block*>"), Kind::Named);
        assert_eq!(
            kind_of("std::_Sp_counted_deleter<torch::autograd::Node*, Free>"),
            Kind::Leaf
        );
        assert_eq!(kind_of("c10::VersionCounterCache"), Kind::Named);
        assert_eq!(kind_of("std::_Sp_counted_ptr_inplace<Cache>"), Kind::Named);
        // An object within its counts has its own class's name.
        assert_eq!(kind_of("torch::autograd::ReadyQueue"), Kind::Leaf);
        assert_eq!(kind_of("torch::autograd::Engine::ThreadPoolShared"), Kind::Leaf);
        assert_eq!(kind_of("c10::StorageImpl"), Kind::Storage);
        assert_eq!(kind_of("torch::autograd::CopySlices"), Kind::WrappingNode);
        assert_eq!(kind_of("torch::autograd::CppNode<MyBackward>"), Kind::AutogradNode);
        assert_eq!(kind_of("foo::Feedback"), Kind::Named);
    }

    #[test]
    fn names_of_special_classes_have_a_part_that_the_mangled_name_has_too() {
        let names = [
            "c10::StorageImpl",
            "c10::TensorImpl",
            "c10::UndefinedTensorImpl",
            "torch::autograd::AccumulateGrad",
            "torch::autograd::CopySlices",
            "torch::autograd::PyNode",
            "torch::autograd::AutogradMeta",
            "torch::autograd::DifferentiableViewMeta",
            "c10::VariableVersion::VersionCounter",
            "std::_Sp_counted_deleter<torch::autograd::Node*, A>",
            "std::_Sp_counted_ptr<c10::A*>",
            "torch::autograd::ReadyQueue",
            "torch::autograd::Engine::ThreadPoolShared",
            "torch::jit::Operator",
            "torch::autograd::generated::MulBackward0",
            "torch::autograd::GraphRoot",
            "torch::autograd::CppNode<A>",
            "stream_executor::Stream",
            "tsl::BFCAllocator",
            "xla::PjRtClient",
        ];
        for name in names {
            assert_ne!(kind_of(name), Kind::Named, "{name}");
            assert!(PARTS.iter().any(|part| name.contains(part)), "{name}");
        }
    }
}
