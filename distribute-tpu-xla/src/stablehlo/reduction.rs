//! Operations that combine many elements into one: reductions, windows, sorting.

use super::builder::{Builder, Region, Value, ensure, error, i64_array, padding_attribute};
use super::elementwise::Binary;
use super::error::Result;
use super::types::TensorType;

/// A window over all dimensions of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The size of the window along each dimension.
    pub size: Vec<usize>,
    /// The steps of the window along each dimension.
    pub strides: Vec<usize>,
    /// Distance of neighbouring elements inside it (1: adjacent).
    pub dilations: Vec<usize>,
    /// Elements added before and after; negative ones remove elements.
    pub padding: Vec<(i64, i64)>,
}

impl Window {
    /// A window of one element that moves by one.
    pub fn identity(rank: usize) -> Self {
        Self {
            size: vec![1; rank],
            strides: vec![1; rank],
            dilations: vec![1; rank],
            padding: vec![(0, 0); rank],
        }
    }

    /// How many windows fit along each dimension.
    fn output_dims(&self, x: &Value, op: &'static str) -> Result<Vec<usize>> {
        let rank = x.rank();
        let lists = [&self.size, &self.strides, &self.dilations];
        let valid = lists
            .iter()
            .all(|l| l.len() == rank && l.iter().all(|v| *v > 0))
            && self.padding.len() == rank;
        ensure(valid, op, &[x], || {
            format!("needs one positive entry per dimension: {self:?}")
        })?;
        let along = |d: usize| {
            let window = ((self.size[d] - 1) * self.dilations[d] + 1) as i64;
            let room = x.dims()[d] as i64 + self.padding[d].0 + self.padding[d].1 - window;
            if room < 0 {
                0
            } else {
                room as usize / self.strides[d] + 1
            }
        };
        Ok((0..rank).map(along).collect())
    }
}

impl Builder {
    /// Reduces several tensors together along `dimensions`, which the results do not have.
    /// `body` gets the accumulators and the next elements, all scalars, and returns the new
    /// accumulators; the order is unspecified.
    ///
    /// # Errors
    /// Operands differ in dimensions, initial values are no scalars of their types, a dimension
    /// does not exist, or the body returns other types.
    pub fn reduce(
        &mut self,
        operands: &[&Value],
        initial: &[&Value],
        dimensions: &[usize],
        body: impl FnOnce(&mut Self, &[Value], &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let all: Vec<&Value> = operands.iter().chain(initial).copied().collect();
        let scalars = check_initial("reduce", operands, initial)?;
        let dims = operands
            .first()
            .map(|x| x.dims().to_vec())
            .unwrap_or_default();
        let mut sorted = dimensions.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let valid = sorted.len() == dimensions.len() && sorted.iter().all(|d| *d < dims.len());
        ensure(valid, "reduce", &all, || {
            format!("{dimensions:?} are not distinct dimensions of it")
        })?;
        let region = self.reducer("reduce", &scalars, body)?;
        let kept: Vec<usize> = (0..dims.len())
            .filter(|d| !sorted.contains(d))
            .map(|d| dims[d])
            .collect();
        let results = operands
            .iter()
            .map(|x| x.ty().with_dims(kept.clone()))
            .collect();
        let attributes = format!("dimensions = {}", i64_array(&sorted));
        Ok(self.emit("reduce", &all, &attributes, &[region], results))
    }

    /// [`Self::reduce`] of one tensor with one operation.
    ///
    /// # Errors
    /// As [`Self::reduce`].
    pub fn reduce_with(
        &mut self,
        op: Binary,
        x: &Value,
        initial: &Value,
        dimensions: &[usize],
    ) -> Result<Value> {
        let mut results = self.reduce(&[x], &[initial], dimensions, |b, acc, next| {
            Ok(vec![b.binary(op, &acc[0], &next[0])?])
        })?;
        results
            .pop()
            .ok_or_else(|| error("reduce", "has no result".into(), &[x]))
    }

    /// Reduces the elements under each place of a window.
    ///
    /// # Errors
    /// As [`Self::reduce`], or the window does not fit the dimensions.
    pub fn reduce_window(
        &mut self,
        operands: &[&Value],
        initial: &[&Value],
        window: &Window,
        body: impl FnOnce(&mut Self, &[Value], &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let all: Vec<&Value> = operands.iter().chain(initial).copied().collect();
        let scalars = check_initial("reduce_window", operands, initial)?;
        let Some(first) = operands.first() else {
            return Err(error("reduce_window", "needs an operand".into(), &[]));
        };
        let dims = window.output_dims(first, "reduce_window")?;
        let region = self.reducer("reduce_window", &scalars, body)?;
        let results = operands
            .iter()
            .map(|x| x.ty().with_dims(dims.clone()))
            .collect();
        let attributes = format!(
            "window_dimensions = {}, window_strides = {}, base_dilations = {}, \
             window_dilations = {}, padding = {}",
            i64_array(&window.size),
            i64_array(&window.strides),
            i64_array(&vec![1; window.size.len()]),
            i64_array(&window.dilations),
            padding_attribute(&window.padding),
        );
        Ok(self.emit("reduce_window", &all, &attributes, &[region], results))
    }

    /// The gradient of a pooling: each element of `source` is added at the element that wins in its
    /// window (`select` gets the winner so far and the next; true keeps the winner). Every window
    /// must see an element of `x`.
    ///
    /// # Errors
    /// The window is dilated, or the operands do not fit it.
    pub fn select_and_scatter(
        &mut self,
        x: &Value,
        source: &Value,
        initial: &Value,
        window: &Window,
        select: impl FnOnce(&mut Self, &Value, &Value) -> Result<Value>,
    ) -> Result<Value> {
        let operands = [x, source, initial];
        let dims = window.output_dims(x, "select_and_scatter")?;
        let scalar = TensorType::scalar(x.element());
        let valid = dims == source.dims()
            && source.element() == x.element()
            && *initial.ty() == scalar
            && window.dilations.iter().all(|d| *d == 1);
        ensure(valid, "select_and_scatter", &operands, || {
            format!("needs a source of dimensions {dims:?} and a window that is not dilated")
        })?;
        let pair = [scalar.clone(), scalar];
        let chooser = self.region(&pair, |b, a| Ok(vec![select(b, &a[0], &a[1])?]))?;
        let adder = self.region(&pair, |b, a| {
            Ok(vec![b.binary(Binary::Add, &a[0], &a[1])?])
        })?;
        let attributes = format!(
            "window_dimensions = {}, window_strides = {}, padding = {}",
            i64_array(&window.size),
            i64_array(&window.strides),
            padding_attribute(&window.padding),
        );
        let regions = [chooser, adder];
        let ty = x.ty().clone();
        Ok(self.emit_one("select_and_scatter", &operands, &attributes, &regions, ty))
    }

    /// Sorts several tensors together along `dimension`, keeping equal elements in order. `before`
    /// gets the left and right scalar of each operand in turn and says whether left comes first.
    ///
    /// # Errors
    /// The operands differ in dimensions, or there is no such dimension.
    pub fn sort(
        &mut self,
        operands: &[&Value],
        dimension: usize,
        before: impl FnOnce(&mut Self, &[Value]) -> Result<Value>,
    ) -> Result<Vec<Value>> {
        let same = operands.windows(2).all(|p| p[0].dims() == p[1].dims());
        let valid = same && operands.first().is_some_and(|x| dimension < x.rank());
        ensure(valid, "sort", operands, || {
            format!("needs operands of equal dimensions with dimension {dimension}")
        })?;
        let twice = |x: &&Value| {
            [
                TensorType::scalar(x.element()),
                TensorType::scalar(x.element()),
            ]
        };
        let arguments: Vec<TensorType> = operands.iter().flat_map(twice).collect();
        let region = self.region(&arguments, |b, args| Ok(vec![before(b, args)?]))?;
        let attributes = format!("dimension = {dimension} : i64, is_stable = true");
        let results = operands.iter().map(|x| x.ty().clone()).collect();
        Ok(self.emit("sort", operands, &attributes, &[region], results))
    }

    fn reducer(
        &mut self,
        op: &'static str,
        scalars: &[TensorType],
        body: impl FnOnce(&mut Self, &[Value], &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Region> {
        let arguments: Vec<TensorType> = [scalars, scalars].concat();
        let region = self.region(&arguments, |b, args| {
            let (accumulators, next) = args.split_at(scalars.len());
            body(b, accumulators, next)
        })?;
        ensure(region.results == scalars, op, &[], || {
            format!(
                "its body returns {:?} and not the accumulators' types",
                region.results
            )
        })?;
        Ok(region)
    }
}

fn check_initial(
    op: &'static str,
    operands: &[&Value],
    initial: &[&Value],
) -> Result<Vec<TensorType>> {
    let all: Vec<&Value> = operands.iter().chain(initial).copied().collect();
    let scalars: Vec<TensorType> = operands
        .iter()
        .map(|x| TensorType::scalar(x.element()))
        .collect();
    let valid = !operands.is_empty()
        && operands.windows(2).all(|p| p[0].dims() == p[1].dims())
        && initial.iter().map(|i| i.ty()).eq(scalars.iter());
    ensure(valid, op, &all, || {
        "needs operands of equal dimensions and a scalar of its type for each".into()
    })?;
    Ok(scalars)
}
