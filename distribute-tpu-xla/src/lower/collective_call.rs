//! The parts of a program that the processes of a system compare before it is compiled.

use distribute_core::burn_internals::ir::TensorIr;
use distribute_core::collectives::{OperationHeader, OperationKind, ReduceOp};

/// An operation between the replicas of a program, to compare with other processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveCall {
    /// What it does; the sequence is its place among the program's collectives, and the layout
    /// stands for the shapes.
    pub header: OperationHeader,
    /// The tensors in words, such as `f32[4, 8]`.
    pub tensors: String,
}

impl CollectiveCall {
    /// Call `number` of a program.
    pub(super) fn new(
        number: usize,
        kind: OperationKind,
        op: Option<ReduceOp>,
        inputs: &[TensorIr],
    ) -> Self {
        let dims = |tensor: &TensorIr| -> Vec<u64> {
            tensor.shape.iter().map(|dim| *dim as u64).collect()
        };
        let shapes = inputs.iter().flat_map(|tensor| {
            let dims = dims(tensor);
            std::iter::once(dims.len() as u64).chain(dims)
        });
        let mut header = OperationHeader::new(kind, 0, number as u64);
        header = header.with_layout(shapes);
        header.op = op;
        header.buffers = inputs.len();
        header.count = inputs
            .iter()
            .map(|tensor| tensor.shape.num_elements())
            .sum();
        let words = |tensor: &TensorIr| format!("{}{:?}", tensor.dtype.name(), dims(tensor));
        let tensors: Vec<String> = inputs.iter().map(words).collect();
        Self {
            header,
            tensors: tensors.join(" "),
        }
    }

    /// The first difference to the call of another process, in words.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<String> {
        let same_but_shapes = OperationHeader {
            layout: self.header.layout,
            ..other.header
        };
        self.header.first_difference(&same_but_shapes).or_else(|| {
            let (a, b) = (&self.tensors, &other.tensors);
            (a != b).then(|| format!("tensors are {a} on one and {b} on the other"))
        })
    }
}
