//! The one walk through the parameters of a burn module: of every rank, floats, integers and bools.
//!
//! burn's visitors and mappers have a method per kind of elements, generic over the rank. Here both
//! are written once, and what walks is handed a [`Parameter`] that hides kind and rank.

use std::any::Any;

use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, FloatDType, Gradients as BurnGradients, Int, Tensor};

use crate::Result;
use crate::nest::{FloatLeaf, Leaf, LeafTensor, flattened};
use crate::trace::{CapturedTape, CapturedTensor};

/// One parameter of a module.
pub(crate) struct Parameter<'a> {
    /// Its path, `conv1.weight` for example.
    pub(crate) path: &'a str,
    /// What burn calls the types that it is in, from the outermost: `Struct:Linear` for example.
    containers: &'a [String],
    /// The length of each one's path.
    lengths: &'a [usize],
    pub(crate) id: ParamId,
    pub(crate) tensor: &'a mut dyn ParameterTensor,
}

impl Parameter<'_> {
    /// What burn calls the type whose field it is.
    pub(crate) fn container(&self) -> &str {
        self.containers.last().map_or("", String::as_str)
    }

    /// The path of the outermost layer of one of these types that it is in.
    pub(crate) fn layer_of(&self, types: &[&str]) -> Option<&str> {
        let mut containers = self.containers.iter();
        let found = containers.position(|container| types.contains(&container.as_str()))?;
        self.path.get(..*self.lengths.get(found)?)
    }
}

/// The tensor of a parameter.
pub(crate) trait ParameterTensor: Leaf + LeafTensor {
    /// As a float; `None` for integers and bools.
    fn float(&mut self) -> Option<&mut dyn FloatTensor> {
        None
    }

    /// As what a training changes; `None` for integers, bools, and floats without a gradient.
    fn trained(&mut self) -> Option<&mut dyn FloatTensor> {
        self.float().filter(|float| float.tracking().keeps_gradient)
    }

    /// A handle of the tensor.
    fn handle(&self) -> Box<dyn Any>;

    /// Puts a [`handle`](Self::handle) of another tensor in its place, if that has the same rank
    /// and kind.
    fn set_handle(&mut self, handle: Box<dyn Any>);
}

/// The tensor of a float parameter.
pub(crate) trait FloatTensor: FloatLeaf {
    /// Makes it one of this type, through which gradients flow.
    fn cast_to(&mut self, dtype: FloatDType);

    /// Puts a tensor of another shape in its place.
    fn set_other_shape(&mut self);

    /// A handle of its gradient in a backward pass, in one dimension.
    fn gradient(&self, of: &BurnGradients) -> Option<Tensor<1>>;

    /// Its gradient in the backward pass of a captured step.
    fn captured_gradient(&self, of: &CapturedTape) -> Option<CapturedTensor>;

    /// Moves its gradient out of what burn's optimizers take, in one dimension.
    fn take_param(&self, id: ParamId, from: &mut GradientsParams) -> Option<Tensor<1>>;

    /// Hands a gradient in one dimension to burn's optimizers.
    fn give_param(&self, id: ParamId, gradient: Tensor<1>, to: &mut GradientsParams);
}

/// What walks through a module. Closures do, which take the parameters.
pub(crate) trait Walk {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()>;

    /// Whether a part of the module trains (dropout).
    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag
    }
}

impl<F: FnMut(Parameter<'_>) -> Result<()>> Walk for F {
    fn parameter(&mut self, parameter: Parameter<'_>) -> Result<()> {
        self(parameter)
    }
}

/// Visits all parameters, in the order in which the module declares its fields.
///
/// # Errors
/// The first of the walk, after which no more parameters are visited.
pub(crate) fn visit<M: Module>(module: &M, mut walk: impl Walk) -> Result<()> {
    let mut walker = Walker::new(&mut walk);
    module.visit(&mut walker);
    walker.outcome
}

/// The module with what the walk has made of its parameters, in the order of [`visit`].
///
/// # Errors
/// The errors of [`visit`].
pub(crate) fn map<M: Module>(module: M, walk: impl Walk) -> Result<M> {
    let (module, outcome) = mapped(module, walk);
    outcome.map(|()| module)
}

/// [`map`], which gives out the module also if the walk ended early.
pub(crate) fn mapped<M: Module>(module: M, mut walk: impl Walk) -> (M, Result<()>) {
    let mut walker = Walker::new(&mut walk);
    let module = module.map(&mut walker);
    (module, walker.outcome)
}

/// Visits the parameters that are trained, in visit order.
///
/// # Errors
/// The errors of [`visit`].
pub(crate) fn visit_trained<M: Module>(
    module: &M,
    mut each: impl FnMut(ParamId, &str, &mut dyn FloatTensor) -> Result<()>,
) -> Result<()> {
    visit(module, |parameter: Parameter<'_>| {
        match parameter.tensor.trained() {
            Some(tensor) => each(parameter.id, parameter.path, tensor),
            None => Ok(()),
        }
    })
}

/// Where a walk is.
struct Walker<'a> {
    walk: &'a mut dyn Walk,
    /// The path of the module that was entered last.
    path: String,
    /// What burn calls the types of the modules that were entered; those behind the last of
    /// `lengths` are left already.
    containers: Vec<String>,
    /// How long the path was before each module that was entered and not yet left.
    lengths: Vec<usize>,
    outcome: Result<()>,
}

impl<'a> Walker<'a> {
    fn new(walk: &'a mut dyn Walk) -> Self {
        Self {
            walk,
            path: String::new(),
            containers: Vec::new(),
            lengths: Vec::new(),
            outcome: Ok(()),
        }
    }

    fn tensor(&mut self, id: ParamId, tensor: &mut dyn ParameterTensor) {
        if self.outcome.is_err() {
            return;
        }
        self.outcome = self.walk.parameter(Parameter {
            path: &self.path,
            containers: &self.containers[..self.lengths.len()],
            lengths: &self.lengths,
            id,
            tensor,
        });
    }
}

/// Keeps the path of the module that was entered last.
macro_rules! keep_path {
    () => {
        fn enter_module(&mut self, name: &str, container: &str) {
            match self.containers.get_mut(self.lengths.len()) {
                Some(known) => {
                    known.clear();
                    known.push_str(container);
                }
                None => self.containers.push(container.to_string()),
            }
            let length = self.path.len();
            self.lengths.push(length);
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            let length = self.lengths.pop().unwrap_or(0);
            self.path.truncate(length);
        }
    };
}

impl ModuleVisitor for Walker<'_> {
    keep_path!();

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.tensor(param.id, &mut param.val());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.tensor(param.id, &mut param.val());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.tensor(param.id, &mut param.val());
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.walk.flag(flag.clone());
    }
}

/// Replaces a parameter's tensor by what the walk has made of it.
macro_rules! walked {
    ($walker:expr, $param:expr) => {{
        let (id, mut tensor, mapper) = $param.consume();
        $walker.tensor(id, &mut tensor);
        Param::from_mapped_value(id, tensor, mapper)
    }};
}

impl ModuleMapper for Walker<'_> {
    keep_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        walked!(self, param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        walked!(self, param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        walked!(self, param)
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.walk.flag(flag)
    }
}

macro_rules! handles {
    () => {
        fn handle(&self) -> Box<dyn Any> {
            Box::new(self.clone())
        }

        fn set_handle(&mut self, handle: Box<dyn Any>) {
            if let Ok(other) = handle.downcast() {
                *self = *other;
            }
        }
    };
}

impl<const D: usize> ParameterTensor for Tensor<D, Int> {
    handles!();
}

impl<const D: usize> ParameterTensor for Tensor<D, Bool> {
    handles!();
}

impl<const D: usize> ParameterTensor for Tensor<D> {
    handles!();

    fn float(&mut self) -> Option<&mut dyn FloatTensor> {
        Some(self)
    }
}

impl<const D: usize> FloatTensor for Tensor<D> {
    fn cast_to(&mut self, dtype: FloatDType) {
        *self = self.clone().cast(dtype);
    }

    fn set_other_shape(&mut self) {
        let count = usize::from(self.shape().num_elements() == 0);
        *self = Tensor::zeros([count; D], (&self.device(), self.dtype()));
    }

    fn gradient(&self, of: &BurnGradients) -> Option<Tensor<1>> {
        self.grad(of).map(flattened)
    }

    fn captured_gradient(&self, of: &CapturedTape) -> Option<CapturedTensor> {
        of.gradient(self)
    }

    fn take_param(&self, id: ParamId, from: &mut GradientsParams) -> Option<Tensor<1>> {
        from.remove::<D>(id).map(flattened)
    }

    fn give_param(&self, id: ParamId, gradient: Tensor<1>, to: &mut GradientsParams) {
        to.register(id, gradient.reshape::<D, _>(self.shape()));
    }
}
