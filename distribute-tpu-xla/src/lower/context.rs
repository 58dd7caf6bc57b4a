//! The state of a lowering: the program so far and which of its values each tensor is.

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::tensor::{DType, TensorData};
use distribute_core::burn_internals::ir::{ScalarIr, TensorId, TensorIr};

use crate::stablehlo::{Binary, Builder, Comparison, ElementType, StableHloError, Unary, Value};

use super::collective_call::CollectiveCall;
use super::error::{Failure, Result};
use super::options::Target;
use super::types::{data_type, element_type, literal, tensor_type};
use super::windows::Pooled;

/// What every lowering function gets.
pub(super) struct Context<'a> {
    pub(super) builder: Builder,
    /// Whose compiler gets the program.
    pub(super) target: Target,
    recorded: &'a BTreeMap<TensorId, TensorData>,
    values: HashMap<TensorId, Value>,
    /// Arguments whose memory a result takes over.
    donated: HashSet<TensorId>,
    /// Tensors that are an argument or one that was flattened, or made of one element by element,
    /// in other dimensions: the value in the argument's own dimensions, and their dimensions.
    views: HashMap<TensorId, (Value, Vec<usize>)>,
    /// Of which pooling the positions of largest elements come, by the tensor of positions.
    pub(super) pools: HashMap<TensorId, Pooled>,
    /// The key of random operations, two scalars of `ui32`.
    pub(super) key: Option<[Value; 2]>,
    /// Positions of all operations that draw random numbers, and their keys once one is needed.
    pub(super) random_positions: Vec<usize>,
    pub(super) random_keys: Option<[Value; 2]>,
    /// The position of the operation that is being lowered.
    pub(super) position: usize,
    /// Bytes of recorded values that became constants.
    pub(super) constant_bytes: usize,
    /// How many all-reduces the program has.
    pub(super) all_reduces: usize,
    /// The operations between the replicas so far.
    pub(super) collectives: Vec<CollectiveCall>,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        builder: Builder,
        recorded: &'a BTreeMap<TensorId, TensorData>,
        target: Target,
    ) -> Self {
        Self {
            builder,
            target,
            recorded,
            values: HashMap::new(),
            donated: HashSet::new(),
            views: HashMap::new(),
            pools: HashMap::new(),
            key: None,
            random_positions: Vec::new(),
            random_keys: None,
            position: 0,
            constant_bytes: 0,
            all_reduces: 0,
            collectives: Vec::new(),
        }
    }

    /// Makes `value` what `tensor` is from now on.
    pub(super) fn define(&mut self, tensor: TensorId, value: Value) {
        self.values.insert(tensor, value);
    }

    /// Makes `value` the donated argument `tensor`.
    pub(super) fn define_donated(&mut self, tensor: TensorId, value: Value) {
        self.donated.insert(tensor);
        self.define(tensor, value);
    }

    /// Makes `tensor`, of dimensions `dims`, the elements of `value`.
    pub(super) fn define_in_other_dims(&mut self, tensor: TensorId, value: Value, dims: &[usize]) {
        if value.dims() == dims {
            self.define(tensor, value)
        } else {
            drop(self.views.insert(tensor, (value, dims.to_vec())))
        }
    }

    /// The donated argument that `tensor` is or shows in other dimensions, in its own ones; also a
    /// tensor that was flattened.
    ///
    /// Optimizers see parameters, gradients and slots in one dimension. XLA updates a donated
    /// argument in place only where the last operation has the argument's own dimensions; otherwise
    /// it adds a copy of the whole parameter. And on a TPU a flat array has another layout, so that
    /// one operation in one dimension moves all numbers twice.
    pub(super) fn argument_behind(&self, tensor: &TensorIr) -> Option<Value> {
        match self.views.get(&tensor.id) {
            Some((value, _)) => Some(value.clone()),
            None if self.donated.contains(&tensor.id) => self.values.get(&tensor.id).cloned(),
            None => None,
        }
    }

    /// The value of a tensor whose dimensions do not matter: all elements of it are combined.
    pub(super) fn in_any_dims(&mut self, tensor: &TensorIr) -> Result<Value> {
        let shown = self.argument_behind(tensor);
        shown.map_or_else(|| self.get(tensor), Ok)
    }

    /// Makes `out` the elements of `value` in the dimensions that the graph says, where `value` has
    /// the dimensions of a donated argument or of a tensor that was flattened.
    pub(super) fn set_view(&mut self, out: &TensorIr, value: Value) -> Result<()> {
        if value.dims() == &out.shape[..] {
            return self.set(out, value);
        }
        self.views.insert(out.id, (value, out.shape.to_vec()));
        Ok(())
    }

    /// The value of a tensor: what an operation before computed, or a recorded constant.
    pub(super) fn get(&mut self, tensor: &TensorIr) -> Result<Value> {
        self.by_id(tensor.id)
    }

    /// [`Self::get`] for a tensor of which only the id is known.
    pub(super) fn by_id(&mut self, tensor: TensorId) -> Result<Value> {
        if let Some(value) = self.values.get(&tensor) {
            return Ok(value.clone());
        }
        if let Some((value, dims)) = self.views.get(&tensor).cloned() {
            let value = self.builder.reshape(&value, &dims)?;
            self.values.insert(tensor, value.clone());
            return Ok(value);
        }
        if let Some(pooled) = self.pools.get(&tensor).cloned() {
            let value = pooled.positions(&mut self.builder)?;
            self.values.insert(tensor, value.clone());
            return Ok(value);
        }
        let Some(data) = self.recorded.get(&tensor) else {
            return Err(Failure::Undefined(tensor));
        };
        let ty = data_type(data)?;
        let value = match data.dtype() {
            DType::Bool(_) => {
                let bytes: Vec<u8> = data.iter::<bool>().map(u8::from).collect();
                self.builder.constant(ty, &bytes)?
            }
            _ => self.builder.constant(ty, data.as_bytes())?,
        };
        self.constant_bytes += data.as_bytes().len();
        self.values.insert(tensor, value.clone());
        Ok(value)
    }

    /// Sets the result of an operation, which must have the type that the graph says.
    pub(super) fn set(&mut self, out: &TensorIr, value: Value) -> Result<()> {
        let expected = tensor_type(out)?;
        if *value.ty() != expected {
            return Err(Failure::Hlo(StableHloError::Operands {
                op: "return",
                problem: format!("the graph says that the result is {expected}"),
                operands: vec![value.ty().clone()],
            }));
        }
        self.values.insert(out.id, value);
        Ok(())
    }

    /// [`Self::set`] after a conversion to the element type that the graph says.
    pub(super) fn set_as(&mut self, out: &TensorIr, value: &Value) -> Result<()> {
        let value = self.builder.convert(value, element_type(out.dtype)?);
        self.set(out, value)
    }

    /// [`Self::set`] after a reshape to the dimensions that the graph says.
    pub(super) fn set_reshaped(&mut self, out: &TensorIr, value: &Value) -> Result<()> {
        let value = self.builder.reshape(value, &out.shape)?;
        self.set(out, value)
    }

    /// A scalar of the graph as a tensor like `like`.
    pub(super) fn scalar_like(&mut self, scalar: ScalarIr, like: &Value) -> Value {
        self.builder
            .splat(like.dims(), like.element(), literal(scalar))
    }

    /// A number as a tensor like `like`.
    pub(super) fn number_like(&mut self, number: f64, like: &Value) -> Value {
        self.builder.splat(like.dims(), like.element(), number)
    }

    /// `op(x, number)`.
    pub(super) fn with_number(&mut self, op: Binary, x: &Value, number: f64) -> Result<Value> {
        let number = self.number_like(number, x);
        Ok(self.builder.binary(op, x, &number)?)
    }

    /// The two operands of a binary operation, each broadcast to the result's dimensions.
    pub(super) fn pair(
        &mut self,
        lhs: &TensorIr,
        rhs: &TensorIr,
        out: &TensorIr,
    ) -> Result<[Value; 2]> {
        let lhs = self.get(lhs)?;
        let rhs = self.get(rhs)?;
        let lhs = self.builder.broadcast_to(&lhs, &out.shape)?;
        let rhs = self.builder.broadcast_to(&rhs, &out.shape)?;
        Ok([lhs, rhs])
    }

    /// f16 and bf16 as f32, in which burn computes operations of several steps.
    pub(super) fn wide(&mut self, x: &Value) -> Value {
        match x.element() {
            ElementType::F16 | ElementType::BF16 => self.builder.convert(x, ElementType::F32),
            _ => x.clone(),
        }
    }

    /// Whether each element is NaN; false for integers.
    pub(super) fn is_nan(&mut self, x: &Value) -> Result<Value> {
        Ok(self.builder.compare(Comparison::Ne, x, x)?)
    }

    /// Shorthand for a unary operation.
    pub(super) fn unary(&mut self, op: Unary, x: &Value) -> Result<Value> {
        Ok(self.builder.unary(op, x)?)
    }

    /// Shorthand for a binary operation.
    pub(super) fn binary(&mut self, op: Binary, lhs: &Value, rhs: &Value) -> Result<Value> {
        Ok(self.builder.binary(op, lhs, rhs)?)
    }

    /// `x` with the dimensions of `like`, of which it has those listed in `kept`.
    pub(super) fn spread(&mut self, x: &Value, like: &Value, kept: &[usize]) -> Result<Value> {
        Ok(self.builder.broadcast_in_dim(x, like.dims(), kept)?)
    }
}
