//! `einsum` of two values: a product, summed over axes.

use burn::tensor::Tensor;

use super::axes::Extents;
use crate::layers::nd::Nd;

/// Letters of the axes of two operands and of the result; `...` is written out at the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Einsum {
    left: String,
    right: String,
    result: String,
}

/// The letters of one product, without ellipses.
#[derive(Debug, Clone)]
pub(crate) struct Letters {
    pub(crate) left: Vec<char>,
    pub(crate) right: Vec<char>,
    pub(crate) result: Vec<char>,
}

impl Einsum {
    /// Reads `ab,bc->ac`. Every letter stands once in an operand.
    pub(crate) fn parse(equation: &str) -> Option<Self> {
        let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (operands, result) = equation.split_once("->")?;
        let (left, right) = operands.split_once(',')?;
        let is_plain = |part: &str| {
            let letters = part.replacen("...", "", 1);
            let mut seen = Vec::new();
            letters.chars().all(|letter| {
                let is_new = letter.is_ascii_alphabetic() && !seen.contains(&letter);
                seen.push(letter);
                is_new
            })
        };
        [left, right, result]
            .into_iter()
            .all(is_plain)
            .then(|| Self {
                left: left.to_string(),
                right: right.to_string(),
                result: result.to_string(),
            })
    }

    /// The letters for operands with these numbers of axes, the batch among them.
    pub(crate) fn letters(&self, left: usize, right: usize) -> Option<Letters> {
        let open = |part: &str, rank: usize| {
            let letters = part.replacen("...", "", 1).len();
            let rest = rank.checked_sub(letters)?;
            (rest == 0 || part.contains("...")).then_some(rest)
        };
        let more = open(&self.left, left)?.max(open(&self.right, right)?);
        // Digits are the axes of the ellipsis.
        let written = |part: &str, count: usize| -> Option<Vec<char>> {
            let digits: String = ('0'..='9')
                .take(more)
                .skip(more - count.min(more))
                .collect();
            (count <= more && more <= 10)
                .then(|| part.replacen("...", &digits, 1).chars().collect())
        };
        let result = written(&self.result, more)?;
        let left = written(&self.left, open(&self.left, left)?)?;
        let right = written(&self.right, open(&self.right, right)?)?;
        let known = |letter: &char| left.contains(letter) || right.contains(letter);
        result.iter().all(known).then_some(Letters {
            left,
            right,
            result,
        })
    }

    /// The extents of one example of the result.
    pub(super) fn output(&self, operands: &[Extents]) -> Result<Vec<usize>, String> {
        let [left, right] = operands else {
            return Err("needs two values".to_string());
        };
        // 0 stands for the batch.
        let full = |operand: &Extents| -> Vec<usize> {
            let batch = operand.batched.then_some(0);
            batch
                .into_iter()
                .chain(operand.dims.iter().copied())
                .collect()
        };
        let (left, right) = (full(left), full(right));
        let dims = self.extents(&left, &right)?;
        match dims.split_first() {
            Some((0, rest)) if !rest.contains(&0) => Ok(rest.to_vec()),
            _ => Err("`subscripts` do not begin with the batch, or sum over it".to_string()),
        }
    }

    /// The extents of the result of operands with these extents.
    pub(crate) fn extents(&self, left: &[usize], right: &[usize]) -> Result<Vec<usize>, String> {
        let letters = self
            .letters(left.len(), right.len())
            .ok_or("`subscripts` do not fit the values")?;
        let both = [(&letters.left, left), (&letters.right, right)];
        let extent = |letter: &char| {
            let mut found = both.iter().filter_map(|(letters, dims)| {
                let axis = letters.iter().position(|other| other == letter)?;
                dims.get(axis).copied()
            });
            let first = found.next()?;
            found.all(|other| other == first).then_some(first)
        };
        let all = letters.left.iter().chain(&letters.right);
        if all.clone().any(|letter| extent(letter).is_none()) {
            return Err("`subscripts` name axes of different extents alike".to_string());
        }
        // The batch must not be summed over.
        let summed = all.filter(|letter| !letters.result.contains(letter));
        if summed.clone().any(|letter| extent(letter) == Some(0)) {
            return Err("`subscripts` sum over the batch".to_string());
        }
        Ok(letters.result.iter().filter_map(extent).collect())
    }

    /// The product. A plan sees to it that the operands fit.
    pub(crate) fn product(&self, left: Nd, right: Nd) -> Option<Nd> {
        let (left_dims, right_dims) = (left.dims(), right.dims());
        let letters = self.letters(left_dims.len(), right_dims.len())?;
        let extent = |letter: char| {
            let left = letters.left.iter().position(|other| *other == letter);
            let right = || letters.right.iter().position(|other| *other == letter);
            match left {
                Some(axis) => left_dims.get(axis).copied(),
                None => right().and_then(|axis| right_dims.get(axis).copied()),
            }
        };
        let group = |letters: &[char], keep: &dyn Fn(&char) -> bool| -> Vec<char> {
            letters
                .iter()
                .copied()
                .filter(|letter| keep(letter))
                .collect()
        };
        let (in_left, in_right) = (&letters.left, &letters.right);
        let in_result = |letter: &char| letters.result.contains(letter);
        let shared = group(in_left, &|l| in_right.contains(l) && in_result(l));
        let summed = group(in_left, &|l| in_right.contains(l) && !in_result(l));
        let rows = group(in_left, &|l| !in_right.contains(l) && in_result(l));
        let columns = group(in_right, &|l| !in_left.contains(l) && in_result(l));
        let size = |letters: &[char]| -> usize {
            letters
                .iter()
                .filter_map(|letter| extent(*letter))
                .product()
        };
        // Axes that one operand alone has, and the result has not, are summed first.
        let alone =
            |of: &[char], other: &[char]| group(of, &|l| !other.contains(l) && !in_result(l));
        let order = |of: &[char], groups: &[&Vec<char>]| -> Vec<usize> {
            let wanted = groups.iter().flat_map(|group| group.iter());
            wanted
                .filter_map(|l| of.iter().position(|other| other == l))
                .collect()
        };
        let (left_alone, right_alone) = (alone(in_left, in_right), alone(in_right, in_left));
        let dims = [size(&shared), size(&rows), size(&summed), size(&columns)];
        let left = left.permute(&order(in_left, &[&shared, &rows, &summed, &left_alone]));
        let right = right.permute(&order(
            in_right,
            &[&shared, &summed, &columns, &right_alone],
        ));
        let left: Tensor<3> = matrices(left, [dims[0], dims[1], dims[2]], size(&left_alone));
        let right: Tensor<3> = matrices(right, [dims[0], dims[2], dims[3]], size(&right_alone));
        let product = Nd::R3(left.matmul(right));
        let given: Vec<char> = [shared, rows, columns].concat();
        let extents: Vec<usize> = given.iter().filter_map(|letter| extent(*letter)).collect();
        let order = letters
            .result
            .iter()
            .filter_map(|letter| given.iter().position(|other| other == letter));
        let order: Vec<usize> = order.collect();
        Some(product.reshape(&extents).permute(&order))
    }
}

/// Values as matrices, the innermost axis of this extent summed.
fn matrices(x: Nd, [outer, rows, columns]: [usize; 3], summed: usize) -> Tensor<3> {
    let x = x.into_matrix(0).reshape([outer * rows * columns, summed]);
    x.sum_dim(1).reshape([outer, rows, columns])
}
