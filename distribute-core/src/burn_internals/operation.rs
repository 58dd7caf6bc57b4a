//! What an operation of a captured graph is, by its `Debug` text: burn gives tensors other numbers
//! in each capture, and has no way to replace them in an operation of any kind.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use super::ir::OperationIr;

/// `MulScalar` of `NumericFloat(F32, MulScalar(ScalarOpIr { ... }))`.
pub(crate) fn name(operation: &OperationIr) -> String {
    let debug = format!("{operation:?}");
    let head = debug.split('{').next().unwrap_or_default();
    let mut parts = head.rsplit('(').skip(1);
    let words = parts.next().unwrap_or(head);
    let name = words.rsplit([' ', ',']).next();
    name.unwrap_or(words).to_string()
}

/// What an operation computes, the same in each capture.
pub(crate) fn without_numbers_of_tensors(operation: &OperationIr) -> String {
    let debug = format!("{operation:?}");
    at_tensors(&debug)
        .map(|(_, rest)| of_any_use(rest))
        .collect()
}

/// Hashes a text in which tensors have numbers by their first appearance.
pub(crate) fn hash_renumbered(text: &str, hash: &mut impl Hasher) {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for (id, rest) in at_tensors(text) {
        let next = numbers.len();
        numbers.entry(id).or_insert(next).hash(hash);
        of_any_use(rest).hash(hash);
    }
}

/// Which use of a tensor is its last is not what the step computes.
fn of_any_use(text: &str) -> String {
    text.replace("ReadWrite", "ReadOnly")
}

/// The numbers of tensors in a text, each with what follows it; none for the beginning.
fn at_tensors(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.split("TensorId { value: ").enumerate();
    parts.map(|(index, part)| match index {
        0 => ("", part),
        _ => part.split_at(part.find(' ').unwrap_or(part.len())),
    })
}

#[cfg(test)]
mod tests {
    use std::hash::DefaultHasher;

    use burn::tensor::DType;

    use super::super::ir::{
        BaseOperationIr, CustomOpIr, NumericOperationIr, ScalarIr, ScalarOpIr, TensorId, TensorIr,
        TensorStatus,
    };
    use super::*;

    fn tensor(id: u64, status: TensorStatus) -> TensorIr {
        TensorIr {
            id: TensorId::new(id),
            shape: [2, 3].into(),
            status,
            dtype: DType::F32,
        }
    }

    fn scaled(from: u64, to: u64, status: TensorStatus, by: f64) -> OperationIr {
        OperationIr::NumericFloat(
            DType::F32,
            NumericOperationIr::MulScalar(ScalarOpIr {
                lhs: tensor(from, status),
                rhs: ScalarIr::Float(by),
                out: tensor(to, TensorStatus::NotInit),
            }),
        )
    }

    fn hashed(operations: &[OperationIr]) -> u64 {
        let text: Vec<_> = operations.iter().map(|it| format!("{it:?}")).collect();
        let mut hash = DefaultHasher::new();
        hash_renumbered(&text.join("\n"), &mut hash);
        hash.finish()
    }

    #[test]
    fn operations_have_the_names_of_burn() {
        let last = TensorStatus::ReadWrite;
        assert_eq!(name(&scaled(1, 2, last, 0.5)), "MulScalar");
        let custom = CustomOpIr::new("ours", &[tensor(1, last)], &[]);
        assert_eq!(name(&OperationIr::Custom(custom)), "Custom");
        let empty = BaseOperationIr::Empty(super::super::ir::CreationOpIr {
            out: tensor(1, TensorStatus::NotInit),
        });
        assert_eq!(name(&OperationIr::BaseFloat(empty)), "Empty");
    }

    #[test]
    fn a_step_is_the_same_whatever_numbers_its_tensors_have() {
        use TensorStatus::{ReadOnly, ReadWrite};
        let step = |first: u64, status, by| {
            [
                scaled(first, first + 1, status, by),
                scaled(first + 1, first + 7, ReadWrite, 2.0),
            ]
        };
        let known = step(3, ReadOnly, 0.5);
        assert_eq!(hashed(&known), hashed(&step(1841, ReadWrite, 0.5)));
        assert_ne!(hashed(&known), hashed(&step(3, ReadOnly, 0.25)));
        let [one, other] = &known;
        let otherwise = [one.clone(), scaled(3, 10, ReadWrite, 2.0)];
        assert_ne!(hashed(&known), hashed(&otherwise), "of another tensor");
        let texts = [one, &step(1841, ReadWrite, 0.5)[0]].map(without_numbers_of_tensors);
        assert_eq!(texts[0], texts[1]);
        assert!(!texts[1].contains("1841"), "{}", texts[1]);
        assert_ne!(texts[0], without_numbers_of_tensors(other));
    }
}
