//! Named values on both sides of the C API.

use std::ptr;

use super::api::{lent, malformed, string};
use super::bindings::*;
use crate::pjrt::error::Result;
use crate::pjrt::value::{Attributes, Value};

/// Options in the C API's form; they borrow names and texts.
pub(super) fn write(options: &[(&str, Value)]) -> Vec<PJRT_NamedValue> {
    options
        .iter()
        .map(|(name, value)| write_one(name, value))
        .collect()
}

fn write_one(name: &str, value: &Value) -> PJRT_NamedValue {
    let mut named = PJRT_NamedValue {
        name: name.as_ptr().cast(),
        name_size: name.len(),
        value_size: 1,
        ..Default::default()
    };
    let data = &mut named.__bindgen_anon_1;
    match value {
        Value::String(text) => {
            named.type_ = PJRT_NamedValue_kString;
            data.string_value = text.as_ptr().cast();
            named.value_size = text.len();
        }
        Value::Int64(number) => {
            named.type_ = PJRT_NamedValue_kInt64;
            data.int64_value = *number;
        }
        Value::Int64List(numbers) => {
            named.type_ = PJRT_NamedValue_kInt64List;
            data.int64_array_value = numbers.as_ptr();
            named.value_size = numbers.len();
        }
        Value::Float(number) => {
            named.type_ = PJRT_NamedValue_kFloat;
            data.float_value = *number;
        }
        Value::Bool(yes) => {
            named.type_ = PJRT_NamedValue_kBool;
            data.bool_value = *yes;
        }
    }
    named
}

/// Copies the values that a plugin lends. A value of a type that is not known is left out.
///
/// # Safety
///
/// `first` points to `count` named values, each as large as its `struct_size` says, or is null.
pub(super) unsafe fn read(first: *const PJRT_NamedValue, count: usize) -> Result<Attributes> {
    let mut attributes = Attributes::new();
    if first.is_null() || count == 0 {
        return Ok(attributes);
    }
    // SAFETY: there is at least one, and its size is its first field.
    let stride = match unsafe { ptr::read(first.cast::<usize>()) } {
        0 => size_of::<PJRT_NamedValue>(),
        // A newer plugin's structs may have more fields, and lie further apart.
        size => size.next_multiple_of(align_of::<PJRT_NamedValue>()),
    };
    if stride < size_of::<PJRT_NamedValue>() {
        return Err(malformed(
            "PJRT_NamedValue",
            format!("a named value has {stride} bytes"),
        ));
    }
    for index in 0..count {
        // SAFETY: `index` is less than the count, and elements are `stride` bytes apart.
        let named = unsafe { &*first.byte_add(index * stride) };
        // SAFETY: name and value are the plugin's, of the lengths it says.
        let (name, value) = unsafe { (string(named.name, named.name_size), read_value(named)) };
        match value {
            Some(value) => drop(attributes.insert(name, value)),
            None => tracing::debug!(name, kind = named.type_, "a named value of an unknown type"),
        }
    }
    Ok(attributes)
}

/// # Safety
///
/// The value's type says which member of the union is set, and its size how long that is.
#[expect(
    non_upper_case_globals,
    reason = "the constants have the names of the C header"
)]
unsafe fn read_value(named: &PJRT_NamedValue) -> Option<Value> {
    let (data, size) = (&named.__bindgen_anon_1, named.value_size);
    // SAFETY: the member that belongs to the type. A boolean is read as the byte it is.
    unsafe {
        Some(match named.type_ {
            PJRT_NamedValue_kString => Value::String(string(data.string_value, size)),
            PJRT_NamedValue_kInt64 => Value::Int64(data.int64_value),
            PJRT_NamedValue_kInt64List => {
                Value::Int64List(lent(data.int64_array_value, size).to_vec())
            }
            PJRT_NamedValue_kFloat => Value::Float(data.float_value),
            PJRT_NamedValue_kBool => Value::Bool((data as *const _ as *const u8).read() != 0),
            _ => return None,
        })
    }
}
