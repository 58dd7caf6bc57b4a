//! `IntegerLookup`.

use std::collections::BTreeSet;

use burn::tensor::{Bool, Device, Int, TensorData};

use super::flow::each;
use super::string_lookup::oov_indices;
use super::*;
use crate::texts::lookup::{LookupMode, NO_VOCABULARY, depth, mode, row_dims};

/// `keras.layers.IntegerLookup`: the numbers of whole numbers in a vocabulary.
///
/// A 32-bit float holds whole numbers up to 2^24.
#[derive(Debug, Clone, PartialEq)]
pub struct IntegerLookup {
    /// The vocabulary, without what stands for the mask and for others.
    pub tokens: Vec<i64>,
    /// The number that stands for nothing.
    pub mask_token: Option<i64>,
    /// How many numbers there are for what is not in the vocabulary; of several the remainder
    /// chooses.
    pub num_oov_indices: usize,
    /// What the numbers become.
    pub mode: LookupMode,
    /// The length of a row.
    pub depth: usize,
}

impl KerasLayer for IntegerLookup {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        fields.must_be("invert", false, "set it to false")?;
        fields.must_be("vocabulary_dtype", "int64", "use int64")?;
        let remedy = "use floormod, or a StringLookup of the numbers as texts";
        fields.must_be("oov_method", "floormod", remedy)?;
        let mask_token = fields.get("mask_token").and_then(Json::as_i64);
        let oov_token = fields.get("oov_token").and_then(Json::as_i64);
        let num_oov_indices = oov_indices(fields)?;
        if num_oov_indices == 0 {
            let remedy = "use 1 or more: a number that is not in the vocabulary stops no step";
            return Err(fields.refuse("num_oov_indices", remedy));
        }
        let mut mode = mode(fields)?;
        let listed = fields.get("vocabulary").and_then(Json::as_array);
        let listed: Option<Vec<i64>> =
            listed.and_then(|all| all.iter().map(Json::as_i64).collect());
        let mut tokens = listed
            .filter(|all| !all.is_empty())
            .ok_or_else(|| fields.refuse("vocabulary", NO_VOCABULARY))?;
        let masks = usize::from(mask_token.is_some() && mode == LookupMode::Int);
        let of_oov = std::iter::repeat_n(oov_token, num_oov_indices);
        let begin: Vec<_> = std::iter::repeat_n(mask_token, masks)
            .chain(of_oov)
            .collect();
        let found: Vec<_> = tokens.iter().take(begin.len()).copied().map(Some).collect();
        if found == begin {
            tokens.drain(..begin.len());
        }
        let distinct: BTreeSet<i64> = tokens.iter().copied().collect();
        if distinct.len() != tokens.len() || mask_token.is_some_and(|m| distinct.contains(&m)) {
            let remedy = "use each number once, and special ones at the start alone";
            return Err(fields.refuse("vocabulary", remedy));
        }
        let special = begin.len();
        let depth = depth(fields, tokens.len(), special, &mut mode)?;
        let is_exact = |token: &i64| token.unsigned_abs() <= 1 << 24;
        if !tokens.iter().all(is_exact) {
            return Err(fields.refuse("vocabulary", "use numbers from -2^24 to 2^24"));
        }
        Ok(Self {
            tokens,
            mask_token,
            num_oov_indices,
            mode,
            depth,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let dims = input.dims();
        let Some((last, outer)) = dims.split_last() else {
            return Err("needs one axis at least".to_string());
        };
        let row = row_dims(&self.mode, self.depth, Some(*last));
        let dims = outer.iter().copied().chain(row.into_iter().flatten());
        let dims: Vec<usize> = dims.collect();
        Shape::of(&dims).ok_or_else(|| format!("gives too many axes of {input}"))
    }

    fn idf_weights(&self) -> Option<&[f64]> {
        self.mode.idf_weights()
    }

    fn reads_numbers(&self) -> bool {
        true
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let x = inputs.into_iter().next()?;
        let numbers = Value::of(each!(x.flow, x => self.numbers(x)));
        let mode = match &self.mode {
            LookupMode::Int => return Some(numbers),
            LookupMode::OneHot => OutputMode::OneHot,
            LookupMode::MultiHot => OutputMode::MultiHot,
            LookupMode::Count | LookupMode::TfIdf(_) => OutputMode::Count,
        };
        let rows = CategoryEncoding {
            num_tokens: self.depth,
            mode,
        };
        let rows = rows.call_all(vec![numbers], pass)?;
        let LookupMode::TfIdf(weights) = &self.mode else {
            return Some(rows);
        };
        let weights: Vec<f32> = weights.iter().map(|weight| *weight as f32).collect();
        let device = rows.flow.device().without_autodiff();
        let weights = Tensor::<1>::from_floats(weights.as_slice(), &device);
        let zeros = weights.zeros_like();
        Some(Value::of(rows.flow.scale_features(weights, zeros)))
    }
}

impl IntegerLookup {
    /// The number of each value in the order of the vocabulary; of the mask 0, or one that no row
    /// has a place for.
    fn numbers<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = x.detach();
        let (dims, dtype) = (x.dims(), x.dtype());
        let device = x.device().without_autodiff();
        let count: usize = dims.iter().product();
        let x: Tensor<1, Int> = x.reshape([count]).int();
        let is_number = self.mode == LookupMode::Int;
        let masks = i64::from(self.mask_token.is_some() && is_number);
        let others = match self.num_oov_indices as i64 {
            1 => x.zeros_like(),
            several => x.clone().remainder_scalar(several),
        };
        let others = others.add_scalar(masks);
        // A vocabulary of special tokens alone knows no other.
        let number = if self.tokens.is_empty() {
            others
        } else {
            let (known, place) = self.place(&x, &device);
            others.mask_where(known, place)
        };
        let number = match self.mask_token {
            Some(mask) => {
                let nothing = if is_number { 0 } else { -1 };
                number.mask_fill(x.equal_elem(mask), nothing)
            }
            None => number,
        };
        number.float().cast(dtype).reshape(dims)
    }

    /// Which values are in the vocabulary, which has some, and their numbers: a binary search.
    fn place(&self, x: &Tensor<1, Int>, device: &Device) -> (Tensor<1, Bool>, Tensor<1, Int>) {
        let first = self.depth_before();
        let mut sorted: Vec<(i64, i64)> = self.tokens.iter().copied().zip(first..).collect();
        sorted.sort_unstable();
        let (tokens, numbers): (Vec<i64>, Vec<i64>) = sorted.into_iter().unzip();
        let last = tokens.len() as i64 - 1;
        let column = |values: Vec<i64>| {
            let length = values.len();
            let column = TensorData::new(values, [length]);
            Tensor::<1, Int>::from_data(column, device).cast(x.dtype())
        };
        let (tokens, numbers) = (column(tokens), column(numbers));
        let mut at = x.zeros_like();
        let mut step = (last as u64 + 1).next_power_of_two() as i64;
        while step > 0 {
            let next = at.clone().add_scalar(step).clamp_max(last);
            let is_below = tokens
                .clone()
                .select(0, next.clone())
                .lower_equal(x.clone());
            at = at.mask_where(is_below, next);
            step /= 2;
        }
        let known = tokens.select(0, at.clone()).equal(x.clone());
        (known, numbers.select(0, at))
    }

    /// The number of the first token.
    fn depth_before(&self) -> i64 {
        let masks = usize::from(self.mask_token.is_some() && self.mode == LookupMode::Int);
        (masks + self.num_oov_indices) as i64
    }
}
