//! The builder: inputs, operations one after the other, outputs, text.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::error::{Result, StableHloError};
use super::literal::{self, Scalar};
use super::precision::Precision;
use super::types::{ElementType, TensorType};

/// A tensor inside the program that is being built. Cheap to clone; belongs to its [`Builder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    name: Arc<str>,
    ty: Arc<TensorType>,
}

impl Value {
    /// The type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        self.ty.dims()
    }

    /// How many dimensions there are.
    pub fn rank(&self) -> usize {
        self.ty.rank()
    }

    /// The type of the elements.
    pub fn element(&self) -> ElementType {
        self.ty.element()
    }
}

/// A finished program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The module's text, in the form that `PJRT_Program` with format `mlir` takes.
    pub text: String,
    /// Types of the inputs, in order.
    pub inputs: Vec<TensorType>,
    /// Types of the outputs, in order.
    pub outputs: Vec<TensorType>,
    /// For each input the output that takes over its memory, if it is donated.
    pub donations: Vec<Option<usize>>,
}

/// A block with arguments that an operation (a reduction, say) holds.
pub(super) struct Region {
    pub(super) text: String,
    pub(super) results: Vec<TensorType>,
}

struct Input {
    value: Value,
    donated_to: Option<usize>,
}

/// Builds one StableHLO program. Every operation is a method that checks the types and shapes of
/// its operands and returns the typed result. A compiler may still refuse the program, for what it
/// does not support or for attributes that are not checked here.
pub struct Builder {
    name: String,
    num_replicas: usize,
    inputs: Vec<Input>,
    /// One list of lines per open block: the function's and the nested regions'.
    blocks: Vec<Vec<String>>,
    constants: HashMap<String, Value>,
    next: usize,
    precision: Precision,
}

impl Builder {
    /// A program of this name for `num_replicas` devices that all run it.
    pub fn new(name: &str, num_replicas: usize) -> Self {
        Self {
            name: name
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
                .collect(),
            num_replicas,
            inputs: Vec::new(),
            blocks: vec![Vec::new()],
            constants: HashMap::new(),
            next: 0,
            precision: Precision::Highest,
        }
    }

    /// How exactly matrix products and convolutions are computed from here on;
    /// [`Precision::Highest`] at first.
    pub fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
    }

    /// How exactly matrix products and convolutions are computed.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// How many devices run the program.
    pub fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    /// Adds an input. With `donated_to`, the caller gives its memory up for that output
    /// (`tf.aliasing_output`), which must have the same type.
    pub fn input(&mut self, ty: TensorType, donated_to: Option<usize>) -> Value {
        let value = Value {
            name: format!("%arg{}", self.inputs.len()).into(),
            ty: Arc::new(ty),
        };
        self.inputs.push(Input {
            value: value.clone(),
            donated_to,
        });
        value
    }

    /// A tensor filled with one number, rounded to the element type.
    pub fn splat(
        &mut self,
        dims: &[usize],
        element: ElementType,
        value: impl Into<Scalar>,
    ) -> Value {
        let bytes = value.into().bytes(element);
        self.dense(TensorType::new(dims, element), &bytes)
    }

    /// A scalar.
    pub fn scalar(&mut self, element: ElementType, value: impl Into<Scalar>) -> Value {
        self.splat(&[], element, value)
    }

    /// A constant, whose bytes are as many as the type has.
    pub(super) fn dense(&mut self, ty: TensorType, bytes: &[u8]) -> Value {
        let text = literal::dense(&ty, bytes);
        // A region may not use what is outside of it, so only the function's own are shared.
        let shared = self.blocks.len() == 1 && text.len() < 128;
        if let Some(value) = shared.then(|| self.constants.get(&text)).flatten() {
            return value.clone();
        }
        let attributes = format!("value = {text}");
        let value = self.emit_one("constant", &[], &attributes, &[], ty);
        if shared {
            self.constants.insert(text, value.clone());
        }
        value
    }

    /// Ends the program with these outputs.
    ///
    /// # Errors
    /// A donated input does not have the type of its output, or two share one.
    pub fn finish(mut self, outputs: &[Value]) -> Result<Program> {
        self.check_donations(outputs)?;
        let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(", ");
        let types = list(&mut outputs.iter().map(|v| v.ty().to_string()));
        let names = list(&mut outputs.iter().map(|v| v.name.to_string()));
        let inputs = list(&mut self.inputs.iter().map(|input| {
            let donation = input
                .donated_to
                .map(|o| format!(" {{tf.aliasing_output = {o} : i32}}"))
                .unwrap_or_default();
            format!("{}: {}{donation}", input.value.name, input.value.ty)
        }));
        let body = self.blocks.pop().unwrap_or_default().join("\n");
        let text = format!(
            "module @{} attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {} : i32}} \
             {{\n  func.func public @main({inputs}) -> ({types}) {{\n{body}\n    \
             \"func.return\"({names}) : ({types}) -> ()\n  }}\n}}\n",
            self.name, self.num_replicas,
        );
        Ok(Program {
            text,
            inputs: self.inputs.iter().map(|i| i.value.ty().clone()).collect(),
            outputs: outputs.iter().map(|v| v.ty().clone()).collect(),
            donations: self.inputs.iter().map(|i| i.donated_to).collect(),
        })
    }

    fn check_donations(&self, outputs: &[Value]) -> Result<()> {
        let mut taken: HashMap<usize, usize> = HashMap::new();
        for (position, input) in self.inputs.iter().enumerate() {
            let Some(output) = input.donated_to else {
                continue;
            };
            if outputs.get(output).map(Value::ty) != Some(input.value.ty()) {
                return Err(StableHloError::Donation {
                    input: position,
                    input_type: input.value.ty().clone(),
                    output,
                    output_type: outputs
                        .get(output)
                        .map_or("there is none".into(), |o| o.ty().to_string()),
                });
            }
            if let Some(first) = taken.insert(output, position) {
                return Err(StableHloError::DonatedTwice {
                    first,
                    second: position,
                    output,
                });
            }
        }
        Ok(())
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next - 1)
    }

    /// Appends an operation in MLIR's generic form.
    pub(super) fn emit(
        &mut self,
        op: &str,
        operands: &[&Value],
        attributes: &str,
        regions: &[Region],
        results: Vec<TensorType>,
    ) -> Vec<Value> {
        let name = self.fresh();
        let mut line = "  ".repeat(self.blocks.len() + 1);
        let count = match results.len() {
            1 => String::new(),
            n => format!(":{n}"),
        };
        let list = |parts: &mut dyn Iterator<Item = String>| parts.collect::<Vec<_>>().join(", ");
        let names = list(&mut operands.iter().map(|v| v.name.to_string()));
        let types = list(&mut operands.iter().map(|v| v.ty.to_string()));
        let outputs = list(&mut results.iter().map(ToString::to_string));
        // Writing to a string cannot fail.
        let _ = write!(line, "{name}{count} = \"stablehlo.{op}\"({names})");
        if !attributes.is_empty() {
            let _ = write!(line, " <{{{attributes}}}>");
        }
        if !regions.is_empty() {
            let texts = list(&mut regions.iter().map(|r| r.text.clone()));
            let _ = write!(line, " ({texts})");
        }
        let _ = write!(line, " : ({types}) -> ({outputs})");
        if let Some(block) = self.blocks.last_mut() {
            block.push(line);
        }
        let many = results.len() > 1;
        let value = |(i, ty)| Value {
            name: if many {
                format!("{name}#{i}").into()
            } else {
                name.as_str().into()
            },
            ty: Arc::new(ty),
        };
        results.into_iter().enumerate().map(value).collect()
    }

    /// [`Self::emit`] for the many operations with one result.
    pub(super) fn emit_one(
        &mut self,
        op: &str,
        operands: &[&Value],
        attributes: &str,
        regions: &[Region],
        result: TensorType,
    ) -> Value {
        let mut results = self.emit(op, operands, attributes, regions, vec![result.clone()]);
        // One result type was given, so there is one value.
        results.pop().unwrap_or_else(|| Value {
            name: "%none".into(),
            ty: Arc::new(result),
        })
    }

    /// Builds a region whose block takes scalars or tensors of these types.
    pub(super) fn region(
        &mut self,
        arguments: &[TensorType],
        body: impl FnOnce(&mut Self, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Region> {
        let values: Vec<Value> = arguments
            .iter()
            .map(|ty| Value {
                name: self.fresh().into(),
                ty: Arc::new(ty.clone()),
            })
            .collect();
        let depth = self.blocks.len();
        self.blocks.push(Vec::new());
        let results = body(self, &values);
        let lines = self.blocks.pop().unwrap_or_default();
        let results = results?;
        let list = |parts: &mut dyn Iterator<Item = String>| parts.collect::<Vec<_>>().join(", ");
        let head = list(&mut values.iter().map(|v| format!("{}: {}", v.name, v.ty)));
        let names = list(&mut results.iter().map(|v| v.name.to_string()));
        let types = list(&mut results.iter().map(|v| v.ty.to_string()));
        let indent = "  ".repeat(depth + 1);
        let text = format!(
            "{{\n{indent}^bb0({head}):\n{}\n{indent}  \"stablehlo.return\"({names}) : ({types}) \
             -> ()\n{indent}}}",
            lines.join("\n"),
        );
        Ok(Region {
            text,
            results: results.iter().map(|v| v.ty().clone()).collect(),
        })
    }
}

/// An error of operation `op` that names the types of `operands`.
pub(super) fn error(op: &'static str, problem: String, operands: &[&Value]) -> StableHloError {
    StableHloError::Operands {
        op,
        problem,
        operands: operands.iter().map(|v| v.ty().clone()).collect(),
    }
}

/// Fails with `problem` unless `ok`.
pub(super) fn ensure(
    ok: bool,
    op: &'static str,
    operands: &[&Value],
    problem: impl FnOnce() -> String,
) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(error(op, problem(), operands))
}

/// `array<i64: 1, 2>`, the form of most lists in attributes.
pub(super) fn i64_array(values: &[impl ToString]) -> String {
    if values.is_empty() {
        return "array<i64>".into();
    }
    let list: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("array<i64: {}>", list.join(", "))
}

/// `[1, 2]`, the form of lists inside dimension numbers.
pub(super) fn plain_list(values: &[usize]) -> String {
    let list: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("[{}]", list.join(", "))
}

/// The `padding` attribute of windows: one pair per dimension.
pub(super) fn padding_attribute(padding: &[(i64, i64)]) -> String {
    let rows: Vec<String> = padding.iter().map(|(l, h)| format!("[{l}, {h}]")).collect();
    format!(
        "dense<[{}]> : tensor<{}x2xi64>",
        rows.join(", "),
        padding.len()
    )
}
