//! Shards and servers are TensorFlow's.

use std::path::Path;

use distribute_ps::partitioners::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner,
};
use distribute_ps::{Placement, RoundRobin};
use serde_json::{Value, json};

/// The cases that TensorFlow 2.21 has answered.
fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../conformance/golden/parameter_server.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// `part_max_32_0`: a partitioner and its arguments.
fn partitioner(scenario: &str) -> Box<dyn Partitioner> {
    let parts: Vec<&str> = scenario.split('_').collect();
    let number = |index: usize| parts[index].parse::<usize>().unwrap();
    match parts[1] {
        "fixed" => Box::new(FixedShardsPartitioner {
            num_shards: number(2),
        }),
        "min" => Box::new(MinSizePartitioner::new(number(2), number(3)).unwrap()),
        "max" => {
            let most = Some(number(3)).filter(|most| *most > 0);
            Box::new(MaxSizePartitioner::new(number(2), most).unwrap())
        }
        other => panic!("{other}"),
    }
}

fn devices(placement: &Placement) -> Value {
    let device = |server| format!("/job:ps/replica:0/task:{server}/device:CPU:0");
    let devices = placement.shards.iter().map(|shard| device(shard.server));
    json!(devices.collect::<Vec<_>>())
}

#[test]
fn partitioned_variables_lie_where_tensorflow_puts_them() {
    let golden = golden();
    let mut placed = 0;
    let mut current: Option<(String, RoundRobin)> = None;
    for case in golden["cases"].as_array().unwrap() {
        let scenario = case["inputs"]["scenario"].as_str().unwrap_or_default();
        let op = case["inputs"]["op"].as_str().unwrap_or_default();
        let Some(shape) = op
            .strip_prefix("shards_")
            .filter(|_| scenario.starts_with("part_"))
        else {
            continue;
        };
        if current.as_ref().is_none_or(|(name, _)| name != scenario) {
            let servers = case["strategy"]["ps"].as_u64().unwrap() as usize;
            current = Some((scenario.to_string(), RoundRobin::new(servers).unwrap()));
        }
        let (_, round_robin) = current.as_mut().unwrap();
        let sizes = shape.split('x').filter(|size| !size.is_empty());
        let shape: Vec<usize> = sizes.map(|size| size.parse().unwrap()).collect();
        let partitioner = partitioner(scenario);
        let placement = round_robin.place(&shape, 4, Some(&*partitioner)).unwrap();
        let expected = &case["expect"];
        let shapes: Vec<_> = placement.shards.iter().map(|shard| &shard.shape).collect();
        assert_eq!(json!(shapes), expected["shards"], "{}", case["name"]);
        assert_eq!(devices(&placement), expected["devices"], "{}", case["name"]);
        let is_sharded = expected["class"] == "ShardedVariable";
        assert_eq!(placement.is_sharded(), is_sharded, "{}", case["name"]);
        if let Some(first) = expected["first_value_of_each"].as_array() {
            let width: usize = shape[1..].iter().product();
            let firsts = placement
                .shards
                .iter()
                .map(|shard| (shard.offset * width) as f64);
            assert_eq!(
                &json!(firsts.collect::<Vec<_>>()),
                &json!(first),
                "{}",
                case["name"]
            );
        }
        placed += 1;
    }
    assert!(placed >= 20, "{placed}");
}

#[test]
fn variables_go_round_whatever_their_size() {
    let mut round_robin = RoundRobin::new(3).unwrap();
    let servers = |placement: Placement| placement.shards[0].server;
    let shapes: [&[usize]; 7] = [&[], &[1000, 1000], &[1], &[0], &[3], &[2, 2], &[]];
    let found: Vec<_> = shapes
        .map(|shape| servers(round_robin.place(shape, 4, None).unwrap()))
        .into();
    assert_eq!(found, [0, 1, 2, 0, 1, 2, 0]);
    assert!(RoundRobin::new(0).unwrap_err().to_string().contains("`ps`"));
}

/// Cuts however it is told.
#[derive(Debug)]
struct Told(Vec<usize>);

impl Partitioner for Told {
    fn partitions(&self, _: &[usize], _: usize) -> distribute_core::Result<Vec<usize>> {
        Ok(self.0.clone())
    }
}

#[test]
fn partitioners_that_cut_otherwise_are_refused() {
    let mut round_robin = RoundRobin::new(2).unwrap();
    for parts in [vec![1, 2], vec![0, 1], vec![5, 1], vec![2], vec![]] {
        let error = round_robin
            .place(&[4, 2], 4, Some(&Told(parts)))
            .unwrap_err();
        assert!(error.to_string().contains("first axis"), "{error}");
    }
    // The refused ones took no turn.
    assert_eq!(
        round_robin.place(&[1], 4, None).unwrap().shards[0].server,
        0
    );
}
