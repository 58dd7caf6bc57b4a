//! Operations that move elements without computing with them.

use super::builder::{Builder, Value, ensure, error, i64_array};
use super::error::Result;
use super::types::{ElementType, TensorType};

impl Builder {
    /// The same elements in row-major order under other dimensions.
    ///
    /// # Errors
    /// The number of elements would change.
    pub fn reshape(&mut self, x: &Value, dims: &[usize]) -> Result<Value> {
        if x.dims() == dims {
            return Ok(x.clone());
        }
        let ty = x.ty().with_dims(dims);
        let same = ty.num_elements() == x.ty().num_elements();
        ensure(same, "reshape", &[x], || {
            format!("cannot become {ty}: another number of elements")
        })?;
        Ok(self.emit_one("reshape", &[x], "", &[], ty))
    }

    /// Repeats `x` along new dimensions. Dimension `i` of `x` becomes dimension `mapping[i]` of the
    /// result; a dimension of size one is repeated to the result's size.
    ///
    /// # Errors
    /// The mapping names a dimension twice or one that is too large, or sizes do not fit.
    pub fn broadcast_in_dim(
        &mut self,
        x: &Value,
        dims: &[usize],
        mapping: &[usize],
    ) -> Result<Value> {
        let distinct = mapping
            .iter()
            .enumerate()
            .all(|(i, d)| !mapping[..i].contains(d));
        let fits = mapping.len() == x.rank()
            && distinct
            && mapping
                .iter()
                .zip(x.dims())
                .all(|(d, size)| *d < dims.len() && (*size == 1 || *size == dims[*d]));
        ensure(fits, "broadcast_in_dim", &[x], || {
            format!("cannot become {dims:?} with dimensions mapped to {mapping:?}")
        })?;
        if x.dims() == dims && mapping.is_sorted() {
            return Ok(x.clone());
        }
        let attributes = format!("broadcast_dimensions = {}", i64_array(mapping));
        let ty = x.ty().with_dims(dims);
        Ok(self.emit_one("broadcast_in_dim", &[x], &attributes, &[], ty))
    }

    /// [`Self::broadcast_in_dim`] by numpy's rule: dimensions are aligned at the end.
    ///
    /// # Errors
    /// A size is neither one nor the wanted one.
    pub fn broadcast_to(&mut self, x: &Value, dims: &[usize]) -> Result<Value> {
        ensure(x.rank() <= dims.len(), "broadcast_in_dim", &[x], || {
            format!("has more dimensions than {dims:?}")
        })?;
        let mapping: Vec<usize> = (dims.len() - x.rank()..dims.len()).collect();
        self.broadcast_in_dim(x, dims, &mapping)
    }

    /// Reorders the dimensions: dimension `i` of the result is dimension `permutation[i]` of `x`.
    ///
    /// # Errors
    /// `permutation` is none of the dimensions of `x`.
    pub fn transpose(&mut self, x: &Value, permutation: &[usize]) -> Result<Value> {
        let mut sorted = permutation.to_vec();
        sorted.sort_unstable();
        let valid = sorted.iter().copied().eq(0..x.rank());
        ensure(valid, "transpose", &[x], || {
            format!("{permutation:?} is no permutation of its dimensions")
        })?;
        if permutation.is_sorted() {
            return Ok(x.clone());
        }
        let dims: Vec<usize> = permutation.iter().map(|d| x.dims()[*d]).collect();
        let attributes = format!("permutation = {}", i64_array(permutation));
        let ty = x.ty().with_dims(dims);
        Ok(self.emit_one("transpose", &[x], &attributes, &[], ty))
    }

    /// Reverses the order along some dimensions.
    ///
    /// # Errors
    /// There is no such dimension, or one is named twice.
    pub fn reverse(&mut self, x: &Value, dimensions: &[usize]) -> Result<Value> {
        let distinct = dimensions
            .iter()
            .enumerate()
            .all(|(i, d)| !dimensions[..i].contains(d));
        let valid = distinct && dimensions.iter().all(|d| *d < x.rank());
        ensure(valid, "reverse", &[x], || {
            format!("{dimensions:?} are not distinct dimensions of it")
        })?;
        let attributes = format!("dimensions = {}", i64_array(dimensions));
        Ok(self.emit_one("reverse", &[x], &attributes, &[], x.ty().clone()))
    }

    /// Joins tensors along a dimension.
    ///
    /// # Errors
    /// There is none, or they differ in more than that dimension.
    pub fn concatenate(&mut self, parts: &[Value], dimension: usize) -> Result<Value> {
        let operands: Vec<&Value> = parts.iter().collect();
        let Some(first) = parts.first() else {
            return Err(error(
                "concatenate",
                "needs at least one operand".into(),
                &[],
            ));
        };
        let agrees = |v: &Value| {
            let same = |d: usize| d == dimension || v.dims()[d] == first.dims()[d];
            v.element() == first.element()
                && v.rank() == first.rank()
                && (0..first.rank()).all(same)
        };
        let fits = dimension < first.rank() && parts.iter().all(agrees);
        ensure(fits, "concatenate", &operands, || {
            format!("needs operands that differ in dimension {dimension} alone")
        })?;
        if parts.len() == 1 {
            return Ok(first.clone());
        }
        let mut dims = first.dims().to_vec();
        dims[dimension] = parts.iter().map(|v| v.dims()[dimension]).sum();
        let attributes = format!("dimension = {dimension} : i64");
        let ty = first.ty().with_dims(dims);
        Ok(self.emit_one("concatenate", &operands, &attributes, &[], ty))
    }

    /// Every `strides[d]`-th element from `start[d]` up to and without `limit[d]`.
    ///
    /// # Errors
    /// A range is reversed or reaches outside, or a stride is zero.
    pub fn slice(
        &mut self,
        x: &Value,
        start: &[usize],
        limit: &[usize],
        strides: &[usize],
    ) -> Result<Value> {
        let rank = x.rank();
        let valid = [start.len(), limit.len(), strides.len()] == [rank; 3]
            && (0..rank).all(|d| start[d] <= limit[d] && limit[d] <= x.dims()[d] && strides[d] > 0);
        ensure(valid, "slice", &[x], || {
            format!("{start:?}..{limit:?} by {strides:?} is no part of it")
        })?;
        let dims: Vec<usize> = (0..rank)
            .map(|d| (limit[d] - start[d]).div_ceil(strides[d]))
            .collect();
        if dims == x.dims() && strides.iter().all(|s| *s == 1) {
            return Ok(x.clone());
        }
        let attributes = format!(
            "start_indices = {}, limit_indices = {}, strides = {}",
            i64_array(start),
            i64_array(limit),
            i64_array(strides)
        );
        let ty = x.ty().with_dims(dims);
        Ok(self.emit_one("slice", &[x], &attributes, &[], ty))
    }

    /// `x` with a part replaced by `update`, at a place known when the program runs.
    ///
    /// # Errors
    /// There is not one integer scalar per dimension, or the update does not fit into `x`.
    pub fn dynamic_update_slice(
        &mut self,
        x: &Value,
        update: &Value,
        start: &[Value],
    ) -> Result<Value> {
        let operands: Vec<&Value> = [x, update].into_iter().chain(start).collect();
        let valid = update.rank() == x.rank()
            && update.element() == x.element()
            && starts_fit(x, start)
            && update
                .dims()
                .iter()
                .zip(x.dims())
                .all(|(size, dim)| size <= dim);
        ensure(valid, "dynamic_update_slice", &operands, || {
            "needs an integer scalar per dimension and an update that fits into the operand".into()
        })?;
        Ok(self.emit_one("dynamic_update_slice", &operands, "", &[], x.ty().clone()))
    }

    /// Surrounds `x` with `value`: `low[d]` elements before, `high[d]` after (negative ones remove
    /// elements), `interior[d]` between neighbours.
    ///
    /// # Errors
    /// The lists do not have one entry per dimension, `value` is no scalar of the element type, or
    /// less than nothing would be left.
    pub fn pad(
        &mut self,
        x: &Value,
        value: &Value,
        low: &[i64],
        high: &[i64],
        interior: &[i64],
    ) -> Result<Value> {
        let operands = [x, value];
        let rank = x.rank();
        let valid = [low.len(), high.len(), interior.len()] == [rank; 3]
            && *value.ty() == TensorType::scalar(x.element())
            && interior.iter().all(|i| *i >= 0);
        ensure(valid, "pad", &operands, || {
            "needs a scalar of the element type and one amount per dimension".into()
        })?;
        let mut dims = Vec::with_capacity(rank);
        for d in 0..rank {
            let size = x.dims()[d] as i64;
            let padded = low[d] + size + (size - 1).max(0) * interior[d] + high[d];
            let padded = usize::try_from(padded).map_err(|_| {
                error(
                    "pad",
                    format!("dimension {d} would have the size {padded}"),
                    &operands,
                )
            })?;
            dims.push(padded);
        }
        let attributes = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            i64_array(low),
            i64_array(high),
            i64_array(interior)
        );
        let ty = x.ty().with_dims(dims);
        Ok(self.emit_one("pad", &operands, &attributes, &[], ty))
    }

    /// Each element is its position along `dimension`.
    ///
    /// # Errors
    /// There is no such dimension, or the elements are truth values.
    pub fn iota(&mut self, ty: TensorType, dimension: usize) -> Result<Value> {
        let valid = dimension < ty.rank() && ty.element() != ElementType::I1;
        ensure(valid, "iota", &[], || {
            format!("{ty} has no numbers along dimension {dimension}")
        })?;
        let attributes = format!("iota_dimension = {dimension} : i64");
        Ok(self.emit_one("iota", &[], &attributes, &[], ty))
    }
}

fn starts_fit(x: &Value, start: &[Value]) -> bool {
    let scalar = |v: &Value| v.rank() == 0 && v.element().is_integer();
    start.len() == x.rank()
        && start.iter().all(scalar)
        && start.windows(2).all(|pair| pair[0].ty() == pair[1].ty())
}
