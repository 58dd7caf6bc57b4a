//! All tensors of a burn module by path, and the way back: trained or not, floats, integers and
//! bools. Checkpoints, parameter servers and the chief's values go through here, so that none of
//! them knows fewer kinds of parameters than another.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, BoolStore, DType, Device, Int, Tensor, TensorData};

use crate::nest::different_structure;
use crate::{Error, Leaf, Result};

/// One tensor of a module.
#[derive(Debug, Clone)]
pub(crate) struct ModuleTensor {
    /// The path, `conv1.weight` for example.
    pub(crate) path: String,
    /// The value; bools have the type of the host, whatever the device keeps them as.
    pub(crate) value: TensorData,
    /// Whether it has a gradient.
    pub(crate) is_trained: bool,
}

/// A module's tensors in visit order.
pub(crate) fn take<M: Module>(module: &M) -> Result<Vec<ModuleTensor>> {
    let mut take = Take::default();
    module.visit(&mut take);
    take.error.map_or(Ok(take.tensors), Err)
}

/// The module with these values, which have the shapes and kinds of its own, in visit order;
/// `None` leaves one as it is.
pub(crate) fn put<M: Module>(
    module: M,
    tensors: impl IntoIterator<Item = Option<TensorData>>,
) -> Result<M> {
    let tensors: Vec<Option<TensorData>> = tensors.into_iter().collect();
    let mut put = Put {
        tensors: tensors.into_iter(),
        error: None,
    };
    let module = module.map(&mut put);
    if put.tensors.next().is_some() {
        put.error.get_or_insert(different_structure());
    }
    put.error.map_or(Ok(module), Err)
}

/// Whether values of the type `found` can stand in a tensor of the type `expected`. Bools are
/// stored as bytes where a device keeps them so.
pub(crate) fn is_same_kind(expected: DType, found: DType) -> bool {
    if expected.is_bool() {
        return matches!(found, DType::Bool(_) | DType::U8 | DType::U32);
    }
    expected.is_float() == found.is_float() && !found.is_bool()
}

#[derive(Default)]
struct Take {
    path: Vec<String>,
    tensors: Vec<ModuleTensor>,
    error: Option<Error>,
}

impl Take {
    fn add(&mut self, mut tensor: impl Leaf, is_trained: bool) {
        let value = tensor.take().and_then(|value| match value.dtype() {
            DType::Bool(store) if store != BoolStore::Native => value
                .try_cast(DType::Bool(BoolStore::Native))
                .map_err(Error::internal),
            _ => Ok(value),
        });
        match value {
            Ok(value) => self.tensors.push(ModuleTensor {
                path: self.path.join("."),
                value,
                is_trained,
            }),
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
    }
}

impl ModuleVisitor for Take {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let is_trained = tensor.is_require_grad();
        self.add(tensor, is_trained);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.val(), false);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.val(), false);
    }
}

struct Put {
    tensors: std::vec::IntoIter<Option<TensorData>>,
    error: Option<Error>,
}

impl Put {
    /// The next value, for a tensor of this shape and type.
    fn next(&mut self, shape: &[usize], dtype: DType) -> Option<TensorData> {
        let next = self.tensors.next();
        let checked = match next {
            None => Err(different_structure()),
            Some(None) => return None,
            Some(Some(data)) if data.shape().as_slice() != shape => Err(Error::Shape {
                op: "a parameter of a model",
                expected: shape.to_vec(),
                found: data.shape().to_vec(),
            }),
            Some(Some(data)) if !is_same_kind(dtype, data.dtype()) => Err(Error::DType {
                op: "a parameter of another kind in the model",
                dtype: data.dtype().name().to_string(),
            }),
            Some(Some(data)) => data.try_cast(dtype).map_err(Error::internal),
        };
        match checked {
            Ok(data) => Some(data),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }
}

/// The parameter with the next value; the device and what autodiff knows of it stay.
macro_rules! replaced {
    ($put:expr, $param:expr) => {{
        let (id, tensor, mapper) = $param.consume();
        let value = match $put.next(tensor.shape().as_slice(), tensor.dtype()) {
            None => tensor.clone(),
            Some(data) => {
                let options = (&tensor.device().without_autodiff(), tensor.dtype());
                let value = Tensor::from_data(data, options);
                match tensor.is_autodiff() && !value.is_autodiff() {
                    true => Tensor::from_inner(value),
                    false => value,
                }
            }
        };
        (id, tensor, value, mapper)
    }};
}

impl ModuleMapper for Put {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, value, mapper) = replaced!(self, param);
        let value = match tensor.is_require_grad() {
            true => value.require_grad(),
            false => value,
        };
        Param::from_mapped_value(id, value, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, _, value, mapper) = replaced!(self, param);
        Param::from_mapped_value(id, value, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, _, value, mapper) = replaced!(self, param);
        Param::from_mapped_value(id, value, mapper)
    }
}

/// Tells whether the weights of a model on a GPU were computed at all: reads an element of each.
///
/// A kernel that failed (no memory, not compiled) leaves its results without values, and so do the
/// kernels after it; burn tells that when one is read. Sums are the exception: in cubecl 0.11.3
/// `Tensor::sum` of what was never computed reads as 0, so a loss alone does not show it.
pub(crate) fn check_computed<M: Module>(model: &M) -> Result<()> {
    let mut check = CheckComputed(Ok(()));
    model.visit(&mut check);
    check.0
}

struct CheckComputed(Result<()>);

impl ModuleVisitor for CheckComputed {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let count = value.shape().num_elements();
        if self.0.is_ok() && count > 0 && value.is_require_grad() && is_off_host(&value.device()) {
            let first = value.inner().reshape([count]).narrow(0, 0, 1);
            self.0 = first.try_into_data().map(drop).map_err(Error::internal);
        }
    }
}

/// Whether tensors there are not in host memory already.
pub(crate) fn is_off_host(device: &Device) -> bool {
    *device != Device::flex()
}
