//! The program that `docs/tpu.md` shows is the one that this crate makes.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::activation::relu;
use distribute_core::trace::{
    CapturedStep, DeviceTensor, Executable, TensorSpec, TraceDevice, Tracer,
};
use distribute_core::{
    Error, LogicalDevice, PerReplica, Replica, ReplicaContext, ReplicaStep, Result, Sgd, Strategy,
    StrategyExt, StrategyId, TensorData, TrainState,
};
use distribute_data::{average_loss, mean_squared_error};
use distribute_tpu_xla::lower_step;

/// Two replicas whose steps are lowered and not run.
#[derive(Debug, Clone)]
struct LowerOnly {
    replicas: Arc<[Replica]>,
    tracer: Arc<Text>,
    id: StrategyId,
}

#[derive(Debug)]
struct Text {
    device: TraceDevice,
    program: Mutex<String>,
}

impl Strategy for LowerOnly {
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
        Some(&*self.tracer)
    }

    fn run_replicas(&self, _: ReplicaStep<'_>) -> Result<()> {
        Err(Error::invalid("nothing is run"))
    }
}

impl Tracer for Text {
    fn device(&self) -> &TraceDevice {
        &self.device
    }

    fn compile(&self, step: CapturedStep) -> Result<Box<dyn Executable>> {
        *self.program.lock().unwrap() = lower_step(&step)?.program.text;
        Err(Error::invalid("nothing is run"))
    }

    fn upload(&self, data: TensorData) -> Result<Arc<dyn DeviceTensor>> {
        Ok(Arc::new(OnHost(data)))
    }
}

#[derive(Debug)]
struct OnHost(TensorData);

impl DeviceTensor for OnHost {
    fn spec(&self) -> TensorSpec {
        TensorSpec::of(&self.0)
    }

    fn read(&self, _: usize) -> Result<TensorData> {
        Ok(self.0.clone())
    }
}

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(4, 8).init(device),
            output: LinearConfig::new(8, 1).init(device),
        }
    }
}

type Batch = (Tensor<2>, Tensor<2>);

fn step(ctx: &ReplicaContext, (state, (x, y)): (&mut TrainState<Net>, Batch)) -> Result<Tensor<1>> {
    let hidden = relu(state.model.hidden.forward(x));
    let per_example = mean_squared_error(state.model.output.forward(hidden), y);
    let loss = average_loss(ctx, per_example)?;
    let gradients = ctx.gradient(&loss, &state.model)?;
    state.apply_gradients(ctx, gradients)?;
    Ok(loss)
}

#[test]
fn the_page_shows_this_program() {
    let replicas = (0..2).map(|id| Replica::new(id, LogicalDevice::cpu(id)));
    let strategy = LowerOnly {
        replicas: replicas.collect(),
        tracer: Arc::new(Text {
            device: TraceDevice::new(),
            program: Mutex::default(),
        }),
        id: StrategyId::new("lower-only", 2),
    };
    let mut state = strategy
        .scope(|device| TrainState::new(Net::new(device), Sgd::new(0.1)))
        .unwrap();
    let device = Device::flex();
    let part = || {
        (
            Tensor::<2>::zeros([2, 4], &device),
            Tensor::<2>::zeros([2, 1], &device),
        )
    };
    let batch = PerReplica::new(vec![part(), part()]);
    let error = strategy.run((&mut state, batch), step).unwrap_err();
    assert!(error.to_string().contains("nothing is run"), "{error}");
    let program = strategy.tracer.program.lock().unwrap();
    assert!(program.contains("stablehlo.all_reduce"), "{program}");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tpu.md");
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains(program.trim()),
        "docs/tpu.md lacks\n{program}"
    );
}
