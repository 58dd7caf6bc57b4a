//! All tensors of a burn module by path, and the way back: trained or not, floats, integers and
//! bools.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor, TensorData};

use crate::nest::different_structure;
use crate::{Error, Leaf, Result};

/// The paths of a module's tensors and their values, in visit order.
pub(crate) fn take<M: Module>(module: &M) -> Result<(Vec<String>, Vec<TensorData>)> {
    let mut take = Take::default();
    module.visit(&mut take);
    match take.error {
        Some(error) => Err(error),
        None => Ok((take.names, take.tensors)),
    }
}

/// The module with these values in visit order, which have the shapes of its own.
pub(crate) fn put<M: Module>(module: M, tensors: Vec<TensorData>) -> Result<M> {
    let mut put = Put {
        tensors: tensors.into_iter(),
        error: None,
    };
    let module = module.map(&mut put);
    put.error.map_or(Ok(module), Err)
}

#[derive(Default)]
struct Take {
    path: Vec<String>,
    names: Vec<String>,
    tensors: Vec<TensorData>,
    error: Option<Error>,
}

impl Take {
    fn add(&mut self, mut value: impl Leaf) {
        match value.take() {
            Ok(data) => {
                self.names.push(self.path.join("."));
                self.tensors.push(data);
            }
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
        self.add(param.val());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.val());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.val());
    }
}

struct Put {
    tensors: std::vec::IntoIter<TensorData>,
    error: Option<Error>,
}

impl Put {
    /// The next value in place of `like`.
    fn next<T: Leaf + Clone>(&mut self, like: &T) -> T {
        let mut value = like.clone();
        let put = match self.tensors.next() {
            Some(data) => value.put(data),
            None => Err(different_structure()),
        };
        if let Err(error) = put {
            self.error.get_or_insert(error);
        }
        value
    }
}

impl ModuleMapper for Put {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let mut value = self.next(&tensor);
        if tensor.is_autodiff() && !value.is_autodiff() {
            value = Tensor::from_inner(value);
        }
        if tensor.is_require_grad() {
            value = value.require_grad();
        }
        Param::from_mapped_value(id, value, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, tensor, mapper) = param.consume();
        let mut value = self.next(&tensor);
        if tensor.is_autodiff() && !value.is_autodiff() {
            value = Tensor::from_inner(value);
        }
        Param::from_mapped_value(id, value, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, tensor, mapper) = param.consume();
        let mut value = self.next(&tensor);
        if tensor.is_autodiff() && !value.is_autodiff() {
            value = Tensor::from_inner(value);
        }
        Param::from_mapped_value(id, value, mapper)
    }
}
