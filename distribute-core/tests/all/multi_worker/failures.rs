//! A worker that differs, fails or does not come is named on all the others.

use std::time::{Duration, Instant};

use burn::nn::LinearConfig;
use distribute_core::collectives::CollectiveError;
use distribute_core::{
    Error, MultiWorkerMirroredStrategy, ReduceOp, Replicate, Strategy, StrategyExt,
};

use crate::multi_worker::group::{THREADS, cluster, free_addresses, try_workers};
use crate::multi_worker::options::LATE;

#[test]
fn a_worker_with_another_model_is_told_which_parameter_differs() {
    let outcomes = try_workers(THREADS, &[1, 1, 2], |strategy| {
        let inputs = if strategy.workers().unwrap().index() == 2 {
            5
        } else {
            4
        };
        strategy.scope(|device| LinearConfig::new(inputs, 2).init(device))?;
        Ok(())
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, Error::DifferentModels { worker: 2, .. }),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains("`weight` is f32 [5, 2] there and f32 [4, 2]"),
            "{text}"
        );
    }
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        let bias = strategy.is_chief();
        strategy.scope(|device| LinearConfig::new(4, 2).with_bias(bias).init(device))?;
        Ok(())
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(
            text.contains("worker 1") && text.contains("no parameter `bias`"),
            "{text}"
        );
    }
}

#[test]
fn a_step_that_fails_on_one_worker_ends_the_others() {
    let started = Instant::now();
    let outcomes = try_workers(THREADS, &[2, 1], |strategy| {
        strategy.run((), |ctx, ()| match ctx.replica_id() {
            1 => Err(Error::invalid("no more paper")),
            _ => ctx.all_reduce(ReduceOp::Sum, 1.0_f32),
        })?;
        Ok(())
    });
    assert!(started.elapsed() < Duration::from_secs(20), "found at once");
    let texts: Vec<String> = outcomes
        .into_iter()
        .map(|o| o.unwrap_err().to_string())
        .collect();
    assert_eq!(texts[0], "replica 1: no more paper");
    assert!(
        texts[1].contains("rank 0") && texts[1].contains("no more paper"),
        "{}",
        texts[1]
    );
}

#[test]
fn shapes_that_differ_between_workers_are_an_error_on_all() {
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        let size = 1 + strategy.workers().unwrap().index();
        strategy.run((), |ctx, ()| {
            ctx.all_reduce(ReduceOp::Sum, vec![1.0_f32; size])
        })?;
        Ok(())
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("differ"), "{text}");
    }
}

#[test]
fn calls_that_differ_between_workers_are_an_error_on_all() {
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        strategy.run((), |ctx, ()| match ctx.replica_id() {
            0 => ctx.broadcast(0, 1.0_f32),
            _ => ctx.broadcast(1, 1.0_f32),
        })?;
        Ok(())
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("broadcast(0) on replica 0"), "{text}");
        assert!(text.contains("broadcast(1) on replica 1"), "{text}");
    }
}

#[test]
fn calls_outside_of_steps_that_differ_are_an_error_on_all() {
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        let values = strategy.values_from(|_| 1.0_f32);
        let op = if strategy.is_chief() {
            ReduceOp::Sum
        } else {
            ReduceOp::Mean
        };
        strategy.reduce(op, values).map(drop)
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        let said = "`reduce sum` on worker 0, `reduce mean` on worker 1";
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_late_worker_is_named_by_all_replicas_of_the_others() {
    let (come, late) = std::sync::mpsc::channel::<()>();
    let late = std::sync::Arc::new(std::sync::Mutex::new(late));
    let started = Instant::now();
    let outcomes = crate::multi_worker::group::try_workers_with(
        LATE,
        &[2, 1],
        move |strategy| {
            if !strategy.is_chief() {
                // Until the chief has given up.
                let _ = late.lock().unwrap().recv();
            }
            let sum = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1.0_f32));
            if strategy.is_chief() {
                let _ = come.send(());
            }
            sum.map(drop)
        },
        |builder| builder.timeout(Duration::from_millis(200)),
    );
    assert!(started.elapsed() < Duration::from_secs(20));
    let error = outcomes.into_iter().next().unwrap().unwrap_err();
    let Error::Collective(CollectiveError::Timeout { missing, .. }) = error.root_cause() else {
        panic!("{error:?}");
    };
    assert_eq!(*missing, [1], "the worker that did not come");
}

#[test]
fn a_type_that_cannot_be_sent_is_refused_with_several_workers() {
    struct Opaque;
    impl Replicate for Opaque {
        fn replicate(&self, _: &distribute_core::Device) -> Self {
            Opaque
        }
    }
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        strategy.scope(|_| Opaque)?;
        Ok(())
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(
            text.contains("Opaque") && text.contains("derive `Replicate`"),
            "{text}"
        );
    }
}

#[test]
fn workers_meet_at_the_addresses_of_the_cluster() {
    let addresses = free_addresses(2);
    let threads: Vec<_> = (0..2)
        .map(|index| {
            let cluster = cluster(&addresses, index);
            std::thread::spawn(move || {
                let builder = MultiWorkerMirroredStrategy::builder().cluster(cluster);
                let strategy = builder.build()?;
                strategy.reduce(ReduceOp::Sum, strategy.values_from(|id| id as f32 + 1.0))
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap().unwrap(), 3.0);
    }
}

#[test]
fn a_worker_that_does_not_come_is_named() {
    let addresses = free_addresses(2);
    let error = MultiWorkerMirroredStrategy::builder()
        .cluster(cluster(&addresses, 0))
        .rendezvous_timeout(Duration::from_millis(300))
        .build()
        .unwrap_err();
    let Error::Collective(CollectiveError::Rendezvous { missing, .. }) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(missing[0].rank, 1);
    assert_eq!(missing[0].address, addresses[1]);
}

#[test]
fn one_worker_alone_and_an_evaluator_need_no_others() {
    let addresses = free_addresses(1);
    let strategy = MultiWorkerMirroredStrategy::builder()
        .cluster(cluster(&addresses, 0))
        .replicas(2)
        .build()
        .unwrap();
    assert!(strategy.workers().is_none() && strategy.is_chief());
    let sum = strategy
        .run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1.0_f32))
        .unwrap();
    assert_eq!(sum.values(), [2.0, 2.0]);
    let error = MultiWorkerMirroredStrategy::builder()
        .replicas(0)
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("at least 1 replica"), "{error}");
}
