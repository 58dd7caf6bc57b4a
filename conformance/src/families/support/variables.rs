//! Variables as a file names them: any number, of any rank.

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use serde_json::Value;

use crate::outcome::Failure;
use crate::tensors::{float, rank};

macro_rules! ranks {
    ($($name:ident $rank:literal),*) => {
        /// A variable of any rank; burn's smallest tensor has one axis.
        #[derive(Debug, Clone)]
        enum Variable {
            $($name(Param<Tensor<$rank>>),)*
        }

        impl Variable {
            fn new(value: &Value, device: &Device) -> Result<Self, Failure> {
                Ok(match rank(value).max(1) {
                    $($rank => {
                        let value = float::<$rank>(value, device)?.require_grad();
                        Self::$name(Param::from_tensor(value))
                    })*
                    rank => return Err(Failure::schema(format!("a variable of rank {rank}"))),
                })
            }

            fn flat(&self) -> Tensor<1> {
                match self {
                    $(Self::$name(value) => value.val().reshape([-1]),)*
                }
            }
        }

        impl Module for Variable {
            fn collect_devices(&self, devices: Devices) -> Devices {
                match self {
                    $(Self::$name(value) => value.collect_devices(devices),)*
                }
            }

            fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
                match self {
                    $(Self::$name(value) => value.visit(visitor),)*
                }
            }

            fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
                match self {
                    $(Self::$name(value) => Self::$name(Module::map(value, mapper)),)*
                }
            }

            fn fork(self, device: &Device) -> Self {
                match self {
                    $(Self::$name(value) => Self::$name(value.fork(device)),)*
                }
            }

            fn to_device(self, device: &Device) -> Self {
                match self {
                    $(Self::$name(value) => Self::$name(value.to_device(device)),)*
                }
            }

            fn train(self) -> Self {
                match self {
                    $(Self::$name(value) => Self::$name(value.train()),)*
                }
            }

            fn valid(&self) -> Self {
                match self {
                    $(Self::$name(value) => Self::$name(value.valid()),)*
                }
            }

            fn materialize(self) -> Self {
                match self {
                    $(Self::$name(value) => Self::$name(value.materialize()),)*
                }
            }
        }
    };
}

ranks!(R1 1, R2 2, R3 3, R4 4, R5 5, R6 6);

/// A model whose parameters have the names of a file.
#[derive(Debug, Clone)]
pub(crate) struct Variables {
    named: Vec<(String, Variable)>,
}

impl Variables {
    /// `{name: tensor, ...}` on a device.
    pub(crate) fn new(values: &Value, device: &Device) -> Result<Self, Failure> {
        let values = values.as_object().into_iter().flatten();
        let named = values.map(|(name, value)| {
            let variable = Variable::new(value, device).map_err(|it| it.at(name))?;
            Ok((name.clone(), variable))
        });
        Ok(Self {
            named: named.collect::<Result<_, Failure>>()?,
        })
    }

    /// A loss whose gradients are the given ones, in the order of the names.
    pub(crate) fn loss_of(&self, gradients: Vec<Option<Tensor<1>>>, device: &Device) -> Tensor<1> {
        let zero = Tensor::<1>::zeros([1], device);
        // Tracked without a gradient, too; a step that evaluates tracks nothing.
        let zero = zero.set_require_grad(device.is_autodiff());
        let pairs = self.named.iter().zip(gradients);
        pairs.fold(zero, |loss, ((_, variable), gradient)| match gradient {
            Some(gradient) => loss + (variable.flat() * gradient.to_device(device)).sum(),
            None => loss,
        })
    }

    fn each(self, mut change: impl FnMut(&str, Variable) -> Variable) -> Self {
        let named = self.named.into_iter();
        let named = named.map(|(name, variable)| {
            let variable = change(&name, variable);
            (name, variable)
        });
        Self {
            named: named.collect(),
        }
    }
}

const CONTAINER: &str = "Struct:Variables";

impl Module for Variables {
    fn collect_devices(&self, devices: Devices) -> Devices {
        let all = self.named.iter();
        all.fold(devices, |devices, (_, variable)| {
            variable.collect_devices(devices)
        })
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for (name, variable) in &self.named {
            visitor.enter_module(name, CONTAINER);
            variable.visit(visitor);
            visitor.exit_module(name, CONTAINER);
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        self.each(|name, variable| {
            mapper.enter_module(name, CONTAINER);
            let mapped = Module::map(variable, mapper);
            mapper.exit_module(name, CONTAINER);
            mapped
        })
    }

    fn fork(self, device: &Device) -> Self {
        self.each(|_, variable| variable.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.each(|_, variable| variable.to_device(device))
    }

    fn train(self) -> Self {
        self.each(|_, variable| variable.train())
    }

    fn valid(&self) -> Self {
        self.clone().each(|_, variable| variable.valid())
    }

    fn materialize(self) -> Self {
        self.each(|_, variable| variable.materialize())
    }
}
