//! A strategy that captures steps and "runs" them by returning ones.

use distribute_core::burn_internals::ir;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use distribute_core::trace::{
    Argument, CapturedStep, DeviceTensor, Executable, StepKey, StepProgram, TensorSpec,
    TraceDevice, Tracer,
};
use distribute_core::{
    LogicalDevice, PerReplica, Replica, ReplicaStep, Result, Strategy, StrategyId, TensorData,
};

/// Counts what happens instead of running it.
#[derive(Debug, Default)]
pub struct Recorder {
    device: TraceDevice,
    programs: Mutex<HashMap<StepKey, Arc<StepProgram>>>,
    pub steps: Arc<Mutex<Vec<CapturedStep>>>,
    pub reads: Arc<Mutex<usize>>,
    pub uploads: Mutex<usize>,
    pub arguments: Arc<Mutex<Vec<Vec<TensorData>>>>,
    pub fails: Arc<Mutex<bool>>,
    /// What is in all results in place of ones.
    pub result: Arc<Mutex<Option<f64>>>,
    /// Happens once, while the next program runs.
    pub meanwhile: Arc<Meanwhile>,
}

/// What happens while a program runs.
#[derive(Default)]
pub struct Meanwhile(pub Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

#[derive(Debug)]
struct OnHost {
    data: TensorData,
    reads: Arc<Mutex<usize>>,
}

impl DeviceTensor for OnHost {
    fn spec(&self) -> TensorSpec {
        TensorSpec::of(&self.data)
    }

    fn read(&self, _: usize) -> Result<TensorData> {
        *self.reads.lock().unwrap() += 1;
        Ok(self.data.clone())
    }
}

#[derive(Debug)]
struct Ones {
    step: CapturedStep,
    reads: Arc<Mutex<usize>>,
    arguments: Arc<Mutex<Vec<Vec<TensorData>>>>,
    fails: Arc<Mutex<bool>>,
    result: Arc<Mutex<Option<f64>>>,
    meanwhile: Arc<Meanwhile>,
}

impl Executable for Ones {
    fn execute(&self, arguments: Vec<Argument>) -> Result<Vec<Arc<dyn DeviceTensor>>> {
        if *self.fails.lock().unwrap() {
            return Err(distribute_core::Error::invalid("the device is gone"));
        }
        let meanwhile = self.meanwhile.0.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let host = arguments.iter().filter_map(|argument| match argument {
            Argument::Same(data) => Some(data.clone()),
            _ => None,
        });
        self.arguments.lock().unwrap().push(host.collect());
        assert_eq!(arguments.len(), self.step.inputs.len());
        let value = self.result.lock().unwrap().unwrap_or(1.0);
        let outputs = self.step.outputs.iter().map(|output| {
            let spec = &output.spec;
            Arc::new(OnHost {
                data: TensorData::full_dtype(spec.shape.clone(), value, spec.dtype),
                reads: Arc::clone(&self.reads),
            }) as Arc<dyn DeviceTensor>
        });
        Ok(outputs.collect())
    }
}

impl Tracer for Recorder {
    fn device(&self) -> &TraceDevice {
        &self.device
    }

    fn find(&self, key: &StepKey) -> Option<Arc<StepProgram>> {
        self.programs.lock().unwrap().get(key).cloned()
    }

    fn compile(&self, step: CapturedStep) -> Result<Box<dyn Executable>> {
        self.steps.lock().unwrap().push(step.clone());
        Ok(Box::new(Ones {
            step,
            reads: Arc::clone(&self.reads),
            arguments: Arc::clone(&self.arguments),
            fails: Arc::clone(&self.fails),
            result: Arc::clone(&self.result),
            meanwhile: Arc::clone(&self.meanwhile),
        }))
    }

    fn keep(&self, key: StepKey, program: Arc<StepProgram>) {
        self.programs.lock().unwrap().insert(key, program);
    }

    fn upload(&self, data: TensorData) -> Result<Arc<dyn DeviceTensor>> {
        *self.uploads.lock().unwrap() += 1;
        Ok(Arc::new(OnHost {
            data,
            reads: Arc::clone(&self.reads),
        }))
    }

    // Nothing is computed here, so that the first replica's values stand for all.
    fn upload_each(&self, mut data: Vec<TensorData>) -> Result<Arc<dyn DeviceTensor>> {
        self.upload(data.swap_remove(0))
    }
}

/// A strategy with a [`Recorder`].
#[derive(Debug, Clone)]
pub struct Recording {
    replicas: Arc<Vec<Replica>>,
    pub recorder: Arc<Recorder>,
    id: StrategyId,
}

impl Recording {
    pub fn new(replicas: usize) -> Self {
        let list = (0..replicas).map(|id| Replica::new(id, LogicalDevice::cpu(id)));
        Self {
            replicas: Arc::new(list.collect()),
            recorder: Arc::default(),
            id: StrategyId::new("recording", replicas),
        }
    }

    /// The programs so far.
    pub fn compiled(&self) -> usize {
        self.recorder.steps.lock().unwrap().len()
    }

    /// The last captured step.
    pub fn last(&self) -> CapturedStep {
        self.recorder.steps.lock().unwrap().last().unwrap().clone()
    }

    pub fn reads(&self) -> usize {
        *self.recorder.reads.lock().unwrap()
    }

    pub fn uploads(&self) -> usize {
        *self.recorder.uploads.lock().unwrap()
    }
}

impl Strategy for Recording {
    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    fn id(&self) -> StrategyId {
        self.id.clone()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn tracer(&self) -> Option<&dyn Tracer> {
        Some(&*self.recorder)
    }

    fn run_replicas(&self, _: ReplicaStep<'_>) -> Result<()> {
        unreachable!("steps are captured")
    }
}

/// Two layers.
#[derive(Module, Debug)]
pub struct Mlp {
    pub first: Linear,
    pub second: Linear,
}

impl Mlp {
    pub fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(4, 8).init(device),
            second: LinearConfig::new(8, 3).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.second
            .forward(burn::tensor::activation::relu(self.first.forward(x)))
    }
}

/// The same number of examples for every replica.
pub fn batch(replicas: usize, examples: usize) -> PerReplica<(Tensor<2>, Tensor<1, Int>)> {
    uneven(&vec![examples; replicas])
}

pub fn uneven(examples: &[usize]) -> PerReplica<(Tensor<2>, Tensor<1, Int>)> {
    let device = Device::flex();
    let part = |count: &usize| {
        let x = Tensor::<2>::ones([*count, 4], &device);
        let y = Tensor::<1, Int>::zeros([*count], &device);
        (x, y)
    };
    PerReplica::new(examples.iter().map(part).collect())
}

/// The operations of a graph by name, in order.
pub fn operations(step: &CapturedStep) -> Vec<String> {
    let name = |operation: &ir::OperationIr| {
        if let ir::OperationIr::Custom(custom) = operation {
            return format!("{}/{}", custom.id, custom.inputs.len());
        }
        let text = format!("{operation:?}");
        let names: Vec<&str> = text
            .split(|letter: char| !letter.is_alphanumeric())
            .filter(|part| !part.is_empty())
            .filter(|part| !matches!(*part, "F32" | "I32" | "I64"))
            .take(2)
            .collect();
        names.join(".")
    };
    step.graph.graph.operations.iter().map(name).collect()
}
