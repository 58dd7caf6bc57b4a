//! Runs the same operations once on burn's flex backend and once captured, lowered, compiled and
//! executed by XLA's CPU client, and compares.

use distribute_core::burn_internals::backend;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{CapturedGraph, DType, TensorData, TensorId, bf16, f16, read_sync};
use burn_flex::Flex;
use distribute_core::burn_internals::backend::Backend;
use distribute_core::burn_internals::capture::{CaptureBackend, CaptureDevice};
use distribute_tpu_xla::lower::{
    CPU_COMPILER_OPTIONS, GraphInput, LowerOptions, Lowered, RandomKey, Target, lower,
};
use distribute_tpu_xla::pjrt::{self, Client, CompileOptions, ExecuteOptions, Plugin};
use distribute_tpu_xla::stablehlo::{ElementType, TensorType};

use crate::plugins::cpu_plugin;

/// Devices of the client: as many as any test has replicas.
const DEVICES: i64 = 8;

static CLIENT: LazyLock<Option<Client>> = LazyLock::new(|| {
    let path = cpu_plugin()?;
    let plugin = Plugin::load(path).expect("the plugin loads");
    let options = [("cpu_device_count", DEVICES.into())];
    // PJRT_CPU_PLUGIN may name a plugin for other devices, which knows no such option.
    let client = plugin.client(&options).or_else(|_| plugin.client(&[]));
    Some(client.expect("the plugin makes a client"))
});

/// XLA's CPU client, or nothing and a line that says how to get it.
pub fn client() -> Option<&'static Client> {
    cpu_plugin()?;
    CLIENT.as_ref()
}

/// A tensor of any kind on a backend.
pub enum Prim<B: Backend> {
    Float(B::FloatTensorPrimitive),
    Int(B::IntTensorPrimitive),
    Bool(B::BoolTensorPrimitive),
}

impl<B: Backend> Clone for Prim<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Float(t) => Self::Float(t.clone()),
            Self::Int(t) => Self::Int(t.clone()),
            Self::Bool(t) => Self::Bool(t.clone()),
        }
    }
}

impl<B: Backend> Prim<B> {
    pub fn from_data(data: TensorData, device: &B::Device) -> Self {
        match data.dtype() {
            DType::Bool(_) => Self::Bool(B::bool_from_data(data, device)),
            dtype if dtype.is_float() => Self::Float(B::float_from_data(data, device)),
            _ => Self::Int(B::int_from_data(data, device)),
        }
    }

    pub fn f(&self) -> B::FloatTensorPrimitive {
        match self {
            Self::Float(t) => t.clone(),
            _ => panic!("not a float tensor"),
        }
    }

    pub fn i(&self) -> B::IntTensorPrimitive {
        match self {
            Self::Int(t) => t.clone(),
            _ => panic!("not an int tensor"),
        }
    }

    pub fn b(&self) -> B::BoolTensorPrimitive {
        match self {
            Self::Bool(t) => t.clone(),
            _ => panic!("not a bool tensor"),
        }
    }

    pub fn into_data(self) -> TensorData {
        let data = match self {
            Self::Float(t) => read_sync(B::float_into_data(t)),
            Self::Int(t) => read_sync(B::int_into_data(t)),
            Self::Bool(t) => read_sync(B::bool_into_data(t)),
        };
        data.expect("flex reads every tensor")
    }
}

impl Prim<CaptureBackend> {
    fn id(&self) -> TensorId {
        match self {
            Self::Float(t) | Self::Int(t) | Self::Bool(t) => t.id(),
        }
    }
}

/// Operations over any backend.
pub trait Step {
    fn run<B: Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>>;
}

/// A step on capture: the graph, its inputs and its outputs.
pub struct Captured {
    pub graph: CapturedGraph,
    pub inputs: Vec<TensorId>,
    pub outputs: Vec<TensorId>,
}

pub fn capture(inputs: &[TensorData], step: &impl Step) -> Captured {
    let device = CaptureDevice::default();
    let (mut input_ids, mut output_ids) = (vec![], vec![]);
    let graph = device.capture_scope(|scope| {
        let prims: Vec<Prim<CaptureBackend>> = inputs
            .iter()
            .map(|data| Prim::from_data(data.clone(), &device))
            .collect();
        input_ids = prims.iter().map(Prim::id).collect();
        let outputs = step.run::<CaptureBackend>(&prims);
        output_ids = outputs.iter().map(Prim::id).collect();
        let done = scope.complete(input_ids.clone(), output_ids.clone());
        drop((prims, outputs));
        done
    });
    Captured {
        graph: graph.expect("the step can be captured"),
        inputs: input_ids,
        outputs: output_ids,
    }
}

/// Lowers a captured step for one replica.
pub fn lowered(captured: &Captured) -> Lowered {
    lower_with(captured, &LowerOptions::default())
}

pub fn lower_with(captured: &Captured, options: &LowerOptions) -> Lowered {
    let inputs: Vec<GraphInput> = captured
        .inputs
        .iter()
        .copied()
        .map(GraphInput::new)
        .collect();
    lower(&captured.graph, &inputs, &captured.outputs, options).expect("the step can be lowered")
}

fn pjrt_type(ty: &TensorType) -> pjrt::ElementType {
    match ty.element() {
        ElementType::I1 => pjrt::ElementType::Pred,
        ElementType::I8 => pjrt::ElementType::S8,
        ElementType::I16 => pjrt::ElementType::S16,
        ElementType::I32 => pjrt::ElementType::S32,
        ElementType::I64 => pjrt::ElementType::S64,
        ElementType::U8 => pjrt::ElementType::U8,
        ElementType::U16 => pjrt::ElementType::U16,
        ElementType::U32 => pjrt::ElementType::U32,
        ElementType::U64 => pjrt::ElementType::U64,
        ElementType::F16 => pjrt::ElementType::F16,
        ElementType::BF16 => pjrt::ElementType::Bf16,
        ElementType::F32 => pjrt::ElementType::F32,
        ElementType::F64 => pjrt::ElementType::F64,
        other => panic!("no buffer of {other}"),
    }
}

fn burn_type(ty: &TensorType) -> DType {
    match ty.element() {
        ElementType::I1 => DType::Bool(backend::BoolStore::Native),
        ElementType::I8 => DType::I8,
        ElementType::I16 => DType::I16,
        ElementType::I32 => DType::I32,
        ElementType::I64 => DType::I64,
        ElementType::U8 => DType::U8,
        ElementType::U16 => DType::U16,
        ElementType::U32 => DType::U32,
        ElementType::U64 => DType::U64,
        ElementType::F16 => DType::F16,
        ElementType::BF16 => DType::BF16,
        ElementType::F32 => DType::F32,
        ElementType::F64 => DType::F64,
        other => panic!("burn has no {other}"),
    }
}

/// A folder that gets the text of every program, for the test that compiles them for a TPU.
pub const SAVE_PROGRAMS: &str = "DISTRIBUTE_TEST_SAVE_PROGRAMS";

fn save(text: &str) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    if let Some(folder) = std::env::var_os(SAVE_PROGRAMS) {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(&folder).join(format!("{number}.mlir"));
        std::fs::write(path, text).expect("the program can be saved");
    }
}

/// Compiles the program and runs it with the inputs of each replica; the outputs of each replica.
pub fn execute(
    client: &Client,
    lowered: &Lowered,
    inputs: &[Vec<TensorData>],
) -> Vec<Vec<TensorData>> {
    let program = &lowered.program;
    save(&program.text);
    let mut options = CompileOptions::replicas(inputs.len());
    for (flag, value) in CPU_COMPILER_OPTIONS {
        options = options.option(flag, value);
    }
    let executable = client
        .compile(&program.text, &options)
        .unwrap_or_else(|error| panic!("{error}\n{}", program.text));
    let devices = executable.devices();
    let buffers: Vec<Vec<_>> = inputs
        .iter()
        .zip(&devices)
        .map(|(inputs, device)| {
            let types = inputs.iter().zip(&program.inputs);
            types
                .map(|(data, ty)| {
                    client
                        .buffer_from_bytes(pjrt_type(ty), data.as_bytes(), ty.dims(), device)
                        .expect("the input becomes a buffer")
                })
                .collect()
        })
        .collect();
    let outputs = executable
        .run(&buffers, &ExecuteOptions::default())
        .unwrap_or_else(|error| panic!("{error}\n{}", program.text));
    outputs
        .iter()
        .map(|outputs| {
            let types = outputs.iter().zip(&program.outputs);
            types
                .map(|(buffer, ty)| {
                    let bytes = buffer.to_bytes().expect("the output can be read");
                    TensorData::from_bytes_vec(bytes, ty.dims().to_vec(), burn_type(ty))
                })
                .collect()
        })
        .collect()
}

/// How far floats may be apart.
#[derive(Clone, Copy)]
pub struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
}

impl Tolerance {
    pub const fn new(relative: f64, absolute: f64) -> Self {
        Self { relative, absolute }
    }

    /// Some units in the last place of the type.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self::new(1e-11, 1e-12),
            DType::F16 => Self::new(4e-3, 4e-3),
            DType::BF16 => Self::new(3e-2, 3e-2),
            _ => Self::new(2e-5, 3e-6),
        }
    }
}

/// Asserts that XLA and flex agree on the step.
pub fn compare(name: &str, inputs: Vec<TensorData>, step: &impl Step) {
    compare_within(name, inputs, None, step);
}

pub fn compare_within(
    name: &str,
    inputs: Vec<TensorData>,
    tolerance: Option<Tolerance>,
    step: &impl Step,
) {
    let Some(client) = client() else { return };
    let prims: Vec<Prim<Flex>> = inputs
        .iter()
        .map(|data| Prim::from_data(data.clone(), &Default::default()))
        .collect();
    let expected: Vec<TensorData> = step
        .run::<Flex>(&prims)
        .into_iter()
        .map(Prim::into_data)
        .collect();
    let captured = capture(&inputs, step);
    for (target, lowered) in forms(&captured) {
        let actual = execute(client, &lowered, std::slice::from_ref(&inputs)).remove(0);
        assert_eq!(expected.len(), actual.len(), "{name}: number of outputs");
        for (i, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
            let tolerance = tolerance.unwrap_or_else(|| Tolerance::of(expected.dtype()));
            let name = format!("{name} for {target:?}, output {i}");
            assert_close(&name, expected, actual, tolerance);
        }
    }
}

/// The step as it is lowered for any compiler, and for the TPU's if that is another program.
pub fn forms(captured: &Captured) -> Vec<(Target, Lowered)> {
    let lowered = [Target::Any, Target::Tpu].map(|target| {
        let options = LowerOptions {
            target,
            ..LowerOptions::default()
        };
        (target, lower_with(captured, &options))
    });
    let mut forms = lowered.to_vec();
    forms.dedup_by(|tpu, any| tpu.1.program.text == any.1.program.text);
    forms
}

pub fn floats(data: &TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

pub fn assert_close(name: &str, expected: &TensorData, actual: &TensorData, t: Tolerance) {
    assert_eq!(expected.shape(), actual.shape(), "{name}: shape");
    assert_eq!(
        expected.dtype().is_float(),
        actual.dtype().is_float(),
        "{name}: kind"
    );
    if expected.dtype().is_float() {
        assert_eq!(expected.dtype(), actual.dtype(), "{name}: element type");
        for (i, (e, a)) in floats(expected).into_iter().zip(floats(actual)).enumerate() {
            let same = e == a || (e.is_nan() && a.is_nan());
            let close = (e - a).abs() <= t.absolute + t.relative * e.abs();
            assert!(same || close, "{name}: element {i}: flex {e}, XLA {a}");
        }
    } else {
        let expected: Vec<i64> = expected.iter::<i64>().collect();
        let actual: Vec<i64> = actual.iter::<i64>().collect();
        assert_eq!(expected, actual, "{name}");
    }
}

/// Declares a step in place and compares it: `check!("name", [inputs], |B, x| [outputs])`, with
/// values from outside as `(name: Type = value, ..)` after the inputs.
#[macro_export]
macro_rules! check {
    ($name:expr, [$($input:expr),* $(,)?], |$b:ident, $x:ident| [$($out:expr),* $(,)?]) => {
        $crate::check!($name, [$($input),*], (), |$b, $x| [$($out),*])
    };
    ($name:expr, [$($input:expr),* $(,)?], ($($var:ident: $ty:ty = $value:expr),* $(,)?),
        |$b:ident, $x:ident| [$($out:expr),* $(,)?]) => {{
        struct Case { $($var: $ty),* }
        impl $crate::lower::harness::Step for Case {
            fn run<$b: distribute_core::burn_internals::backend::Backend>(
                &self,
                $x: &[$crate::lower::harness::Prim<$b>],
            ) -> Vec<$crate::lower::harness::Prim<$b>> {
                $(let $var = self.$var.clone();)*
                vec![$($out),*]
            }
        }
        let case = Case { $($var: $value),* };
        $crate::lower::harness::compare(&$name, vec![$($input),*], &case)
    }};
}

/// A small generator of test data, the same on every run.
pub struct Data(u64);

impl Data {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Floats in `[low, high)`, rounded to the type.
    pub fn floats(&mut self, shape: &[usize], dtype: DType, low: f64, high: f64) -> TensorData {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count)
            .map(|_| low + (high - low) * ((self.next() >> 11) as f64 / (1u64 << 53) as f64))
            .collect();
        typed(values, shape, dtype)
    }

    /// Floats around zero, of both signs.
    pub fn normal(&mut self, shape: &[usize], dtype: DType) -> TensorData {
        self.floats(shape, dtype, -2.0, 2.0)
    }

    /// Integers in `low..high`.
    pub fn ints(&mut self, shape: &[usize], dtype: DType, low: i64, high: i64) -> TensorData {
        let count: usize = shape.iter().product();
        let values: Vec<i64> = (0..count)
            .map(|_| low + (self.next() % (high - low) as u64) as i64)
            .collect();
        ints(values, shape, dtype)
    }

    pub fn bools(&mut self, shape: &[usize]) -> TensorData {
        let count: usize = shape.iter().product();
        let values: Vec<bool> = (0..count).map(|_| self.next() & 1 == 1).collect();
        TensorData::new(values, shape.to_vec())
    }
}

pub fn typed(values: Vec<f64>, shape: &[usize], dtype: DType) -> TensorData {
    let shape = shape.to_vec();
    match dtype {
        DType::F64 => TensorData::new(values, shape),
        DType::F16 => TensorData::new(
            values.into_iter().map(f16::from_f64).collect::<Vec<_>>(),
            shape,
        ),
        DType::BF16 => TensorData::new(
            values.into_iter().map(bf16::from_f64).collect::<Vec<_>>(),
            shape,
        ),
        DType::F32 => TensorData::new(
            values.into_iter().map(|v| v as f32).collect::<Vec<_>>(),
            shape,
        ),
        other => panic!("{other:?} is no float type"),
    }
}

pub fn ints(values: Vec<i64>, shape: &[usize], dtype: DType) -> TensorData {
    macro_rules! as_type {
        ($ty:ty) => {
            TensorData::new(
                values.into_iter().map(|v| v as $ty).collect::<Vec<$ty>>(),
                shape.to_vec(),
            )
        };
    }
    match dtype {
        DType::I64 => as_type!(i64),
        DType::I32 => as_type!(i32),
        DType::I16 => as_type!(i16),
        DType::I8 => as_type!(i8),
        DType::U64 => as_type!(u64),
        DType::U32 => as_type!(u32),
        DType::U16 => as_type!(u16),
        DType::U8 => as_type!(u8),
        other => panic!("{other:?} is no integer type"),
    }
}

/// A key for random operations as the last input.
pub fn with_key() -> LowerOptions {
    LowerOptions {
        random_key: RandomKey::Parameter,
        ..LowerOptions::default()
    }
}

pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
pub const INTS: [DType; 6] = [
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U32,
    DType::U8,
];
