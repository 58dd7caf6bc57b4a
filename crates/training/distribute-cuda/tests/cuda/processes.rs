//! Two processes on one GPU, where NCCL refuses: gradients go through host memory, and the weights
//! are the same as in one process with the doubled batch.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use distribute_core::cluster::{Cluster, ClusterSpec, SimpleResolver};
use distribute_core::{MirroredStrategy, MultiWorkerMirroredStrategy, Strategy};
use distribute_cuda::cuda;

use crate::gpu::has_gpu;
use crate::model::{difference, state, train};
use crate::odd_gradients::weights;

const RANK: &str = "CUDA_TEST_RANK";
const ADDRESSES: &str = "CUDA_TEST_ADDRESSES";

/// Killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_worker_of_another_test() {
    let (Ok(rank), Ok(addresses)) = (std::env::var(RANK), std::env::var(ADDRESSES)) else {
        return;
    };
    let addresses = addresses.split(',').map(String::from).collect::<Vec<_>>();
    let spec = ClusterSpec::new([("worker", addresses)]).expect("a cluster");
    let resolver = SimpleResolver::new(spec)
        .task_type("worker")
        .task_id(rank.parse().expect("i"));
    let cluster = Cluster::resolve(&resolver)
        .expect("a cluster")
        .expect("a cluster");
    let strategy = MultiWorkerMirroredStrategy::builder()
        .cluster(cluster)
        .devices([cuda(0)])
        .build()
        .expect("the other worker");
    let told = strategy.device_reduction().join("; ");
    assert!(told.contains("on one GPU"), "{told}");
    let mut state = state(&strategy).expect("a state");
    train(&strategy, &mut state, 20, 64).expect("training");
    let found: Vec<String> = weights(state.primary().unwrap())
        .expect("weights")
        .iter()
        .map(|weight| weight.to_bits().to_string())
        .collect();
    println!("\n@@{}", found.join(" "));
}

fn free_addresses() -> String {
    let listeners =
        [0, 0].map(|port| std::net::TcpListener::bind(("127.0.0.1", port)).expect("a port"));
    listeners
        .map(|listener| listener.local_addr().expect("an address").to_string())
        .join(",")
}

#[test]
fn two_processes_on_one_gpu_train_to_the_weights_of_one() {
    if !has_gpu() {
        return;
    }
    let addresses = free_addresses();
    let mut workers: Vec<Process> = (0..2)
        .map(|rank| {
            let child = Command::new(std::env::current_exe().expect("this program"))
                .args([
                    "--exact",
                    "processes::a_worker_of_another_test",
                    "--nocapture",
                ])
                .env(RANK, rank.to_string())
                .env(ADDRESSES, &addresses)
                .stdout(Stdio::piped())
                .spawn();
            Process(child.expect("a process"))
        })
        .collect();
    let found = workers.iter_mut().map(|worker| {
        let lines = BufReader::new(worker.0.stdout.take().expect("piped")).lines();
        let mut answers = lines.map_while(Result::ok);
        let answer = answers.find_map(|line| line.strip_prefix("@@").map(String::from));
        let answer = answer.expect("the worker failed, its message is above");
        let bits = answer
            .split_whitespace()
            .map(|bits| bits.parse().expect("bits"));
        bits.map(f32::from_bits).collect::<Vec<f32>>()
    });
    let found: Vec<Vec<f32>> = found.collect();
    assert_eq!(found[0], found[1], "the workers' weights differ");
    let strategy = MirroredStrategy::builder()
        .devices([cuda(0)])
        .build()
        .expect("a GPU");
    let mut state = state(&strategy).expect("a state");
    train(&strategy, &mut state, 20, 64).expect("training");
    let one = weights(state.primary().unwrap()).expect("weights");
    let difference = difference(&found[0], &one);
    println!("largest difference from one process: {difference:e}");
    assert!(difference < 1e-3, "{difference:e}");
}
