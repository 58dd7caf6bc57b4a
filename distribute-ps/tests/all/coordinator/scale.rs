//! Many workers, for some time, in bounded memory.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use distribute_core::{Adam, Sgd, TensorData, TrainState};
use distribute_ps::{
    CoordinatorOptions, Gradient, HostTensor, OptimizerSpec, ParameterServer, RoundRobin,
    ServerOptions, StepRegistry, VariableRef, VariableSpec, Versions, WorkerContext,
};

use super::in_process::{Cluster, LIMIT};
use crate::stopwatch::computed;
use hostile::alone::is_alone;
use hostile::memory::resident_bytes;

/// Workers with these steps and two servers.
fn with_two_servers(steps: fn(&mut StepRegistry)) -> ([ParameterServer; 2], Cluster) {
    let servers =
        [(); 2].map(|()| ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap());
    let addresses = servers
        .each_ref()
        .map(|server| server.address().to_string());
    let mut options = CoordinatorOptions::default();
    // A full queue takes a while here.
    options.max_queued = 8;
    let cluster = Cluster::with_servers(workers(), &addresses, steps, options);
    (servers, cluster)
}

/// The long form: `DISTRIBUTE_PS_SECONDS=60`.
fn seconds() -> Option<Duration> {
    let text = std::env::var("DISTRIBUTE_PS_SECONDS").ok()?;
    text.parse().ok().map(Duration::from_secs)
}

/// To see what many workers in one process cost each other: `DISTRIBUTE_PS_WORKERS=1`.
fn workers() -> usize {
    let text = std::env::var("DISTRIBUTE_PS_WORKERS").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(64)
}

/// Schedules this many closures, or for half of the time of the long form, joins, and once more:
/// the rates, by the processor time that they took, and the memory after each.
fn run_twice(cluster: &Cluster, closures: u64, mut schedule: impl FnMut()) -> [(f64, usize); 2] {
    [(); 2].map(|()| {
        let (begun, before) = (Instant::now(), computed());
        let mut scheduled = 0;
        while match seconds() {
            Some(seconds) => begun.elapsed() < seconds / 2,
            None => scheduled < closures,
        } {
            schedule();
            scheduled += 1;
        }
        cluster.coordinator.join_timeout(LIMIT).unwrap();
        (
            scheduled as f64 / (computed() - before).as_secs_f64(),
            resident_bytes("self") >> 20,
        )
    })
}

/// The rates are much alike, and the memory too.
fn assert_steady([(first, before), (second, after)]: [(f64, usize); 2]) {
    println!("{first:.0} and {second:.0} closures for each second of a processor");
    println!("{before} and {after} MiB");
    // Whatever runs beside this process.
    assert!(
        second > first / 4.0,
        "{first:.0} closures for each second of a processor, then {second:.0}"
    );
    assert!(after < before + 64, "{before} MiB, then {after}");
}

#[test]
fn sixty_four_workers_take_closures_steadily_in_bounded_memory() {
    if !is_alone(
        module_path!(),
        "sixty_four_workers_take_closures_steadily_in_bounded_memory",
    ) {
        return;
    }
    let cluster = Cluster::new(workers(), |registry: &mut StepRegistry| {
        let step = |_: &WorkerContext, (rows,): (HostTensor,)| Ok(rows);
        registry.step("echo", step).unwrap();
    });
    let rows = HostTensor(TensorData::from([1.0_f32; 256]));
    assert_steady(run_twice(&cluster, 10_000, || {
        cluster.coordinator.schedule("echo", (&rows,)).unwrap();
    }));
}

/// What a worker knows of a thousand variables: their versions, and the gradients that it pushes.
struct Copy {
    variables: Vec<VariableRef>,
    known: Vec<Versions>,
    gradient: TensorData,
}

/// Pulls what has changed of a thousand variables and pushes gradients of them, without a model:
/// what the parameter servers and their clients cost by themselves.
fn exchange(registry: &mut StepRegistry) {
    let build = |worker: &WorkerContext| {
        let variables = worker.variables()?.variables()?;
        Ok(Copy {
            known: vec![Versions::default(); variables.len()],
            variables,
            gradient: TensorData::from([1.0_f32; 16]),
        })
    };
    let copy = registry.resource("copy", build).unwrap();
    let step = move |worker: &WorkerContext, (): ()| {
        let mut copy = worker.resource(&copy)?;
        let client = worker.variables()?;
        let pulled = client.pull(&copy.variables, &copy.known, Some(worker.closure_id()))?;
        copy.known = pulled.into_iter().map(|pulled| pulled.versions).collect();
        let gradients = copy.variables.iter();
        let gradients =
            gradients.map(|variable| (variable.clone(), Gradient::Dense(copy.gradient.clone())));
        let outcome = client.push(worker.next_update()?, gradients.collect(), &copy.known)?;
        Ok(outcome.applied)
    };
    registry.step("exchange", step).unwrap();
}

#[test]
fn sixty_four_workers_exchange_a_thousand_variables_steadily_in_bounded_memory() {
    if !is_alone(
        module_path!(),
        "sixty_four_workers_exchange_a_thousand_variables_steadily_in_bounded_memory",
    ) {
        return;
    }
    let (servers, cluster) = with_two_servers(exchange);
    let coordinator = &cluster.coordinator;
    let client = coordinator.variables().unwrap();
    let mut places = RoundRobin::new(servers.len()).unwrap();
    for number in 0..1_000 {
        let spec = VariableSpec {
            name: format!("model/{number}"),
            shape: vec![16],
            dtype: TensorData::from([0.0_f32]).dtype(),
            optimizer: Some(OptimizerSpec::of(&Sgd::new(1.0))),
        };
        let variable = client
            .create(&spec, &places.place(&spec.shape, 4, None).unwrap())
            .unwrap();
        let zeros = TensorData::from([0.0_f32; 16]);
        client.initialize(&variable, zeros).unwrap();
    }
    let first: Vec<_> = (0..64)
        .map(|_| coordinator.schedule("exchange", ()).unwrap())
        .collect();
    let applied: Vec<usize> = coordinator.fetch(&first).unwrap();
    assert!(applied.iter().all(|count| *count == 1_000));
    let mut scheduled = 64;
    assert_steady(run_twice(&cluster, 48, || {
        coordinator.schedule("exchange", ()).unwrap();
        scheduled += 1;
    }));
    let last = client.read("model/999").unwrap();
    assert_eq!(last.as_slice::<f32>().unwrap(), [-(scheduled as f32); 16]);
}

/// A model of 1,000 parameter tensors.
#[derive(Module, Debug)]
struct Many {
    layers: Vec<Linear>,
}

fn train(registry: &mut StepRegistry) {
    let build = |device: &distribute_core::Device| {
        let layers = (0..500)
            .map(|_| LinearConfig::new(4, 4).init(device))
            .collect();
        TrainState::new(Many { layers }, Adam::new(1e-3))
    };
    let state = registry.state("model", build).unwrap();
    let step = move |worker: &WorkerContext, (): ()| {
        worker.run(&state, (), |ctx, (state, ())| {
            let x = Tensor::<2>::ones([1, 4], ctx.device());
            let outputs = state
                .model
                .layers
                .iter()
                .map(|layer| layer.forward(x.clone()));
            let outputs: Vec<_> = outputs.collect();
            let loss = Tensor::cat(outputs, 0).square().mean();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })
    };
    registry.step("train", step).unwrap();
}

#[test]
fn sixty_four_workers_train_a_thousand_variables_steadily_in_bounded_memory() {
    if !is_alone(
        module_path!(),
        "sixty_four_workers_train_a_thousand_variables_steadily_in_bounded_memory",
    ) {
        return;
    }
    let (_servers, cluster) = with_two_servers(train);
    let coordinator = &cluster.coordinator;
    assert_eq!(
        coordinator.variables().unwrap().variables().unwrap().len(),
        1_000
    );
    // Every worker has its copy of the model before the memory is looked at.
    let first: Vec<_> = (0..64)
        .map(|_| coordinator.schedule("train", ()).unwrap())
        .collect();
    let before: Vec<f32> = coordinator.fetch(&first).unwrap();
    assert_steady(run_twice(&cluster, 32, || {
        coordinator.schedule("train", ()).unwrap();
    }));
    let last: f32 = coordinator.schedule("train", ()).unwrap().fetch().unwrap();
    assert!(last < before[0], "the loss was {} and is {last}", before[0]);
}
