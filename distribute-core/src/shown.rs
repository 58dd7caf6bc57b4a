//! Values with one component per replica, as people print them: burn's tensors show what they hold.

use std::any::Any;
use std::fmt;

use burn::tensor::{Bool, Int, Tensor, TensorData};

use crate::burn_internals::without_inside;

/// More elements than these are left out.
const ELEMENTS: usize = 100;

/// One value of a list: a tensor, a pair or a list of tensors with their values, anything else with
/// its own `Debug` form, without what burn's tensors show there of their inside.
pub(crate) struct Shown<'a, T>(pub(crate) &'a T);

impl<T: fmt::Debug + 'static> fmt::Debug for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = text(self.0).unwrap_or_else(|| {
            without_inside(if f.alternate() {
                format!("{:#?}", self.0)
            } else {
                format!("{:?}", self.0)
            })
        });
        f.write_str(&text)
    }
}

/// Components as TensorFlow prints them: `PerReplica:{0: f32[1] [2.5], 1: f32[1] [4]}`.
pub(crate) fn write_components<'a, T: fmt::Debug + 'static>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    components: impl IntoIterator<Item = &'a T>,
) -> fmt::Result {
    write!(f, "{name}:{{")?;
    for (index, component) in components.into_iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(f, "{comma}{index}: {:?}", Shown(component))?;
    }
    f.write_str("}")
}

/// A tensor's values, as `f32[2] [1, 2.5]`.
pub(crate) fn data_text(data: &TensorData) -> String {
    let all = data.shape().num_elements();
    let values = data.iter::<f64>().take(ELEMENTS);
    let mut values: Vec<String> = values.map(|value| value.to_string()).collect();
    if all > ELEMENTS {
        values.push(format!("... {} more", all - ELEMENTS));
    }
    let shape = data.shape().to_vec();
    format!("{}{shape:?} [{}]", data.dtype().name(), values.join(", "))
}

macro_rules! tensors {
    ($value:expr; $($type:ty),*) => {$(
        if let Some(tensor) = $value.downcast_ref::<$type>() {
            let data = tensor.try_to_data();
            return Some(data.map_or_else(|error| error.to_string(), |data| data_text(&data)));
        }
        if let Some(list) = $value.downcast_ref::<Vec<$type>>() {
            return Some(list_text(list));
        }
        pairs!($value, $type; Tensor<1>, Tensor<2>, Tensor<3>, Tensor<4>, Tensor<1, Int>,
            Tensor<2, Int>, f32, f64, usize, u64, i64);
    )*};
}

macro_rules! pairs {
    ($value:expr, $first:ty; $($second:ty),*) => {$(
        if let Some((first, second)) = $value.downcast_ref::<($first, $second)>() {
            return Some(format!("({:?}, {:?})", Shown(first), Shown(second)));
        }
    )*};
}

fn list_text<T: fmt::Debug + 'static>(list: &[T]) -> String {
    format!("{:?}", list.iter().map(Shown).collect::<Vec<_>>())
}

/// The text of what holds tensors of burn, whose own `Debug` form shows none of their values.
fn text(value: &dyn Any) -> Option<String> {
    if let Some(data) = value.downcast_ref::<TensorData>() {
        return Some(data_text(data));
    }
    if let Some(list) = value.downcast_ref::<Vec<TensorData>>() {
        return Some(list_text(list));
    }
    tensors!(value; Tensor<1>, Tensor<2>, Tensor<3>, Tensor<4>, Tensor<5>, Tensor<6>);
    tensors!(value; Tensor<1, Int>, Tensor<2, Int>, Tensor<3, Int>, Tensor<4, Int>);
    tensors!(value; Tensor<1, Bool>, Tensor<2, Bool>, Tensor<3, Bool>, Tensor<4, Bool>);
    None
}
