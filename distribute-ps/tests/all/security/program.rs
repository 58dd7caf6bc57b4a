//! Whole programs over TLS.

use std::collections::BTreeMap;
use std::net::TcpListener;

use burn::nn::{Initializer, LinearConfig};
use burn::tensor::Tensor;
use distribute_core::cluster::TfConfigResolver;
use distribute_core::collectives::control::security::Security;
use distribute_core::{Sgd, TrainState};
use distribute_ps::{ClusterCoordinator, Program, Result, WorkerContext};

use super::certificates::Authority;
use crate::within_limit;

/// One task of a cluster; the chief returns the weight after this many updates.
fn task(cluster: &str, role: &str, index: usize, security: Security) -> Result<f32> {
    let mut program = Program::new();
    program.security(security);
    let state = program.state("model", |device| {
        let linear = LinearConfig::new(1, 1).with_bias(false);
        let linear = linear.with_initializer(Initializer::Zeros).init(device);
        TrainState::new(linear, Sgd::new(1.0))
    });
    let of_step = state.clone();
    program.step("train", move |worker: &WorkerContext, (): ()| {
        worker.run(&of_step, (), |ctx, (state, ())| {
            let x = Tensor::<2>::ones([1, 1], ctx.device());
            let loss = state.model.forward(x).sum();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(worker.worker_index() as i64)
        })
    });
    let task = format!(r#""task": {{"type": "{role}", "index": {index}}}"#);
    let config = format!(r#"{{"cluster": {cluster}, {task}}}"#);
    let env = BTreeMap::from([("TF_CONFIG".to_string(), config)]);
    let mut weight = 0.0;
    program.run_in(
        &TfConfigResolver::new(env),
        |coordinator: &ClusterCoordinator| {
            for _ in 0..30 {
                coordinator.schedule("train", ())?;
            }
            coordinator.join()?;
            let read = coordinator.variables()?.read("model/weight")?;
            weight = read.as_slice::<f32>().unwrap()[0];
            Ok(())
        },
    )?;
    Ok(weight)
}

#[test]
fn a_program_trains_with_certificates_and_a_token() {
    within_limit(|| {
        let sockets: Vec<TcpListener> = (0..4)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let address = |index: usize| sockets[index].local_addr().unwrap();
        let (chief, one, two, ps) = (address(0), address(1), address(2), address(3));
        let cluster =
            format!(r#"{{"chief": ["{chief}"], "worker": ["{one}", "{two}"], "ps": ["{ps}"]}}"#);
        drop(sockets);
        let authority = Authority::new();
        std::thread::scope(|scope| {
            let start = |role: &'static str, index| {
                let (cluster, security) = (&cluster, authority.security());
                scope.spawn(move || task(cluster, role, index, security))
            };
            let others = [start("ps", 0), start("worker", 0), start("worker", 1)];
            let chief = start("chief", 0);
            assert_eq!(chief.join().unwrap().unwrap(), -30.0);
            for other in others {
                other.join().unwrap().unwrap();
            }
        });
    });
}
